"""`ExitsPlanner`: which ramps of each model are active, and how sure they must be.

Every batch that ends says what its ramps said. From rows that were judged, thresholds are tuned
and ramps move, off the loop; an alarm takes thresholds to 0 at once. Which rows count is decided
before what is in them is known, or what is learnt would be biased: all of them where all run on;
else those of batches that are judged by their number; and where rows run on if no request waits for
the lane, all of them as long as none is cut short.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from slacktide.domain import (
    Batch,
    BatchAborted,
    BatchFinished,
    Event,
    ExitMode,
    ExitPolicy,
    ExitReport,
    Leaving,
    Plan,
    PoolId,
)
from slacktide.engine import Snapshot
from slacktide.planning.exits.events import (
    ExitEvent,
    ExitsArranged,
    RampFacts,
    RampsLearnt,
    RampsRefused,
    StatedExits,
)
from slacktide.planning.exits.promise import Promise, columns
from slacktide.planning.exits.ramps import (
    ExitsAnswer,
    ExitsQuestion,
    PassTimes,
    Trials,
    first_ramps,
)
from slacktide.planning.planner import JobDone, Owned, PlanField, Planner, Stated, stated_as

TUNE_ROWS = 64
"""Judged rows from one tuning to the next, at most; a wrong answer is looked into at once."""
ROUND_ROWS = 128
"""Judged rows from one round of ramps to the next (§3.3)."""
STALE_S = 60.0
"""Seconds without a judged row after which rows are judged anew."""
RETRY_S, RETRY_MOST_S = 60.0, 3600.0
"""Seconds after which ramps are tried again where none paid; twice as long each time."""
UNSTOPPED = 64
"""Batches in a row that were not cut short, after which all that run on are judged again."""
FEATURE_SHARE = 0.1
"""Of batches from which ramps go on learning."""


@dataclass(frozen=True, slots=True)
class ExitsStatus:
    """Where one pool stands, for metrics and people. Ramps by position."""

    policy: ExitPolicy | None
    """In force, or about to be; None: its requests never leave early."""
    agreement: Mapping[int, float]
    """Share of the last judged rows for which an active ramp gives the model's answer."""
    exits: Mapping[int, int]
    """Rows that each ramp has answered so far."""
    rows: int
    """Rows so far that ran under a policy with ramps."""
    accuracy: float
    """Share of the last judged answers that were the model's."""
    judged: int
    wrong: int
    alarms: int
    saved_s: float
    """Seconds that answers have come earlier so far, less what ramps have cost; 0 until a pass has
    been measured."""
    overhead: float | None
    """Share of a pass that ramps and cuts add, as measured; None: not yet."""
    revision: int
    changes: int
    """How often ramps have moved."""
    reason: str
    """Why they moved last, or why there are none."""


