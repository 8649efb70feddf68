from dataclasses import dataclass

from slacktide.testing import LinearTimes, VirtualWorld, make_request
from slacktide_papers import harness


@dataclass(frozen=True, slots=True)
class WaitingRow(harness.ResultRow):
    batches: int


def points(scope):
    fifo = harness.Contender("first come, first served", "fifo")
    cells = [harness.ExperimentCell("burst", fifo, seed) for seed in range(scope.seeds)]
    yield harness.Point("table-1", tuple(cells))


def play(cell):
    world = VirtualWorld(LinearTimes(1.0, 0.0), scheduler=cell.contender.policy)
    world.run(*(make_request(number, arrival=0.1 * number) for number in range(9)))
    return {"batches": len(world.batches)}


def conclude(experiments, scope, measured):
    rows = [WaitingRow(p.experiment, p.setting, runs[0]["batches"]) for p, runs in measured]
    goal = harness.Goal("burst", "batches", str(rows[0].batches), "3", rows[0].batches == 3)
    return rows, [goal], None


PAPER = harness.Publication(
    title="Waiting (2026)",
    code=(__file__,),
    experiments={"table-1": harness.Experiment("Bursts", points)},
    scope=harness.TraceScope(seeds=3, duration=9),
    quick=harness.TraceScope(seeds=1, duration=9),
    play=play,
    row=WaitingRow,
    conclude=conclude,
)
