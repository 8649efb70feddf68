"""`RampLearning`: ramps that go on learning, from rows as they arrive.

Ramps are trained at 512 rows, at each doubling, and then every 1,024 rows. Later a position's ramp
is replaced if the new one is clearly better on rows that neither has seen. Old rows fade, so ramps
follow a drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slacktide.exits.manifest import Ramp
from slacktide.exits.training import RampTrainer

FIRST_TRAINING = 512
STEADY_TRAINING = 8192
"""Rows after which ramps are trained every `TRAINING_ROWS` rows."""
TRAINING_ROWS = 1024
FORGET = 1 / STEADY_TRAINING
"""Share of their weight that earlier rows lose with each new row."""


class RampLearning:
    """A trainer for the positions of one model, and the time of its next training."""

    def __init__(self, tensors: Sequence[str], costs: Sequence[float]) -> None:
        """`tensors` and `costs`: see `RampTrainer`."""
        self.trainer = RampTrainer(tensors, costs, forget=FORGET)
        self.next_training = FIRST_TRAINING
        """Number of rows at which ramps are next trained."""

    @property
    def is_due(self) -> bool:
        return self.trainer.all_rows >= self.next_training

    def train(self, before: Sequence[Ramp] = ()) -> tuple[Ramp, ...] | None:
        """Train ramps on all rows so far. A new ramp replaces its predecessor in `before` if it is
        clearly better; if the features differ, all are replaced. Returns None if no ramp changes.
        Raises ExitError if no ramps can be learnt."""
        rows = self.trainer.all_rows
        self.next_training = rows + (TRAINING_ROWS if rows >= STEADY_TRAINING else rows)
        ramps = self.trainer.train()
        if _shapes(before) != _shapes(ramps):
            return ramps
        better = tuple(self._better(*pair) for pair in zip(before, ramps, strict=True))
        pairs = zip(better, before, strict=True)
        is_same = all(ramp.weights is previous.weights for ramp, previous in pairs)
        return None if is_same else better

    def _better(self, before: Ramp, after: Ramp) -> Ramp:
        """Return the new ramp of a position if it is clearly better, else the old one with its
        current agreement."""
        then, now = self.trainer.judge(before), self.trainer.judged[after.position]
        return after if now.clearly_better(then) else replace(before, agreement=then.agreement)


def _shapes(ramps: Sequence[Ramp]) -> list[tuple[str, tuple[int, ...]]]:
    return [(ramp.tensor, ramp.weights.shape) for ramp in ramps]
