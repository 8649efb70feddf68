"""`Family`: the settings of a model that comes in variants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FamilyVariant:
    """One variant of a model. Its pool has `name` as its `PoolId.variant`."""

    name: str
    accuracy: float
    """Accuracy of its answers, within (0, 1]."""
    size: int = 0
    """Side in pixels of the image it takes; 0: as in the file, and clients get no size."""
    nbytes: int = 0
    """Memory of one copy; 0: all variants of a lane share one process."""


def expected_accuracy(variants: Sequence[FamilyVariant], ran: str, side: float) -> float:
    """Return the accuracy of the answer if an image of `side` pixels runs on variant `ran`. It is
    the accuracy of `ran`, or that of the largest variant that needs at most so many pixels if this
    is lower; 0 if `ran` is none of the `variants`."""
    ran_accuracies = [variant.accuracy for variant in variants if variant.name == ran]
    sent = [variant.accuracy for variant in variants if variant.size <= side]
    return min(max(ran_accuracies, default=0.0), max(sent, default=0.0))


@dataclass(frozen=True, slots=True)
class Family:
    """The variants of one model, and how they are planned."""

    variants: tuple[FamilyVariant, ...]
    """Smallest first; no accuracy is below that of a smaller variant."""
    planner: str = "variants"
    """`variants`, or `none` if no planner chooses its variants."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Options of that planner."""
    resident: int = 5
    """Maximum number of variants that a lane keeps loaded if they have memory of their own."""
    memory: int | None = None
    """Maximum bytes of all variants loaded on one lane; None: unlimited."""

    @property
    def switches_free(self) -> bool:
        """Whether every variant can be on every lane at no cost."""
        return not any(variant.nbytes for variant in self.variants)

    def smaller(self, name: str) -> tuple[str, ...]:
        """Return the variants that requests for this variant may move to, the most accurate
        first."""
        names = [variant.name for variant in self.variants]
        return tuple(reversed(names[: names.index(name)]))
