"""Hardware of the experiment `all-five`: batch times and the accuracy of answers.

Also counts the actions of the mechanisms `variants`, `exits` and `distribution`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from slacktide.domain import Batch, ExitPolicy, PoolId, Replica
from slacktide.engine import Engine, PoolParts, PoolView
from slacktide.lab.simulation import (
    ByPool,
    ByProfile,
    Execution,
    ExitCourse,
    LocalChild,
    TableExits,
    rng_for,
)
from slacktide.planning.exits import ExitsArranged, RampsLearnt
from slacktide.profiles import BatchTimes, CorrectedTimes, ShapedTimes
from slacktide.scheduling import PoolRecipe
from slacktide_papers.octopinf.five_setting import (
    BRAND,
    DETECTOR,
    FIXED,
    PLATE,
    VARIANTS,
    FiveSwitches,
    bytes_share,
    exit_table,
    mean_plate_table,
    plate_sizes,
    signature,
    table_of,
    variant_of,
)

REFERENCE = 112
"""Plate width, in pixels, to which the latency table of the plate reader applies."""


class FleetHardware:
    """Hardware of all devices of one run."""

    def __init__(self, switches: FiveSwitches, seed: int) -> None:
        self._on, self._seed = switches, seed
        self.actions: Counter[str] = Counter()
        """Number of actions of each mechanism, by kind of action."""
        self.exits = _CountedExits(self.actions)
        self._ran: dict[str, str] = {}
        """Detector variant that ran last, by pipeline."""

    def parts(self, kind: str) -> Callable[[PoolId, int, PoolView], PoolParts]:
        """Return the function that makes the pools of a device of this kind."""

        def make_pool(pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
            recipe = PoolRecipe("slack", exits=self._on.exits and pool.model == BRAND)
            times: BatchTimes = CorrectedTimes(table_of(pool.model, pool.variant, kind))
            if pool.model == PLATE:
                shaped = self._on.distribution
                times = _by_width(kind) if shaped else CorrectedTimes(mean_plate_table(kind))
            return recipe.parts(times, max_batch=max_batch, view=view)

        return make_pool

    def of(self, name: str, kind: str, engine: Engine) -> Execution:
        """Return the true batch times on the device `name`."""

        def random(of: str) -> Execution:
            draw = rng_for(self._seed, f"{of} on {name}")
            model, _, variant = of.partition(" ")
            if model == PLATE:
                return ByProfile(_by_width(kind), draw)
            return ByProfile(CorrectedTimes(table_of(model, variant, kind)), draw)

        plate = PoolId(PLATE, "1")
        executions = {PoolId(BRAND, "1"): random(BRAND), plate: random(PLATE)}
        if self._on.distribution:
            executions[plate] = _ComparedPlateTimes(
                executions[plate], lambda: engine.snapshot().pools[plate].times, kind, self.actions
            )
        for side, _, _ in VARIANTS:
            variant = variant_of(side)
            executions[PoolId(DETECTOR, "1", variant)] = random(f"{DETECTOR} {variant}")
        return ByPool(executions)

    def accuracy(self, child: LocalChild, id: int) -> float:
        """Accuracy of a stage's answer, 0 to 1."""
        assert child.batch is not None
        pool = child.batch.replica.pool
        if pool.model == BRAND:
            return 1.0 - self.exits.wrong.pop(id, 0.0)
        if pool.model != DETECTOR:
            return 1.0
        name = child.frame.picture.rows.pipeline.name
        if self._ran.setdefault(name, pool.variant) != pool.variant:
            self.actions["changes of variant"] += 1
            self._ran[name] = pool.variant
        if pool.variant != variant_of(FIXED):
            self.actions["frames of other variants"] += 1
        part = child.frame.part
        sent = 1.0 if part is None else part.share
        return min(
            next(exact for side, exact, _ in VARIANTS if variant_of(side) == pool.variant),
            max(exact for side, exact, _ in VARIANTS if bytes_share(side) <= sent + 1e-9),
        )


class _CountedExits:
    """`TableExits` that also counts early exits and their wrong answers."""

    def __init__(self, actions: Counter[str]) -> None:
        self._table = exit_table()
        self._exits = TableExits(self._table)
        self._actions = actions
        self.wrong: dict[int, float] = {}
        """Share of rows whose answer differs from the model's, by request that left early."""

    def learnt(self, pool: PoolId) -> RampsLearnt:
        return self._exits.learnt(pool)

    def arranged(self, replica: Replica, policy: ExitPolicy) -> ExitsArranged:
        return self._exits.arranged(replica, policy)

    def course(self, batch: Batch, policy: ExitPolicy, seconds: float) -> ExitCourse:
        course = self._exits.course(batch, policy, seconds)
        row, exits = 0, course.report.left
        for member in batch.members:
            ramps = exits[row : row + member.rows]
            row += member.rows
            if ramps[0] < 0:
                continue
            self._actions["rows that left early"] += member.rows
            agrees = self._table.agrees[:, policy.ramps[ramps[0]]]
            places = [(member.id + at) % len(self._table) for at in range(member.rows)]
            self.wrong[member.id] = 1.0 - float(agrees[places].mean())
        return course


class _ComparedPlateTimes:
    """The `Execution` of plates; counts batches predicted better by width than by the mean."""

    def __init__(
        self, truth: Execution, times: Callable[[], BatchTimes], kind: str, actions: Counter[str]
    ) -> None:
        self._truth, self._times, self._actions = truth, times, actions
        self._mean = mean_plate_table(kind)

    def seconds(self, batch: Batch, cores: int) -> float:
        seconds = self._truth.seconds(batch, cores)
        predicted = self._times().of(batch.rows, cores, batch.members).expected
        if abs(predicted - seconds) < abs(self._mean.expected(batch.rows, cores) - seconds):
            self._actions["plates told by width"] += 1
        return seconds


def _by_width(kind: str) -> ShapedTimes:
    return ShapedTimes(table_of(PLATE, "", kind), signature(REFERENCE), plate_sizes(kind))
