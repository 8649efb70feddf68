"""Exit tables drawn from a seed: for tests, and to try policies on what no stream at hand shows.

Input i is as hard as a slow walk says, d_i, with a drift on top; a ramp further back copes with
more, a_p. The margin a_p − d_i, plus noise, decides whether the ramp agrees; what it says of its
own uncertainty is a logistic of that margin, plus noise of its own. From `changes_at` on answers
are worse than that by `change`, and ramps do not know it: the case that feedback is for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slacktide.lab.simulation.exit_tables import ExitTable
from slacktide.lab.simulation.items import rng_for

TRAINED = 0.1
"""Share of the inputs over which agreement is taken: the first of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnExits:
    """A stream and a model, as few numbers."""

    inputs: int = 10_000
    rate: float = 30.0
    """Inputs per second; 0: the stream has none of its own."""
    positions: int = 8
    ability: tuple[float, float] = (-0.5, 3.5)
    """Of the first and the last ramp."""
    spread: float = 1.0
    """Standard deviation of how hard inputs are."""
    memory: float = 0.98
    """Correlation of one input with the next."""
    drift: float = 0.0
    """By how much inputs are harder at the end than at the beginning."""
    changes_at: int | None = None
    change: float = 2.0
    seconds: float = 0.02
    """Of the model with one row."""
    fixed: float = 0.3
    """Share of that which every batch takes, whatever its rows."""
    ramp: float = 0.004
    """Share of a pass that an active ramp adds."""
    sizes: tuple[int, ...] = (1, 2, 4, 8)

    def table(self, seed: int) -> ExitTable:
        """The same at every call."""
        n, p = self.inputs, self.positions
        draw = rng_for(seed, "exit table")
        steps = draw.standard_normal(n) * np.sqrt(1.0 - self.memory**2)
        hard = np.empty(n)
        last = float(draw.standard_normal())
        for place, step in enumerate(steps.tolist()):
            last = self.memory * last + step
            hard[place] = last
        hard = self.spread * hard + self.drift * np.linspace(0.0, 1.0, n)
        margin = np.linspace(*self.ability, p)[None, :] - hard[:, None]
        margin += 0.4 * draw.standard_normal((n, p))
        certainty = margin + 0.4 * draw.standard_normal((n, p))
        if self.changes_at is not None:
            margin[self.changes_at :] -= self.change
        agrees = margin > 0.0
        share = (np.arange(p) + 1.0) / (p + 1.0)
        rows = np.array(self.sizes)
        whole = self.seconds * (self.fixed + (1.0 - self.fixed) * rows)
        return ExitTable(
            title=f"drawn from seed {seed}",
            rate=self.rate,
            positions=tuple(f"block_{number}" for number in range(p)),
            uncertainty=(0.75 / (1.0 + np.exp(np.minimum(3.0 * certainty, 60.0)))).astype(
                np.float32
            ),
            agrees=agrees,
            agreement=agrees[: max(1, int(TRAINED * n))].mean(axis=0),
            sizes=rows,
            whole=whole,
            before=whole[:, None] * share[None, :],
            ramp=np.repeat(self.ramp * whole[:, None], p, axis=1),
        )
