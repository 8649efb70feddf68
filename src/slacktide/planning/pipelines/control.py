"""`PlacementControl`: when pipelines are placed anew, from what all devices report.

Every six minutes, off the loop. Between two plans a published policy has its instances scaled
(instances.py). Ours is watched instead: each second what is measured is set against what was
planned for, and where the placement in force would now serve less than it was to (a link has
fallen, there are more rows), or rows or links have changed so that another may do better, it plans
at once. As that repairs a part of it, it places everything each minute.

One of it places for all devices; the device that it runs on is none that is special. It is fed with
counts and links as data, and what comes of it is a plan for each device.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import quantiles

from slacktide.planning.pipelines.costs import FULL, share
from slacktide.planning.pipelines.demand import KEPT_S, Demand, PipelineCounts
from slacktide.planning.pipelines.estimate import estimators, score_of_all
from slacktide.planning.pipelines.instances import StageInstances
from slacktide.planning.pipelines.plans import DevicePlans
from slacktide.planning.pipelines.policies import PlacementPolicy
from slacktide.planning.pipelines.problem import (
    LinkView,
    PipelineView,
    PlacementAnswer,
    PlacementQuestion,
)

INTERVAL_S = 360.0
"""From one plan to the next (OctopInf, §IV-A)."""
WATCHED_S = 60.0
"""Seconds between plans for a policy that watches, repairs not counted."""
WINDOWS_S = (15.0, 30.0, KEPT_S)
"""Over which rates are taken; the largest counts."""
CHECK_S = 1.0
"""From one look at what was predicted to the next."""
SCALE_S = 5.0
"""From one look at the instances to the next."""
SHORT_S = 2.0
"""Over which a surge is seen."""
AT_FIRST = (SHORT_S, *WINDOWS_S)
"""Where no more than seconds may be known."""
CALM_S = 30.0
"""Over which it is seen that one is over."""
CALM = (CALM_S,)
PAUSES_S = (3.0, 30.0)
"""Least time from one plan to the next: after one that was worth it, and at most; twice as long as
before after each that was not. A grave loss does not wait."""
LINK_QUANTILE = 4
"""Where it is not watched, a link counts with what it had in all but one of so many seconds."""
SETTLED = 3
"""Seconds of which the least counts, of a link that is watched."""
CHANGED = 0.15
"""Share by which rates or links must differ from what was planned for, to be looked into."""
LESS = 0.02
"""Share by which must be served less than was planned for, to plan anew."""
GRAVE = 0.1
"""Loss above which a new plan skips the pause."""
WORTH = 0.01
"""Share by which must be served more, for a plan in between to replace the one in force."""


@dataclass(frozen=True, slots=True)
class PlacementDecision:
    """What a job has found."""

    question: PlacementQuestion
    answer: PlacementAnswer
    seconds: float = 0.0
    """Seconds that planning took."""
    repairs: bool = False
    """Whether it was asked for as less is served than was planned for."""
    trigger: str = ""
    """Why it was asked for, in words."""


class PlacementControl:
    """Of all pipelines and devices."""

    def __init__(
        self,
        stated: PlacementQuestion,
        policy: PlacementPolicy,
        *,
        interval: float = INTERVAL_S,
        stopwatch: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`stated`: devices, and links and pipelines as they are until more is known of them.
        `stopwatch`: a clock in seconds by which planning is timed."""
        self.policy = policy
        self.plans: DevicePlans | None = None
        """In force, or about to be; None: nothing is placed yet."""
        self.revision = 0
        """Rises with each change of them."""
        self.reason = ""
        """Reason for the last change, in words."""
        self.decided = 0
        """Times that it has planned, the changes of instances not counted."""
        self.early = 0
        """Times that a plan could not wait."""
        self.scaled = 0
        """Changes of instances."""
        self.planning_s = 0.0
        self.stated = stated
        """As `restate` says."""
        self._stopwatch = stopwatch
        self._interval = min(interval, WATCHED_S) if policy.watches else interval
        self._demands = {pipeline.name: Demand(pipeline) for pipeline in stated.pipelines}
        self._links: dict[tuple[str, str], deque[tuple[float, float]]] = {}
        self._instances = StageInstances()
        self._due = self._whole_due = -math.inf
        """When it plans next, and when everything."""
        self._decided_at = -math.inf
        self._check_at = self._scale_at = -math.inf
        self._windows: Sequence[float] = AT_FIRST
        self._begins = True
        """Whether the next plan rests on little, so that one more follows after a minute."""
        self.expected = 1.0
        """Share of the possible worth that the placement in force was to serve."""
        self._repairs = False
        self._trigger = ""
        """Why the next plan does not wait for its time."""
        self._pause = PAUSES_S[0]

    def count(self, device: str, counts: Mapping[str, PipelineCounts], *, now: float) -> None:
        """What a device reports, each second."""
        for name, pipeline_counts in counts.items():
            if (demand := self._demands.get(name)) is not None:
                demand.note(device, pipeline_counts, now=now)

    def measure(self, links: Sequence[LinkView], *, now: float) -> None:
        """What links have had in the last second."""
        for link in links:
            history = self._links.setdefault((link.begin, link.end), deque())
            history.append((now, link.bandwidth))
            while history[0][0] < now - KEPT_S:
                history.popleft()

    def restate(self, stated: PlacementQuestion) -> None:
        """What is stated from now on. Pipelines that stay keep what was measured of them; where
        devices or stages are others, nothing is placed until it is asked again."""
        before, self.stated = self.stated, stated
        demands = {}
        for pipeline in stated.pipelines:
            demand = self._demands.get(pipeline.name)
            if demand is None or _edges(demand.view) != _edges(pipeline):
                demand = Demand(pipeline)
            demand.view = pipeline
            demands[pipeline.name] = demand
        self._demands = demands
        if _shape(before) != _shape(stated):
            self.plans, self._instances = None, StageInstances()
            self._begin(-math.inf)
            self.revision += 1
            self.reason = "pipelines, their models or devices are others"

    def _begin(self, at: float) -> None:
        """The next plan is made then, of what little is known."""
        self._due = self._whole_due = at
        self._windows, self._begins, self._trigger = AT_FIRST, True, ""

    def is_known(self, *, now: float) -> bool:
        """Whether frames come, so that there is something to plan for."""
        return any(demand.seen((SHORT_S,), now=now).rate > 0.0 for demand in self._demands.values())

    def next_wakeup(self) -> float:
        """When it is to be asked (absolute seconds)."""
        at = self._due
        if self.plans is not None and self.policy.watches:
            at = min(at, self._check_at)
        if self.plans is not None and self.policy.scales:
            at = min(at, self._scale_at)
        return at

    def look(self, *, now: float) -> None:
        """Scale instances, or look whether a plan is wanted before its time."""
        if self.plans is None:
            return
        if self.policy.scales and now >= self._scale_at:
            self._scale_at = now + SCALE_S
            names = [pipeline.name for pipeline in self.stated.pipelines]
            answer = self._instances.checked(
                lambda pipeline, stage: self._demands[names[pipeline]].rows(stage), now=now
            )
            if answer is not None:
                self.plans = DevicePlans(self.plans.question, answer)
                self.revision += 1
                self.scaled += 1
                self.reason = "instances follow the rows that come"
        if self.policy.watches and now >= self._check_at:
            self._check_at = now + CHECK_S
            if now < self._due and now >= self._decided_at + PAUSES_S[0]:
                breach = self._broken(self.plans, now)
                if breach is not None:
                    self._windows, self._trigger = breach
                    self._due = now
                    self._repairs = self._windows != CALM
                    self.early += 1

    def job(self, *, now: float) -> Callable[[], PlacementDecision] | None:
        """What is to be computed off the loop; None: nothing yet, or no frames come: what is in
        force stays."""
        if now < self._due:
            return None
        question = self.question(self._windows, now=now)
        if not any(pipeline.rate > 0.0 for pipeline in question.pipelines):
            self._begin(now + CHECK_S)
            return None
        return self._computing(question, now=now)

    def _computing(
        self, question: PlacementQuestion, *, now: float
    ) -> Callable[[], PlacementDecision]:
        repairs = self._repairs and now < self._whole_due
        if not repairs:
            self._whole_due = now + self._interval
        self._due, self._windows, self._repairs = self._whole_due, WINDOWS_S, False
        regular = "nothing was placed" if self.plans is None else "its time had come"
        trigger, self._trigger = self._trigger or regular, ""
        present = None if self.plans is None else self.plans.answer.pipelines
        policy, stopwatch = self.policy, self._stopwatch

        def compute() -> PlacementDecision:
            begin = stopwatch()
            if repairs and present is not None:
                answer = policy.repair(question, present)
            else:
                answer = policy.decide(question, present)
            return PlacementDecision(question, answer, stopwatch() - begin, repairs, trigger)

        return compute

    def take(self, decision: PlacementDecision, *, now: float) -> None:
        """A job is done: what it has found is in force from now on; of what was to repair
        something and hardly does, only that demand and links are now as they are. Of no effect
        where stages or devices have become others since it was asked."""
        if _shape(decision.question) != _shape(self.stated):
            return
        plans = DevicePlans(decision.question, decision.answer)
        self.reason = decision.trigger
        if self.policy.watches:
            self.expected = self._served(decision.question, plans)
            self.reason += f"; {self.expected:.0%} in time is expected now"
            self._pause, longest = PAUSES_S[0], 2.0 * self._pause
            retained_plans = self._kept(decision)
            if retained_plans is not None:
                plans, self._pause = retained_plans, min(longest, PAUSES_S[1])
        self.plans = plans
        self.revision += 1
        self.decided += 1
        self.planning_s += decision.seconds
        self._decided_at = now
        if self._begins:
            self._begins = False
            self._due = self._whole_due = min(self._whole_due, now + KEPT_S)
        self._check_at, self._scale_at = now + CHECK_S, now + SCALE_S
        if self.policy.scales:
            self._instances.begin(decision.question, decision.answer)

    def _kept(self, decision: PlacementDecision) -> DevicePlans | None:
        """What is in force, if a repair serves hardly more than that; else None."""
        if self.plans is None or not decision.repairs:
            return None
        try:
            plans = DevicePlans(decision.question, self.plans.answer)
        except ValueError:  # it cannot run so any more
            return None
        served = self._served(decision.question, plans)
        return plans if served > self.expected - WORTH else None

    def decide(self, *, now: float) -> None:
        """Plan at once, also for what is only stated: for a driver that begins."""
        question = self.question(self._windows, now=now)
        self.take(self._computing(question, now=now)(), now=now)

    def question(self, windows: Sequence[float], *, now: float) -> PlacementQuestion:
        """What is asked now, of demand over these windows."""
        pipelines = [demand.seen(windows, now=now) for demand in self._demands.values()]
        links = [self._link(link) for link in self.stated.links]
        return replace(self.stated, pipelines=tuple(pipelines), links=tuple(links))

    def _link(self, link: LinkView) -> LinkView:
        """Its bandwidth: the present one for a policy that plans anew when it falls."""
        history = self._links.get((link.begin, link.end))
        if not history:
            return link
        rates = [rate for _, rate in history]
        if self.policy.watches or len(rates) < LINK_QUANTILE:
            return replace(link, bandwidth=min(rates[-SETTLED:]))
        return replace(link, bandwidth=quantiles(rates, n=LINK_QUANTILE)[0])

    def _broken(self, plans: DevicePlans, now: float) -> tuple[Sequence[float], str] | None:
        """Over which windows to plan anew, and why; None: what was predicted holds."""
        planned, measured = plans.question, self.question((SHORT_S,), now=now)
        waits = now < self._decided_at + self._pause
        less = self.expected - (GRAVE if waits else LESS)
        if more := _more(planned, measured):
            served = self._served(measured, plans)
            if served < less:
                instead = f"{served:.0%} in time was expected instead of {self.expected:.0%}"
                return AT_FIRST, f"{more}, so that {instead}"
        if waits:
            return None
        if self.expected < 1.0 - LESS and _more(measured, planned):
            return WINDOWS_S, "less came, or a link had more, than was planned for"
        if now >= self._decided_at + CALM_S:
            calm = self.question((CALM_S,), now=now)
            if 0.0 < _rows(calm) < _rows(planned) / (1.0 + 3.0 * CHANGED):
                return CALM, "a surge was over"
        return None

    def _served(self, question: PlacementQuestion, plans: DevicePlans) -> float:
        """Share of what could be served at best, predicted for the replicas that there are."""
        judges = estimators(question, self.policy.rules)
        most = math.fsum(judge.most for judge in judges)
        if most <= 0.0:
            return 1.0
        try:
            pairs = zip(judges, plans.answer.pipelines, strict=True)
            costs = [judge.chosen(stages) for judge, stages in pairs]
        except ValueError:  # it cannot run so any more
            return 0.0
        counts = Counter(
            (replica.device, replica.model, replica.form) for replica in plans.replicas
        )
        groups: dict[tuple[str, str, int], list[tuple[int, int]]] = {}
        for number, (judge, stage_costs) in enumerate(zip(judges, costs, strict=True)):
            for at, (view, cost) in enumerate(zip(judge.pipeline.stages, stage_costs, strict=True)):
                device = judge.devices[cost.device].name
                key = device, view.model_in(judge.pipeline), cost.form
                groups.setdefault(key, []).append((number, at))
        for key, stages in groups.items():
            busy = math.fsum(costs[number][at].busy for number, at in stages)
            for number, at in stages:
                enough = share(FULL * counts[key], busy)
                costs[number][at] = costs[number][at]._replace(share=enough)
        return score_of_all(judges, costs).worth / most


