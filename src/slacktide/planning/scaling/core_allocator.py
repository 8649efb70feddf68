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
    """What a lane asks for. Raises ValueError unless 1 ≤ least ≤ wanted."""

    lane: str
    least: int
    """Cores it gets before any lane gets more than its least."""
    wanted: int
    pressure: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.wanted:
            raise ValueError(f"lane {self.lane!r}: {self.wanted} wanted, at least {self.least}")


def shares(claims: Sequence[Claim], total: int) -> dict[str, int]:
    """Cores of each lane, together at most `total`. A lane whose least does not fit, claims before
    it served, is left out."""
    given: dict[str, int] = {}
    asking: list[Claim] = []
    left = total
    for claim in claims:
        if claim.least <= left:
            given[claim.lane] = claim.least
            left -= claim.least
            asking.append(claim)
    while left:
        most, chosen = (0.0, 0.0), None
        for claim in asking:
            unmet = (claim.wanted - given[claim.lane]) / claim.wanted
            if unmet > 0.0 and (claim.pressure * unmet, unmet) > most:
                most, chosen = (claim.pressure * unmet, unmet), claim.lane
        if chosen is None:
            break
        given[chosen] += 1
        left -= 1
    return given


class CoreAllocator:
    """The cores of one machine."""

    def __init__(self, cores: Sequence[int]) -> None:
        """`cores`: processor numbers that lanes may have."""
        self._cores = tuple(sorted(cores))

    def __len__(self) -> int:
        return len(self._cores)

    def cores_for(
        self,
        given: Mapping[str, int],
        holdings: Mapping[str, LaneSnapshot],
        *,
        preferred: Mapping[str, Sequence[int]] | None = None,
        borrowing: Collection[str] = (),
    ) -> dict[str, tuple[int, ...]]:
        """Processor numbers for each lane of `given`, disjoint, ascending.

        `holdings` are those of all lanes, also of those that are to go. A lane gets fewer than
        given while others have not let go of theirs, and is left out if it would get none. Lanes
        of `borrowing` that have none, and take longer to start than others to let go, need not
        wait for that. Earlier lanes are served first; of the free cores they take those `preferred`
        first.
        """
        kept = _kept_by_lane(given, holdings)
        staying = {core for cores in kept.values() for core in cores}
        held = {core for one in holdings.values() for core in one.held}
        free = [core for core in self._cores if core not in held]
        leaving = [core for core in self._cores if core in held and core not in staying]
        found: dict[str, tuple[int, ...]] = {}
        for lane, count in given.items():
            own = kept.get(lane, [])
            wanting = count - len(own)
            liked = (preferred or {}).get(lane, ())
            taken = sorted(free, key=lambda core: core not in liked)[:wanting]
            free = [core for core in free if core not in taken]
            if lane in borrowing and not own:
                short = wanting - len(taken)
                taken, leaving = taken + leaving[:short], leaving[short:]
            if own or taken:
                found[lane] = tuple(sorted((*own, *taken)))
        return found


def _kept_by_lane(
    given: Mapping[str, int], holdings: Mapping[str, LaneSnapshot]
) -> dict[str, list[int]]:
    """What each lane of `given` keeps of what it holds: nothing that another is promised."""
    promised = {
        core: lane for lane, one in holdings.items() if not one.leaving for core in one.target
    }
    kept: dict[str, list[int]] = {}
    staying: set[int] = set()
    for lane, holding in holdings.items():
        if lane not in given:
            continue
        own, target = (
            [c for c in cores if promised.get(c, lane) == lane and c not in staying]
            for cores in (holding.cores, holding.target)
        )
        kept[lane] = _kept(own, target, given[lane])
        staying.update(kept[lane])
    return kept


def _kept(confirmed: Sequence[int], target: Sequence[int], count: int) -> list[int]:
    """At most `count` of what a lane holds: what it has confirmed goes before what it is promised,
    low numbers before high ones."""
    return (sorted(confirmed) + sorted(set(target) - set(confirmed)))[:count]
