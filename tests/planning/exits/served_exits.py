"""A model with early exits on an engine, with its planner, stepped by hand: each row that is served
runs alone, and leaves as a worker would let it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tests.planning.exits.streams import Array
from tests.planning.harness import SteppedPlanners, parts_of

from slacktide.domain import (
    BatchFinished,
    Command,
    Deployment,
    ExitPolicy,
    ExitReport,
    LaneSpec,
    Plan,
    PoolId,
    Request,
    Route,
    RowsReleased,
    RunBatch,
    Submitted,
    TimerFired,
    is_judged,
)
from slacktide.planning.exits import (
    ExitsArranged,
    ExitsPlanner,
    ExitsStatus,
    RampFacts,
    RampsJudged,
    RampsLearnt,
    StatedExits,
)
from slacktide.profiles import CorrectedTimes, LatencyTable
from slacktide.runtime import RuntimeEvent

POOL = PoolId("m", "1")
BASE = Plan((LaneSpec("m", (0,)),), (Deployment(POOL, "m", 4),), (Route("m", POOL),))
WHOLE_S = 0.02
CUT = 0.01
"""Share of a pass that a ramp and its cut cost."""


def facts(agreement: Sequence[float]) -> tuple[RampFacts, ...]:
    """Of positions that are spaced evenly."""
    share = 1.0 / (len(agreement) + 1)
    return tuple(
        RampFacts(at, f"tensor{at}", share_right, share * (at + 1))
        for at, share_right in enumerate(agreement)
    )


def learnt(agreement: Sequence[float], revision: int = 1) -> RampsLearnt:
    return RampsLearnt(POOL, revision, facts(agreement))


def chain_s(ramps: Sequence[int], positions: int, cut: float = CUT) -> list[float]:
    """Seconds up to each ramp's answers, and to the end."""
    front = [(ramp + 1) / (positions + 1) + cut * (at + 1) for at, ramp in enumerate(ramps)]
    return [WHOLE_S * part for part in (*front, 1.0 + cut * len(ramps))]


class ServedExits(SteppedPlanners):
    """See the module."""

    def __init__(self, stated: StatedExits | None = None, *, job_rows: int = 1) -> None:
        """`job_rows`: rows that are served while a job runs."""
        self.planner = ExitsPlanner()
        times = CorrectedTimes(LatencyTable.flat(WHOLE_S, max_batch=4))
        super().__init__(parts_of("fifo", lambda pool: times), (self.planner,))
        self.job_rows = job_rows
        self.ids = 0
        self.wrong: list[bool] = []
        """By row: whether its answer was not the model's."""
        self.spent: list[float] = []
        """By row: when it was answered, a share of a pass."""
        self.policies: list[ExitPolicy] = []
        """In turn."""
        self.chain: tuple[int, ...] = ()
        """What the worker has open."""
        self.positions = 0
        self.cut = CUT
        self.left_s = 10.0
        """From the arrival of a request to its deadline."""
        self.job: tuple[int, Any] | None = None
        self.started: list[RunBatch] = []
        self.stated = {"m": stated or StatedExits()}
        self.rebase(BASE)

    def turn(self, *events: RuntimeEvent, **when: float) -> list[Command]:
        """Replicas are up at once."""
        commands = super().turn(*events, **when)
        self.started += [command for command in commands if isinstance(command, RunBatch)]
        self.bring_up()
        policy = next(iter(self.plan.exits), None)
        if policy is not None and policy not in self.policies[-1:]:
            self.policies.append(policy)
        return commands

    @property
    def policy(self) -> ExitPolicy:
        return self.policies[-1]

    @property
    def status(self) -> ExitsStatus:
        return self.planner.status()[POOL]

    def learn(self, event: RampsLearnt) -> None:
        self.positions = len(event.ramps)
        self.turn(event, TimerFired())
        self.arrange()

    def arrange(self, detail: str = "") -> None:
        """The worker opens what the policy asks for, and measures it after that."""
        while self.chain != self.policy.ramps:
            ramps = self.policy.ramps
            if not detail:
                self.chain = ramps
            stages = tuple(chain_s(ramps, self.positions, self.cut))
            if not detail:
                self.turn(ExitsArranged(POOL, 1, self.policy.revision, ramps), TimerFired())
                assert self.policy.ramps == ramps, "before anything was measured"
            event = ExitsArranged(
                POOL, 1, self.policy.revision, ramps, detail, (1,), (WHOLE_S,), (stages,)
            )
            self.turn(event, TimerFired())
            if detail:
                return

    def compute(self) -> None:
        """Deliver the planner's jobs when they are due."""
        if self.job is not None and len(self.wrong) >= self.job[0]:
            done, self.job = self.job[1], None
            self.turn(done.run())
        for job in self.runtime.take_jobs():
            self.job = len(self.wrong) + self.job_rows, job

    def row(
        self,
        unsure: Array,
        agrees: Array,
        *,
        seconds: float = WHOLE_S,
        number: int = -1,
        application: str = "",
    ) -> None:
        """A row by itself: what ramps at all positions would say of it, and the model's class."""
        self.ids += 1
        self.now += 1e-6  # the lane has been idle, so that all rows run on
        request = Request(self.ids, "m", self.now, self.now + self.left_s, application=application)
        self.turn(Submitted(request))
        policy, chain = self.policy, self.chain
        limit = dict(zip(policy.ramps, policy.thresholds, strict=True))
        answers = () if number < 0 else (number,)
        left = next(
            (at for at, ramp in enumerate(chain) if unsure[ramp] < limit.get(ramp, 0.0)), -1
        )
        batch = self.started.pop().batch
        if batch.held:
            left = -1
        stages = [end / WHOLE_S for end in chain_s(chain, self.positions, self.cut)]
        self.spent.append(stages[left])
        self.wrong.append(left >= 0 and not agrees[chain[left]])
        if left >= 0:
            self.turn(RowsReleased(batch.id, (self.ids,), chain[left]))
        self.now += seconds
        report = ExitReport(
            chain,
            (tuple(float(unsure[ramp]) for ramp in chain),),
            (tuple(bool(agrees[ramp]) for ramp in chain),),
            (left,),
            answers=answers,
        )
        self.turn(BatchFinished(batch.id, exits=report if chain else None))
        if self.positions and is_judged(batch.id, policy.feature_share):
            judgements = (
                tuple(float(number) for number in unsure),
                tuple(bool(number) for number in agrees),
            )
            names = (application,)
            self.turn(
                RampsJudged(
                    POOL, policy.revision, (judgements[0],), (judgements[1],), answers, names
                )
            )
        self.compute()
        self.arrange()

    def rows(self, unsure: Array, agrees: Array) -> None:
        """Each by itself, in turn."""
        for row in zip(unsure, agrees, strict=True):
            self.row(*row)

    def worst_window(self, rows: int = 512) -> int:
        """Most wrong answers among so many in a row."""
        so_far = np.concatenate([[0], np.cumsum(self.wrong)])
        return int((so_far[rows:] - so_far[:-rows]).max())

    def saved(self, since: int = 0) -> float:
        """Share of a pass that a row has saved."""
        return 1.0 - float(np.mean(self.spent[since:]))
