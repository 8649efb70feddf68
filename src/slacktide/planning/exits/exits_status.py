"""`ExitsStatus`: the state of a pool's early exits, for metrics and people."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from slacktide.domain import ExitPolicy
from slacktide.planning.exits.accuracy_budget import WINDOW
from slacktide.planning.exits.guards import GUARDED_ROWS
from slacktide.planning.exits.pool_exits import PoolExits

MOST_LISTED = 256
"""Number of classes in the status."""


@dataclass(frozen=True, slots=True)
class ClassStatus:
    """The status of one of the model's classes."""

    number: int
    judged: int
    """Judged rows so far to which the model gave this class."""
    wrong: int
    """Judged rows that left with another answer."""
    alarms: int
    state: str
    """`guarded` (by the bound), `few rows` (of which none may leave with another answer), or
    `unguarded`."""
    lacking: int
    """Judged rows that are needed for the bound."""


@dataclass(frozen=True, slots=True)
class ApplicationStatus:
    """The status of one application."""

    name: str
    judged: int
    wrong: int
    alarms: int
    may_leave: bool
    lacking: int
    """Judged rows that are needed until its requests may leave; 0: enough, or unknown."""
    hold: str
    """Why its requests do not leave; empty: they may."""


@dataclass(frozen=True, slots=True)
class ChangesStatus:
    """Frames of sessions in which the model's answer differs from that of the frame before."""

    judged: int
    missed: int
    """Changes whose answer took more than two frames."""
    caught: float | None
    """Share of the last changes whose answer came within two frames; None: no change was judged."""
    delay_p95: int | None
    """95th percentile of the delay to an answer that lasts, in frames; 3: above two."""
    alarms: int


@dataclass(frozen=True, slots=True)
class ExitsStatus:
    """The status of one pool, for metrics and people. Ramps are named by position."""

    policy: ExitPolicy | None
    """The policy in force, or about to come into force; None: no row leaves early."""
    agreement: Mapping[int, float]
    """Share of the last 512 judged rows for which an active ramp gives the model's answer."""
    exits: Mapping[int, int]
    """Rows that left at each ramp so far."""
    rows: int
    """Rows so far that ran under a policy with ramps."""
    accuracy: float
    """Share of the last judged answers that were the model's."""
    judged: int
    wrong: int
    alarms: int
    saved_s: float
    """Seconds by which answers came earlier, summed, less the cost of ramps; 0 until a pass has
    been measured."""
    overhead: float | None
    """Share of a pass that ramps and cuts add; None: not measured yet."""
    revision: int
    changes: int
    """Number of times that ramps have moved."""
    reason: str
    """Reason for the last change, or why there are no ramps."""
    hold: str = ""
    """Why no row leaves; empty: rows may."""
    lacking: int = 0
    """How many more judged rows are needed, at the least, before rows may leave."""
    classes: tuple[ClassStatus, ...] = ()
    """By number: classes that were seen or are listed in the settings."""
    applications: tuple[ApplicationStatus, ...] = ()
    answer_changes: ChangesStatus | None = None
    """None if no answers are remembered."""


def exits_status(pool: PoolExits) -> ExitsStatus:
    """Return the status of a pool."""
    budget, ramps = pool.accuracy_budget, pool.ramps
    unsure, agrees = (judged[-WINDOW:] for judged in budget.rows.verdicts(ramps))
    agreement = {
        ramp: float(agrees[judged_rows, at].mean())
        for at, ramp in enumerate(ramps)
        if (judged_rows := unsure[:, at] < math.inf).any()
    }
    return ExitsStatus(
        pool.policy(),
        agreement,
        dict(pool.exits),
        pool.rows,
        budget.accuracy,
        budget.judged,
        budget.wrong,
        budget.alarms,
        pool.saved_s,
        pool.times.overhead,
        pool.revision,
        pool.changes,
        pool.reason,
        *_held(pool),
        _class_statuses(pool),
        _application_statuses(pool),
        _changes_status(pool) if pool.remembers else None,
    )


def _changes_status(pool: PoolExits) -> ChangesStatus:
    changes = pool.answer_changes
    return ChangesStatus(
        changes.added, changes.missed, changes.caught, changes.delay_p95, changes.alarms
    )


def _held(pool: PoolExits) -> tuple[str, int]:
    """Return why no row leaves, and how many judged rows are still needed."""
    if pool.thresholds or not pool.ramps:
        return "" if pool.thresholds else pool.reason, 0
    rows, why = pool.accuracy_budget.lacking
    if not rows and (lacking := pool.classes.lacking(pool.ramps)):
        rows = max(lacking.values())
        why = f"too few rows of class {', '.join(map(str, lacking))} were judged"
    return why or "no ramp is right often enough", rows


def _class_statuses(pool: PoolExits) -> tuple[ClassStatus, ...]:
    numbers = {*pool.class_rows, *pool.stated.whole_model_only} - {-1}
    windows = pool.classes.windows
    return tuple(
        ClassStatus(
            number,
            pool.class_rows[number],
            pool.class_wrong[number],
            pool.class_alarms[number],
            "unguarded"
            if number not in windows
            else "few rows"
            if len(windows[number]) < GUARDED_ROWS
            else "guarded",
            max(0, GUARDED_ROWS - len(windows[number])) if number in windows else GUARDED_ROWS,
        )
        for number in sorted({*numbers, *windows})[:MOST_LISTED]
    )


def _application_statuses(pool: PoolExits) -> tuple[ApplicationStatus, ...]:
    applications, statuses = pool.applications, []
    first = {} if applications.first is None else {applications.first: pool.accuracy_budget}
    for name, budget in sorted((applications.budgets or first).items()):
        may_leave = bool(pool.thresholds) and name in applications.listed()
        rows, why = (0, "") if may_leave else budget.lacking
        hold = why or "the thresholds are not safe for its rows"
        statuses.append(
            ApplicationStatus(
                *(name, budget.judged, budget.wrong, budget.alarms, may_leave, rows),
                "" if may_leave else hold if pool.thresholds else _held(pool)[0],
            )
        )
    return tuple(statuses)
