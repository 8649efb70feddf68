"""Rare answers and applications of little traffic, beside the easy rows of others.

For the two classifiers of `exits_of_others` that read pages and lines of text: ramps are learnt
from 1,500 rows, of which one in fifty has the rare answer, and 300 rows of it are supplied as by
`exits add --rare`. Then the planner that serves decides which of 10,000 other rows leave, in the
modes `release` (all rows are judged) and `shrink` (a tenth of them). Rows are drawn with
replacement from those that no ramp was trained on. Ramps and cuts cost 1 % of a pass each.

And with a second application, which sends 2 % of the rows, all of them spoilt by noise: how many of
its first 1,000 answers are wrong, in three orders.

Ten minutes, nearly all of which draws and runs rows (`--quick`: a third of the rows).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.exits_of_others import TASKS, _session
from bench.measurement import Figure, Options, Result, at_least, at_most
from slacktide.domain import (
    Batch,
    ExitMode,
    ExitReport,
    Leaving,
    PoolId,
    Replica,
    Request,
    is_judged,
)
from slacktide.exits.manifest import Ramp
from slacktide.exits.positions import find_positions
from slacktide.exits.ramp_graph import PREFIX, with_features
from slacktide.exits.training import PooledRows, RampTrainer, judged_rows
from slacktide.lab.examples.packaged import FetchError
from slacktide.planning.exits import (
    ExitsArranged,
    RampFacts,
    RampsJudged,
    RampsLearnt,
    StatedExits,
)
from slacktide.planning.exits.pool_exits import PoolExits
from slacktide.planning.exits.ramps import ExitsAnswer

POOL = PoolId("m", "1")
REPLICA = Replica(1, POOL, "m", (0,), 4)
RARE, SHARE, SUPPLIED, TRAINED = 1, 0.02, 300, 1500
SERVED, SMALL = 10_000, 52_000
PASS_S, CUT = 0.02, 0.01
ROWS = {"orientation": (3600, 1000), "direction": (5000, 1500)}
"""Rows of the kind that ramps are learnt from, and spoilt ones."""


@dataclass(frozen=True, slots=True, eq=False)
class Verdicts:
    """Verdicts of the ramps at all positions on rows, and the model's answers."""

    unsure: NDArray[np.float64]
    agrees: NDArray[np.bool_]
    answers: NDArray[np.int64]

    @classmethod
    def of(cls, ramps: tuple[Ramp, ...], rows: PooledRows) -> Verdicts:
        answers = rows.logits.argmax(axis=1)
        judged = [
            judged_rows(ramp.logits(part) / ramp.temperature, answers)
            for ramp, part in zip(ramps, rows.features, strict=True)
        ]
        unsure = np.stack([ramp.uncertainty for ramp in judged], axis=1)
        return cls(unsure, np.stack([ramp.agrees for ramp in judged], axis=1), answers)


class SteppedPool:
    """The planner's state of a pool, row by row, with computations that last a row."""

    def __init__(self, ramps: tuple[Ramp, ...], supplied: Verdicts, mode: ExitMode) -> None:
        self.state, self.mode = PoolExits(POOL, StatedExits(mode=mode)), mode
        self._front = [ramp.cost for ramp in ramps]
        facts = [RampFacts(r.position, r.tensor, r.agreement, r.cost) for r in ramps]
        self.state.on_event(RampsLearnt(POOL, 1, tuple(facts)))
        self.state.on_event(_judged(supplied, slice(None), supplied=True))
        self.left: list[bool] = []
        self.wrong: list[bool] = []
        self._answer: tuple[int, ExitsAnswer] | None = None
        self._arrange()

    def _arrange(self) -> None:
        state = self.state
        while (policy := state.policy()) is not None and (
            policy.ramps != state.open_chain or state.open_revision != 1
        ):
            ends = [self._front[ramp] + CUT * (at + 1) for at, ramp in enumerate(policy.ramps)]
            chain = tuple([PASS_S * end for end in (*ends, 1 + CUT * len(ends))])
            event = ExitsArranged(POOL, 1, 1, policy.ramps, "", (1,), (PASS_S,), (chain,))
            state.on_event(event)

    def row(self, rows: Verdicts, at: int, application: str = "") -> None:
        state, number = self.state, len(self.left)
        policy = state.policy()
        assert policy is not None
        ramps, listed = policy.ramps, application in (policy.applications or ())
        sure = (rows.unsure[at, list(ramps)] < policy.thresholds).tolist() if listed else []
        left = sure.index(True) if True in sure else -1
        judged = is_judged(number, policy.feedback)
        runs_on = judged or self.mode is ExitMode.RELEASE
        gone = left >= 0 and not runs_on
        shown = ramps[: left + 1] if gone else ramps
        report = ExitReport(
            ramps,
            (tuple(rows.unsure[at, list(shown)].tolist()),),
            (() if gone else tuple(rows.agrees[at, list(ramps)].tolist()),),
            (left,),
            answers=() if gone else (int(rows.answers[at]),),
        )
        request = Request(number, "m", 0.0, 9.0, application=application)
        leaving = Leaving.RUN_ON if runs_on else Leaving.SHRINK
        held = () if listed else (0,)
        batch = Batch(number, REPLICA, (request,), 1, 0.0, 9.0, False, leaving, judged, held)
        state.feedback = policy.feedback
        state.count_batch(report, batch, stopped=False, now=PASS_S * number)
        if judged and is_judged(number, policy.feature_share):
            state.on_event(_judged(rows, slice(at, at + 1), applications=(application,)))
        self.left.append(left >= 0)
        self.wrong.append(left >= 0 and not rows.agrees[at, ramps[left]])
        if self._answer is not None and number >= self._answer[0]:
            state.accept(self._answer[1], 0.0)
            self._answer = None
        elif self._answer is None and state.due:
            self._answer = number + 1, state.question().answer()
        self._arrange()


