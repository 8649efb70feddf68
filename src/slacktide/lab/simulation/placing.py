"""`SimulatedPlacing`: places the stages of pipelines on simulated devices.

Every second, devices report their counts and links their bandwidths, as they do to a live
controller, which then computes a placement. It is in force PLAN_S later, on all devices at the same
instant. The controller and its policies are the server's own (planning/pipelines).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slacktide.domain import LaneSpec, Plan
from slacktide.lab.simulation.world.devices import SimulatedDevices
from slacktide.planning import Stated
from slacktide.planning.pipelines import DevicePlans, LinkView, PlacementControl, PlacementDecision
from slacktide.planning.pipelines.control import CHECK_S
from slacktide.planning.pipelines.demand import StageArrivals, counts_of

PLAN_S = 0.05
"""Seconds from the start of computing a placement until it is in force."""


class SimulatedPlacing:
    """Drives a `PlacementControl`."""

    def __init__(
        self,
        devices: SimulatedDevices,
        control: PlacementControl,
        lanes: Mapping[str, Sequence[LaneSpec]],
        links: Callable[[float], Sequence[LinkView]],
        *,
        until: float,
        counted: bool = True,
        changed: Callable[[float], None] = lambda now: None,
        plan_of: Callable[[DevicePlans, str], tuple[Plan, Stated]] | None = None,
    ) -> None:
        """`control` has decided once, and that placement is in force. `lanes`: by device. `links`:
        returns bandwidths over the last second. Placing ends at `until`. `counted`: whether devices
        report arrivals; if not, plans use the stated rates. `changed`: called at each change.
        `plan_of`: returns a device's base plan, which the device's own planners complete; None: the
        plan contains only what is placed on the device."""
        self._devices, self._control = devices, control
        self._lanes, self._links = lanes, links
        self._until, self._counted = until, counted
        self._changed, self._plan_of = changed, plan_of
        self._revision = control.revision
        pipelines = devices.pipelines
        for device in devices.devices.values():
            device.frames.arrivals = {
                pipeline.name: {stage.name: StageArrivals() for stage in pipeline.stages}
                for pipeline in pipelines
            }
        devices.call_at(devices.begins + CHECK_S, self._tick)

    def _tick(self, now: float) -> None:
        control = self._control
        for name, device in self._devices.devices.items() if self._counted else ():
            counts = counts_of(device.simulation.runtime.frames, device.frames.arrivals)
            control.count(name, counts, now=now)
        control.measure(self._links(now), now=now)
        if control.next_wakeup() <= now:
            control.look(now=now)
            self._put_in_force(now)
            compute = control.job(now=now)
            if compute is not None:
                decision = compute()
                self._devices.call_at(now + PLAN_S, lambda at: self._take(decision, at))
        if now + CHECK_S < self._until:
            self._devices.call_at(now + CHECK_S, self._tick)

    def _take(self, decision: PlacementDecision, now: float) -> None:
        self._control.accept(decision, now=now)
        self._put_in_force(now)

    def _put_in_force(self, now: float) -> None:
        plans = self._control.plans
        if plans is None or self._revision == self._control.revision:
            return
        self._revision = self._control.revision
        of = self._plan_of or (lambda plans, name: (plans.of(name, self._lanes[name]), {}))
        device_plans = {name: of(plans, name) for name in self._lanes}
        self._devices.change_plans(
            {name: plan for name, (plan, _) in device_plans.items()},
            now=now,
            stated={name: stated for name, (_, stated) in device_plans.items()},
        )
        self._changed(now)
