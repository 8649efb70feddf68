"""One cell in virtual time: ten engines, the links between them, and the planner of stages.

Cameras, links and batch times are the same for every contender. Ours and `octopinf` serve by
`slack`; the others in order of arrival, in batches of what is there: to wait for full ones, or to
serve by deadline, does not make them better (`batching`). Stages of frames that have ended are
dropped before they run, as OctopInf's authors had it for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import process_time
from typing import Any

from slacktide.domain import LaneSpec, PoolId
from slacktide.engine import Engine, PoolParts, PoolView
from slacktide.lab.simulation import DeviceTimes, FrameScore, ModelTimes, SimulatedPlacing, rng_for
from slacktide.planning.pipelines import (
    DevicePlans,
    DeviceView,
    LinkView,
    PlacementControl,
    PlacementQuestion,
    StageView,
    lanes_of,
    make_placement,
)
from slacktide.profiles import CorrectedTimes
from slacktide.scheduling import PoolRecipe
from slacktide_papers.bounds.exact import SolverMissingError
from slacktide_papers.bounds.fluid import fluid_bound
from slacktide_papers.harness.experiments import TraceCell
from slacktide_papers.octopinf.five_play import play_five
from slacktide_papers.octopinf.five_setting import ALL_CORES, FiveSwitches
from slacktide_papers.octopinf.five_setting import SETTING as FIVE
from slacktide_papers.octopinf.setting import (
    ACCELERATORS,
    MODELS,
    SETTINGS,
    START_S,
    STREAMS,
    WARM_S,
    OctopInfTestbed,
    detectors,
    load_data,
    share_of,
    shrink_frames,
    table_of,
)

SCHEDULED = ("pipeline", "octopinf")
"""Contenders whose batches follow deadlines."""
CONTENTION = 1.3
"""Slowdown by interference of lanes of one accelerator that want more of it than there is."""
BIN_S = 1
"""Seconds of a bin of the timeline."""
BOUND_S = 30.0
"""Seconds that one bound is of."""
SWITCHES = ("edge", "batches", "streams")
COUNTS = ("seed", "detectors", "batch")
"""Options of placements that are no plain numbers."""
SETTLES_S = 1.0
"""After the last frame, until all have their outcome."""


@dataclass(frozen=True, slots=True)
class PlayedPipelines:
    """Outcome of a run."""

    frames: int
    complete: int
    partial: int
    offered: int
    """Objects at the sinks, if everything is served."""
    in_time: int
    """Objects at the sinks, in time."""
    seconds: float
    """Seconds that were scored."""
    by_pipeline: Mapping[str, Sequence[int]]
    """(frames, complete, partial, offered, in time) of each."""
    latency_ms: Sequence[float]
    """Latency of answered frames: percentiles 0 to 100."""
    memory_gb: float
    """Memory of accelerators, on average over time: weights, and what runs at once needs beside
    them."""
    busy: float
    """Share of the time of the server's lanes that batches took."""
    wasted: float
    """Share of batch seconds that were for frames that had ended."""
    requests: int
    """Requests of stages."""
    parts: Mapping[str, int]
    """Handed over: `answered`, `given up`, `cancelled`."""
    plans: Sequence[int]
    """(made, of them before their time, changes of instances)."""
    timeline: Sequence[Sequence[int]]
    """(offered, in time) by `BIN_S`."""
    instances: Sequence[int]
    """Replicas at the end of every `BIN_S`."""
    bound: float
    """Objects per second that no placement exceeds, on average; 0: not asked for."""
    planning_s: float
    cpu_s: float
    """CPU seconds of all plans, and of the whole run but for the bound."""
    worth: float = 0.0
    """Objects at the sinks in time, each weighted by the accuracy of its answer; where variants and
    exits differ (`all-five`)."""
    cores: Sequence[float] = ()
    """(had by lanes, of those that ran something), on average; likewise."""
    acted: Mapping[str, int] = field(default_factory=dict)
    """How often each mechanism did something; likewise."""


def play(cell: TraceCell) -> PlayedPipelines:
    """Play `cell`; the outcome is the same whenever it is played, but for the time that it
    takes. Raises ReproduceError, OptionError."""
    if cell.setting == FIVE:
        return _five(cell)
    return _PlayedCell(cell).played()


def _five(cell: TraceCell) -> PlayedPipelines:
    on = FiveSwitches(**{name: True for name, _ in cell.contender.options})
    played = play_five(on, load_data(cell.folder), cell.seed, float(cell.duration))
    return PlayedPipelines(
        **_of_score(played.score, float(cell.duration)),
        memory_gb=0.0,
        busy=played.cores[1] / ALL_CORES,
        plans=played.plans,
        instances=(),
        bound=0.0,
        planning_s=0.0,
        cpu_s=played.cpu_s,
        worth=played.score.total.worth,
        cores=played.cores,
        acted=played.acted,
    )


