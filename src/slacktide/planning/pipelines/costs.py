"""What a choice for one stage costs, what that loads, and how placements are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

FULL = 0.95
"""Most of its time that a lane or link is busy. What comes beyond that is dropped."""
BUSY = 0.8
"""Share of its time that a lane or link is busy, at most, as far as waits for it go."""
NEVER = 1e9
"""Seconds of a transfer over a link that is not there."""


@dataclass(frozen=True, slots=True)
class EstimateRules:
    """How placements are judged."""

    budget: float = 0.5
    """Share of the SLO that a path may take. Half: OctopInf's streams let a row wait for one duty
    cycle, the other half (§III-C)."""
    room: float = 0.8
    """Replicas are added until each is no busier than this."""
    fill: bool = True
    """Whether batches wait until they are full."""
    shared: bool = True
    """Whether stages wait for one another on the lanes of a device."""
    hope: float = 0.0
    """Share that is in time of a path that takes the whole SLO, by chance; of longer ones less, in
    proportion. So of what is late, that is best which serves much and is not very late."""
    memory: float = 0.0
    """Lanes of a server that a gigabyte counts as, where two placements serve the same."""
    links: float = 0.0
    """Lanes that an always busy link counts as: what is sent over it may soon be late."""


class StageCost(NamedTuple):
    """What one choice for one stage costs, whatever the other stages."""

    device: int
    """Among the pipeline's candidates."""
    form: int
    batch: int
    """Index of it among the question's."""
    replicas: int
    expected: float
    p99: float
    latency: float
    """Fill and p99 of all batches that a frame's rows need, without waits for a lane."""
    alone: float
    """Wait for a lane of its own."""
    busy: float
    """Lanes, on average."""
    squares: float
    """Batches per second, times their seconds squared."""
    utilisation: float
    """Accelerators, on average."""
    memory: float
    share: float
    """Share of its rows that its replicas have the capacity for."""
    work: float
    """Lanes of servers, on average (their cores, where the form says how many), and what its memory
    counts as."""
    running: float
    """What its memory while it runs counts as, where it is the only one to run."""
    accuracy: float
    row_share: float
    on: Sequence[tuple[int, float]]
    """Devices that it may run on, with 1 where it does, else 0."""


class Load:
    """What devices and links are loaded with. Changes."""

    __slots__ = ("busy", "links", "memory", "squares", "utilisation")

    def __init__(self, devices: int) -> None:
        self.busy = [0.0] * devices
        self.squares = [0.0] * devices
        self.utilisation = [0.0] * devices
        self.memory = [0.0] * devices
        self.links: dict[tuple[int, int], tuple[float, float]] = {}
        """(bytes per second, hand-overs per second times their bytes squared)."""

    def add(self, load: Load, places: Sequence[int], sign: float = 1.0) -> None:
        """Add `load`, which counts devices as `places` says."""
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
    """The larger, the better."""

    worth: float
    """Rows at the sinks in time per second, times their accuracy."""
    spare: float
    """Minus the servers' work, in lanes, and what counts as such (`EstimateRules.memory`); of what
    is worth nothing, minus its latency."""


def better(score: PlacementScore, than: PlacementScore) -> bool:
    """Whether it is, by more than arithmetic may be wrong."""
    if abs(score.worth - than.worth) > 1e-9 * (1.0 + abs(score.worth)):
        return score.worth > than.worth
    return score.spare > than.spare + 1e-9 * (1.0 + abs(than.spare))


def share(capacity: float, demand: float) -> float:
    """Share of the demand that is met."""
    return min(1.0, max(0.0, capacity) / demand) if demand > 0.0 else 1.0
