"""Tasks over several processes, and an orderly end when somebody has had enough."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from threading import Thread
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
    closing the iterator, ends the processes with what they are at; they end too if this process is
    killed.
    """
    if jobs == 1:
        for key, task in tasks:
            yield key, work(task)
        return
    # Spawned, not forked: a child must not share threads or descriptors of its parent.
    context = multiprocessing.get_context("spawn")
    strangers = set(multiprocessing.active_children())
    source = iter(tasks)
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin)
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


def _begin() -> None:
    """What every child does first: it must not outlive its parent, nor make a fuss at the end."""
    # By default Ctrl-C would have every child print where it was; like this it is over at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
