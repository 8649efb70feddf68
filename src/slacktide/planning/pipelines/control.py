"""`PlacementControl`: decides when pipelines are placed again, from the reports of all devices.

It plans every six minutes, off the loop. For the published policy it also scales instances between
two plans (instances.py). For our policy it compares measurements with the planned demand each
second. It plans immediately if the placement in force would now serve less than expected (a link
has slowed, there are more rows), or if another placement may be better after a change. Such a plan
repairs only some pipelines, so all of them are placed anew each minute.

A single instance plans for every device, and may run on any of them. It gets counts and links as
data, and returns a plan for each device.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import quantiles

from slacktide.planning.pipelines.costs import FULL, share
from slacktide.planning.pipelines.demand import KEPT_S, Demand, PipelineCounts
from slacktide.planning.pipelines.estimate import make_estimators, score_of_all
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
"""Seconds between plans (OctopInf, §IV-A)."""
WATCHED_S = 60.0
"""Seconds between plans of a policy that watches, not counting repairs."""
WINDOWS_S = (15.0, 30.0, KEPT_S)
"""Windows of measured rates; the largest rate is used."""
CHECK_S = 1.0
"""Seconds between checks of the prediction."""
SCALE_S = 5.0
"""Seconds between scalings of instances."""
SHORT_S = 2.0
"""Window, in seconds, in which a surge shows."""
AT_FIRST = (SHORT_S, *WINDOWS_S)
"""Windows to use while demand may have been measured for only a few seconds."""
CALM_S = 30.0
"""Window, in seconds, in which the end of a surge shows."""
CALM = (CALM_S,)
PAUSES_S = (3.0, 30.0)
"""Pause after a plan that paid off, and the longest pause. The pause doubles after each plan that
did not pay off. A loss above `GRAVE_LOSS` does not wait for the pause to end."""
LINK_QUANTILE = 4
"""Number of equal groups into which the measured rates of an unwatched link are divided. The rate
between the two lowest groups counts."""
RECENT_SECONDS = 3
"""Number of seconds, up to now, whose lowest bandwidth counts for a watched link."""
NOTICEABLE_CHANGE = 0.15
"""Smallest relative change of rates or links that is checked."""
NOTICEABLE_LOSS = 0.02
"""Smallest loss, as a share of the best possible, that triggers a new plan."""
GRAVE_LOSS = 0.1
"""Loss above which a new plan skips the pause."""
CALIBRATION_S = 10.0
"""Seconds between calibrations of the estimate, each by the frames since the last."""
LEAST_FRAMES = 20
"""Fewest frames for a calibration."""
PULL = 0.5
"""Relative change of the stretch for a difference of 1 between predicted and measured shares."""
TOLERANCE = 0.05
"""Largest difference of these shares at which the stretch stays."""
STRETCHES = (1.0, 2.0)
"""Smallest and largest stretch."""
REPAIR_GAIN = 0.01
"""Smallest gain for which a repair replaces the placement in force."""


@dataclass(frozen=True, slots=True)
class PlacementDecision:
    """The result of a job."""

    question: PlacementQuestion
    answer: PlacementAnswer
    seconds: float = 0.0
    """Seconds that planning took."""
    repairs: bool = False
    """Whether the plan repairs a shortfall."""
    trigger: str = ""
    """Reason for the plan, in words."""


class PlacementControl:
    """Controls the placement of all pipelines on all devices."""

    def __init__(
        self,
        stated: PlacementQuestion,
        policy: PlacementPolicy,
        *,
        interval: float = INTERVAL_S,
        stopwatch: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`stated`: devices, with links and pipelines as stated until they are measured.
        `stopwatch`: a clock in seconds that times planning."""
        self.policy = policy
        self.plans: DevicePlans | None = None
        """Plans in force, or about to come into force; None: nothing is placed yet."""
        self.revision = 0
        """Rises with each change of the plans."""
        self.reason = ""
        """Reason for the last change, in words."""
        self.decided = 0
        """Number of plans, not counting changes of instances."""
        self.early = 0
        """Number of plans made before their time."""
        self.scaled = 0
        """Number of changes of instances."""
        self.planning_s = 0.0
        self.stated = stated
        """See `restate`."""
        self._stopwatch = stopwatch
        self._interval = min(interval, WATCHED_S) if policy.watches else interval
        self._demands = {pipeline.name: Demand(pipeline) for pipeline in stated.pipelines}
        self._links: dict[tuple[str, str], deque[tuple[float, float]]] = {}
        self._instances = StageInstances()
        self._due = self._whole_due = -math.inf
        """Times of the next plan, and of the next plan that is not a repair."""
        self._decided_at = -math.inf
        self._check_at = self._scale_at = self._calibrate_at = -math.inf
        self._windows: Sequence[float] = AT_FIRST
        self._begins = True
        """Whether the next plan rests on little data, so that another follows after a minute."""
        self.expected = 1.0
        """Share of the best possible worth that the placement in force is expected to serve."""
        self._repairs = False
        self._trigger = ""
        """Reason why the next plan does not wait for its time."""
        self._pause = PAUSES_S[0]

    def count(self, device: str, counts: Mapping[str, PipelineCounts], *, now: float) -> None:
        """Take the report of a device, each second."""
        for name, pipeline_counts in counts.items():
            if (demand := self._demands.get(name)) is not None:
                demand.note(device, pipeline_counts, now=now)

    def measure(self, links: Sequence[LinkView], *, now: float) -> None:
        """Take the bandwidths of links in the last second."""
        for link in links:
            history = self._links.setdefault((link.begin, link.end), deque())
            history.append((now, link.bandwidth))
            while history[0][0] < now - KEPT_S:
                history.popleft()

    def restate(self, stated: PlacementQuestion) -> None:
        """Replace the stated question. Pipelines that stay keep their measurements. If devices or
        stages differ, nothing is placed until the next plan."""
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
            self.reason = "pipelines, models or devices have changed"

    def _begin(self, at: float) -> None:
        """Plan at this time, from the little data there is."""
        self._due = self._whole_due = at
        self._windows, self._begins, self._trigger = AT_FIRST, True, ""

    def has_frames(self, *, now: float) -> bool:
        """Whether frames arrive."""
        return any(
            demand.measured((SHORT_S,), now=now).rate > 0.0 for demand in self._demands.values()
        )

    def next_wakeup(self) -> float:
        """Return the time of the next `look` or `job` (absolute seconds)."""
        at = self._due
        if self.plans is not None and self.policy.watches:
            at = min(at, self._check_at)
        if self.plans is not None and self.policy.scales:
            at = min(at, self._scale_at)
        return at

    def look(self, *, now: float) -> None:
        """Scale instances, and bring the next plan forward if the prediction fails."""
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
                self.reason = "instances were scaled to the measured rows"
        if self.policy.watches and now >= self._check_at:
            self._check_at = now + CHECK_S
            if self.policy.calibrates and now >= self._calibrate_at:
                self._calibrate_at = now + CALIBRATION_S
                self._calibrate(self.plans, now)
            if now < self._due and now >= self._decided_at + PAUSES_S[0]:
                breach = self._breach(self.plans, now)
                if breach is not None:
                    self._windows, self._trigger = breach
                    self._due = now
                    self._repairs = self._windows != CALM
                    self.early += 1

    def job(self, *, now: float) -> Callable[[], PlacementDecision] | None:
        """Return a plan to compute off the loop; None: it is too early, or no frames arrive, and
        the placement in force stays."""
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
        regular = "first placement" if self.plans is None else "regular plan"
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

    def accept(self, decision: PlacementDecision, *, now: float) -> None:
        """Put the result of a job in force. If a repair hardly helps, keep the placement and update
        only demand and links. Ignore a result for stages or devices that have changed since."""
        if _shape(decision.question) != _shape(self.stated):
            return
        plans = DevicePlans(decision.question, decision.answer)
        self.reason = decision.trigger
        if self.policy.watches:
            self.expected = self._served(decision.question, plans)
            self.reason += f"; now {self.expected:.0%} is expected in time"
            self._pause, longest = PAUSES_S[0], 2.0 * self._pause
            retained_plans = self._retained(decision)
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

    def _retained(self, decision: PlacementDecision) -> DevicePlans | None:
        """Return the placement in force, if a repair serves hardly more; else None."""
        if self.plans is None or not decision.repairs:
            return None
        try:
            plans = DevicePlans(decision.question, self.plans.answer)
        except ValueError:  # the placement in force cannot run any more
            return None
        served = self._served(decision.question, plans)
        return plans if served > self.expected - REPAIR_GAIN else None

    def decide(self, *, now: float) -> None:
        """Plan immediately, even from stated demand alone, for a driver that is starting."""
        question = self.question(self._windows, now=now)
        self.accept(self._computing(question, now=now)(), now=now)

    def question(self, windows: Sequence[float], *, now: float) -> PlacementQuestion:
        """Return the question with demand measured over these windows."""
        pipelines = [demand.measured(windows, now=now) for demand in self._demands.values()]
        links = [self._link(link) for link in self.stated.links]
        return replace(self.stated, pipelines=tuple(pipelines), links=tuple(links))

    def _link(self, link: LinkView) -> LinkView:
        """Return the link as measured: its present bandwidth for a policy that watches, else a low
        quantile."""
        history = self._links.get((link.begin, link.end))
        if not history:
            return link
        rates = [rate for _, rate in history]
        if self.policy.watches or len(rates) < LINK_QUANTILE:
            return replace(link, bandwidth=min(rates[-RECENT_SECONDS:]))
        return replace(link, bandwidth=quantiles(rates, n=LINK_QUANTILE)[0])

    def _breach(self, plans: DevicePlans, now: float) -> tuple[Sequence[float], str] | None:
        """Return (windows, reason) for a new plan; None: the prediction holds."""
        planned, measured = plans.question, self.question((SHORT_S,), now=now)
        waits = now < self._decided_at + self._pause
        less = self.expected - (GRAVE_LOSS if waits else NOTICEABLE_LOSS)
        if more := _more(planned, measured):
            served = self._served(measured, plans)
            if served < less:
                fall = f"from {self.expected:.0%} to {served:.0%}"
                return AT_FIRST, f"{more}: the share expected in time fell {fall}"
        if waits:
            return None
        if self.expected < 1.0 - NOTICEABLE_LOSS and _more(measured, planned):
            return WINDOWS_S, "fewer rows arrived, or a link was faster, than planned"
        if now >= self._decided_at + CALM_S:
            calm = self.question((CALM_S,), now=now)
            if 0.0 < _rows(calm) < _rows(planned) / (1.0 + 3.0 * NOTICEABLE_CHANGE):
                return CALM, "a surge ended"
        return None

    def _calibrate(self, plans: DevicePlans, now: float) -> None:
        """Stretch the SLO in estimates while they predict less than is served, and reverse."""
        pairs = [demand.outcomes(CALIBRATION_S, now=now) for demand in self._demands.values()]
        ended, served = (math.fsum(counts) for counts in zip(*pairs, strict=True))
        if ended < LEAST_FRAMES:
            return
        question = self.question((CALIBRATION_S,), now=now)
        predicted = self._served(question, plans, accurate=False)
        lack = served / ended - predicted
        if abs(lack) <= TOLERANCE:
            return
        stretch = self.policy.rules.stretch * math.exp(PULL * lack)
        least, most = STRETCHES
        stretch = min(max(stretch, least), most)
        self.policy.rules = replace(self.policy.rules, stretch=stretch)
        self.expected = self._served(plans.question, plans)

    def _served(
        self, question: PlacementQuestion, plans: DevicePlans, *, accurate: bool = True
    ) -> float:
        """Return the predicted share of the best possible worth, with these plans' replicas; with
        `accurate` False, of the worth if all answers of this placement were in time."""
        whole, placed = plans.answer.with_spares(question)
        estimators = make_estimators(whole, self.policy.rules)
        try:
            pairs = zip(estimators, placed, strict=True)
            costs = [estimator.chosen(stages) for estimator, stages in pairs]
        except ValueError:  # the placement cannot run any more
            return 0.0
        most = math.fsum(
            estimator.most if accurate else estimator.best(stage_costs)
            for estimator, stage_costs in zip(estimators, costs, strict=True)
        )
        if most <= 0.0:
            return 1.0
        counts = Counter(
            (replica.device, replica.model, replica.configuration) for replica in plans.replicas
        )
        groups: dict[tuple[str, str, int], list[tuple[int, int]]] = {}
        for number, (estimator, stage_costs) in enumerate(zip(estimators, costs, strict=True)):
            for at, (view, cost) in enumerate(
                zip(estimator.pipeline.stages, stage_costs, strict=True)
            ):
                device = estimator.devices[cost.device].name
                key = device, view.model_in(estimator.pipeline), cost.configuration
                groups.setdefault(key, []).append((number, at))
        for key, stages in groups.items():
            busy = math.fsum(costs[number][at].busy for number, at in stages)
            for number, at in stages:
                enough = share(FULL * counts[key], busy)
                costs[number][at] = costs[number][at]._replace(share=enough)
        return score_of_all(estimators, costs).worth / most