class _PoolExits:
    """What is kept of one pool."""

    def __init__(self, pool: PoolId, stated: StatedExits) -> None:
        self.pool = pool
        self.stated = stated
        self.promise = Promise(stated.accuracy_loss)
        self.facts: tuple[RampFacts, ...] = ()
        self.times = PassTimes(())
        self.trials = Trials()
        self.revision = 0
        self.refused = False
        self.ramps: tuple[int, ...] = ()
        self.arranged: tuple[int, ...] = ()
        """Ramps of the last chain that was opened."""
        self.thresholds: dict[int, float] = {}
        """By position; none: no row leaves."""
        self.exits: Counter[int] = Counter()
        self.rows = 0
        self.saved_s = 0.0
        self.changes = 0
        self.reason = "its ramps are not learnt yet"
        self.changed = True
        """Whether a plan is wanted."""
        self.feedback = 1.0
        """Of the policy in force, or about to be."""
        self.doubts = 0
        """How often what was judged has lost its meaning."""
        self.tune_at = 1
        """Number of the judged row at which thresholds are tuned."""
        self.round_at = ROUND_ROWS
        self.seen_at = -math.inf
        """When a row was judged last."""
        self.retry_at = math.inf
        self.retry_s = RETRY_S
        self.unstopped = UNSTOPPED

    @property
    def fixed(self) -> bool:
        return self.stated.thresholds is not None

    def policy(self) -> ExitPolicy | None:
        """What is to be in force."""
        stated = self.stated
        if self.refused:
            return None
        if not self.facts:
            return ExitPolicy(
                self.pool, mode=stated.mode, feedback=1.0, features=True, reason=self.reason
            )
        thresholds = tuple([self.thresholds.get(ramp, 0.0) for ramp in self.ramps])
        return ExitPolicy(
            self.pool,
            self.ramps,
            thresholds,
            stated.mode,
            self._feedback(),
            self.revision,
            features=True,
            feature_share=FEATURE_SHARE,
            costs=tuple([min(max(each, 1e-3), 1.0) for each in self._answers()]),
            reason=self.reason,
        )

    def _answers(self) -> list[float]:
        """When each ramp's answers are there, in whole passes, as near as predictions need it."""
        return [round(each, 2) for each in self.times.answers(self.ramps)[:-1]]

    def _feedback(self) -> float:
        if self.fixed or self.stated.mode is ExitMode.RELEASE:
            return self.stated.feedback if self.thresholds else 1.0
        return self.promise.feedback(self.stated.feedback) if self.thresholds else 1.0

    def learn(self, learnt: RampsLearnt) -> None:
        """Ramps are there, or have other weights: what was judged says nothing of them."""
        self.facts, self.revision = learnt.ramps, learnt.revision
        self.times, self.trials = PassTimes(learnt.ramps, self.times), Trials()
        self.promise.forget()
        self._distrust()
        known = [each.position for each in learnt.ramps]
        if self.stated.ramps is not None:
            self.ramps = tuple([each for each in self.stated.ramps if each in known])
        elif not self.ramps or not set(self.ramps) <= set(known):
            self.begin()
        if self.fixed:
            fixed = zip(self.stated.ramps or (), self.stated.thresholds or (), strict=True)
            self.thresholds = dict(fixed)

    def begin(self) -> None:
        """The first ramps, or the first after none paid."""
        budget = self.stated.ramp_budget
        first = first_ramps(self.facts, self.times, budget, evenly=self.stated.evenly)
        self.move(first, "the first ramps" if first else "no ramp pays within its budget")

    def move(self, ramps: tuple[int, ...], reason: str) -> None:
        """From now on other ramps are to be active; those that stay keep their thresholds."""
        self.ramps, self.reason = ramps, reason
        self.changes += 1
        self.changed = True
        self.thresholds = {r: each for r, each in self.thresholds.items() if r in ramps}
        self.round_at = self.promise.judged + ROUND_ROWS

    def arrange(self, arranged: ExitsArranged) -> None:
        """A replica has opened a chain, or could not."""
        if arranged.revision != self.revision or arranged.ramps != self.ramps:
            return
        if arranged.detail:
            for ramp in set(self.ramps) - set(self.arranged):
                self.trials.failed(ramp)
            back = tuple([each for each in self.arranged if each in self.ramps])
            self.move(back if self.arranged != self.ramps else (), arranged.detail)
            return
        self.arranged, self.retry_s = arranged.ramps, RETRY_S
        self.times.measure(arranged)
        overhead = self.times.overhead
        if self.stated.ramps is None and self.ramps and overhead is not None:
            budget = self.stated.ramp_budget
            if overhead > budget + 1e-6:
                fewer = first_ramps(
                    [each for each in self.facts if each.position in self.ramps],
                    self.times,
                    budget * (1.0 - 1e-6),
                )
                self.move(fewer, f"ramps cost {overhead:.1%} of a pass, more than {budget:.1%}")

    def take(self, report: ExitReport, batch: Batch, *, stopped: bool, now: float) -> None:
        """A batch has ended."""
        self.rows += len(report.left)
        seconds = self.times.seconds(len(report.left))
        known = seconds > 0.0 and all(ramp in self.times.front for ramp in report.ramps)
        answers = self.times.answers(report.ramps) if known else ()
        for left in report.left:
            if left >= 0:
                self.exits[report.ramps[left]] += 1
            if answers:
                self.saved_s += seconds * (1.0 - answers[left])  # -1: the end
        self.unstopped = 0 if stopped else self.unstopped + 1
        promise = self.promise
        if stopped or not all(report.agrees) or not self._counts(batch):
            promise.skip(len(report.left))
            return
        wrong, before = promise.wrong, promise.may_leave
        self.seen_at = now
        if promise.add(report):
            self.reason = "an alarm: answers of ramps differ from the model's"
            self._distrust()
        elif before and not promise.may_leave:
            self._distrust()
        elif promise.wrong > wrong or (promise.may_leave and not before):
            self.tune_at = promise.judged
        if self.feedback != self._feedback():
            self.changed = True

    def _counts(self, batch: Batch) -> bool:
        """Whether the rows of a batch are to be judged, whatever is in them."""
        if batch.judged or batch.leaving is Leaving.NONE or self.stated.mode is ExitMode.RELEASE:
            return True
        return batch.leaving is Leaving.RUN_ON and self.unstopped > UNSTOPPED

    def _distrust(self) -> None:
        """No row leaves until thresholds are found anew."""
        if not self.fixed:
            self.thresholds = {}
        self.changed = True
        self.doubts += 1
        self.tune_at = self.promise.judged + 1

    def grow_old(self, *, now: float) -> None:
        """It may be that no row has been judged for long, or that ramps are to be tried again."""
        if self.stale_at <= now:
            self.promise.doubt()
            self._distrust()
            self.seen_at = math.inf
        if self.retry_at <= now:
            self.retry_s = min(2.0 * self.retry_s, RETRY_MOST_S)
            self.times.costs.clear()
            self.trials = Trials()
            self.retry_at = math.inf
            self.begin()

    @property
    def stale_at(self) -> float:
        return self.seen_at + STALE_S if self.thresholds and not self.fixed else math.inf

    @property
    def due(self) -> bool:
        """Whether something is to be computed."""
        promise = self.promise
        if promise.judged < min(self.tune_at, self.round_at) or not promise.rows:
            return False
        return bool(self.ramps) and not self.fixed and promise.may_leave

    def question(self) -> ExitsQuestion:
        """What is to be computed."""
        promise = self.promise
        rounds = promise.judged >= self.round_at and self.stated.moving
        rounds = rounds and self.stated.ramps is None and self.arranged == self.ramps
        if promise.judged >= self.round_at:
            self.round_at = promise.judged + ROUND_ROWS
        self.tune_at = promise.judged + TUNE_ROWS
        return ExitsQuestion(
            self.facts,
            self.ramps,
            tuple(promise.rows),
            promise.loss,
            promise.fresh,
            self.stated.ramp_budget,
            PassTimes(self.facts, self.times),
            self.trials,
            rounds,
        )

    def settle(self, answer: ExitsAnswer, doubts: int, *, now: float) -> None:
        """What was computed has come."""
        if doubts != self.doubts or not self.promise.may_leave:
            return
        self.trials = answer.trials
        if answer.ramps != self.ramps:
            self.move(answer.ramps, answer.reason)
        found = {r: each for r, each in zip(answer.ramps, answer.thresholds, strict=True) if each}
        self.changed = self.changed or found != self.thresholds
        self.thresholds = found
        if not self.ramps:
            self.retry_at = now + self.retry_s

    def status(self) -> ExitsStatus:
        promise, ramps = self.promise, self.ramps
        unsure, agrees = columns(tuple(promise.rows), ramps)
        agreement = {
            ramp: float(agrees[seen, at].mean())
            for at, ramp in enumerate(ramps)
            if (seen := unsure[:, at] < math.inf).any()
        }
        return ExitsStatus(
            self.policy(),
            agreement,
            dict(self.exits),
            self.rows,
            promise.accuracy,
            promise.judged,
            promise.wrong,
            promise.alarms,
            self.saved_s,
            self.times.overhead,
            self.revision,
            self.changes,
            self.reason,
        )


