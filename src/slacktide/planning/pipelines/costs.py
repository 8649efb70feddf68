"""Costs of a choice for one stage, loads of devices and links, and scores of placements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slacktide.planning.lanes.best_fit import MAX_UTILISATION

FULL = 0.95
"""Largest share of time that a lane or link is busy. Rows beyond it are dropped."""
BUSY = 0.8
"""Largest share of time that a lane or link counts as busy when waits are estimated."""
NEVER = 1e9
"""Seconds of a transfer over a missing link."""


@dataclass(frozen=True, slots=True)
class EstimateRules:
    """How placements are estimated."""

    budget: float = 0.5
    """Share of the SLO that a path may take. Half by default, because on OctopInf's lanes a row may
    wait one duty cycle, which takes the other half (§III-C)."""
    stretch: float = 1.0
    """Factor on the SLO in the estimate, because estimated latencies are that much too long."""
    max_utilisation: float = MAX_UTILISATION
    """Replicas are added until each is no busier than this."""
    fill: bool = True
    """Whether batches wait until they are full."""
    shared: bool = True
    """Whether stages on a device wait for each other's batches."""
    late_chance: float = 0.0
    """Share of answers assumed to be in time, by chance, if a path takes the whole SLO; on longer
    paths the share is proportionally smaller. So the best of several late placements serves much
    and is not very late."""
    memory: float = 0.0
    """Number of server lanes that a gigabyte is worth when placements that serve equally are
    compared."""
    links: float = 0.0
    """Number of lanes that an always busy link is worth, because it may slow down later."""


class StageCost(NamedTuple):
    """The costs of one choice for one stage, regardless of other stages."""

    device: int
    """Index among the pipeline's candidate devices."""
    configuration: int
    batch: int
    """Index among the question's batches."""
    replicas: int
    expected: float
    p99: float
    latency: float
    """Time to fill plus p99 of all batches of a frame's rows, without waits for a lane."""
    alone: float
    """Wait for its lane if no other stage uses the lane."""
    busy: float
    """Lanes that it keeps busy, on average."""
    squares: float
    """Batches per second × (seconds of a batch)²."""
    utilisation: float
    """Accelerators that it uses, on average."""
    memory: float
    share: float
    """Share of its rows that its replicas can handle."""
    work: float
    """Server lanes that it keeps busy (times cores, if the configuration states them), plus its
    memory converted to lanes."""
    running: float
    """Its intermediate memory converted to lanes, on a device that runs one stage at a time."""
    accuracy: float
    row_share: float
    on: Sequence[tuple[int, float]]
    """Pairs (device, 1 if the stage runs there, else 0). The second is an array if other fields
    are."""


class Load:
    """Load of devices and links. Mutable."""

    __slots__ = ("busy", "links", "memory", "squares", "utilisation")

    def __init__(self, devices: int) -> None:
        self.busy = [0.0] * devices
        self.squares = [0.0] * devices
        self.utilisation = [0.0] * devices
        self.memory = [0.0] * devices
        self.links: dict[tuple[int, int], tuple[float, float]] = {}
        """By ends: (bytes per second, hand-overs per second times their bytes squared)."""

    def add(self, load: Load, places: Sequence[int], sign: float = 1.0) -> None:
        """Add `load`. `places[i]`: index in this load of device i of `load`."""
        for local, place in enumerate(places):
            self.busy[place] += sign * load.busy[local]
            self.squares[place] += sign * load.squares[local]
            self.utilisation[place] += sign * load.utilisation[local]
            self.memory[place] += sign * load.memory[local]
        for (begin, end), (rate, squares) in load.links.items():
            ends = places[begin], places[end]
            link_load = self.links.get(ends, (0.0, 0.0))
            self.links[ends] = link_load[0] + sign * rate, link_load[1] + sign * squares


class PlacementScore(NamedTuple):
    """Score of a placement: larger is better."""

    worth: float
    """Rows per second that reach sinks in time, times their accuracy."""
    spare: float
    """Minus the servers' work in lanes, which includes memory and links (`EstimateRules`). If the
    placement is worth nothing: minus its latency."""


def better(score: PlacementScore, than: PlacementScore) -> bool:
    """Whether `score` is better than `than` by more than rounding errors."""
    if abs(score.worth - than.worth) > 1e-9 * (1.0 + abs(score.worth)):
        return score.worth > than.worth
    return score.spare > than.spare + 1e-9 * (1.0 + abs(than.spare))


def share(capacity: float, demand: float) -> float:
    """Return the share of the demand that is met."""
    return min(1.0, max(0.0, capacity) / demand) if demand > 0.0 else 1.0
