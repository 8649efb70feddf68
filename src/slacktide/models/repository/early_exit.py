"""`EarlyExitSettings`: what `early_exit` says in a model's slacktide.yaml.

early_exit: 1%                            answers may differ from the model's in 1 % of the rows
early_exit:
  accuracy_loss: 0.5%
  mode: release
  positions: {forbid: [pool2]}
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from slacktide.domain import ExitMode
from slacktide.domain.options import OptionError
from slacktide.models.repository.fields import Percent, Section
from slacktide.planning.exits import StatedExits

Tensor = Annotated[str, Field(min_length=1, max_length=512)]
Tensors = Annotated[tuple[Tensor, ...], Field(strict=False, max_length=64)]


class PositionSettings(Section):
    """Where the network may be left, beside where the server finds that it can be."""

    add: Tensors = ()
    """Tensors of the model's graph at which it may be left as well."""
    forbid: Tensors = ()
    """Tensors at which it may not be left."""

    @model_validator(mode="after")
    def _either(self) -> PositionSettings:
        if both := set(self.add) & set(self.forbid):
            raise OptionError(("forbid", f"expected none of 'add', got {min(both)!r}"))
        return self


class EarlyExitSettings(Section):
    """How easy answers of a classifier may leave the network early."""

    accuracy_loss: Annotated[Percent, Field(gt=0, lt=1)] = 0.01
    """Most of the rows whose answer may differ from the model's own."""
    ramp_budget: Annotated[Percent, Field(gt=0, le=1)] = 0.05
    """Most that the early exits may add to the time of a whole pass."""
    mode: Literal["auto", "release", "shrink"] = "auto"
    """What becomes of rows that have their answer: `release` runs them on with their batch,
    `shrink` takes them out of it, `auto` runs on while no request waits for the lane, and shrinks
    else."""
    feedback: Annotated[Percent, Field(gt=0, le=1)] = 0.1
    """Part of the batches that are always run to the end, by which accuracy is judged."""
    primary: str | None = None
    """The input that decides the answer, where the model has several; the others go along."""
    positions: PositionSettings = PositionSettings()

    @property
    def stated(self) -> StatedExits:
        """What the planner is told."""
        return StatedExits(self.accuracy_loss, self.ramp_budget, ExitMode(self.mode), self.feedback)
