"""`CoreAllocator`: divides the cores of one machine among its lanes.

**How many** (`shares`). Every lane gets its least number of cores. The other cores are handed out
one by one, each to the lane with the largest *pressure × unmet share of its target*, until all
targets are met or no core is left. Pressure is the share of the remaining time that the work takes,
from 0 to 1. So at equal pressure all targets are cut by the same share, a lane under twice the
pressure is cut half as much, and no core that a lane wants stays idle.

**Which** (`cores_for`). A lane keeps its cores if it can; it gives up its highest numbers and takes
the lowest free numbers. A core is free once no lane holds it. A lane holds its cores until a
smaller size is confirmed, and new cores from the decision on, even if the decision is revised
before they arrive. So two lanes never share a core, however long a resize takes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from slacktide.engine import LaneSnapshot


@dataclass(frozen=True, slots=True)
class Claim:
    """Cores that a lane asks for. Raises ValueError unless 1 ≤ least ≤ target."""

    lane: str
    least: int
    """Cores it gets before any lane gets more than its least."""
    target: int
    pressure: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.target:
            raise ValueError(f"lane {self.lane!r}: expected >= {self.least}, got {self.target}")


def shares(claims: Sequence[Claim], total: int) -> dict[str, int]:
    """Return the cores of each lane, at most `total` together. A lane is left out if its least does
    not fit after the claims before it."""
    cores_by_lane: dict[str, int] = {}
    asking: list[Claim] = []
    free_cores = total
    for claim in claims:
        if claim.least <= free_cores:
            cores_by_lane[claim.lane] = claim.least
            free_cores -= claim.least
            asking.append(claim)
    while free_cores:
        most, chosen = (0.0, 0.0), None
        for claim in asking:
            unmet = (claim.target - cores_by_lane[claim.lane]) / claim.target
            if unmet > 0.0 and (claim.pressure * unmet, unmet) > most:
                most, chosen = (claim.pressure * unmet, unmet), claim.lane
        if chosen is None:
            break
        cores_by_lane[chosen] += 1
        free_cores -= 1
    return cores_by_lane


class CoreAllocator:
    """The cores of one machine."""

    def __init__(self, cores: Sequence[int]) -> None:
        """`cores`: processor numbers that lanes may have."""
        self._cores = tuple(sorted(cores))

    def __len__(self) -> int:
        return len(self._cores)

    def cores_for(
        self,
        core_counts: Mapping[str, int],
        holdings: Mapping[str, LaneSnapshot],
        *,
        preferred: Mapping[str, Sequence[int]] | None = None,
        borrowing: Collection[str] = (),
    ) -> dict[str, tuple[int, ...]]:
        """Return disjoint processor numbers for each lane of `core_counts`, ascending.

        `holdings`: the cores of all lanes, including leaving lanes. A lane gets fewer cores than
        its count while others still hold them, and is left out if it would get none. Lanes of
        `borrowing` without cores get cores that others still hold, because starting a replica takes
        longer than giving up cores. Lanes are served in order, each with free cores of `preferred`
        first.
        """
        retained_cores = _retained_by_lane(core_counts, holdings)
        staying = {core for cores in retained_cores.values() for core in cores}
        held_cores = {core for holding in holdings.values() for core in holding.held}
        free = [core for core in self._cores if core not in held_cores]
        leaving = [core for core in self._cores if core in held_cores and core not in staying]
        assignment: dict[str, tuple[int, ...]] = {}
        for lane, count in core_counts.items():
            lane_cores = retained_cores.get(lane, [])
            wanting = count - len(lane_cores)
            liked = (preferred or {}).get(lane, ())
            added_cores = sorted(free, key=lambda core: core not in liked)[:wanting]
            free = [core for core in free if core not in added_cores]
            if lane in borrowing and not lane_cores:
                short = wanting - len(added_cores)
                added_cores, leaving = added_cores + leaving[:short], leaving[short:]
            if lane_cores or added_cores:
                assignment[lane] = tuple(sorted((*lane_cores, *added_cores)))
        return assignment


def _retained_by_lane(
    core_counts: Mapping[str, int], holdings: Mapping[str, LaneSnapshot]
) -> dict[str, list[int]]:
    """Return the cores that each lane of `core_counts` keeps, except cores promised to others."""
    promised = {
        core: lane for lane, view in holdings.items() if not view.leaving for core in view.target
    }
    retained_cores: dict[str, list[int]] = {}
    staying: set[int] = set()
    for lane, holding in holdings.items():
        if lane not in core_counts:
            continue
        lane_cores, target = (
            [c for c in cores if promised.get(c, lane) == lane and c not in staying]
            for cores in (holding.cores, holding.target)
        )
        retained_cores[lane] = _retained(lane_cores, target, core_counts[lane])
        staying.update(retained_cores[lane])
    return retained_cores


def _retained(confirmed: Sequence[int], target: Sequence[int], count: int) -> list[int]:
    """Return at most `count` cores of a lane: confirmed before promised cores, low numbers
    first."""
    return (sorted(confirmed) + sorted(set(target) - set(confirmed)))[:count]