def _judged(rows: Verdicts, which: slice, **fields: Any) -> RampsJudged:
    unsure, agrees = rows.unsure[which].tolist(), rows.agrees[which].tolist()
    answers = tuple(rows.answers[which].tolist())
    return RampsJudged(
        POOL, 1, tuple(map(tuple, unsure)), tuple(map(tuple, agrees)), answers, **fields
    )


def run(options: Options) -> Result:
    """Both classifiers; one that cannot be fetched is left out."""
    result = Result("rare_exits", seeds=(0, 1, 2))
    for name in ROWS:
        if not options.wants(name):
            continue
        try:
            result.figures += _figures(name, 3 if options.quick else 1)
        except FetchError as error:
            result.remarks.append(f"{name} was left out: {error}")
    return result


def _figures(name: str, part: int) -> Iterator[Figure]:
    rng = np.random.default_rng(5)
    costs, tensors, usual, spoilt = _pooled(name, rng, part)
    answers = usual.logits.argmax(axis=1)
    rare, common = (rng.permutation(np.flatnonzero(kind)) for kind in _kinds(answers))
    supplied, trained = SUPPLIED // part, TRAINED // part
    few = int(SHARE * trained)
    trainer = RampTrainer(tensors, costs)
    rows = _some(usual, rng.permutation([*common[few:trained], *rare[supplied:][:few]]))
    trainer.add(rows.features, rows.logits)
    trainer.supplied, judges = _some(usual, rare[:supplied]).halves_by_class()
    ramps = trainer.train()
    verdicts = [
        Verdicts.of(ramps, kind)
        for kind in (
            _some(usual, common[trained:]),
            _some(usual, rare[supplied + few :]),
            spoilt,
            judges,
        )
    ]
    *served, supplied_rows = verdicts
    for mode in (ExitMode.RELEASE, ExitMode.SHRINK):
        runs = [_served(ramps, served, supplied_rows, mode, seed, SERVED, 0.0) for seed in range(3)]
        left, right, kept, _ = (median(column) for column in zip(*runs, strict=True))
        title = f"{name}, {mode.value}"
        yield Figure(f"{title}: rows that leave", 100 * left, "%", at_least(50.0))
        yield Figure(f"{title}: answers as the model's", 100 * right, "%", at_least(99.0))
        yield Figure(f"{title}: rare answers kept", 100 * kept, "%", at_least(97.0))
        runs = [_served(ramps, served, supplied_rows, mode, seed, SMALL, 0.02) for seed in range(3)]
        wrong = [100 * small for *_, small in runs]
        note = ", ".join(f"{share:.1f}" for share in wrong)
        title += ": wrong of an application with 2 % of the rows"
        yield Figure(title, median(wrong), "%", at_most(1.0), note)


def _served(
    ramps: tuple[Ramp, ...],
    kinds: list[Verdicts],
    supplied: Verdicts,
    mode: ExitMode,
    seed: int,
    count: int,
    small: float,
) -> tuple[float, float, float, float]:
    """Shares of rows: that left, with the model's answer, of rare ones with it; and of the first
    1,000 rows of the small application, with another one."""
    rng, pool = np.random.default_rng(seed), SteppedPool(ramps, supplied, mode)
    drawn = rng.choice(3, count, p=(0.98 * (1 - small), 0.02 * (1 - small), small))
    for kind in drawn.tolist():
        rows = kinds[kind]
        pool.row(rows, int(rng.integers(len(rows.answers))), "small" if kind == 2 else "main")
    wrong = np.array(pool.wrong)
    spoilt = wrong[drawn == 2][:1000]
    kept = 1 - wrong[drawn == 1].mean()
    return float(np.mean(pool.left)), 1 - wrong.mean(), kept, spoilt.mean() if small else 0.0


def _kinds(answers: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    return answers == RARE, answers != RARE


def _some(rows: PooledRows, at: Any) -> PooledRows:
    return PooledRows(tuple(part[at] for part in rows.features), rows.logits[at])


def _pooled(
    name: str, rng: np.random.Generator, part: int
) -> tuple[list[float], list[str], PooledRows, PooledRows]:
    """Costs and tensors of the positions, and what a session gives for usual and spoilt rows.
    Raises FetchError."""
    import onnx

    task = TASKS[name]()
    model = onnx.load(str(task.path))
    (primary,) = [value.name for value in model.graph.input]
    shapes = {primary: task.rows(1, rng).shape[1:]}
    graph = find_positions(model, shapes=shapes, output=model.graph.output[0].name)
    session = _session(with_features(model, graph))
    names = [f"{PREFIX}features/{position.number}" for position in graph.positions]
    kinds = []
    for spoils, count in enumerate(ROWS[name]):
        chunks = []
        for _ in range(0, count // part, 100):
            rows = task.rows(100, rng)
            if spoils:
                strength = rng.uniform(0.5, 2.5, (len(rows), *[1] * (rows.ndim - 1)))
                rows = (rows + strength * rng.normal(size=rows.shape)).astype(rows.dtype)
            *features, logits = session.run([*names, f"{PREFIX}logits"], {primary: rows})
            chunks.append(PooledRows(tuple(features), logits))
        kinds.append(PooledRows.joined(chunks))
    costs = [position.cost for position in graph.positions]
    return costs, [position.tensor for position in graph.positions], kinds[0], kinds[1]