def _more(before: PlacementQuestion, after: PlacementQuestion) -> str:
    """Say which pipeline has clearly more rows, or which link less bandwidth; empty: none."""
    most = 1.0 + NOTICEABLE_CHANGE
    for previous_view, present_view in zip(before.pipelines, after.pipelines, strict=True):
        rates = zip(previous_view.rates(), present_view.rates(), strict=True)
        if any(later > most * earlier for earlier, later in rates):
            return f"{present_view.name} received more rows than planned"
    for link, present in zip(before.links, after.links, strict=True):
        if link.bandwidth > most * present.bandwidth:
            return f"the link from {link.begin} to {link.end} was slower than planned"
    return ""


def _edges(view: PipelineView) -> object:
    """Return the key of a pipeline's counts: its stages and edges."""
    return [
        (stage.name, [view.stages[inflow.stage].name for inflow in stage.inflows])
        for stage in view.stages
    ]


def _shape(question: PlacementQuestion) -> object:
    """Return the parts of a question, other than times and rates, on which its answer depends."""
    stages = [
        (view.name, [(s.name, [c.name for c in s.configurations], s.devices) for s in view.stages])
        for view in question.pipelines
    ]
    return [(host.name, host.accelerators, host.streams) for host in question.devices], stages


def _rows(question: PlacementQuestion) -> float:
    """Return the rows per second of all stages together."""
    return math.fsum(math.fsum(pipeline.rates()) for pipeline in question.pipelines)