class ExitsPlanner(Planner):
    """The planner of every model that states early exits."""

    name = "exits"

    def __init__(self) -> None:
        self._stated: dict[str, StatedExits] = {}
        self._pools: dict[PoolId, _PoolExits] = {}
        self._heard: dict[PoolId, RampsLearnt | RampsRefused] = {}
        """The last of each pool, which may be heard before the pool is served."""

    def owns(self, stated: Stated) -> frozenset[Owned]:
        return frozenset((model, PlanField.EXITS) for model in stated_as(StatedExits, stated))

    def rebase(self, base: Plan, stated: Stated, *, now: float) -> None:
        """See `Planner`. Pools that stay keep what is known of them."""
        self._stated = stated_as(StatedExits, stated)
        pools = {}
        for pool in {each.pool: None for each in base.deployments}:
            wanted = self._stated.get(pool.model)
            if wanted is None:
                continue
            known = self._pools.pop(pool, None)
            if known is None or known.stated != wanted:
                known = _PoolExits(pool, wanted)
                if pool in self._heard:
                    self._hear(known, self._heard[pool])
            pools[pool] = known
        for pool in self._pools:
            self._heard.pop(pool, None)
        self._pools = pools

    def observe_exits(self, events: Sequence[ExitEvent], *, now: float) -> None:
        for event in events:
            state = self._pools.get(event.pool)
            if isinstance(event, ExitsArranged):
                if state is not None:
                    state.arrange(event)
                    if not state.ramps:
                        state.retry_at = now + state.retry_s
                continue
            self._heard[event.pool] = event
            if state is not None:
                self._hear(state, event)

    def _hear(self, state: _PoolExits, event: RampsLearnt | RampsRefused) -> None:
        state.changed = True
        if isinstance(event, RampsRefused):
            state.refused, state.reason = True, event.reason
        elif event.revision > state.revision:
            state.refused = False
            state.learn(event)

    def observe(self, events: Sequence[Event | JobDone], snapshot: Snapshot, *, now: float) -> None:
        if not self._pools:
            return
        for event in events:
            if isinstance(event, (BatchFinished, BatchAborted)):
                running = snapshot.running(event.batch) if event.exits is not None else None
                if running is None or event.exits is None:
                    continue
                state = self._pools.get(running.batch.replica.pool)
                if state is not None:
                    stopped = isinstance(event, BatchAborted)
                    state.take(event.exits, running.batch, stopped=stopped, now=now)
            elif isinstance(event, JobDone) and event.planner == self.name and event.answer:
                answers: dict[PoolId, tuple[int, ExitsAnswer]] = event.answer  # type: ignore[assignment]
                for pool, (doubts, answer) in answers.items():
                    state = self._pools.get(pool)
                    if state is not None:
                        state.settle(answer, doubts, now=now)
        for state in self._pools.values():
            state.grow_old(now=now)

    def next_wakeup(self, snapshot: Snapshot) -> float:
        at = math.inf
        for state in self._pools.values():
            at = min(at, state.stale_at, state.retry_at)
        return at

    def is_urgent(self, snapshot: Snapshot, *, now: float) -> bool:
        at_once = self.next_wakeup(snapshot) <= now
        return at_once or any(state.changed or state.due for state in self._pools.values())

    def meanwhile_at(self) -> float:
        """An alarm does not wait for what is being computed."""
        return -math.inf if any(state.changed for state in self._pools.values()) else math.inf

    def job(self, snapshot: Snapshot, *, now: float) -> Callable[[], object] | None:
        if any(state.changed for state in self._pools.values()):
            return None  # first that
        asked = {
            pool: (state.doubts, state.question())
            for pool, state in self._pools.items()
            if state.due
        }
        if not asked:
            return None
        return lambda: {pool: (doubts, each.answer()) for pool, (doubts, each) in asked.items()}

    def plan(self, snapshot: Snapshot, draft: Plan, *, now: float) -> Plan:
        served = {each.pool for each in draft.deployments}
        exits = []
        for pool, state in self._pools.items():
            state.changed = False
            policy = state.policy() if pool in served else None
            if policy is not None:
                state.feedback = policy.feedback
                exits.append(policy)
        return replace(draft, exits=(*draft.exits, *exits)) if exits else draft

    def status(self) -> dict[PoolId, ExitsStatus]:
        """Where each pool stands."""
        return {pool: state.status() for pool, state in self._pools.items()}