class _PlayedCell:
    def __init__(self, cell: TraceCell) -> None:
        self.cell, self.name = cell, cell.contender.policy
        options = dict(cell.contender.options)
        self.contention = float(options.pop("contention", CONTENTION))
        self.bounds = bool(options.pop("bound", 0.0))
        self.fixed = float(options.pop("fixed", 0.0))
        self.batching = _batching(self.name, options)
        self.warm = min(WARM_S, cell.duration)
        whole_day = bool(options.pop("day", 0.0))
        data = load_data(cell.folder)
        setting = SETTINGS[cell.setting]
        self.testbed = OctopInfTestbed(
            setting, data, cell.seed, whole_day=whole_day, warm=self.warm
        )
        self.end = float(self.warm + cell.duration)
        self.sizes = self.name == "jellyfish"
        self.asked = self.testbed.question(sizes=self.sizes)
        if self.name == "distream":
            options["seed"] = cell.seed
        policy_options = {name: _plain(name, value) for name, value in options.items()}
        policy = make_placement(self.name, policy_options)
        if self.fixed:
            self.asked = _times_as_many(self.asked, self.fixed)
            policy.scales = False  # nothing is counted, so that it would take instances away
        self.control = PlacementControl(self.asked, policy, stopwatch=process_time)
        self.score = FrameScore(start=float(self.warm), end=self.end, bin_s=float(BIN_S))
        self.held: list[tuple[float, float, int]] = []
        """(since, bytes, replicas)."""
        self.bound: list[float] = []
        self.bound_s = 0.0
        """CPU seconds that the bounds took."""

    def played(self) -> PlayedPipelines:
        begin = process_time()
        self.devices = self.testbed.simulated(self.score)
        self.control.decide(now=0.0)
        lanes = {view.name: lanes_of(view) for view in self.asked.devices}
        for view in self.asked.devices:
            self._add(view, lanes[view.name])
        self._changed(0.0)
        SimulatedPlacing(
            self.devices,
            self.control,
            lanes,
            self.testbed.links,
            until=self.end,
            counted=not self.fixed,
            changed=self._changed,
        )
        if self.bounds:
            self.devices.call_at(float(self.warm), self._bound)
        self.devices.run(until=self.end + SETTLES_S)
        return self._concluded(process_time() - begin - self.bound_s)

    def _add(self, view: DeviceView, lanes: Sequence[LaneSpec]) -> None:
        assert self.control.plans is not None
        hardware = DeviceTimes(
            self._times(view.kind),
            {lane.name: int(lane.name.split(".")[0]) for lane in lanes},
            rng_for(self.cell.seed, f"batches on {view.name}"),
            contention=self.contention,
            utilisation=view.utilisation,
        )
        cameras = self.testbed.cameras.get(view.name, ())
        self.devices.add(
            view.name,
            Engine(self._engine_parts(view.kind)),
            self.control.plans.of(view.name, lanes),
            hardware,
            cameras=[replace(camera, end=self.end) for camera in cameras],
            begin=-START_S,
            start_s=START_S,
        )

    def _times(self, kind: str) -> dict[PoolId, ModelTimes]:
        """The hardware: of each model that may be asked for."""
        times = {
            PoolId(model, "1"): ModelTimes(table_of(model, kind), cost.utilisation)
            for model, cost in MODELS.items()
        }
        if self.sizes:
            for form in detectors():
                table = table_of("detector", kind, share_of(form.name))
                pool = PoolId("detector", "1", form.name)
                times[pool] = ModelTimes(table, form.utilisation)
        return times

    def _engine_parts(self, kind: str) -> Callable[[PoolId, int, PoolView], PoolParts]:
        def parts(pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
            times = CorrectedTimes(table_of(pool.model, kind, share_of(pool.variant)))
            return self.batching.parts(times, max_batch=max_batch, view=view)

        return parts

    def _changed(self, now: float) -> None:
        """A placement is in force: what it takes, and what Jellyfish's clients send."""
        plans = self.control.plans
        assert plans is not None
        self.held.append((now, memory_of(plans), len(plans.replicas)))
        if self.sizes:
            shrink_frames(self.devices, plans)

    def _bound(self, now: float) -> None:
        """Note what no placement exceeds in the half minute from now on."""
        links = tuple(replace(link, bandwidth=self._mean(link, now)) for link in self.asked.links)
        pipelines = []
        for view in self.asked.pipelines:
            camera = next(
                candidate
                for candidate in self.testbed.cameras[view.source]
                if candidate.rows.pipeline.name == view.name
            )
            means = camera.mean_handed(now, now + BOUND_S)
            graph = [edge.downstream for edge in camera.rows.pipeline.out_of["detector"]]
            by_stage = dict(zip(graph, means, strict=True))
            stages = tuple(
                replace(stage, inflows=(replace(stage.inflows[0], fan_out=by_stage[stage.name]),))
                if stage.name in by_stage
                else stage
                for stage in view.stages
            )
            pipelines.append(replace(view, stages=stages))
        question = replace(self.asked, links=links, pipelines=tuple(pipelines))
        begin = process_time()
        try:
            bound = fluid_bound(question)
        except SolverMissingError:
            return  # the rows say that there is none
        self.bound_s += process_time() - begin
        self.bound.append(0.0 if bound is None else bound)
        if now + 1.5 * BOUND_S <= self.end:
            self.devices.call_at(now + BOUND_S, self._bound)

    def _mean(self, link: LinkView, now: float) -> float:
        device = link.end if link.begin == "server" else link.begin
        trace, begins = self.testbed.traces[device]
        at = begins + now
        return (trace.moved(at + BOUND_S) - trace.moved(at)) / BOUND_S

    def _concluded(self, cpu_s: float) -> PlayedPipelines:
        control = self.control
        seconds = float(self.cell.duration)
        bins = range(math.ceil(seconds / BIN_S))
        ends = [since for since, _, _ in self.held[1:]] + [self.end]
        memory = sum(
            nbytes * max(0.0, end - max(since, self.warm))
            for (since, nbytes, _), end in zip(self.held, ends, strict=True)
        )
        server = self.devices.devices["server"].simulation.hardware
        return PlayedPipelines(
            **_of_score(self.score, seconds),
            memory_gb=round(memory / seconds / 1e9, 3),
            busy=server.busy_s / (self.end * ACCELERATORS * STREAMS),
            plans=(control.decided, control.early, control.scaled),
            instances=[self._replicas(self.warm + (at + 1.0) * BIN_S) for at in bins],
            bound=sum(self.bound) / len(self.bound) if self.bound else 0.0,
            planning_s=control.planning_s,
            cpu_s=cpu_s,
        )

    def _replicas(self, at: float) -> int:
        return next(count for since, _, count in reversed(self.held) if since <= at)


def _of_score(score: FrameScore, seconds: float) -> dict[str, Any]:
    """Counts of every run."""
    total = score.total
    return {
        "frames": total.frames,
        "complete": total.complete,
        "partial": total.partial,
        "offered": total.offered,
        "in_time": total.in_time,
        "seconds": seconds,
        "by_pipeline": {
            name: (tally.frames, tally.complete, tally.partial, tally.offered, tally.in_time)
            for name, tally in sorted(score.pipelines.items())
        },
        "latency_ms": [total.percentile(level / 100.0) for level in range(101)],
        "wasted": score.wasted,
        "requests": score.requests,
        "parts": dict(sorted(score.parts.items())),
        "timeline": [
            (score.offered_in.get(at, 0), score.in_time_in.get(at, 0))
            for at in range(math.ceil(seconds / BIN_S))
        ],
    }


def _times_as_many(question: PlacementQuestion, factor: float) -> PlacementQuestion:
    """With so many times the objects."""

    def seen(stage: StageView) -> StageView:
        inflows = [
            inflow if inflow.stage else replace(inflow, fan_out=factor * inflow.fan_out)
            for inflow in stage.inflows
        ]
        return replace(stage, inflows=tuple(inflows))

    views = [replace(view, stages=tuple(map(seen, view.stages))) for view in question.pipelines]
    return replace(question, pipelines=tuple(views))


def memory_of(plans: DevicePlans) -> float:
    """Bytes of accelerators, all in all: weights of every replica, and of each stream the largest
    of what its replicas need to run, as it runs one batch at a time."""
    total = 0.0
    running: dict[tuple[str, int], float] = {}
    views = {view.name: view for view in plans.question.pipelines}
    for replica in plans.replicas:
        name, at = replica.stages[0]
        form = views[name].stages[at].forms[replica.form]
        total += form.weights
        key = replica.device, replica.lane
        running[key] = max(running.get(key, 0.0), form.intermediate)
    return total + sum(running.values())


def _batching(policy: str, options: dict[str, float | str]) -> PoolRecipe:
    """How its replicas make batches. Takes what it knows from `options`."""
    usual = "slack" if policy in SCHEDULED else "fifo"
    scheduler = str(options.pop("scheduler", usual))
    wait = float(options.pop("wait", 0.0))
    return PoolRecipe(scheduler, {"max_delay": wait} if scheduler == "fifo" else {})


def _plain(name: str, value: float | str) -> object:
    """Options are numbers in cells."""
    return bool(value) if name in SWITCHES else int(value) if name in COUNTS else value
