"""Exit tables of drawn scenes, for remembered answers: an answer holds for a scene, whose early
features drift, and a new scene looks different. Now and then the model's answer flickers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from tests.lab.simulation.drawn_exit_tables import DrawnExits

from slacktide.lab.simulation.exit_tables import ExitTable
from slacktide.lab.simulation.items import rng_for


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnScenes:
    exits: DrawnExits = DrawnExits()
    scene: float = 90.0
    """Frames of a scene, on average."""
    flicker: float = 0.001
    """Share of frames with another answer than their scene's."""
    sessions: int = 1
    """Sessions that take turns."""
    novelty: float = 1.0
    """How much a new scene differs; 0: its features stay, and only the answer changes."""
    alike_from: int | None = None
    """Input from which on new scenes do not differ."""

    def table(self, seed: int) -> ExitTable:
        table, draw = self.exits.table(seed), rng_for(seed, "scenes")
        n = len(table)
        early, answers = np.empty((n, 16), np.float32), np.empty(n, np.int64)
        session = np.arange(n) % self.sessions
        for number in range(self.sessions):
            look, answer = draw.uniform(0.0, 1.0, 16), int(draw.integers(3))
            for at in range(number, n, self.sessions):
                if draw.random() < 1.0 / self.scene:
                    answer = (answer + int(draw.integers(1, 3))) % 3
                    if self.alike_from is None or at < self.alike_from:
                        look += self.novelty * (draw.uniform(0.0, 1.0, 16) - look)
                early[at] = np.maximum(look + 0.01 * draw.standard_normal(16), 0.0)
                flickers = draw.random() < self.flicker
                answers[at] = (answer + int(flickers)) % 3
        return replace(
            table,
            early=early,
            doubt=np.full(n, 0.5, np.float32),
            answers=answers,
            session=session,
        )
