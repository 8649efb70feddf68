"""`slack` whose predictions are wrong, strange, or change under its feet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from slacktide.domain import (
    Deployment,
    LaneSpec,
    Notice,
    Outcome,
    OutcomeKind,
    Plan,
    PoolId,
    Request,
    Route,
)
from slacktide.engine import Engine, PoolParts
from slacktide.lab.simulation import ByLength, DrawnRequest, Item, SimulatedUpload, Simulation
from slacktide.profiles import BatchLatency, FixedTimes, RunClasses, classes_of_samples
from slacktide.scheduling import make_scheduler

POOL = PoolId("m", "1")
LATENCY = BatchLatency(1.0, 1.0, (1, 2, 4, 8, 16))
MEANS = {"short": 0.3, "middle": 1.0, "long": 1.7}
SLO = 7.5
COUNT = 1000


def believed(means: Mapping[str, float]) -> RunClasses:
    """What is predicted if applications have these mean lengths."""
    rng = np.random.default_rng(9)
    samples = {name: rng.normal(mean, 0.1, 500).clip(0.02) for name, mean in means.items()}
    return classes_of_samples(samples, LATENCY)


def requests(name_of: Mapping[str, str] | None = None) -> list[DrawnRequest]:
    """Poisson arrivals at 1.2 × what single requests can carry."""
    rng = np.random.default_rng(1)
    arrivals = np.cumsum(rng.exponential(2.0 / 1.2, COUNT)).tolist()
    drawn = rng.choice(list(MEANS), COUNT).tolist()
    return [
        DrawnRequest(
            id=id,
            model="m",
            arrival=at,
            deadline=at + SLO,
            application=name if name_of is None else name_of.get(name, name),
            length=max(0.02, float(rng.normal(MEANS[name], 0.1))),
        )
        for id, (at, name) in enumerate(zip(arrivals, drawn, strict=True))
    ]


def finished(
    policy: str, times: FixedTimes, items: Sequence[Item], *, check: bool = False
) -> float:
    """The share that is answered in time; everybody is answered once."""
    ends: dict[int, OutcomeKind] = {}

    def answered(request: Request | Notice, outcome: Outcome) -> None:
        assert request.id not in ends
        ends[request.id] = outcome.kind

    def parts(pool, max_batch, view) -> PoolParts:
        scheduler = make_scheduler(policy, {}, max_batch=max_batch, times=times, view=view)
        return PoolParts(scheduler, times)

    plan = Plan((LaneSpec("l", (0,)),), (Deployment(POOL, "l", 16),), (Route("m", POOL),))
    simulation = Simulation(Engine(parts), plan, ByLength(LATENCY), answered=answered, check=check)
    simulation.run(items)
    assert len(ends) == len(items)
    return sum(kind is OutcomeKind.SERVED for kind in ends.values()) / len(items)


class Unclassed(FixedTimes):
    """Predicts the time of a batch of anybody's requests, and knows no classes."""

    def classes(self, cores: int) -> None:  # type: ignore[override]  # narrower than the port
        return None


@pytest.mark.parametrize(("factor", "ahead_of_edf"), [(1.3, -0.01), (1 / 1.3, 0.05)])
def test_lengths_that_are_off_by_a_third_leave_it_ahead(factor: float, ahead_of_edf: float) -> None:
    """Predictions that are too long make `edf` careful: it is then as good as `slack`, where it
    knows classes, and no better."""
    off = believed({name: factor * mean for name, mean in MEANS.items()})
    right = finished("slack", FixedTimes(believed(MEANS)), requests())
    wrong = finished("slack", FixedTimes(off), requests())
    assert right - 0.06 < wrong
    assert wrong > finished("edf", FixedTimes(off), requests()) + ahead_of_edf
    assert wrong > finished("edf", Unclassed(off), requests()) + 0.05
    assert wrong > finished("orloj", FixedTimes(off), requests()) + 0.03


def test_strangers_are_taken_to_be_long_and_served() -> None:
    """Nobody has ever heard of any of the applications: all are alike, and `slack`, which goes by
    the differences, is no better than an `edf` that takes them to be long too."""
    strangers = requests(dict.fromkeys(MEANS, "stranger"))
    times = FixedTimes(believed(MEANS))
    slack = finished("slack", times, strangers)
    assert slack == finished("slack", times, requests(dict.fromkeys(MEANS, "long")))
    assert slack > finished("edf", Unclassed(believed(MEANS)), strangers) + 0.03
    assert slack == pytest.approx(finished("edf", times, strangers), abs=0.03)


class Restless(FixedTimes):
    """Changes its mind with every batch: other classes, other numbers of them, or none."""

    revision = 0

    def __init__(self, minds: Sequence[FixedTimes | None]) -> None:
        super().__init__(believed(MEANS))
        self._minds = minds

    def classes(self, cores: int) -> RunClasses | None:
        mind = self._minds[self.revision % len(self._minds)]
        return None if mind is None else mind.classes(cores)

    def observe(self, seconds, members, rows, cores) -> None:
        self.revision += 1


def test_nobody_is_lost_when_classes_change_all_the_time() -> None:
    minds = [
        FixedTimes(believed(MEANS)),
        FixedTimes(believed({"short": 1.7, "middle": 1.0, "long": 0.3})),
        None,
        FixedTimes(believed({"long": 1.0})),
        FixedTimes(believed(MEANS | {"other": 3.0})),
    ]
    items: list[Item] = []
    for request in requests()[:300]:
        if request.id % 3:
            items.append(request)
            continue
        notice = Notice(
            request.id,
            "m",
            request.arrival,
            request.deadline,
            payload_bytes=1,
            complete_at=request.arrival + 0.3,
            application=request.application,
            client=f"c{request.id % 4}",
        )
        stalls = request.id % 12 == 0
        items.append(SimulatedUpload(notice, None if stalls else request, request.arrival + 0.3))
    restless = finished("slack", Restless(minds), items, check=True)
    assert restless > 0.4
