"""Figure 1: what a link that changes leaves of an SLO, by the size of what is sent."""

from __future__ import annotations

from dataclasses import dataclass

from slacktide.reproduce.sponge.bandwidths import Bandwidths
from slacktide.reproduce.sponge.setting import DURATION, KILOBYTE, SLO
from slacktide.workloads import TraceLink

SIZES_KB = (100, 200, 500)


@dataclass(frozen=True, slots=True)
class Budgets:
    """One size of Figure 1; budgets in milliseconds, of a request sent in each second."""

    size_kb: int
    least: float
    mean: float
    most: float
    gone: float
    """Share of the seconds that leave nothing."""
    by_second: tuple[float, ...]


def budgets(data: Bandwidths) -> tuple[Budgets, ...]:
    """What is left of 1 s after the network, over ten minutes of the 4G trace."""
    link = TraceLink(data.four_g)
    found = []
    for size in SIZES_KB:
        left = tuple(
            1e3 * (SLO - (link.deliver(size * KILOBYTE, sent=float(at)).complete_at - at))
            for at in range(DURATION)
        )
        gone = sum(each <= 0.0 for each in left) / len(left)
        found.append(Budgets(size, min(left), sum(left) / len(left), max(left), gone, left))
    return tuple(found)


def megabytes(data: Bandwidths) -> tuple[float, ...]:
    """MB/s of the 4G trace, by second: the upper part of Figure 1."""
    return tuple(data.four_g.rate(float(at)) / 1e6 for at in range(DURATION))
