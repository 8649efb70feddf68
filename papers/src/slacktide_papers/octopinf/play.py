"""Plays one cell in virtual time: ten engines, the links between them, and the stage planner.

Cameras, links and batch times are the same for every contender. `pipeline` and `octopinf` use the
scheduler `slack`. Baselines serve in order of arrival and, unless an option says so, never wait for
a batch to fill: waiting for full batches, or `slack`, does not improve them (experiment
`batching`). Stage requests of frames that have ended are dropped before they run; OctopInf's
authors do so for all systems.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from time import process_time
from typing import Any

from slacktide.domain import LaneSpec, PoolId
from slacktide.engine import Engine, PoolParts, PoolView
from slacktide.lab.simulation import (
    DeviceTimes,
    FrameScore,
    LocalChild,
    ModelTimes,
    SimulatedPlacing,
    rng_for,
)
from slacktide.planning.pipelines import (
    DevicePlans,
    DeviceView,
    LinkView,
    PipelineView,
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
    BEST_ACCURACY,
    MODELS,
    SETTINGS,
    START_S,
    STREAMS,
    WARM_S,
    OctopInfTestbed,
    accuracy_of,
    detectors,
    load_data,
    share_of,
    shrink_frames,
    table_of,
)

SCHEDULED = ("pipeline", "octopinf")
"""Contenders that use the scheduler `slack` unless an option names another one."""
CONTENTION = 1.3
"""Factor on a batch's time on an overloaded accelerator, on top of a proportional slowdown."""
BIN_S = 1
"""Length of a bin of the timeline, in seconds."""
LOST_ACCURACY = 0.02
"""See `PlayedPipelines.within`."""
BOUNDS: Mapping[str, Mapping[str, Any]] = {
    "fluid": {},
    "weighted": {"weighted": True},
    "within": {"loss": LOST_ACCURACY / BEST_ACCURACY},
    "undivided": {"divided": False},
    "weighted, undivided": {"divided": False, "weighted": True},
    "within, undivided": {"divided": False, "loss": LOST_ACCURACY / BEST_ACCURACY},
    "largest": {},
    "largest, undivided": {"divided": False},
}
"""Bounds of objects in time, weighted, within two points of accuracy, and with the largest detector
alone, with arguments of `fluid_bound`. The first setting has the first bound alone."""
BOUND_S = 30.0
"""Length of the interval that each bound covers, in seconds; shorter runs have one bound."""
SWITCHES = ("edge", "batches", "streams", "divide", "calibrate", "joint")
COUNTS = ("seed", "detectors", "batch")
"""Placement options that are not floats: `SWITCHES` are bools, `COUNTS` are ints."""
SETTLES_S = 1.0
"""Seconds that a run goes on after its last frame, so that every frame gets an outcome."""


@dataclass(frozen=True, slots=True)
class PlayedPipelines:
    """Outcome of a run."""

    frames: int
    complete: int
    partial: int
    offered: int
    """Objects that would reach the sinks if everything were served."""
    in_time: int
    """Objects that the sinks answered in time."""
    seconds: float
    """Length of the scored interval, in seconds."""
    by_pipeline: Mapping[str, Sequence[int]]
    """By pipeline: (frames, complete, partial, offered, in time)."""
    latency_ms: Sequence[float]
    """Latency of answered frames: percentiles 0 to 100."""
    memory_gb: float
    """Memory in use on all accelerators, averaged over time: the weights of all replicas, and for
    each stream the largest intermediate of its replicas."""
    busy: float
    """Share of time in which the server's lanes ran batches, averaged over the lanes."""
    wasted: float
    """Share of batch seconds spent on frames that had already ended."""
    requests: int
    """Number of stage requests."""
    parts: Mapping[str, int]
    """Number of parts handed over, by outcome: `answered`, `given up`, `cancelled`."""
    plans: Sequence[int]
    """(plans made, plans made before they were due, changes of instances)."""
    timeline: Sequence[Sequence[int]]
    """(objects offered, objects in time) for each bin."""
    instances: Sequence[int]
    """Number of replicas at the end of each bin."""
    bounds: Mapping[str, float]
    """By name (`BOUNDS`): upper bounds of the objects per second of any placement, averaged."""
    planning_s: float
    cpu_s: float
    """CPU seconds: `planning_s` of all plans, `cpu_s` of the whole run without the bounds."""
    worth: float = 0.0
    """Objects at the sinks in time, each weighted by the accuracy of its answer, relative to the
    largest detector's."""
    within: int = 0
    """Most objects at the sinks in time whose mean accuracy is at most `LOST_ACCURACY` below the
    largest detector's."""
    cores: Sequence[float] = ()
    """(cores held by all lanes, cores of lanes running a batch), averaged over time. Only
    `all-five` sets this field and the next."""
    acted: Mapping[str, int] = field(default_factory=dict)
    """By kind of action (goals.ACTION_KINDS): how often a mechanism took it."""


