"""Requests of each case: their lengths and applications.

Lengths are in the unit of the paper's axis, on which the modes of Tables 2 and 3 lie between 3 and
17. The reference length, that of a single mode, is 10. Each mode is an application.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist

import numpy as np

from slacktide.lab.workloads import Exponential, Lengths, Mode, Modes
from slacktide_papers.harness.state import ReproduceError
from slacktide_papers.orloj.published import TASKS, TaskTimes, cases

SHORTEST, REFERENCE, LONGEST = 3.0, 10.0, 17.0
"""Lengths of the lowest mode, of the average request, and of the highest mode."""

_COUNTS = ("one", "two", "three", "four", "five", "six", "seven", "eight")


def _equal(count: int, sigma: float) -> Modes:
    """`count` equal peaks, equally spaced."""
    means = np.linspace(SHORTEST, LONGEST, count).tolist() if count > 1 else [REFERENCE]
    return Modes(
        tuple(
            Mode(mean, sigma, application=_name(number, count)) for number, mean in enumerate(means)
        )
    )


def _name(number: int, count: int) -> str:
    if count == 1:
        return "all"
    return ("short", "long")[number] if count == 2 else f"mode-{number + 1}"


def _unequal(short: float, short_sigma: float, long: float, long_sigma: float) -> Modes:
    """A short and a long peak with the weights `short` and `long`."""
    return Modes(
        (Mode(SHORTEST, short_sigma, short, "short"), Mode(LONGEST, long_sigma, long, "long"))
    )


STATIC = "static"
EXPONENTIAL = "exponential"
"""Not in the paper: a single application, whose lengths have no typical value."""

SYNTHETIC: Mapping[str, Lengths] = {
    "std-0.5": _equal(2, 0.5),
    "std-2": _equal(2, 2.0),
    "std-2/0.5": _unequal(0.9, 2.0, 0.1, 0.5),
    "std-0.5/2": _unequal(0.1, 0.5, 0.9, 2.0),
    **{f"{word}-modal": _equal(i, 1.0) for i, word in enumerate(_COUNTS, start=1)},
    STATIC: Modes((Mode(REFERENCE, application="all"),)),
    EXPONENTIAL: Exponential(REFERENCE),
}
"""Lengths of the cases that are not real tasks."""

_SAME = {"std-1": "two-modal", **dict.fromkeys(cases("table-4"), STATIC)}


def workload_of(case: str) -> str:
    """The case that is run in place of `case`. Two modes of σ 1 are in both Table 2 and Table 3;
    the static models of Table 4 are run as one case, because the paper states no difference between
    them."""
    return _SAME.get(case, case)


GAIN_CASES = (*cases("table-2"), *cases("table-3"))
"""The 13 cases over which gains are averaged."""

TASK_SHORT = SHORTEST / REFERENCE
"""Mean of the short group of a real task, as a share of the mean length of the task."""

TASK_SIGMA = 0.1
"""σ of each group of a real task, as a share of the group's mean."""


def lengths_of(case: str, fixed_share: float) -> Lengths:
    """Lengths of the requests of `case`; c0 is `fixed_share` of the mean time of a request alone.
    Raises ReproduceError if there is no such case."""
    case = workload_of(case)
    if case in SYNTHETIC:
        return SYNTHETIC[case]
    if case not in TASKS:
        available = ", ".join((*SYNTHETIC, *TASKS))
        raise ReproduceError(f"unknown case {case!r}; there are: {available}")
    return task_lengths(TASKS[case], fixed_share)


def task_lengths(task: TaskTimes, fixed_share: float) -> Modes:
    """A short and a long group, mixed so that the times alone have Table 1's mean and P99.

    The paper groups each data set into "short-running and relatively long-running requests" and
    mixes them (§5.2), and prints nothing else about them. Here the short group's mean is TASK_SHORT
    of the mean length; the long group's mean and share follow from the two printed figures.
    """
    high = (task.p99_ms / task.mean_ms - fixed_share) / (1.0 - fixed_share)
    if high <= 1.0:
        raise ReproduceError(f"a P99 of {task.p99_ms} ms leaves no length for a long group")
    low, top = 1.0 + 1e-6, high
    for _ in range(60):
        middle = (low + top) / 2.0
        if _beyond(high, middle) < 0.01:
            low = middle
        else:
            top = middle
    share = _long_share(top)
    short = TASK_SHORT * REFERENCE
    long = top * REFERENCE
    return Modes(
        (
            Mode(short, TASK_SIGMA * short, 1.0 - share, "short"),
            Mode(long, TASK_SIGMA * long, share, "long"),
        )
    )


def _long_share(long: float) -> float:
    """Share of a long group of mean `long` at which the mean of all lengths is 1."""
    return (1.0 - TASK_SHORT) / (long - TASK_SHORT)


def _beyond(length: float, long: float) -> float:
    """P(a request is longer than `length`) if the long group has the mean `long`."""
    group = NormalDist(long, TASK_SIGMA * long)
    return _long_share(long) * (1.0 - group.cdf(length))
