"""Lanes with a timetable: which of the batches on offer may start now (OctopInf §III-C, CORAL).

Inside its window a model comes first, whatever the others' batches are worth. Otherwise the lane is
free for whatever is sure to end (its p99) before the next window that is *wanted*: whose model has
a request waiting. A batch that would take longer is made smaller if that helps, else it waits for
that window to open. A lane whose windows are not wanted serves as one without a timetable.

Each model on the lane has a window, so none waits for ever. A batch may outlast its own: then the
window behind it begins late. A window that closes
without a batch of its model, though one had waited, is counted as missed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from slacktide.domain import Replica, Timetable
from slacktide.engine.lanes import LaneWindows, Placement, Pool
from slacktide.engine.ports import Proposal

Offer: TypeAlias = tuple[Placement, Proposal]

Smaller: TypeAlias = Callable[[Placement, Replica], Proposal | None]
"""What a pool proposes for a replica with another cap; None: nothing."""


def admit(
    windows: LaneWindows,
    offers: Sequence[Offer],
    placements: Sequence[Placement],
    smaller: Smaller,
    now: float,
) -> tuple[list[Offer], float]:
    """Those of `offers` that may start, and when the next window opens for which another waits
    (absolute seconds; infinite: none does)."""
    if now >= windows.check_at:
        _count_missed(windows, placements, now)
    window = windows.table.at(now)
    if window is not None:
        first = [offer for offer in offers if offer[0].pool.id.model == window.model]
        if first:
            return first, math.inf
    waiting = {p.pool.id.model for p in placements if _wants(p.pool)}
    opens = {
        model: min(windows.table.next_start(slot, now) for slot in slots)
        for model in waiting
        if (slots := [slot for slot in windows.table.windows if slot.model == model])
    }
    fitting, again = [], math.inf
    for placement, proposal in offers:
        model = placement.pool.id.model
        limit = min((at for rival, at in opens.items() if rival != model), default=math.inf)
        fitting_proposal = _ending_by(limit - now, placement, proposal, smaller)
        if fitting_proposal is None:
            again = min(again, limit)
        else:
            fitting.append((placement, fitting_proposal))
    return fitting, again


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


def _wants(pool: Pool) -> bool:
    return bool(len(pool.scheduler) or pool.quarantine or pool.announced)


def _ending_by(
    seconds: float, placement: Placement, proposal: Proposal, smaller: Smaller
) -> Proposal | None:
    """`proposal`, or one of fewer rows, that is sure to take no longer than `seconds`; or none."""
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
    """What a lane with this timetable has from now on; what was counted, stays counted."""
    if table is None or (before is not None and before.table == table):
        return before if table is not None else None
    windows_after = LaneWindows(table, now=now)
    if before is not None:
        windows_after.missed = before.missed
    return windows_after
