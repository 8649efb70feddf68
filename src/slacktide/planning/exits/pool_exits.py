"""`PoolExits`: the state of one pool: its ramps, its thresholds, and rows that were judged.

To avoid bias, the rows to judge are chosen before their content is known: all rows if all run to
the end; else those of batches chosen by number; and while rows run on because no request waits for
the lane, all rows as long as no batch is cut short.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from slacktide.domain import Batch, ExitMode, ExitPolicy, ExitReport, Leaving, PoolId
from slacktide.planning.exits.accuracy_budget import FRESH, WINDOW, AccuracyBudget, JudgedWindow
from slacktide.planning.exits.events import (
    ExitEvent,
    ExitsArranged,
    RampFacts,
    RampsJudged,
    RampsLearnt,
    RampsRefused,
    StatedExits,
)
from slacktide.planning.exits.ramps import (
    ExitsAnswer,
    ExitsQuestion,
    PassTimes,
    best_ramps,
    evenly_spaced,
    rates_alone,
    without_the_least,
)
from slacktide.planning.scoped import ScopeState

TUNE_ROWS = 64
"""Maximum number of judged rows between two tunings; a wrong answer causes one immediately."""
STALE_S = 60.0
"""Seconds without a judged row after which earlier ones are in doubt."""
RETRY_S, RETRY_MOST_S = 60.0, 3600.0
"""Seconds until ramps are tried again if none paid; doubled each time."""
UNCUT = 64
"""Consecutive batches without a cut after which all rows that run on are judged again."""
FEATURE_SHARE = 0.1
"""Share of batches that are judged at every position, and that ramps keep training on."""
FULL_ROWS, ENOUGH_ROWS = 512, 256
"""Rows judged at every position: the number to keep, and the number required to place ramps."""
ROUND_ROWS = 13
"""Rows judged at every position between two rounds of ramps: 128 rows in all (§3.3)."""
WARM_UP = 1024
"""Maximum rows of a warm-up: until `ENOUGH_ROWS` are judged, all batches judge new ramps at every
position."""


@dataclass(frozen=True, slots=True)
class ExitsStatus:
    """The status of one pool, for metrics and people. Ramps are named by position."""

    policy: ExitPolicy | None
    """The policy in force, or about to come into force; None: no row leaves early."""
    agreement: Mapping[int, float]
    """Share of the last 512 judged rows for which an active ramp gives the model's answer."""
    exits: Mapping[int, int]
    """Rows that left at each ramp so far."""
    rows: int
    """Rows so far that ran under a policy with ramps."""
    accuracy: float
    """Share of the last judged answers that were the model's."""
    judged: int
    wrong: int
    alarms: int
    saved_s: float
    """Seconds by which answers came earlier, summed, less the cost of ramps; 0 until a pass has
    been measured."""
    overhead: float | None
    """Share of a pass that ramps and cuts add; None: not measured yet."""
    revision: int
    changes: int
    """Number of times that ramps have moved."""
    reason: str
    """Reason for the last change, or why there are no ramps."""


