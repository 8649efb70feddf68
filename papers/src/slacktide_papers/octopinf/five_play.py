"""One run with all five mechanisms, or some of them: engines, planners and links in virtual time.

Each device has its own planners: `joint` and `vertical` for variants and cores, and a planner of
early exits. They start from a placement and work alone until the next placement. The placed variant
is the usual one, and frames are sent to other devices in its size. Only the device of a camera has
whole frames, so only its planners may choose larger variants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import process_time

from slacktide.domain import Command, Deployment, Event, Plan, ResizeLane, Route
from slacktide.engine import Engine
from slacktide.lab.simulation import FrameScore, SimulatedPlacing
from slacktide.planning import Planner, Stated
from slacktide.planning.exits import ExitsPlanner, StatedExits
from slacktide.planning.pipelines import DevicePlans, PlacementControl, make_placement
from slacktide.planning.scaling import ScaledModel, ScalingLimits, ScalingPlanner, groups_of
from slacktide.planning.variants import Family
from slacktide_papers.octopinf.five_hardware import FleetHardware
from slacktide_papers.octopinf.five_setting import (
    BATCHES,
    BRAND,
    CORES,
    DETECTOR,
    FIXED,
    LANE_CORES,
    VARIANTS,
    WARM_S,
    FiveSwitches,
    FiveTestbed,
    day_begins,
    family,
    lanes_on,
)
from slacktide_papers.octopinf.setting import START_S, OctopInfData, shrink_frames

SETTLES_S = 1.0
RESIZE_S, JOB_S = 0.02, 0.01
"""Seconds to resize a lane, and seconds that a planner's job runs off the event loop."""


@dataclass(frozen=True, slots=True)
class PlayedFive:
    """Outcome of a run of `all-five`."""

    score: FrameScore
    cores: tuple[float, float]
    """(cores held by all lanes, cores of lanes running a batch), averaged over time."""
    plans: tuple[int, int, int]
    """(plans made, plans made before they were due, changes of instances)."""
    acted: Mapping[str, int]
    """Number of actions of each mechanism, by kind of action."""
    cpu_s: float


def play_five(switches: FiveSwitches, data: OctopInfData, seed: int, duration: float) -> PlayedFive:
    """Play one run. Equal arguments give equal results, except for `cpu_s`."""
    return _Run(switches, data, seed, duration).played()


