"""Tasks over processes: each done once, and nobody left behind by a parent that was killed."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from slacktide.lab.simulation.scenario.running import done_in_processes


def square_root(task: float) -> dict[str, Any]:
    return {"root": math.sqrt(task)}


def keyed(*tasks: float) -> list[tuple[float, float]]:
    return [(task, task) for task in tasks]


def test_one_job_works_in_this_process_and_in_order():
    pairs = list(done_in_processes(square_root, keyed(4.0, 9.0), jobs=1))
    assert pairs == [(4.0, {"root": 2.0}), (9.0, {"root": 3.0})]


def test_an_error_of_the_work_is_raised():
    pairs = done_in_processes(square_root, keyed(4.0, -1.0, 9.0), jobs=1)
    assert next(pairs) == (4.0, {"root": 2.0})
    with pytest.raises(ValueError):
        next(pairs)


def test_two_jobs_do_every_task_once():
    pairs = sorted(done_in_processes(math.sqrt, keyed(*map(float, range(20))), jobs=2))  # type: ignore[arg-type]  # any function will do
    assert pairs == [(float(task), math.sqrt(task)) for task in range(20)]


KILLED = """
import multiprocessing, time
from slacktide.lab.simulation.scenario.running import done_in_processes
if __name__ == "__main__":
    tasks = iter([(0, 0.0), *((i, 60.0) for i in range(1, 4))])
    next(done := done_in_processes(time.sleep, tasks, jobs=2))
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    time.sleep(60)
"""


def lives(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_children_do_not_outlive_a_parent_that_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    children = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(children) == 2
    parent.kill()
    parent.communicate()
    give_up = time.monotonic() + 20.0
    while any(map(lives, children)):
        assert time.monotonic() < give_up, "a child has outlived its parent"
        time.sleep(0.01)
