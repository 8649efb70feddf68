"""The cores of one machine: how many each lane gets, and which.

**How many** (`shares`). Every lane gets its least. What is left goes out core by core, each to the
lane with the largest *pressure × unmet part of its target*, until all targets are met or no core is
left. Pressure is the part of the time left that the work itself takes, from 0 to 1. So at equal
pressure all targets are cut by the same part, a lane twice as pressed is cut half as much, and no
core that a lane wants lies idle.

**Which** (`cores_for`). A lane keeps the cores it has as far as it may; it gives up its highest
numbers and takes the lowest free ones. A core is free once no lane holds it. A lane holds what it
has until less is confirmed, and what it is to have from the moment that is decided, even if it is
decided otherwise before it has it. So two lanes never run on one core, however long a resize takes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from slacktide.engine import LaneSnapshot


@dataclass(frozen=True, slots=True)
class Claim:
    """What a lane asks for. Raises ValueError unless 1 ≤ least ≤ target."""

    lane: str
    least: int
    """Cores it gets before any lane gets more than its least."""
    target: int
    pressure: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.target:
            raise ValueError(f"lane {self.lane!r}: {self.target} wanted, at least {self.least}")


def shares(claims: Sequence[Claim], total: int) -> dict[str, int]:
    """Cores of each lane, together at most `total`. A lane whose least does not fit, claims before
    it served, is left out."""
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
        """Processor numbers for each lane of `core_counts`, disjoint, ascending.

        `holdings` are those of all lanes, also of those that are to go. A lane gets fewer than
        given while others have not let go of theirs, and is left out if it would get none. Lanes
        of `borrowing` that have none, and take longer to start than others to let go, need not
        wait for that. Earlier lanes are served first; of the free cores they take those `preferred`
        first.
        """
        retained_cores = _kept_by_lane(core_counts, holdings)
        staying = {core for cores in retained_cores.values() for core in cores}
        held = {core for holding in holdings.values() for core in holding.held}
        free = [core for core in self._cores if core not in held]
        leaving = [core for core in self._cores if core in held and core not in staying]
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


def _kept_by_lane(
    core_counts: Mapping[str, int], holdings: Mapping[str, LaneSnapshot]
) -> dict[str, list[int]]:
    """What each lane of `core_counts` keeps of what it holds: nothing that another is promised."""
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
        retained_cores[lane] = _kept(lane_cores, target, core_counts[lane])
        staying.update(retained_cores[lane])
    return retained_cores


def _kept(confirmed: Sequence[int], target: Sequence[int], count: int) -> list[int]:
    """At most `count` of what a lane holds: what it has confirmed goes before what it is promised,
    low numbers before high ones."""
    return (sorted(confirmed) + sorted(set(target) - set(confirmed)))[:count]