def play(cell: TraceCell) -> PlayedPipelines:
    """Play `cell`. Equal cells give equal outcomes, except for the measured CPU seconds.
    Raises ReproduceError, OptionError."""
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
        bounds={},
        planning_s=0.0,
        cpu_s=played.cpu_s,
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
        chooses = bool(options.pop("family", setting.fp32)) and self.name == "pipeline"
        self.sizes = self.name == "jellyfish" or chooses
        self.question = self.testbed.question(sizes=self.sizes)
        if self.name == "distream":
            options["seed"] = cell.seed
        policy_options = {name: _plain(name, value) for name, value in options.items()}
        policy = make_placement(self.name, policy_options)
        if self.fixed:
            self.question = _times_as_many(self.question, self.fixed)
            policy.scales = False  # no counts are reported: scaling would remove instances
        self.control = PlacementControl(self.question, policy, stopwatch=process_time)
        self.score = FrameScore(start=float(self.warm), end=self.end, bin_s=float(BIN_S))
        self.held: list[tuple[float, float, int]] = []
        """(begin, bytes, replicas) of each placement in force; see `PlayedPipelines.memory_gb`."""
        self.bound: dict[str, list[float]] = {}
        self.bound_s = 0.0
        """CPU seconds that the bounds took."""

    def played(self) -> PlayedPipelines:
        begin = process_time()
        self.devices = self.testbed.simulated(self.score)
        self.control.decide(now=0.0)
        lanes = {view.name: lanes_of(view) for view in self.question.devices}
        for view in self.question.devices:
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
        device = self.devices.add(
            view.name,
            Engine(self._engine_parts(view.kind)),
            self.control.plans.of(view.name, lanes),
            hardware,
            cameras=[replace(camera, end=self.end) for camera in cameras],
            begin=-START_S,
            start_s=START_S,
        )
        device.frames.accuracy = _accuracy

    def _times(self, kind: str) -> dict[PoolId, ModelTimes]:
        """True batch times of every model that a placement may use."""
        times = {
            PoolId(model, "1"): ModelTimes(table_of(model, kind), cost.utilisation)
            for model, cost in MODELS.items()
        }
        if self.sizes:
            for configuration in detectors():
                table = table_of("detector", kind, share_of(configuration.name))
                pool = PoolId("detector", "1", configuration.name)
                times[pool] = ModelTimes(table, configuration.utilisation)
        return times

    def _engine_parts(self, kind: str) -> Callable[[PoolId, int, PoolView], PoolParts]:
        def parts(pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
            times = CorrectedTimes(table_of(pool.model, kind, share_of(pool.variant)))
            return self.batching.parts(times, max_batch=max_batch, view=view)

        return parts

    def _changed(self, now: float) -> None:
        """Called when a placement takes effect: note its memory, and resize Jellyfish's frames."""
        plans = self.control.plans
        assert plans is not None
        self.held.append((now, memory_of(plans), len(plans.replicas)))
        if self.sizes:
            shrink_frames(self.devices, plans)

    def _bound(self, now: float) -> None:
        """Compute the bound for the next `BOUND_S` seconds, from the true rates and links."""
        seconds = min(BOUND_S, self.end - now)
        links = [
            replace(link, bandwidth=self._mean(link, now, seconds)) for link in self.question.links
        ]
        pipelines = []
        for view in self.question.pipelines:
            camera = next(
                candidate
                for candidate in self.testbed.cameras[view.source]
                if candidate.rows.pipeline.name == view.name
            )
            means = camera.mean_handed(now, now + seconds)
            graph = [edge.downstream for edge in camera.rows.pipeline.out_of["detector"]]
            by_stage = dict(zip(graph, means, strict=True))
            stages = tuple(
                replace(stage, inflows=(replace(stage.inflows[0], fan_out=by_stage[stage.name]),))
                if stage.name in by_stage
                else stage
                for stage in view.stages
            )
            pipelines.append(replace(view, stages=stages))
        question = replace(self.question, links=tuple(links), pipelines=tuple(pipelines))
        begin = process_time()
        for name in BOUNDS if self.testbed.setting.fp32 else ("fluid",):
            try:
                limited = _largest(question) if name.startswith("largest") else question
                bound = fluid_bound(limited, **BOUNDS[name])
            except SolverMissingError:
                return  # without scipy the rows have no bound
            self.bound.setdefault(name, []).append(0.0 if bound is None else bound)
        self.bound_s += process_time() - begin
        if now + 1.5 * BOUND_S <= self.end:
            self.devices.call_at(now + BOUND_S, self._bound)

    def _mean(self, link: LinkView, now: float, seconds: float) -> float:
        device = link.end if link.begin == "server" else link.begin
        trace, begins = self.testbed.traces[device]
        at = begins + now
        return (trace.moved(at + seconds) - trace.moved(at)) / seconds

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
            bounds={name: fmean(bounds) for name, bounds in self.bound.items()},
            planning_s=control.planning_s,
            cpu_s=cpu_s,
        )

    def _replicas(self, at: float) -> int:
        return next(count for since, _, count in reversed(self.held) if since <= at)


