"""Within which bounds planners of one model go on alone, as a slower planner gives them.

Bounds are stated beside what settings state of a model (`Stated`), so that no field of the plan has
two owners: the planner that gives them never fills in what they are about. A planner keeps what it
has learnt when only bounds change.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelBounds:
    """Bounds of one model, from one placement of pipelines to the next."""

    largest: str = ""
    """Variant that may be chosen at most; empty: any. All stay loaded: requests may still ask for
    another, and those that would be late still move to smaller ones."""
    smallest: str = ""
    """Variant that is to be chosen at least; empty: any."""
    cores: int | None = None
    """Most cores of each lane, though never fewer than its settings say; None: as these say."""
    exits: bool = True
    """Whether rows may leave early."""
