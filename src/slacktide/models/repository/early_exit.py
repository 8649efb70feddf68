"""`EarlyExitSettings`: the section `early_exit` of a model's slacktide.yaml.

early_exit: 1%                            answers may differ from the model's in 1 % of the rows
early_exit:
  accuracy_loss: 0.5%
  mode: release
  positions: {forbid: [pool2]}
early_exit:                               a model with its own exits and judges
  judged:
  - outputs: {boxes: early/boxes, scores: early/scores}
    quality: early/quality
    threshold: 0.2
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from slacktide.domain import ExitMode
from slacktide.domain.options import OptionError
from slacktide.exits.own_exits import OwnExit
from slacktide.models.repository.fields import Percent, Section
from slacktide.planning.exits import StatedExits

Tensor = Annotated[str, Field(min_length=1, max_length=512)]
Tensors = Annotated[tuple[Tensor, ...], Field(strict=False, max_length=64)]


class PositionSettings(Section):
    """Where the network may be left, beside where the server finds that it can be."""

    add: Tensors = ()
    """Further tensors of the model's graph at which it may be left."""
    forbid: Tensors = ()
    """Tensors at which it may not be left."""

    @model_validator(mode="after")
    def _either(self) -> PositionSettings:
        if both := set(self.add) & set(self.forbid):
            raise OptionError(("forbid", f"expected none of 'add', got {min(both)!r}"))
        return self


class JudgedExitSettings(Section):
    """An exit that the model has of its own, as a detector may."""

    outputs: Annotated[dict[Tensor, Tensor], Field(min_length=1, max_length=64)]
    """For each output of the whole model, the output of the file that takes its place. All exits
    name the same ones. Other outputs of the file are not served."""
    quality: Tensor
    """Output with the quality of each row, from 0 to 1."""
    threshold: Annotated[float, Field(ge=0, le=1)]
    """A row leaves if 1 − quality is below this. A higher threshold lets more rows leave."""


class EarlyExitSettings(Section):
    """How easy answers of a classifier may leave the network early."""

    accuracy_loss: Annotated[Percent, Field(gt=0, lt=1)] = 0.01
    """Largest share of rows whose answer may differ from the model's own."""
    ramp_budget: Annotated[Percent, Field(gt=0, le=1)] = 0.05
    """Largest share of a whole pass that early exits may add."""
    mode: Literal["auto", "release", "shrink"] = "auto"
    """Treatment of rows that have their answer: `release` runs them on with their batch, `shrink`
    takes them out of it. `auto` runs them on while no request waits for the lane, and otherwise
    takes them out."""
    feedback: Annotated[Percent, Field(gt=0, le=1)] = 0.1
    """Share of the batches that always run to the end, to check accuracy."""
    primary: str | None = None
    """The input that decides the answer, if the model has several."""
    output: Tensor | None = None
    """The output that holds classes, if no Softmax makes it."""
    positions: PositionSettings = PositionSettings()
    judged: Annotated[tuple[JudgedExitSettings, ...], Field(strict=False, max_length=64)] = ()
    """The model's own exits, front to end, instead of learnt ramps. Nothing guarantees their
    accuracy ([detectors](exits.md#detectors))."""

    enlarge: bool = False
    """With `judged` and `mode: shrink`: batches end at the last exit, but if rows have left before,
    the least sure of the others go on to the end in the time that this saves."""

    @model_validator(mode="after")
    def _learnt_or_judged(self) -> EarlyExitSettings:
        if self.enlarge and (len(self.judged) < 2 or self.mode != "shrink"):
            raise OptionError(("enlarge", "expected 'mode: shrink' and two of 'judged' or more"))
        if not self.judged:
            return self
        for name in ("accuracy_loss", "ramp_budget", "feedback", "primary", "output", "positions"):
            if name in self.model_fields_set:
                raise OptionError((name, "expected none beside 'judged': no ramps are learnt"))
        for at, exit_ in enumerate(self.judged):
            if exit_.outputs.keys() != self.judged[0].outputs.keys():
                names = ", ".join(self.judged[0].outputs)
                raise OptionError(
                    (f"judged[{at}].outputs", f"expected those of the first: {names}")
                )
        return self

    @property
    def own(self) -> tuple[OwnExit, ...]:
        """The model's own exits, for workers."""
        return tuple(OwnExit(exit_.outputs, exit_.quality) for exit_ in self.judged)

    @property
    def stated(self) -> StatedExits:
        """The stated exits, for the planner."""
        mode = ExitMode(self.mode)
        if self.judged:
            thresholds = tuple(exit_.threshold for exit_ in self.judged)
            ramps = tuple(range(len(thresholds)))
            flags = {"learnt": False, "enlarge": self.enlarge}
            return StatedExits(mode=mode, ramps=ramps, thresholds=thresholds, **flags)
        return StatedExits(self.accuracy_loss, self.ramp_budget, mode, self.feedback)
