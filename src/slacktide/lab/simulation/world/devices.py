"""`SimulatedDevices`: an engine for each device, and the links between devices, in virtual time.

Each device is a separate `Simulation` with an engine, hardware and a heap of future events. One
more heap holds the next instant of every device and link, so all events happen in one order. At the
same instant, links come first, then calls (such as new plans), then devices in the order of `add`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush

from slacktide.domain import Event, Plan, PlanChanged
from slacktide.domain.frames import FrameEvent, PipelinesChanged
from slacktide.engine import Engine
from slacktide.lab.simulation.device_parts import DeviceLink
from slacktide.lab.simulation.exit_courses import EarlyExits
from slacktide.lab.simulation.frame_score import FrameScore
from slacktide.lab.simulation.items import SimulationError
from slacktide.lab.simulation.local_frames import SentPart
from slacktide.lab.simulation.world.device_frames import DeviceFrames
from slacktide.lab.simulation.world.driver import Simulation
from slacktide.lab.simulation.world.hardware import Execution
from slacktide.lab.simulation.world.stage_rows import PipelineCamera
from slacktide.lab.workloads import BandwidthTrace
from slacktide.pipelines import Pipeline
from slacktide.planning import Planner, Stated
from slacktide.planning.exits import RampsLearnt
from slacktide.runtime import Watch

_LINK, _CALL, _DEVICE = range(3)


class SimulatedDevice:
    """One machine. Callers may read it and change its plan."""

    def __init__(
        self, name: str, number: int, frames: DeviceFrames, simulation: Simulation
    ) -> None:
        self.name, self.number = name, number
        self.frames, self.simulation = frames, simulation
        self.due = math.inf
        """Instant of the device's next event."""
        self.base: tuple[Plan, Stated] = Plan(), {}
        """Base plan of the device's planners, and the facts stated to them."""


