"""`EarlyExitSettings`: what `early_exit` says in a model's slacktide.yaml.

early_exit: 1%                            answers may differ from the model's in 1 % of the rows
early_exit:
  accuracy_loss: 0.5%
  mode: release
  positions: {forbid: [pool2]}
early_exit:                               of a model that has exits, and judges of them, of its own
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
    """Tensors of the model's graph at which it may be left as well."""
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
    """By output of the whole model, the output of the file that takes its place. All exits name the
    same ones; the file's other outputs are not served."""
    quality: Tensor
    """Output that says of each row how good those are, from 0 to 1."""
    threshold: Annotated[float, Field(ge=0, le=1)]
    """A row leaves where 1 − quality is below: the higher, the more leave."""


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
    output: Tensor | None = None
    """The output that holds classes, where no Softmax over them makes it."""
    positions: PositionSettings = PositionSettings()
    judged: Annotated[tuple[JudgedExitSettings, ...], Field(strict=False, max_length=64)] = ()
    """The exits that the model itself has, front to end, in place of ramps that are learnt: nothing
    is promised of their accuracy ([detectors](exits.md#detectors))."""

    enlarge: bool = False
    """With `judged` and `mode: shrink`: the last exit answers all that come so far, but where
    others have left before, the least sure go on to the end in the time that this has left."""

    @model_validator(mode="after")
    def _learnt_or_judged(self) -> EarlyExitSettings:
        if self.enlarge and (len(self.judged) < 2 or self.mode != "shrink"):
            raise OptionError(("enlarge", "expected 'mode: shrink' and two of 'judged' or more"))
        if not self.judged:
            return self
        for name in ("accuracy_loss", "ramp_budget", "feedback", "primary", "output", "positions"):
            if name in self.model_fields_set:
                raise OptionError((name, "expected none beside 'judged': no ramps are learnt"))
        for at, each in enumerate(self.judged):
            if each.outputs.keys() != self.judged[0].outputs.keys():
                names = ", ".join(self.judged[0].outputs)
                raise OptionError(
                    (f"judged[{at}].outputs", f"expected those of the first: {names}")
                )
        return self

    @property
    def own(self) -> tuple[OwnExit, ...]:
        """What workers are told of exits that the model itself has."""
        return tuple(OwnExit(each.outputs, each.quality) for each in self.judged)

    @property
    def stated(self) -> StatedExits:
        """What the planner is told."""
        mode = ExitMode(self.mode)
        if self.judged:
            thresholds = tuple(each.threshold for each in self.judged)
            ramps = tuple(range(len(thresholds)))
            own = {"learnt": False, "enlarge": self.enlarge}
            return StatedExits(mode=mode, ramps=ramps, thresholds=thresholds, **own)
        return StatedExits(self.accuracy_loss, self.ramp_budget, mode, self.feedback)
