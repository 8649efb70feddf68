"""Lanes with a timetable: which proposals may start now (OctopInf §III-C, CORAL).

Inside its window a model has priority, whatever the batches of others are worth. Otherwise the lane
takes any batch that ends (at its p99) before the next *wanted* window, i.e. the next window whose
model has a request. A batch that would take longer is made smaller if that helps; otherwise it
waits until the window opens. If no window is wanted, the lane serves like one without a timetable.

Each model on the lane has a window, so none waits for ever. A batch may outlast its window, which
delays the next window. A window that closes without a batch of its model, although a request had
waited, counts as missed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from slacktide.domain import Replica, Timetable
from slacktide.engine.lanes import LaneWindows, Placement
from slacktide.engine.ports import Proposal

Offer: TypeAlias = tuple[Placement, Proposal]

Smaller: TypeAlias = Callable[[Placement, Replica], Proposal | None]
"""The proposal of a pool for a replica with another cap; None if the pool has none."""


def admit(
    windows: LaneWindows,
    offers: Sequence[Offer],
    placements: Sequence[Placement],
    smaller: Smaller,
    now: float,
) -> tuple[list[Offer], float]:
    """Return the offers that may start now, and the earliest opening of a window that another offer
    waits for (absolute seconds; infinite: none waits)."""
    if now >= windows.check_at:
        _count_missed(windows, placements, now)
    window = windows.table.at(now)
    if window is not None:
        first = [offer for offer in offers if offer[0].pool.id.model == window.model]
        if first:
            return first, math.inf
    waiting = {p.pool.id.model for p in placements if p.pool.has_requests}
    opens = {
        model: min(windows.table.next_start(slot, now) for slot in slots)
        for model in waiting
        if (slots := [slot for slot in windows.table.windows if slot.model == model])
    }
    fitting, next_opening = [], math.inf
    for placement, proposal in offers:
        model = placement.pool.id.model
        limit = min((at for rival, at in opens.items() if rival != model), default=math.inf)
        fitting_proposal = _ending_by(limit - now, placement, proposal, smaller)
        if fitting_proposal is None:
            next_opening = min(next_opening, limit)
        else:
            fitting.append((placement, fitting_proposal))
    return fitting, next_opening


def _count_missed(windows: LaneWindows, placements: Sequence[Placement], now: float) -> None:
    windows.check_at = windows.table.unchanged_until(now)
    for window in windows.table.windows:
        opened, closed = windows.table.last(window, now)
        if closed <= windows.checked[window]:
            continue
        windows.checked[window] = closed
        if windows.ran_at.get(window.model, -math.inf) >= opened:
            continue
        pools = [p.pool for p in placements if p.pool.id.model == window.model]
        waited = (
            request.arrival < closed for pool in pools for request in pool.scheduler.pending()
        )
        windows.missed[window.model] += any(waited)


def _ending_by(
    seconds: float, placement: Placement, proposal: Proposal, smaller: Smaller
) -> Proposal | None:
    """`proposal`, made smaller until its p99 is at most `seconds`; None if that is impossible."""
    pool, cores, fitting = placement.pool, placement.lane.size, proposal
    while pool.times.of(fitting.rows, cores, fitting.members).p99 > seconds:
        if len(fitting.members) < 2:
            return None
        fewer = smaller(placement, replace(placement.replica, max_batch=max(1, fitting.rows // 2)))
        if fewer is None or fewer.rows >= fitting.rows:
            return None
        fitting = fewer
    return fitting


def windows_of(
    table: Timetable | None, before: LaneWindows | None, now: float
) -> LaneWindows | None:
    """The windows of a lane under `table`; counts of missed windows are kept from `before`."""
    if table is None or (before is not None and before.table == table):
        return before if table is not None else None
    windows_after = LaneWindows(table, now=now)
    if before is not None:
        windows_after.missed = before.missed
    return windows_after
