"""What drivers tell planners of early exits, and what settings state of them.

The events are delivered with those of the engine (`Runtime.handle`), but the engine never sees them
and nothing records them: what the planner makes of them is in the plans. A position is a place in a
model where it can be left, numbered front to end; a ramp answers there. Times are in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from slacktide.domain import ExitMode, PoolId
from slacktide.domain.read_only import read_only


@read_only
class RampFacts:
    """What is known of one ramp before it is active."""

    position: int
    name: str
    """Name of the tensor that it reads."""
    agreement: float
    """Share of rows that it had not seen for which it gives the model's answer."""
    cost: float
    """Share of the whole pass that lies in front of it, measured or by arithmetic."""


@read_only
class RampsLearnt:
    """A pool's ramps, from the file beside its version, or learnt while it serves."""

    pool: PoolId
    revision: int
    """Revision of their weights, at least 1."""
    ramps: tuple[RampFacts, ...]
    """By position."""


@read_only
class RampsRefused:
    """A pool can have no ramps: it is served as it is."""

    pool: PoolId
    reason: str
    """One sentence."""


@read_only
class RampsJudged:
    """What the ramps at all positions said of rows that ran to the model's end, and that they had
    not learnt from. In the order the rows came; of each, by position."""

    pool: PoolId
    revision: int
    """Revision of the ramps' weights."""
    uncertainty: tuple[tuple[float, ...], ...]
    agrees: tuple[tuple[bool, ...], ...]
    """Whether the ramp's answer is the model's."""


@read_only
class ExitsArranged:
    """A replica has opened a chain of stages and measured it, or could not."""

    pool: PoolId
    replica: int
    revision: int
    ramps: tuple[int, ...]
    """Positions of the chain, ascending."""
    detail: str = ""
    """Why it could not be opened; the chain before stays. Empty: it runs."""
    rows: tuple[int, ...] = ()
    """Batch sizes measured. What follows has one entry for each."""
    whole_s: tuple[float, ...] = ()
    """The unsplit model."""
    stage_s: tuple[tuple[float, ...], ...] = ()
    """The chain, from the start of a batch up to each ramp's answers, then to its end."""


ExitEvent: TypeAlias = RampsLearnt | RampsRefused | RampsJudged | ExitsArranged
EXIT_EVENTS = (RampsLearnt, RampsRefused, RampsJudged, ExitsArranged)


@dataclass(frozen=True, slots=True)
class StatedExits:
    """A model that answers early where it can. Raises ValueError that names the field."""

    accuracy_loss: float = 0.01
    """Most of the answers that may differ from the model's own, a share of at most a half."""
    ramp_budget: float = 0.05
    """Most that the active ramps may add to the time of a pass, a share of it."""
    mode: ExitMode = ExitMode.AUTO
    feedback: float = 0.1
    """Share of batches that always run on and are judged; within (0, 1]."""
    ramps: tuple[int, ...] | None = None
    """Positions that stay active whatever they bring; None: they are chosen."""
    thresholds: tuple[float, ...] | None = None
    """Fixed thresholds of `ramps`, which hold no accuracy; None: thresholds are tuned."""
    moving: bool = True
    """Whether ramps move to where they pay; else they stay where they begin, spaced evenly."""
    learnt: bool = True
    """Whether ramps are learnt from batches and judged by their ends; else they are the model's own
    and stay as they are, and a batch runs on only where the mode says so."""
    enlarge: bool = False
    """See `ExitPolicy`."""

    def __post_init__(self) -> None:
        for name in ("accuracy_loss", "ramp_budget", "feedback"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must be above 0 and at most 1, got {getattr(self, name)}")
        if self.accuracy_loss > 0.5:
            raise ValueError(f"accuracy_loss must be at most 0.5, got {self.accuracy_loss}")
        ramps = self.ramps or ()
        if any(a >= b for a, b in pairwise(ramps)) or min(ramps, default=0) < 0:
            raise ValueError(f"ramps must be positions in ascending order, got {ramps}")
        if self.thresholds is not None and len(self.thresholds) != len(ramps):
            raise ValueError(f"thresholds: {len(ramps)} ramps need as many, not {self.thresholds}")
