"""Cells over several processes: each measured once, kept as soon as it is done."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from typing import Any, TypeVar

Cell = TypeVar("Cell")
Document = dict[str, Any]

_AHEAD = 4
"""Cells handed out for each process: enough to keep it busy, few enough to stop quickly."""


def measured(
    work: Callable[[Cell], Document], cells: Iterable[Cell], *, jobs: int
) -> Iterator[tuple[Cell, Document]]:
    """(cell, what `work` made of it), in whatever order they are done.

    `work` must be a function of a module, and cells plain data. With one job it is all done in
    this process. What `work` raises is raised here, and the rest is not begun.
    """
    if jobs == 1:
        for cell in cells:
            yield cell, work(cell)
        return
    # Spawned, not forked: a child must not share threads or descriptors of its parent.
    context = multiprocessing.get_context("spawn")
    source = iter(cells)
    pool = ProcessPoolExecutor(jobs, mp_context=context)
    try:
        running: dict[Future[Document], Cell] = {
            pool.submit(work, cell): cell for cell in islice(source, jobs * _AHEAD)
        }
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield running.pop(future), future.result()
            running.update((pool.submit(work, cell), cell) for cell in islice(source, len(done)))
    finally:
        pool.shutdown(cancel_futures=True)
