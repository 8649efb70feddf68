"""Tasks over several processes, and an orderly end when somebody has had enough."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from typing import Any, TypeVar

Key = TypeVar("Key")
Task = TypeVar("Task")
Document = dict[str, Any]

_AHEAD = 4
"""Tasks handed out for each process: enough to keep it busy, few enough to stop quickly."""


def done_in_processes(
    work: Callable[[Task], Document], tasks: Iterable[tuple[Key, Task]], *, jobs: int
) -> Iterator[tuple[Key, Document]]:
    """(key, what `work` made of its task), in whatever order they are done.

    `work` must be a function of a module, and tasks plain data. With one job it is all done in this
    process. What `work` raises is raised here. Whoever stops early, by an error, by Ctrl-C or by
    closing the iterator, ends the processes with what they are at.
    """
    if jobs == 1:
        for key, task in tasks:
            yield key, work(task)
        return
    # Spawned, not forked: a child must not share threads or descriptors of its parent. By default
    # Ctrl-C would have every child print where it was; like this it is over at once.
    context = multiprocessing.get_context("spawn")
    strangers = set(multiprocessing.active_children())
    source = iter(tasks)
    pool = ProcessPoolExecutor(
        jobs,
        mp_context=context,
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        running: dict[Future[Document], Key] = {
            pool.submit(work, task): key for key, task in islice(source, jobs * _AHEAD)
        }
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield running.pop(future), future.result()
            running.update(
                (pool.submit(work, task), key) for key, task in islice(source, len(done))
            )
    except BaseException:
        for child in set(multiprocessing.active_children()) - strangers:
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