class SimulatedDevices:
    """All devices and links of one run."""

    def __init__(
        self,
        pipelines: Sequence[Pipeline],
        links: Mapping[tuple[str, str], tuple[BandwidthTrace, float, float]],
        *,
        score: FrameScore | None = None,
        check: bool = False,
    ) -> None:
        """`pipelines`: all that any plan serves on any device. `links`: by (from, to), one way:
        (trace, seconds of latency, seconds into the trace at time 0). `check`: check all invariants
        after every event; slow, for tests. Raises WorkloadError."""
        self.score = score or FrameScore()
        self.devices: dict[str, SimulatedDevice] = {}
        self.now = -math.inf
        self.begins = 0.0
        """Earliest instant at which a device begins."""
        self.pipelines = tuple(pipelines)
        self._check = check
        self._links: dict[tuple[str, str], DeviceLink] = {
            ends: DeviceLink(*arguments) for ends, arguments in links.items()
        }
        self._heap: list[tuple[float, int, int, object]] = []
        self._order: list[SimulatedDevice] = []
        self._numbers = {id(link): number for number, link in enumerate(self._links.values())}
        self._all_links = list(self._links.values())
        self._calls = 0

    def add(
        self,
        name: str,
        engine: Engine,
        plan: Plan,
        execution: Execution,
        *,
        cameras: Sequence[PipelineCamera] = (),
        begin: float = 0.0,
        start_s: float = 0.0,
        resize_s: float = 0.0,
        planners: Sequence[Planner] = (),
        stated: Stated | None = None,
        job_s: float = 0.0,
        exits: Mapping[str, EarlyExits] | None = None,
        watch: Watch | None = None,
    ) -> SimulatedDevice:
        """Add a device, whose frames come from `cameras`; the other parameters are those of
        `Simulation`. Raises SimulationError if a device has this name already."""
        if name in self.devices:
            raise SimulationError(f"expected distinct devices, got {name!r} twice")
        number = len(self._order)
        self.begins = min(self.begins, begin)

        def put(at: float, event: Event | FrameEvent | RampsLearnt) -> None:
            simulation.put(at, event)
            if at < device.due:
                self._due(device, at)

        frames = DeviceFrames(name, self, put)
        simulation = Simulation(
            engine,
            plan,
            execution,
            begin=begin,
            start_s=start_s,
            resize_s=resize_s,
            planners=planners,
            stated=stated,
            job_s=job_s,
            exits=exits,
            watch=watch,
            frames=frames,
            check=self._check,
        )
        frames.plan = lambda: engine.plan
        simulation.put(begin, PipelinesChanged(self.pipelines))
        simulation.begin(frames.coming(cameras))
        device = self.devices[name] = SimulatedDevice(name, number, frames, simulation)
        device.base = plan, stated or {}
        self._order.append(device)
        self._due(device, simulation.next_at(more=True))
        return device

    def change_plans(
        self, plans: Mapping[str, Plan], *, now: float, stated: Mapping[str, Stated] | None = None
    ) -> None:
        """Put `plans`, by device, in force at `now`. A device's own planners continue from its new
        plan and from the facts `stated` about its models."""
        for name, plan in plans.items():
            frames, device = self.frames_on(name), self.devices[name]
            base = plan, device.base[1] if stated is None else stated.get(name, {})
            if base == device.base:
                continue
            before = {deployment.pool for deployment in device.base[0].deployments}
            device.base = base
            frames.put(now, PlanChanged(device.simulation.runtime.rebase(*base, now=now)))
            for learnt in device.simulation.learnt(plan):
                if learnt.pool not in before:
                    frames.put(now, learnt)

    def run(self, *, until: float) -> None:
        """Deliver all events in order until just after `until` (absolute seconds)."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            at, kind, number, call = heappop(heap)
            if kind == _DEVICE:
                device = self._order[number]
                if at != device.due:
                    continue
                self.now = max(at, self.now)
                self._turn(device)
            elif kind == _LINK:
                link = self._all_links[number]
                if at == link.leaves_at:
                    self.now = at
                    sending = link.take(now=at)
                    if sending is not None:
                        sending.message.begin.arrived(sending.message, at + link.latency)
                    self.link_changed(link, now=at)
            else:
                self.now = at
                assert callable(call)
                call(at)

    def _turn(self, device: SimulatedDevice) -> None:
        # Since `due` was computed, events were put on the device's heap, but none was handled.
        device.simulation.turn(device.due)
        self._due(device, device.simulation.next_at(more=True))

    def _due(self, device: SimulatedDevice, at: float) -> None:
        device.due = at
        if at < math.inf:
            heappush(self._heap, (at, _DEVICE, device.number, None))

    @property
    def in_flight(self) -> int:
        """Number of frames and parts of frames without an outcome, or whose slot is not free."""
        return sum(len(device.frames.frames) for device in self._order)

    # ── what devices ask ─────────────────────────────────────────────────────────────────────

    def frames_on(self, device: str) -> DeviceFrames:
        """Return the frames of a device. Raises SimulationError if no device has this name."""
        simulated = self.devices.get(device)
        if simulated is None:
            raise SimulationError(f"there is no device {device!r}")
        return simulated.frames

    def link(self, begin: str, end: str) -> DeviceLink:
        """Return the link from `begin` to `end`. Raises SimulationError if there is none."""
        link = self._links.get((begin, end))
        if link is None:
            raise SimulationError(f"there is no link from {begin!r} to {end!r}")
        return link

    def link_changed(self, link: DeviceLink, *, now: float) -> None:
        """Handle messages that `link` gave up, and note when the message that it is now
        transmitting has left."""
        if link.given_up:
            lost: Iterable[SentPart] = [sending.message for sending in link.given_up]
            link.given_up.clear()
            for sent in lost:
                sent.begin.given_up(sent, now)
        if link.leaves_at < math.inf:
            heappush(self._heap, (link.leaves_at, _LINK, self._numbers[id(link)], None))

    def call_at(self, at: float, call: Callable[[float], None]) -> None:
        """Call `call` at `at` (absolute seconds)."""
        self._calls += 1
        heappush(self._heap, (at, _CALL, self._calls, call))
