"""Cells over processes: each once, in one process or in two."""

from __future__ import annotations

import math
from typing import Any

import pytest

from slacktide.reproduce.orloj.cell import Cell, Contender
from slacktide.reproduce.orloj.run import measure
from slacktide.reproduce.workers import measured


def square_root(cell: float) -> dict[str, Any]:
    return {"root": math.sqrt(cell)}


def test_one_job_works_in_this_process_and_in_order():
    assert list(measured(square_root, [4.0, 9.0], jobs=1)) == [
        (4.0, {"root": 2.0}),
        (9.0, {"root": 3.0}),
    ]


def test_what_the_work_raises_is_raised():
    found = measured(square_root, [4.0, -1.0, 9.0], jobs=1)
    assert next(found) == (4.0, {"root": 2.0})
    with pytest.raises(ValueError):
        next(found)


def test_two_jobs_do_every_cell_once():
    # Cells of the real thing: a child process does not know this test module.
    fifo = Contender("fifo", "fifo")
    cells = [Cell("P", "one-modal", 2.0, fifo, seed, 60) for seed in range(1, 5)]
    found = dict(measured(measure, cells, jobs=2))
    assert found == {cell: measure(cell) for cell in cells}
