"""`Family`: what is stated of a model that comes in variants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FamilyVariant:
    """One form of a model. Its pool has `name` for its `PoolId.variant`."""

    name: str
    accuracy: float
    """Within (0, 1]."""
    size: int = 0
    """Side in pixels of the image it takes; 0: what the file says, and clients are told none."""
    nbytes: int = 0
    """Memory of one copy; 0: none of its own, all variants of a lane share one process."""


def expected_accuracy(variants: Sequence[FamilyVariant], ran: str, side: float) -> float:
    """Of the answer of variant `ran` to an image of `side` pixels: that of the smaller of the two,
    and 0 if it is none of the `variants`."""
    ran_accuracies = [variant.accuracy for variant in variants if variant.name == ran]
    sent = [variant.accuracy for variant in variants if variant.size <= side]
    return min(max(ran_accuracies, default=0.0), max(sent, default=0.0))


@dataclass(frozen=True, slots=True)
class Family:
    """The variants of one model, and how they are planned."""

    variants: tuple[FamilyVariant, ...]
    """Smallest first, with accuracies that rise."""
    planner: str = "variants"
    """Or `none`: then no variants planner has the model."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Options of that planner."""
    resident: int = 5
    """Most variants that a lane keeps loaded, where they have memory of their own."""
    memory: int | None = None
    """Bytes that those of one lane may have in all; None: as many as it takes."""

    @property
    def switches_free(self) -> bool:
        """Whether every variant can be on every lane at no cost."""
        return not any(variant.nbytes for variant in self.variants)

    def smaller(self, name: str) -> tuple[str, ...]:
        """Variants that the requests of this one may move to, the most accurate first."""
        names = [variant.name for variant in self.variants]
        return tuple(reversed(names[: names.index(name)]))