class PoolExits(ScopeState):
    """The state of one pool."""

    stated: StatedExits

    def __init__(self, pool: PoolId, stated: StatedExits) -> None:
        super().__init__(pool.model, stated)
        self.pool = pool
        self.accuracy_budget = AccuracyBudget(stated.accuracy_loss)
        self.facts: tuple[RampFacts, ...] = ()
        self.times = PassTimes(())
        self.everywhere = JudgedWindow(FULL_ROWS)
        """Rows judged at every position."""
        self.round_at = ENOUGH_ROWS
        """Value of `everywhere.added` from which on ramps may move."""
        self.warm_up_until = WARM_UP
        """Value of `rows` at which a warm-up ends."""
        self.unfit: set[int] = set()
        """Positions whose ramps could not be opened, or cost too much on their own."""
        self.revision = 0
        self.refused = False
        self.ramps: tuple[int, ...] = ()
        self.open_chain: tuple[int, ...] = ()
        """Ramps of the last chain that was opened."""
        self.open_revision = 0
        """Revision of their weights: a worker runs a chain until it has opened the next one."""
        self.thresholds: dict[int, float] = {}
        """Threshold of each ramp; empty: no row leaves."""
        self.exits: Counter[int] = Counter()
        self.rows = 0
        self.saved_s = 0.0
        self.changes = 0
        self.reason = "ramps are not trained yet"
        self.changed = True
        """Whether the plan must be written anew."""
        self.feedback = 1.0
        """Share of judged batches in the policy in force, or about to come into force."""
        self.epoch = 0
        """Rises when thresholds are reset or ramps change. Questions of an earlier epoch are
        void."""
        self._question_epoch = 0
        self.tune_at = 1
        """Number of judged rows at which thresholds are next tuned."""
        self.judged_at = -math.inf
        """When the last row was judged."""
        self.retry_at = math.inf
        self.retry_s = RETRY_S
        self.uncut = UNCUT

    @property
    def has_fixed_thresholds(self) -> bool:
        return self.stated.thresholds is not None

    def policy(self) -> ExitPolicy | None:
        """Return the policy to put in force; None: no exits."""
        stated = self.stated
        if self.refused or not (self.facts or stated.learnt):
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
            features=stated.learnt,
            feature_share=1.0 if self._is_warming_up else min(FEATURE_SHARE, stated.feedback),
            costs=tuple([min(max(answer_time, 1e-3), 1.0) for answer_time in self._answers()]),
            reason=self.reason,
            enlarge=stated.enlarge,
        )

    def _answers(self) -> list[float]:
        """Return each ramp's answer time, as a share of a pass, rounded for predictions."""
        return [round(answer_time, 2) for answer_time in self.times.answers(self.ramps)[:-1]]

    def _feedback(self) -> float:
        if not self.stated.learnt:
            return 0.0
        if self.has_fixed_thresholds or self.stated.mode is ExitMode.RELEASE:
            return self.stated.feedback if self.thresholds else 1.0
        return self.accuracy_budget.feedback(self.stated.feedback) if self.thresholds else 1.0

    @property
    def wakeup_at(self) -> float:
        return min(self.stale_at, self.retry_at)

    @property
    def meanwhile_at(self) -> float:
        """Immediately if the policy has changed: an alarm must not wait for a computation."""
        return -math.inf if self.changed else math.inf

    def on_event(self, event: ExitEvent) -> None:
        """Take in a report on the ramps of this pool."""
        if isinstance(event, ExitsArranged):
            self._arrange(event)
        elif isinstance(event, RampsJudged):
            self._record_full_evaluation(event)
        elif isinstance(event, RampsRefused):
            self.changed = self.refused = True
            self.reason = event.reason
        else:
            self.changed = True
            if event.revision > self.revision:
                self.refused = False
                self._learn(event)

    def _learn(self, learnt: RampsLearnt) -> None:
        """Take ramps with new weights; rows judged earlier say nothing about them."""
        self.facts, self.revision = learnt.ramps, learnt.revision
        self.times = PassTimes(learnt.ramps, self.times)
        self.accuracy_budget.forget(len(learnt.ramps))
        self.everywhere = JudgedWindow(FULL_ROWS, len(learnt.ramps))
        self.round_at, self.warm_up_until = ENOUGH_ROWS, self.rows + WARM_UP
        self.unfit.clear()
        self._reset_thresholds()
        positions = [fact.position for fact in learnt.ramps]
        if self.stated.ramps is not None:
            self.ramps = tuple([ramp for ramp in self.stated.ramps if ramp in positions])
            fixed = self.stated.thresholds or ()
            self.thresholds = dict(zip(self.stated.ramps, fixed, strict=False))
        elif not self.ramps or not set(self.ramps) <= set(positions):
            self._begin()

    @property
    def _is_measured(self) -> bool:
        return len(self.everywhere) >= ENOUGH_ROWS

    @property
    def _moving(self) -> bool:
        return self.stated.learnt and self.stated.moving and self.stated.ramps is None

    @property
    def _is_warming_up(self) -> bool:
        """Whether ramps are new and free to move, and their best positions are still unknown."""
        return self._moving and not self._is_measured and self.rows < self.warm_up_until

    @property
    def _may_move(self) -> bool:
        """Whether rows judged at every position may move the ramps now."""
        if not self._moving or self.everywhere.added < self.round_at:
            return False
        return self.open_chain == self.ramps and (
            self.accuracy_budget.fresh >= FRESH or not self.ramps
        )

    def _rates(self) -> dict[int, float]:
        """Return the rate of each position; empty if too few rows were judged at every position."""
        if not self._is_measured:
            return {}
        rates = rates_alone(self.everywhere.said(range(len(self.facts))), self.accuracy_budget.loss)
        return dict(enumerate(rates))

    def _record_full_evaluation(self, judged: RampsJudged) -> None:
        """Add rows that were judged at every position."""
        if judged.revision == self.revision:
            was_warming_up = self._is_warming_up
            self.everywhere.add(range(len(self.facts)), judged.uncertainty, judged.agrees)
            self.changed = self.changed or was_warming_up is not self._is_warming_up

    def _begin(self) -> None:
        """Choose the first ramps, at the start or again after none paid."""
        self.retry_at = math.inf
        budget, rates = self.stated.ramp_budget, self._rates()
        fit = [fact.position for fact in self.facts if fact.position not in self.unfit]
        if rates and self._moving:
            first = best_ramps(fit, self.times, budget, rates)
        else:
            first = evenly_spaced(fit, self.times, budget)
        self._move(first, "the first ramps" if first else "no ramp pays within its budget")

    def _move(self, ramps: tuple[int, ...], reason: str) -> None:
        """Make other ramps active; those that stay keep their thresholds."""
        self.ramps, self.reason = ramps, reason
        self.changes += 1
        self.epoch += 1
        self.changed = True
        self.thresholds = {r: threshold for r, threshold in self.thresholds.items() if r in ramps}

    def _arrange(self, arranged: ExitsArranged) -> None:
        """Take the report that a replica has opened a chain, or failed to."""
        if arranged.revision != self.revision or arranged.ramps != self.ramps:
            return
        if arranged.detail:
            self.unfit |= {*self.ramps} - {*self.open_chain}
            back = [r for r in self.open_chain if r in self.ramps and self.open_chain != self.ramps]
            self._move(tuple(back), arranged.detail)
            return
        self.open_chain, self.open_revision = arranged.ramps, arranged.revision
        if not arranged.rows:
            return  # it runs; its times follow once they are measured
        self.times.measure(arranged)
        overhead, budget = self.times.overhead or 0.0, self.stated.ramp_budget
        if self.ramps and self.stated.ramps is None and overhead > budget + 1e-6:
            # Drop one at a time: the others are measured anew, and a measurement may be wrong.
            if len(self.ramps) == 1:
                self.unfit |= {*self.ramps}
            fewer = without_the_least(self.ramps, self.times, self._rates())
            self._move(fewer, f"ramps cost {overhead:.1%} of a pass, more than {budget:.1%}")

    def count_batch(self, report: ExitReport, batch: Batch, *, stopped: bool, now: float) -> None:
        """Count the exits of a batch that ended, and judge its rows."""
        self.rows += len(report.left)
        seconds = self.times.seconds(len(report.left))
        timed = seconds > 0.0 and all(ramp in self.times.front for ramp in report.ramps)
        answers = self.times.answers(report.ramps) if timed else ()
        for exit_index in report.left:
            if exit_index >= 0:
                self.exits[report.ramps[exit_index]] += 1
            if answers:
                self.saved_s += seconds * (1.0 - answers[exit_index])  # -1: the end
        self.uncut = 0 if stopped else self.uncut + 1
        budget = self.accuracy_budget
        is_current = self.open_revision == self.revision
        if stopped or not is_current or not all(report.agrees) or not self._counts(batch):
            budget.add_unjudged(len(report.left))
            return
        wrong, before = budget.wrong, budget.may_leave
        self.judged_at = now
        if budget.add(report):
            self.reason = "alarm: answers of ramps differ from the model's"
            self._reset_thresholds()
        elif before and not budget.may_leave:
            self._reset_thresholds()
        elif budget.wrong > wrong or (budget.may_leave and not before):
            self.tune_at = budget.judged
        if self.feedback != self._feedback():
            self.changed = True

    def _counts(self, batch: Batch) -> bool:
        """Whether the rows of a batch are judged, whatever their content."""
        if batch.judged or batch.leaving is Leaving.NONE or self.stated.mode is ExitMode.RELEASE:
            return True
        return batch.leaving is Leaving.RUN_ON and self.uncut > UNCUT

    def _reset_thresholds(self) -> None:
        """Let no row leave until thresholds are tuned anew."""
        if not self.has_fixed_thresholds:
            self.thresholds = {}
        self.changed = True
        self.epoch += 1
        self.tune_at = self.accuracy_budget.judged + 1

    def grow_old(self, *, now: float) -> None:
        """Reset thresholds if no row was judged for long, and try ramps again when it is time."""
        if self.stale_at <= now:
            self.accuracy_budget.doubt()
            self._reset_thresholds()
            self.judged_at = math.inf
        if self.retry_at <= now:
            self.retry_s = min(2.0 * self.retry_s, RETRY_MOST_S)
            self.times.costs.clear()
            self.times.chains.clear()
            if len(self.unfit) == len(self.facts):
                self.unfit.clear()
            self._begin()
        if self.facts and not self.ramps and self.stated.ramps is None:
            self.retry_at = min(self.retry_at, now + self.retry_s)

    @property
    def stale_at(self) -> float:
        return (
            self.judged_at + STALE_S
            if self.thresholds and not self.has_fixed_thresholds
            else math.inf
        )

    @property
    def due(self) -> bool:
        """Whether there is something to compute."""
        budget = self.accuracy_budget
        tune = bool(self.ramps) and len(budget.rows) > 0 and budget.judged >= self.tune_at
        return self._may_move or (tune and budget.may_leave and not self.has_fixed_thresholds)

    def question(self) -> ExitsQuestion:
        """Return the next computation."""
        budget, may_move = self.accuracy_budget, self._may_move
        self._question_epoch = self.epoch
        self.tune_at = budget.judged + TUNE_ROWS
        if may_move:
            self.round_at = self.everywhere.added + ROUND_ROWS
        facts = tuple([fact for fact in self.facts if fact.position not in self.unfit])
        return ExitsQuestion(
            facts,
            self.ramps,
            budget.rows.said(self.ramps),
            budget.loss,
            budget.fresh,
            self.stated.ramp_budget,
            PassTimes(self.facts, self.times),
            self.everywhere.said([fact.position for fact in facts]) if may_move else None,
        )

    def accept(self, answer: ExitsAnswer | Exception, seconds: float) -> None:
        if isinstance(answer, Exception):
            self._reset_thresholds()
            return
        if self._question_epoch != self.epoch:
            return
        pairs = zip(answer.ramps, answer.thresholds, strict=True)
        thresholds = {ramp: threshold for ramp, threshold in pairs if threshold}
        if answer.ramps != self.ramps:
            if not set(answer.ramps) <= {*self.ramps}:
                every = range(len(self.facts))
                self.accuracy_budget.forget(len(every), self.everywhere.said(every))
            self._move(answer.ramps, answer.reason)
        elif thresholds != self.thresholds and self.accuracy_budget.may_leave:
            self.changed = True
            self.reason = f"thresholds tuned on {len(self.accuracy_budget.rows)} judged rows"
        self.thresholds = thresholds if self.accuracy_budget.may_leave else {}
        if thresholds:
            self.retry_s = RETRY_S

    def status(self) -> ExitsStatus:
        budget, ramps = self.accuracy_budget, self.ramps
        unsure, agrees = (said[-WINDOW:] for said in budget.rows.said(ramps))
        agreement = {
            ramp: float(agrees[judged_rows, at].mean())
            for at, ramp in enumerate(ramps)
            if (judged_rows := unsure[:, at] < math.inf).any()
        }
        return ExitsStatus(
            self.policy(),
            agreement,
            dict(self.exits),
            self.rows,
            budget.accuracy,
            budget.judged,
            budget.wrong,
            budget.alarms,
            self.saved_s,
            self.times.overhead,
            self.revision,
            self.changes,
            self.reason,
        )