def _more(before: PlacementQuestion, after: PlacementQuestion) -> str:
    """Say which pipeline clearly has more frames, or which link less, than before; empty: none."""
    most = 1.0 + CHANGED
    for previous_view, present_view in zip(before.pipelines, after.pipelines, strict=True):
        rates = zip(previous_view.rates(), present_view.rates(), strict=True)
        if any(later > most * earlier for earlier, later in rates):
            return f"more of {present_view.name} came than was planned for"
    for link, present in zip(before.links, after.links, strict=True):
        if link.bandwidth > most * present.bandwidth:
            return f"the link from {link.begin} to {link.end} had less than was planned for"
    return ""


def _edges(view: PipelineView) -> object:
    """What counts of a pipeline are counted by."""
    return [
        (stage.name, [view.stages[inflow.stage].name for inflow in stage.inflows])
        for stage in view.stages
    ]


def _shape(question: PlacementQuestion) -> object:
    """What an answer rests on, times and rates aside."""
    stages = [
        (view.name, [(s.name, [form.name for form in s.forms], s.devices) for s in view.stages])
        for view in question.pipelines
    ]
    return [(host.name, host.accelerators, host.streams) for host in question.devices], stages


def _rows(question: PlacementQuestion) -> float:
    """Per second, of all stages."""
    return math.fsum(math.fsum(pipeline.rates()) for pipeline in question.pipelines)
