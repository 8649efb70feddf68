"""`PoolExits`: the state of one pool: its ramps, its thresholds, and rows that were judged.

To avoid bias, the rows to judge are chosen before their content is known: all rows if all run to
the end, else the rows of batches chosen by number. While rows run on because no request waits for
the lane, all of them are judged too, until a batch is cut short.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from slacktide.domain import (
    Batch,
    ExitMode,
    ExitPolicy,
    ExitReport,
    Leaving,
    PoolId,
    Request,
    is_in_run,
)
from slacktide.planning.exits.accuracy_budget import FRESH, AccuracyBudget, JudgedWindow
from slacktide.planning.exits.changes import Changes, FollowedFrame
from slacktide.planning.exits.events import (
    ExitEvent,
    ExitsArranged,
    RampFacts,
    RampsJudged,
    RampsLearnt,
    RampsRefused,
    StatedExits,
)
from slacktide.planning.exits.guards import (
    MARGIN,
    Applications,
    Guard,
    JudgedClasses,
    part_of,
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
"""Seconds without a judged row after which earlier rows are in doubt."""
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


class PoolExits(ScopeState):
    """The state of one pool."""

    stated: StatedExits

    def __init__(self, pool: PoolId, stated: StatedExits) -> None:
        super().__init__(pool.model, stated)
        self.pool = pool
        self.accuracy_budget = AccuracyBudget(stated.accuracy_loss, stated.promise)
        self.facts: tuple[RampFacts, ...] = ()
        self.times = PassTimes(())
        self.everywhere = JudgedWindow(FULL_ROWS)
        """Rows judged at every position."""
        self.remembers = False
        """Whether ramp 0 gives remembered answers."""
        self.classes = self.classes_everywhere = self._no_classes(0)
        """The last judged rows by class: judged by active ramps, and at every position."""
        self.class_rows: Counter[int] = Counter()
        self.class_wrong: Counter[int] = Counter()
        self.class_alarms: Counter[int] = Counter()
        self.applications = Applications(stated.accuracy_loss, stated.promise)
        self.answer_changes = Changes(stated.remember_frames)
        """Changes of the model's answer within sessions, if answers are remembered."""
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
        """Time at which the last row was judged."""
        self.retry_at = math.inf
        self.retry_s = RETRY_S
        self.uncut = UNCUT

    def _no_classes(self, positions: int) -> JudgedClasses:
        stated = self.stated
        loss, whole = stated.accuracy_loss, stated.whole_model_only
        return JudgedClasses(positions, loss, whole, remembers=self.remembers)

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
            applications=self._listed(),
            whole_model_only=stated.whole_model_only,
            remember_frames=stated.remember_frames if self.remembers else 0,
            remember_s=stated.remember_s,
        )

    def _listed(self) -> tuple[str, ...] | None:
        """Return the applications whose requests may leave; None: all."""
        if self.has_fixed_thresholds or not self.stated.learnt:
            return None
        return self.applications.listed()

    @property
    def _may_leave(self) -> bool:
        """Whether rows may leave, by the budget and by the classes that only the model gives."""
        return self.accuracy_budget.may_leave and not self.classes.lacking(self.ramps)

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
        return min(self.stale_at, self.retry_at, self.applications.idle_at + STALE_S)

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
        self.remembers = learnt.remembers and self.stated.remember_frames > 0
        self.times = PassTimes(learnt.ramps, self.times)
        self.accuracy_budget.forget(len(learnt.ramps))
        self.applications.forget(len(learnt.ramps))
        self.classes = self._no_classes(len(learnt.ramps))
        self.classes_everywhere = self._no_classes(len(learnt.ramps))
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
        every = range(len(self.facts))
        guards = self._guards(self.classes_everywhere, every)
        budget = self.accuracy_budget
        verdicts = self.everywhere.verdicts(every)
        rates = rates_alone(verdicts, budget.loss, guards, budget.confidence)
        return dict(enumerate(rates))

    def _record_full_evaluation(self, judged: RampsJudged) -> None:
        """Add rows that were judged at every position."""
        if judged.revision != self.revision:
            return
        every, was_warming_up = range(len(self.facts)), self._is_warming_up
        names = judged.applications or ("",) * len(judged.agrees)
        counts = self.applications.counts
        rows = [at for at, name in enumerate(names) if not judged.applications or counts(name)]
        unsure = [judged.uncertainty[at] for at in rows]
        agrees = [judged.agrees[at] for at in rows]
        answers = [judged.answers[at] for at in rows] if judged.answers else ()
        self.classes_everywhere.add(every, unsure, agrees, answers, supplied=judged.supplied)
        if judged.supplied:
            self.classes.add(every, unsure, agrees, answers, supplied=True)
            self.changed = True
        elif rows:
            self.everywhere.add(every, unsure, agrees)
            self.changed = self.changed or was_warming_up is not self._is_warming_up

    def _begin(self) -> None:
        """Choose the first ramps, at the start or again after none paid."""
        self.retry_at = math.inf
        budget, rates = self.stated.ramp_budget, self._rates()
        fit = [fact.position for fact in self.facts if fact.position not in self.unfit]
        if rates and self._moving:
            first = best_ramps(fit, self.times, budget, rates)
        else:
            always = (0,) if self.remembers and 0 in fit else ()
            first = evenly_spaced(fit, self.times, budget, always)
        self._move(first, "the first ramps" if first else "no ramp pays within its budget")

    def _move(self, ramps: tuple[int, ...], reason: str) -> None:
        """Make other ramps active; ramps that stay keep their thresholds."""
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
        self._keep_budget()

    def _keep_budget(self) -> None:
        """Drop a ramp if the active ramps cost more than their budget."""
        overhead, budget = self.times.overhead or 0.0, self.stated.ramp_budget
        if self.ramps and self.stated.ramps is None and not self.times.fits(self.ramps, budget):
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
        if self.times.serve(len(report.left)) and self.open_chain == self.ramps:
            self._keep_budget()
        self.uncut = 0 if stopped else self.uncut + 1
        if stopped or self.open_revision != self.revision:
            self.accuracy_budget.add_unjudged(len(report.left))
            return
        judged = all(report.agrees) and self._counts(batch)
        if report.ramps[:1] == (0,) and self.remembers and report.answers:
            self._add_frames(report, batch, judged=judged)
        if not self.applications.note(
            [member.application for member in batch.members], self.accuracy_budget, now=now
        ):
            self._add(report, judged=judged, now=now)
        else:
            self._add_by_application(report, batch, judged=judged, now=now)
        if self.feedback != self._feedback():
            self.changed = True

    def _add_frames(self, report: ExitReport, batch: Batch, *, judged: bool) -> None:
        """Follow changes of the model's answer through the judged frames of a batch. Remembered
        answers are no longer given if the promise on changes is broken."""
        row, is_missed = 0, False
        for member in batch.members:
            is_alone = member.session and member.rows == 1 and report.agrees[row]
            if is_alone and (judged or is_in_run(member.session, member.frame)):
                followed = self._followed_frame(report, row, member, batch)
                is_missed |= self.answer_changes.add(followed)
            row += member.rows
        if is_missed and not self._keeps_changes() and not self.has_fixed_thresholds:
            del self.thresholds[0]
            self.answer_changes.alarms += 1
            self.reason = "alarm: remembered answers hide changes of the model's answer"
            self.changed = True
            self.epoch += 1
            self.tune_at = self.accuracy_budget.judged

    def _followed_frame(
        self, report: ExitReport, row: int, member: Request, batch: Batch
    ) -> FollowedFrame:
        unsure, agrees, left = report.uncertainty[row], report.agrees[row], report.left[row]
        if left < 0 and is_in_run(member.session, member.frame):  # it had to run to the end
            limits = [self.thresholds.get(ramp, 0.0) for ramp in report.ramps]
            sure = (at for at, limit in enumerate(limits) if unsure[at] < limit)
            left = next(sure, -1)
        return FollowedFrame(
            member.session,
            member.frame,
            report.answers[row],
            right=left < 0 or agrees[left],
            distance=unsure[0],
            is_memory_right=agrees[0],
            refreshed=batch.refreshes,
        )

    def _keeps_changes(self) -> bool:
        """Whether the thresholds in force keep the promise on changes."""
        limit = np.array([self.thresholds.get(0, 0.0)])
        return all(guard.holds(limit) for guard in self.answer_changes.guards(0, 1))

    def _guards(self, classes: JudgedClasses, ramps: Sequence[int]) -> tuple[Guard, ...]:
        """Return the conditions of classes and of changes for thresholds of `ramps`."""
        guards = classes.guards(ramps)
        if self.remembers and 0 in ramps:
            guards += self.answer_changes.guards(ramps.index(0), len(ramps))
        return guards

    def _add_by_application(
        self, report: ExitReport, batch: Batch, *, judged: bool, now: float
    ) -> None:
        """Add the rows of a batch to the budgets of their applications, and rows that count to the
        pool's budget."""
        rows_by_name: dict[str, list[int]] = {}
        end = 0
        for place, member in enumerate(batch.members):
            rows = range(end, end := end + member.rows)
            rows_by_name.setdefault(member.application, []).extend(rows)
            if not judged and place in batch.held and not member.final:
                # It ran to the end because of its application, whatever its content.
                self._add_of(member.application, part_of(report, rows), judged=True)
        counted: list[int] = []
        for name, own_rows in rows_by_name.items():
            part = part_of(report, own_rows)
            if judged or name in self.applications.admitted:
                self._add_of(name, part, judged=judged)
            if self.applications.counts(name) or max(part.left) >= 0:
                counted += own_rows
        if counted:
            self._add(part_of(report, sorted(counted)), judged=judged, now=now)

    def _add_of(self, name: str, report: ExitReport, *, judged: bool) -> None:
        """Add rows to the budget of an application; it is excluded if they break its bound."""
        budget = self.applications.budgets.get(name)
        if budget is None or not (all(report.agrees) or not judged):
            return
        if not judged:
            budget.add_unjudged(len(report.left))
            return
        alarm = budget.add(report)
        broken = (
            alarm
            or not budget.may_leave
            or (
                any(self._wrongly_left(report))
                and not self.applications.fits(name, self.thresholds)
            )
        )
        if broken and self.applications.exclude(name):
            self.changed = True
            self.tune_at = self.accuracy_budget.judged
            self.reason = (
                f"{'alarm: ' if alarm else ''}answers to {name or 'no application'!r} differ"
            )

    def _wrongly_left(self, report: ExitReport) -> list[bool]:
        """Return, for each row, whether the thresholds in force let it leave, or nearly, with an
        answer other than the model's."""
        limits = [self.thresholds.get(ramp, 0.0) / MARGIN for ramp in report.ramps]
        if not any(limits):
            return [False] * len(report.left)
        return [
            any(
                unsure < limit and not right
                for unsure, limit, right in zip(uncertainties, limits, agrees, strict=True)
            )
            for uncertainties, agrees in zip(report.uncertainty, report.agrees, strict=True)
        ]

    def _add(self, report: ExitReport, *, judged: bool, now: float) -> None:
        """Add rows to the pool's budget and to their classes."""
        budget = self.accuracy_budget
        if not judged:
            budget.add_unjudged(len(report.left))
            return
        wrong, before = budget.wrong, budget.may_leave
        self.judged_at = now
        alarm, broken = budget.add(report), self._add_classes(report)
        if alarm:
            self.reason = "alarm: answers of ramps differ from the model's"
            self._reset_thresholds()
        elif before and not budget.may_leave:
            self._reset_thresholds()
        elif broken:
            self.class_alarms.update(broken)
            numbers = ", ".join(map(str, broken))
            self.reason = f"alarm: answers of ramps differ where the model gives class {numbers}"
            self._reset_thresholds()
            self.tune_at = budget.judged
        elif budget.wrong > wrong or (budget.may_leave and not before):
            self.tune_at = budget.judged

    def _add_classes(self, report: ExitReport) -> list[int]:
        """Add judged rows to their classes. Returns the classes whose bound is broken."""
        if not report.answers:
            return []
        rows = zip(report.answers, report.agrees, report.left, strict=True)
        self.class_rows.update(report.answers)
        self.class_wrong.update([of for of, right, at in rows if at >= 0 and not right[at]])
        self.classes.add(report.ramps, report.uncertainty, report.agrees, report.answers)
        if self.has_fixed_thresholds:
            return []
        wrong = zip(report.answers, self._wrongly_left(report), strict=True)
        return [n for n in sorted({of for of, left in wrong if left}) if not self._keeps(n)]

    def _keeps(self, number: int | None = None) -> bool:
        """Whether the thresholds in force keep the bound of a class; None: of all classes."""
        ramps = list(self.thresholds)
        limits = np.array([*self.thresholds.values()])
        numbers = [*self.classes.windows] if number is None else [number]
        guards = (self.classes.guard(guarded, ramps) for guarded in numbers) if ramps else ()
        return all(guard is None or guard.holds(limits) for guard in guards)

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
        if self.applications.doubt_idle(now - STALE_S):
            self.changed = True
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
        return self._may_move or (tune and not self.has_fixed_thresholds and self._may_leave)

    def question(self) -> ExitsQuestion:
        """Return the next computation."""
        budget, may_move = self.accuracy_budget, self._may_move
        self._question_epoch = self.epoch
        self.tune_at = budget.judged + TUNE_ROWS
        if may_move:
            self.round_at = self.everywhere.added + ROUND_ROWS
        facts = tuple([fact for fact in self.facts if fact.position not in self.unfit])
        positions = [fact.position for fact in facts]
        return ExitsQuestion(
            facts,
            self.ramps,
            budget.rows.verdicts(self.ramps),
            budget.loss,
            budget.fresh,
            self.stated.ramp_budget,
            PassTimes(self.facts, self.times),
            self.everywhere.verdicts(positions) if may_move else None,
            self._guards(self.classes, self.ramps),
            self._guards(self.classes_everywhere, positions) if may_move else (),
            budget.confidence,
            self.remembers and 0 not in self.unfit,
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
                self.accuracy_budget.forget(len(every), self.everywhere.verdicts(every))
                self.classes = self.classes_everywhere.copy()
            self._move(answer.ramps, answer.reason)
        elif thresholds != self.thresholds and self._may_leave:
            self.changed = True
            self.reason = f"thresholds tuned on {len(self.accuracy_budget.rows)} judged rows"
        self.thresholds = thresholds if self._may_leave else {}
        if not (self._keeps() and self._keeps_changes()):  # rows were judged during the computation
            self._reset_thresholds()
            self.tune_at = self.accuracy_budget.judged
        if self.applications.admit(self.thresholds):
            self.changed = True
        if thresholds:
            self.retry_s = RETRY_S