class _Run:
    def __init__(
        self, switches: FiveSwitches, data: OctopInfData, seed: int, duration: float
    ) -> None:
        self.on = switches
        self.warm = min(WARM_S, duration)
        self.end = self.warm + duration
        self.testbed = FiveTestbed(data, seed, day_begins(self.end))
        self.question = self.testbed.question()
        self.control = PlacementControl(self.question, make_placement("pipeline", {}))
        self.score = FrameScore(start=self.warm, end=self.end)
        self.hardware = FleetHardware(switches, seed)
        self.actions = self.hardware.actions
        self.moved: dict[tuple[str, int], str] = {}
        """By pipeline and stage: the device that the stage is on."""

    def played(self) -> PlayedFive:
        begin = process_time()
        self.devices = self.testbed.simulated(self.score)
        self.control.decide(now=0.0)
        for name, kind in self.testbed.kinds.items():
            self._add(name, kind)
        self._changed(0.0)
        if self.on.placement:
            SimulatedPlacing(
                self.devices,
                self.control,
                {name: lanes_on(kind) for name, kind in self.testbed.kinds.items()},
                self.testbed.links,
                until=self.end,
                changed=self._changed,
                plan_of=self._begun,
            )
        self.devices.run(until=self.end + SETTLES_S)
        seconds = self.end - self.warm
        meters = [device.simulation.hardware for device in self.devices.devices.values()]
        control = self.control
        return PlayedFive(
            self.score,
            (
                sum(device.allocated.seconds(self.warm, self.end) for device in meters) / seconds,
                sum(device.busy_s for device in meters) / (self.end + SETTLES_S),
            ),
            (control.decided, control.early, control.scaled),
            dict(sorted(self.actions.items())),
            process_time() - begin,
        )

    def _add(self, name: str, kind: str) -> None:
        assert self.control.plans is not None
        plan, stated = self._begun(self.control.plans, name)
        planners: list[Planner] = []
        if self.on.variants or self.on.cores:
            planners.append(ScalingPlanner(range(CORES[kind])))
        if self.on.exits:
            planners.append(ExitsPlanner())
        cameras = self.testbed.cameras.get(name, ())
        engine = Engine(self.hardware.parts(kind))
        device = self.devices.add(
            name,
            engine,
            plan,
            self.hardware.of(name, kind, engine),
            cameras=[replace(camera, end=self.end) for camera in cameras],
            begin=-START_S,
            start_s=START_S,
            resize_s=RESIZE_S,
            planners=planners,
            stated=stated,
            job_s=JOB_S,
            exits={BRAND: self.hardware.exits} if self.on.exits else None,
            watch=self._watch,
        )
        device.frames.accuracy = self.hardware.accuracy

    # ── what planners begin with ─────────────────────────────────────────────────────────────

    def _begun(self, plans: DevicePlans, name: str) -> tuple[Plan, Stated]:
        """The device's part of the placement, and what the device's planners may change."""
        kind = self.testbed.kinds[name]
        plan = plans.of(name, lanes_on(kind))
        used = {deployment.lane for deployment in plan.deployments}
        if self.on.cores:  # lanes without deployments need no cores
            plan = replace(plan, lanes=tuple(lane for lane in plan.lanes if lane.name in used))
        stated: dict[str, tuple[object, ...]] = {}
        models = {deployment.pool.model for deployment in plan.deployments}
        scaled = models if self.on.cores else models & {DETECTOR} if self.on.variants else set()
        for group in groups_of(plan, scaled):
            lanes = len(group.lanes)
            most = CORES[kind] - (len(plan.lanes) - 1) if self.on.cores else LANE_CORES
            least = 1 if self.on.cores else LANE_CORES
            limits = ScalingLimits(least, most, lanes, lanes, BATCHES[-1])
            for model in group.models:
                varies = model == DETECTOR and self.on.variants
                stated[model] = (ScaledModel(limits, "joint" if varies else "vertical"),)
        if DETECTOR in models and self.on.variants:
            most_side = self._largest(plans, name)
            variants = tuple(variant for variant in family() if FIXED <= variant.size <= most_side)
            plan = _with_family(plan, [variant.name for variant in variants])
            stated[DETECTOR] = (*stated[DETECTOR], Family(variants, planner="none"))
        if BRAND in models and self.on.exits:
            stated[BRAND] = (*stated.get(BRAND, ()), StatedExits())
        return plan, stated

    def _largest(self, plans: DevicePlans, name: str) -> int:
        """Side of the largest variant that the device has frames for: at the camera the family's
        largest, elsewhere the placed variant, since frames are sent in its size."""
        largest = 0
        for view, placed in zip(plans.whole.pipelines, plans.placed, strict=True):
            if placed[0].device == name:
                is_source = view.source == name
                configuration = view.stages[0].configurations[placed[0].configuration]
                largest = max(largest, VARIANTS[-1][0] if is_source else int(configuration.name))
        return largest

    def _changed(self, now: float) -> None:
        """Called when a placement takes effect: resize the frames sent, and count moved stages."""
        plans = self.control.plans
        assert plans is not None
        shrink_frames(self.devices, plans)
        for view, placed in zip(plans.question.pipelines, plans.answer.pipelines, strict=True):
            for at, stage in enumerate(placed):
                if self.moved.setdefault((view.name, at), stage.device) != stage.device:
                    self.actions["stages moved"] += 1
                    self.moved[view.name, at] = stage.device

    def _watch(self, events: Sequence[Event], now: float, commands: Sequence[Command]) -> None:
        for command in commands:
            if type(command) is ResizeLane:
                self.actions["lanes resized"] += 1


def _with_family(plan: Plan, names: Sequence[str]) -> Plan:
    """Put the variants `names` on each lane with a detector, and route all clients to the placed
    variant."""
    detectors = [deployment for deployment in plan.deployments if deployment.pool.model == DETECTOR]
    stages = [deployment for deployment in plan.deployments if deployment.pool.model != DETECTOR]
    pool = detectors[0].pool
    caps: dict[str, int] = {}
    for deployment in detectors:
        caps[deployment.lane] = max(caps.get(deployment.lane, 0), deployment.max_batch)
    placed = [
        Deployment(pool._replace(variant=name), lane, cap)
        for lane, cap in caps.items()
        for name in names
    ]
    plain = next(
        route.pool for route in plan.routes if route.model == DETECTOR and route.client is None
    )
    routes = [route for route in plan.routes if route.model != DETECTOR]
    return replace(plan, deployments=(*stages, *placed), routes=(*routes, Route(DETECTOR, plain)))
