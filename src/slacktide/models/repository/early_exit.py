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

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, model_validator

from slacktide.domain import ExitMode
from slacktide.domain.options import OptionError
from slacktide.exits.own_exits import OwnExit
from slacktide.models.repository.fields import Percent, Seconds, Section
from slacktide.planning.exits import StatedExits

Tensor = Annotated[str, Field(min_length=1, max_length=512)]
Tensors = Annotated[tuple[Tensor, ...], Field(strict=False, max_length=64)]


class PositionSettings(Section):
    """Changes to the positions for early exits that the server finds."""

    add: Tensors = ()
    """Additional tensors of the model's graph at which rows may leave."""
    forbid: Tensors = ()
    """Tensors at which rows may not leave."""

    @model_validator(mode="after")
    def _either(self) -> PositionSettings:
        if overlap := set(self.add) & set(self.forbid):
            raise OptionError(("forbid", f"{min(overlap)!r} is also in 'add'"))
        return self


class JudgedExitSettings(Section):
    """An exit built into the model, such as a detector's."""

    outputs: Annotated[dict[Tensor, Tensor], Field(min_length=1, max_length=64)]
    """The exit's replacement for each output of the whole model. All exits replace the same
    outputs. Other outputs of the file are not served."""
    quality: Tensor
    """Output with the quality of each row, 0 to 1."""
    threshold: Annotated[float, Field(ge=0, le=1)]
    """A row leaves if 1 − quality is below the threshold. A higher threshold lets more rows
    leave."""


class RememberSettings(Section):
    """How an answer may be reused for the next frames of its session."""

    frames: Annotated[int, Field(ge=1, le=1000)] = 2
    """Largest number of frames that may reuse one answer."""
    age: Annotated[Seconds, Field(gt=0)] = 5.0
    """Longest time from the answered frame to a frame that gets its answer."""


class EarlyExitSettings(Section):
    """How a classifier may answer easy rows early."""

    accuracy_loss: Annotated[Percent, Field(gt=0, lt=1)] = 0.01
    """Largest share of rows whose answer may differ from the whole model's."""
    ramp_budget: Annotated[Percent, Field(gt=0, le=1)] = 0.05
    """Largest time that early exits may add, as a share of a whole pass."""
    mode: Literal["auto", "release", "shrink"] = "auto"
    """Treatment of answered rows: `release` keeps them in the running batch, `shrink` removes
    them. `auto` keeps them while no request waits for the lane, and removes them otherwise."""
    feedback: Annotated[Percent, Field(gt=0, le=1)] = 0.1
    """Share of batches that always run to the end, to check the accuracy of early answers."""
    promise: Literal["window", "run"] = "window"
    """Where `accuracy_loss` holds: in every `window` of 512 rows, or in a whole `run`
    ([the promise](exits.md#the-promise))."""
    primary: str | None = None
    """The input that ramps look at, if the model has several."""
    output: Tensor | None = None
    """The output that holds classes, if no Softmax produces it."""
    positions: PositionSettings = PositionSettings()
    whole_model_only: Annotated[
        tuple[Annotated[int, Field(ge=0)] | Tensor, ...], Field(strict=False, max_length=20)
    ] = ()
    """Classes, by label or number from 0, that early exits may neither give nor take away
    ([rare answers](exits.md#rare-answers))."""
    remember: RememberSettings | None = None
    """Lets a frame get the whole model's last answer to its session
    ([remembered answers](exits.md#remembered-answers)). `{}` means the defaults."""
    judged: Annotated[tuple[JudgedExitSettings, ...], Field(strict=False, max_length=64)] = ()
    """The model's own exits, front to end, instead of learnt ramps. Nothing guarantees their
    accuracy ([detectors](exits.md#detectors))."""

    enlarge: bool = False
    """With `judged` and `mode: shrink`: batches end at the last exit, but the time saved by earlier
    exits is used to run the least certain rows to the model's end."""

    @model_validator(mode="after")
    def _learnt_or_judged(self) -> EarlyExitSettings:
        if self.enlarge and (len(self.judged) < 2 or self.mode != "shrink"):
            raise OptionError(("enlarge", "needs 'mode: shrink' and two or more of 'judged'"))
        if not self.judged:
            return self
        for name in EarlyExitSettings.model_fields:
            if name in self.model_fields_set - {"judged", "mode", "enlarge"}:
                raise OptionError((name, "not allowed with 'judged', which learns no ramps"))
        for at, exit_ in enumerate(self.judged):
            if exit_.outputs.keys() != self.judged[0].outputs.keys():
                names = ", ".join(self.judged[0].outputs)
                raise OptionError(
                    (f"judged[{at}].outputs", f"expected the outputs of the first exit: {names}")
                )
        return self

    def class_numbers(self, labels: Sequence[str]) -> tuple[int, ...]:
        """Numbers of `whole_model_only`. Raises OptionError for a name that is not among
        `labels`."""
        numbers = []
        for at, name in enumerate(self.whole_model_only):
            if isinstance(name, str) and labels.count(name) != 1:
                choices = "a class number, since the model has no 'labels'"
                if labels:
                    choices = f"one of the labels, such as {labels[0]!r}"
                field = (f"whole_model_only[{at}]", f"expected {choices}, got {name!r}")
                raise OptionError(field)
            numbers.append(labels.index(name) if isinstance(name, str) else name)
        return tuple(numbers)

    @property
    def own_exits(self) -> tuple[OwnExit, ...]:
        """The model's own exits, for workers."""
        return tuple(OwnExit(exit_.outputs, exit_.quality) for exit_ in self.judged)

    @property
    def stated(self) -> StatedExits:
        """The stated exits, for the planner."""
        mode = ExitMode(self.mode)
        if self.judged:
            thresholds = tuple(exit_.threshold for exit_ in self.judged)
            ramps = tuple(range(len(thresholds)))
            return StatedExits(
                mode=mode, ramps=ramps, thresholds=thresholds, learnt=False, enlarge=self.enlarge
            )
        budget = self.accuracy_loss, self.ramp_budget
        exits = StatedExits(*budget, mode, self.feedback, promise=self.promise)
        if (remember := self.remember) is not None:
            return replace(exits, remember_frames=remember.frames, remember_s=remember.age)
        return exits
