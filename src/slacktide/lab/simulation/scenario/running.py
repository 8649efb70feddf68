"""Runs one cell with one seed and scores it like a live run; runs many tasks in processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from slacktide.domain import OptionError
from slacktide.lab.load.report import Report
from slacktide.lab.load.report.provenance import gather
from slacktide.lab.simulation.items import Item
from slacktide.lab.simulation.scenario.building import build
from slacktide.lab.simulation.scenario.pipelines import PipelinesWorld
from slacktide.lab.simulation.scenario.reading import Cell, ScenarioError, YamlPositions, checked
from slacktide.lab.simulation.scenario.servers import ServersRun
from slacktide.lab.simulation.scenario.world import World
from slacktide.lab.simulation.world.results import Scorer
from slacktide.planning import PlannerError

_provenance = cache(gather)
"""Provenance of this process, gathered once because that takes a while."""
_PROGRESS_EVERY = 2_000
"""Requests between two reports of progress."""

Progress = Callable[[float], None]
"""Called with the share of the run's time that has passed, 0 to 1."""


def run_cell(
    cell: Cell, seed: int, *, progress: Progress | None = None, requests: Path | None = None
) -> Report:
    """Run `cell` with this seed; repeated runs give the same report. `requests`: a file that gets a
    line about each request; percentiles are then exact. Raises ScenarioError, and OSError if that
    file cannot be written."""
    try:
        if cell.scenario.pipelines:
            if requests is not None:
                raise ScenarioError(["--requests: expected a scenario without 'pipelines'"])
            return PipelinesWorld(cell).run(seed, _provenance(), progress)
        world = build(cell)
        reports = [_run(cell, seed, world, kappa, progress, requests) for kappa in world.kappas]
        best = max(reports, key=lambda report: report.goodput)
        if (
            requests is not None and best is not reports[-1]
        ):  # the file is about the run that counts
            return _run(cell, seed, world, world.kappas[reports.index(best)], progress, requests)
        return best
    except (OptionError, PlannerError) as error:  # an imported class could not be made
        raise ScenarioError([str(error)]) from error


def check_cell(cell: Cell) -> None:
    """Raise ScenarioError for the first fault in `cell`, without running it."""
    if cell.scenario.pipelines:
        PipelinesWorld(cell)
        return
    world = build(cell)
    if cell.scenario.servers:
        ServersRun(cell, world)


def _run(
    cell: Cell,
    seed: int,
    world: World,
    kappa: float,
    progress: Progress | None,
    requests: Path | None,
) -> Report:
    scenario = cell.scenario
    with nullcontext() if requests is None else requests.open("w", encoding="utf-8") as file:
        scorer = Scorer(warmup_s=scenario.warmup, duration_s=scenario.duration, requests=file)
        items = world.items(seed)
        if progress is not None:
            items = _with_progress(items, world.length, progress)
        forwarded, allocated = None, None
        if scenario.servers:
            servers = ServersRun(cell, world)
            servers.run(items, seed, kappa, scorer.answered)
            simulations, forwarded = servers.simulations, servers.forwarded
        else:
            simulation = world.simulation(seed, answered=scorer.answered, kappa=kappa)
            simulation.run(items)
            simulations, allocated = [simulation], simulation.hardware.allocated
        length = max(scenario.length, *(simulation.now for simulation in simulations))
        labels = (f"{key}={value}" for key, value in cell.labels.items())
        report = scorer.report(
            title=" ".join((scenario.title, *labels)),
            seed=seed,
            configuration={**cell.document, "seeds": [seed]},
            provenance=_provenance(),
            cores=sum(simulation.hardware.busy_s for simulation in simulations) / length,
            allocated=allocated,
        )
        return replace(report, forwarded=forwarded)


def task_of(cell: Cell, seed: int) -> dict[str, Any]:
    """Return a cell and a seed as plain data, for `run_task` in another process."""
    return {
        "document": dict(cell.document),
        "labels": dict(cell.labels),
        "file": cell.positions.file,
        "folder": str(cell.folder),
        "imports": cell.imports,
        "seed": seed,
    }


def run_task(task: Mapping[str, Any]) -> dict[str, Any]:
    """Run a task of `task_of`, and return its report as plain data."""
    positions = YamlPositions(task["file"], {})
    cell = Cell(
        scenario=checked(task["document"], positions, imports=task["imports"]),
        document=task["document"],
        labels=task["labels"],
        positions=positions,
        folder=Path(task["folder"]),
        imports=task["imports"],
    )
    return run_cell(cell, task["seed"]).to_dict()


def _with_progress(items: Iterable[Item], length: float, progress: Progress) -> Iterator[Item]:
    """Yield `items`, and report progress every few thousand of them."""
    for number, item in enumerate(items):
        if number % _PROGRESS_EVERY == 0:
            progress(min(1.0, item.arrival / length))
        yield item


Key = TypeVar("Key")
Task = TypeVar("Task")
Document = dict[str, Any]

_AHEAD = 4
"""Tasks queued per process: enough to keep it busy, few enough to stop quickly."""


def done_in_processes(
    work: Callable[[Task], Document], tasks: Iterable[tuple[Key, Task]], *, jobs: int
) -> Iterator[tuple[Key, Document]]:
    """Yield (key, result of `work`) in the order in which tasks finish.

    `work` must be a function of a module, and tasks must be plain data. With one job, all tasks run
    in this process. An exception of `work` is raised here. Stopping early (an error, Ctrl-C or a
    closed iterator) ends the processes immediately; they also end if this process is killed.
    """
    if jobs == 1:
        for key, task in tasks:
            yield key, work(task)
        return
    # Spawned, not forked: a child must not share threads or descriptors of its parent.
    context = multiprocessing.get_context("spawn")
    unrelated = set(multiprocessing.active_children())
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
        for child in set(multiprocessing.active_children()) - unrelated:
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Set up a child process: it must not outlive its parent, and ends without a traceback."""
    # By default Ctrl-C would have every child print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.set_threshold(50_000, 20, 50)  # few reference cycles arise: 5 % faster
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
