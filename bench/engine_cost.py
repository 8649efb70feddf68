"""Engine and scheduler alone, in virtual time: µs per request at batch 8, no I/O at all.

One lane, always busy, eight requests waiting whenever it gets free: the steady state of a loaded
server. The engine is driven as the server's driver does it: requests of one turn of the event loop
are handed over together (here: eight at a time, and one at a time beside it), each batch's end by
itself, `next_wakeup` asked after every call. Making the `Request` objects is the front end's work
and not counted.

Also: a `slack` decision with 1,000 pending (bench/scheduler_decisions.py measures many more).
`python -m bench.engine_cost` profiles instead of measuring.
"""

from __future__ import annotations

import gc
from statistics import median
from time import perf_counter

from bench.machine import cores, pin
from bench.measurement import Figure, Options, Result, at_most
from slacktide.domain import (
    BatchFinished,
    Deployment,
    ExitPolicy,
    LaneSpec,
    OutcomeKind,
    Plan,
    PlanChanged,
    PoolId,
    ReplicaUp,
    Request,
    Route,
    RunBatch,
    StartReplica,
    Submitted,
)
from slacktide.engine import Engine
from slacktide.engine.ports import PoolFactory, PoolParts, PoolView
from slacktide.profiles import CorrectedTimes, LatencyTable
from slacktide.scheduling import make_scheduler

BATCH = 8
FIXED, PER_ROW = 0.004, 0.0005
"""Seconds: a batch of 8 takes 8 ms, so that batching pays and every policy takes all eight."""
POOL = PoolId("m", "1")


def loaded_engine(policy: str, exits: tuple[ExitPolicy, ...] = ()) -> Engine:
    """An engine with one warm replica of one model under `policy`, left early as `exits` say."""
    times = CorrectedTimes(LatencyTable.linear(FIXED, PER_ROW, BATCH, spread=1.1))

    def parts(pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        scheduler = make_scheduler(policy, {}, max_batch=max_batch, times=times, view=view)
        return PoolParts(scheduler, times)

    factory: PoolFactory = parts
    engine = Engine(factory)
    plan = Plan(
        lanes=(LaneSpec("cpu", (0,)),),
        deployments=(Deployment(POOL, "cpu", BATCH),),
        routes=(Route("m", POOL),),
        exits=exits,
    )
    (start,) = (c for c in engine.handle(PlanChanged(plan), now=0.0) if isinstance(c, StartReplica))
    engine.handle(ReplicaUp(start.replica.id), now=0.0)
    return engine


def cost_us(policy: str, batches: int, *, together: bool) -> float:
    """µs of engine, scheduler and correction per request; `together`: one call for each eight."""
    engine = loaded_engine(policy)
    now, id, seconds = 0.0, 0, FIXED + PER_ROW * BATCH
    spent = 0.0
    running: int | None = None
    # Deadlines a few batches away: nobody is hopeless, everybody must be considered.
    for _ in range(batches + 1):
        events = [
            Submitted(Request(id + i, "m", arrival=now, deadline=now + 5 * seconds + i * 1e-4))
            for i in range(BATCH)
        ]
        id += BATCH
        begin = perf_counter()
        if together:
            commands = engine.handle_all(events, now=now)
            engine.next_wakeup()
        else:
            commands = []
            for event in events:
                commands += engine.handle(event, now=now)
                engine.next_wakeup()
        spent += perf_counter() - begin
        now += seconds
        if running is not None:
            begin = perf_counter()
            commands += engine.handle(BatchFinished(running), now=now)
            engine.next_wakeup()
            spent += perf_counter() - begin
        started = [command.batch for command in commands if isinstance(command, RunBatch)]
        if len(started) != 1:
            raise RuntimeError(f"{policy}: expected one batch, got {len(started)}")
        running = started[0].id
    counts = engine.state.request_table.counts["m"]
    if counts.count(OutcomeKind.SERVED) != counts.ended:
        raise RuntimeError(f"{policy}: not everybody was served: {counts.by_reason}")
    return spent / counts.ended * 1e6


def run(options: Options) -> Result:
    """Median of five runs (three when quick)."""
    from bench.scheduler_decisions import decision_us

    pin(cores().server)
    result = Result("engine_cost")
    batches, rounds = (300, 3) if options.quick else (3_000, 5)
    rows = [(policy, together) for policy in ("fifo", "edf", "slack") for together in (True, False)]
    samples: dict[tuple[str, bool], list[float]] = {row: [] for row in rows}
    decisions: list[float] = []
    gc.collect()
    gc.freeze()  # what the imports left is not the engine's to collect
    for _ in range(rounds):
        for policy, together in rows:
            samples[policy, together].append(cost_us(policy, batches, together=together))
        decisions.append(decision_us("slack", "weight-bound", 1_000, 0.6, 100))
    for (policy, together), costs in samples.items():
        how = "8 in one turn of the loop" if together else "each in a turn of its own"
        goal = at_most(8.0) if policy != "slack" else None
        result.figures.append(
            Figure(f"{policy}, {how}", median(costs), "µs/request", goal, samples=tuple(costs))
        )
    result.figures.append(
        Figure(
            "slack decision, 1,000 pending",
            median(decisions),
            "µs",
            at_most(100.0),
            samples=tuple(decisions),
        )
    )
    return result


if __name__ == "__main__":
    import cProfile
    import pstats

    profile = cProfile.Profile()
    profile.enable()
    cost_us("edf", 3_000, together=False)
    profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats(30)
