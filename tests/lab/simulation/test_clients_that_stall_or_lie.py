"""Announcing what does not come: it gains nothing, and costs others nothing measurable.

One lane under `slack`, busy but not overrun. Honest clients send whole requests, or announce and
keep their word; beside them one announces at the same rate and stalls, trickles, or comes late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slacktide.domain import Notice, Reason, Request
from slacktide.lab.simulation import Item, SimulatedUpload

SLO = 0.024
FIXED, PER_ROW = 0.010, 0.001
RATE = 180.0
LENGTH = 4.0
"""Seconds."""
AWAY = 100_000
"""Ids of the one who does not keep its word start here."""

Body = Callable[[Notice, np.random.Generator], SimulatedUpload]


def arrivals(rate: float, seed: int) -> list[float]:
    rng = np.random.default_rng(seed)
    return [float(at) for at in np.cumsum(rng.exponential(1 / rate, int(rate * LENGTH)))]


def honest(announced: bool) -> list[Item]:
    """Half of them announced 4 ms before they are complete, as truly happens."""
    items: list[Item] = []
    for id, at in enumerate(arrivals(RATE, 1)):
        request = Request(id, "m", at, at + SLO, client=f"good{id % 5}")
        if announced and id % 2:
            items.append(
                SimulatedUpload(notice(id, at, 0.004, request.client), request, at + 0.004)
            )
        else:
            items.append(request)
    return items


def notice(id: int, at: float, takes: float, client: str) -> Notice:
    return Notice(id, "m", at, at + SLO, 1000, complete_at=at + takes, client=client)


def stalls(notice: Notice, rng: np.random.Generator) -> SimulatedUpload:
    """Nothing comes after the headers; complete any moment now, it says."""
    return SimulatedUpload(notice, None, notice.arrival)


def trickles(notice: Notice, rng: np.random.Generator) -> SimulatedUpload:
    """Byte by byte: complete long after the deadline."""
    return SimulatedUpload(notice, request_of(notice), notice.arrival + 10 * SLO)


def dawdles(notice: Notice, rng: np.random.Generator) -> SimulatedUpload:
    """Up to three times as long as it says, some of them too late."""
    return SimulatedUpload(
        notice, request_of(notice), notice.arrival + float(rng.uniform(0.006, 0.014))
    )


def request_of(notice: Notice) -> Request:
    return Request(notice.id, "m", notice.arrival, notice.deadline, client=notice.client)


def liar(body: Body, rate: float, clients: int = 1) -> Iterator[SimulatedUpload]:
    rng = np.random.default_rng(3)
    for number, at in enumerate(arrivals(rate, 2)):
        yield body(notice(AWAY + number, at, 0.004, f"bad{number % clients}"), rng)


def run(make: SimpleNamespace, *streams: Any) -> Any:
    world = make.world(fixed=FIXED, per_row=PER_ROW, scheduler="slack", max_batch=8)
    return world.run_all(
        sorted([item for stream in streams for item in stream], key=lambda i: i.arrival)
    )


def goodput(world: Any, *, of_liar: bool = False) -> float:
    """Share of the requests on time, of the honest ones or of the other."""
    ends = [
        outcome.reason is Reason.ON_TIME
        for id, outcome in world.outcomes.items()
        if (id >= AWAY) == of_liar
    ]
    return sum(ends) / len(ends)


@pytest.mark.parametrize(
    ("body", "clients", "announced"),
    [(stalls, 1, False), (stalls, 40, True), (trickles, 1, True), (trickles, 40, False)],
)
def test_bodies_that_never_come_cost_others_next_to_nothing(
    make: SimpleNamespace, body: Body, clients: int, announced: bool
) -> None:
    alone = run(make, honest(announced))
    beside = run(make, honest(announced), liar(body, RATE, clients))
    assert 0.5 < goodput(alone) < 1.0  # there is something to lose
    assert goodput(beside) >= goodput(alone) - 0.01
    # And it gains nothing: no batch, no answer.
    assert goodput(beside, of_liar=True) == 0.0
    assert not any(id >= AWAY for _, members in beside.batches for id in members)


def test_a_client_that_says_soon_and_comes_late_gains_nothing_by_it(make: SimpleNamespace) -> None:
    """Beside one that sends the same bodies at the same times and announces nothing."""
    bodies = list(liar(dawdles, RATE / 4))
    silent = [
        Request(body.notice.id, "m", body.complete_at, body.notice.deadline, client="bad0")
        for body in bodies
    ]
    announced = run(make, honest(True), bodies)
    unsaid = run(make, honest(True), silent)
    assert goodput(announced) >= goodput(unsaid) - 0.01
    assert goodput(announced, of_liar=True) <= goodput(unsaid, of_liar=True) + 0.01


def test_a_stalled_body_ends_at_its_deadline_and_no_batch_waits_for_it(
    make: SimpleNamespace,
) -> None:
    """The commands of a small case, to the instant: the second time nobody waits."""
    first, second = make.request(1, 0.0, SLO), make.request(2, 1.0, SLO)
    world = run(
        make,
        [first, second],
        [
            stalls(notice(AWAY, 0.0, 0.0005, "bad"), np.random.default_rng(0)),
            stalls(notice(AWAY + 1, 1.0, 0.0005, "bad"), np.random.default_rng(0)),
        ],
    )
    starts = {members: at for at, members in world.batches}
    assert starts[(1,)] <= 0.0005
    assert starts[(2,)] == 1.0
    assert world.reasons == {
        1: Reason.ON_TIME,
        2: Reason.ON_TIME,
        AWAY: Reason.EXPIRED,
        AWAY + 1: Reason.EXPIRED,
    }
    assert world.outcomes[AWAY + 1].at == 1.0 + SLO