def _of_score(score: FrameScore, seconds: float) -> dict[str, Any]:
    """The fields of `PlayedPipelines` that come from the score, in every setting."""
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
        "worth": total.worth,
        "within": _within(total.accuracies),
        "wasted": score.wasted,
        "requests": score.requests,
        "parts": dict(sorted(score.parts.items())),
        "timeline": [
            (score.offered_in.get(at, 0), score.in_time_in.get(at, 0))
            for at in range(math.ceil(seconds / BIN_S))
        ],
    }


def _accuracy(child: LocalChild, id: int) -> float:
    """Accuracy of a request's answers."""
    return 1.0 if child.batch is None else accuracy_of(child.batch.replica.pool.variant)


def _within(accuracies: Mapping[float, int]) -> int:
    """See `PlayedPipelines.within`. `accuracies`: number of objects in time, by accuracy."""
    least = 1.0 - LOST_ACCURACY / BEST_ACCURACY
    objects, spare = 0, 0.0
    for accuracy, count in sorted(accuracies.items(), reverse=True):
        if accuracy < least:
            count = min(count, int(spare / (least - accuracy) + 1e-6))
        objects += count
        spare += count * (accuracy - least)
    return objects


def _largest(question: PlacementQuestion) -> PlacementQuestion:
    """The question with only the last configuration of each stage, which is the most accurate."""

    def limited(view: PipelineView) -> PipelineView:
        stages = [replace(stage, configurations=stage.configurations[-1:]) for stage in view.stages]
        return replace(view, stages=tuple(stages))

    return replace(question, pipelines=tuple(map(limited, question.pipelines)))


def _times_as_many(question: PlacementQuestion, factor: float) -> PlacementQuestion:
    """The question with `factor` times as many objects found by each source."""

    def scaled(stage: StageView) -> StageView:
        inflows = [
            inflow if inflow.stage else replace(inflow, fan_out=factor * inflow.fan_out)
            for inflow in stage.inflows
        ]
        return replace(stage, inflows=tuple(inflows))

    views = [replace(view, stages=tuple(map(scaled, view.stages))) for view in question.pipelines]
    return replace(question, pipelines=tuple(views))


def memory_of(plans: DevicePlans) -> float:
    """Bytes on all accelerators together: the weights of every replica and, for each stream, the
    largest intermediate of its replicas, because a stream runs one batch at a time."""
    total = 0.0
    running: dict[tuple[str, int], float] = {}
    views = {view.name: view for view in plans.whole.pipelines}
    for replica in plans.replicas:
        name, at = replica.stages[0]
        configuration = views[name].stages[at].configurations[replica.configuration]
        total += configuration.weights
        key = replica.device, replica.lane
        running[key] = max(running.get(key, 0.0), configuration.intermediate)
    return total + sum(running.values())


def _batching(policy: str, options: dict[str, float | str]) -> PoolRecipe:
    """How the policy's replicas form batches. Removes `scheduler` and `wait` from `options`."""
    usual = "slack" if policy in SCHEDULED else "fifo"
    scheduler = str(options.pop("scheduler", usual))
    wait = float(options.pop("wait", 0.0))
    return PoolRecipe(scheduler, {"max_delay": wait} if scheduler == "fifo" else {})


def _plain(name: str, value: float | str) -> object:
    """Convert a number in a cell to the type of the option `name`."""
    return bool(value) if name in SWITCHES else int(value) if name in COUNTS else value
