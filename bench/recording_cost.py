"""What recording adds: µs of the server's loop for each request, bytes, and how fast it is read.

A stretch of a saturated server's life is made in virtual time (one lane, batches of eight): the
very calls of the engine that a driver would make, each request in a turn of its own, with their
commands. They are then handed to a recorder as the driver hands them over. The thread that writes
is left out of the µs: it runs once a second and holds no lock meanwhile.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from typing import TypeAlias

from bench.engine_cost import BATCH, FIXED, PER_ROW, POOL
from bench.machine import cores, pin
from bench.measurement import Figure, Options, Result, at_most
from slacktide.domain import Command, Deployment, Event, LaneSpec, Plan, PoolId, Request, Route
from slacktide.engine import Engine, EngineSettings, PoolParts, PoolView
from slacktide.lab.replay import replay
from slacktide.lab.simulation import AsExpected, Simulation
from slacktide.profiles import CorrectedTimes, LatencyTable
from slacktide.recording import Recorder, Recording
from slacktide.recording.times import export_times
from slacktide.scheduling import PoolRecipe

REQUEST_GOAL_US = 5.0
RECIPE = PoolRecipe("edf")
TABLE = LatencyTable.linear(FIXED, PER_ROW, BATCH, spread=1.1)
PLAN = Plan(
    lanes=(LaneSpec("cpu", (0,)),),
    deployments=(Deployment(POOL, "cpu", BATCH),),
    routes=(Route("m", POOL),),
)

Called: TypeAlias = tuple[Sequence[Event], float, Sequence[Command]]


def run(options: Options) -> Result:
    """Median of five rounds (three when quick)."""
    pin(cores().server)
    result = Result("recording_cost")
    count, rounds = (8_000, 3) if options.quick else (80_000, 5)
    calls = _life(count)
    gc.collect()
    gc.freeze()
    spent, read, size = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            path = Path(folder) / f"{number}.rec"
            spent.append(_write(path, calls) / count * 1e6)
            size = path.stat().st_size
            begin = perf_counter()
            events = replay(Recording(path)).events
            read.append(events / (perf_counter() - begin))
    events = sum(len(call[0]) for call in calls)
    goal = at_most(REQUEST_GOAL_US)
    result.figures += [
        Figure("recording a request", median(spent), "µs", goal, samples=tuple(spent)),
        Figure("recording an event", median(spent) * count / events, "µs"),
        Figure("recorded for each request", size / count, "bytes"),
        Figure("replayed", median(read), "events/s", samples=tuple(read)),
    ]
    return result


def _life(count: int) -> list[Called]:
    """Every call of an engine that serves `count` requests as fast as one lane can."""
    calls: list[Called] = []

    def parts(pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        return RECIPE.parts(CorrectedTimes(TABLE), max_batch=max_batch, view=view)

    gap = (FIXED + PER_ROW * BATCH) / BATCH
    simulation = Simulation(
        Engine(parts),
        PLAN,
        AsExpected(CorrectedTimes(TABLE)),
        watch=lambda events, now, commands: calls.append((events, now, commands)),
    )
    simulation.run(
        Request(
            id,
            "m",
            1000.0 + id * gap,
            1000.05 + id * gap,
            signature=((3, 64, 64),),
            version=None,
            client="127.0.0.1",
        )
        for id in range(count)
    )
    return calls


def _write(path: Path, calls: Sequence[Called]) -> float:
    """Seconds of CPU time that the loop spends on recording `calls`."""
    recorder = Recorder(path, EngineSettings(), limit=1 << 40, flush_s=3600.0)
    times = CorrectedTimes(TABLE)
    recorder.opened(POOL, BATCH, RECIPE, lambda: export_times(times))
    begin = thread_time()
    for events, now, commands in calls:
        recorder.called(events, now, commands)
        recorder.encode()
    seconds = thread_time() - begin
    recorder.close()
    return seconds
