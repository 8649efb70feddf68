"""Events of early exits for planners, and `StatedExits`, the settings of a model.

Drivers deliver these events with those of the engine (`Runtime.handle`), but the engine never sees
them and nothing records them: their effect is in the plans. A position is a place where rows can
leave a model, numbered front to end; a ramp gives the answer there. Times are in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from slacktide.domain import ExitMode, PoolId
from slacktide.domain.read_only import read_only


@read_only
class RampFacts:
    """Facts of a ramp that are known before it is active."""

    position: int
    name: str
    """Name of the tensor that it reads."""
    agreement: float
    """Share of rows outside its training set for which it gives the model's answer."""
    cost: float
    """Share of the whole pass that lies before it, measured or calculated."""


@read_only
class RampsLearnt:
    """The ramps of a pool: from the file beside its version, or learnt while it serves."""

    pool: PoolId
    revision: int
    """Revision of their weights, at least 1."""
    ramps: tuple[RampFacts, ...]
    """Learnt ramps, in order of position."""
    remembers: bool = False
    """Whether the first ramp is not learnt, but gives remembered answers."""


@read_only
class RampsRefused:
    """A pool cannot have ramps; it is served without them."""

    pool: PoolId
    reason: str
    """Reason as one sentence, for people."""


@read_only
class RampsJudged:
    """Answers of the ramps at all positions for rows that ran to the model's end and were not used
    for training. Rows are in order of arrival, and have a value for each position."""

    pool: PoolId
    revision: int
    """Revision of the ramps' weights."""
    uncertainty: tuple[tuple[float, ...], ...]
    agrees: tuple[tuple[bool, ...], ...]
    """Whether the ramp's answer is the model's."""
    answers: tuple[int, ...] = ()
    """The model's class; empty: unknown."""
    applications: tuple[str, ...] = ()
    """The application of each row's request; empty: unknown."""
    supplied: bool = False
    """Whether the operator supplied these rows, which are not like the traffic."""


@read_only
class ExitsArranged:
    """A replica has opened a chain of stages and measured it, or failed to."""

    pool: PoolId
    replica: int
    revision: int
    ramps: tuple[int, ...]
    """Positions of the chain, ascending."""
    detail: str = ""
    """Why the chain could not be opened, so that the previous one stays; empty: it runs."""
    rows: tuple[int, ...] = ()
    """Measured batch sizes. The next two fields have one entry for each."""
    whole_s: tuple[float, ...] = ()
    """Times of the unsplit model."""
    stage_s: tuple[tuple[float, ...], ...] = ()
    """Times of the chain from the start of a batch to each ramp's answers, then to its end."""


ExitEvent: TypeAlias = RampsLearnt | RampsRefused | RampsJudged | ExitsArranged
EXIT_EVENTS = (RampsLearnt, RampsRefused, RampsJudged, ExitsArranged)


@dataclass(frozen=True, slots=True)
class StatedExits:
    """Settings of a model with early exits. Raises ValueError that names the field."""

    accuracy_loss: float = 0.01
    """Largest share of answers that may differ from the model's own, at most a half."""
    ramp_budget: float = 0.05
    """Largest share that active ramps may add to the time of a pass."""
    mode: ExitMode = ExitMode.AUTO
    feedback: float = 0.1
    """Share of batches that always run to the end and are judged; within (0, 1]."""
    ramps: tuple[int, ...] | None = None
    """Positions that always stay active; None: the planner chooses."""
    thresholds: tuple[float, ...] | None = None
    """Fixed thresholds of `ramps`, without any guarantee of accuracy; None: tuned."""
    moving: bool = True
    """Whether ramps move to where they pay; else they stay evenly spaced."""
    learnt: bool = True
    """Whether ramps are trained on batches and judged by the model's final answers; else they are
    part of the model, never change, and a batch runs to the end only if the mode says so."""
    enlarge: bool = False
    """See `ExitPolicy`."""
    whole_model_only: tuple[int, ...] = ()
    """Classes of which no judged row may leave with another answer; ramps never give them."""
    promise: str = "window"
    """Where at most `accuracy_loss` may differ: in every `window` of 512 rows, or in a whole `run`,
    checked over windows of 2,048."""
    remember_frames: int = 0
    """Number of frames of a session that may get the model's last answer in the session; 0:
    none."""
    remember_s: float = 5.0
    """Maximum age of that answer."""

    def __post_init__(self) -> None:
        for name in ("accuracy_loss", "ramp_budget", "feedback"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must be above 0 and at most 1, got {getattr(self, name)}")
        if self.accuracy_loss > 0.5:
            raise ValueError(f"accuracy_loss must be at most 0.5, got {self.accuracy_loss}")
        if self.promise not in ("window", "run"):
            raise ValueError(f"promise must be 'window' or 'run', got {self.promise!r}")
        ramps = self.ramps or ()
        if any(a >= b for a, b in pairwise(ramps)) or min(ramps, default=0) < 0:
            raise ValueError(f"ramps must be positions in ascending order, got {ramps}")
        if self.remember_frames < 0:
            raise ValueError(f"remember_frames must not be negative, got {self.remember_frames}")
        if not self.remember_s > 0.0:
            raise ValueError(f"remember_s must be above 0, got {self.remember_s}")
        if self.thresholds is not None and len(self.thresholds) != len(ramps):
            raise ValueError(f"expected {len(ramps)} thresholds, got {self.thresholds}")
