"""Families of variants in a scenario, and the clients that stream frames to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random

import numpy as np

from slacktide.client import ClientCore, ClientSettings, FrameResult
from slacktide.domain import Outcome, Reason, Request
from slacktide.lab.simulation.acting import FIRST_ID
from slacktide.lab.simulation.clients import FrameRecord, SimulatedClient
from slacktide.lab.simulation.items import rng_for
from slacktide.lab.simulation.scenario.profiles import TableProfile
from slacktide.lab.simulation.scenario.sections import SimulatedClientSection
from slacktide.lab.simulation.world.driver import Answered
from slacktide.lab.workloads import BandwidthTrace, ConstantLink, TraceLink
from slacktide.planning.variants import Family

_REASONS = {
    FrameResult.ANSWERED: Reason.ON_TIME,
    FrameResult.LATE: Reason.AFTER_DEADLINE,
    FrameResult.REFUSED: Reason.BEHIND_WORK,
    FrameResult.DROPPED: Reason.HOPELESS,
    FrameResult.LOST: Reason.EXPIRED,
}
"""The reason under which a report counts each result of a frame."""


@dataclass(frozen=True, slots=True)
class ServedFamily:
    """The variants of a model, and their profiles by name."""

    family: Family
    profiles: Mapping[str, TableProfile]


@dataclass(frozen=True, slots=True)
class ClientGroup:
    """Identical clients that begin at different points of one bandwidth trace."""

    name: str
    section: SimulatedClientSection
    trace: BandwidthTrace | None
    bandwidth: float
    """Bytes per second if there is no trace."""

    def clients(self, served: ServedFamily, *, length: float, seed: int) -> list[SimulatedClient]:
        """Return all clients of the group, for a run of `length` seconds."""
        section = self.section
        random = rng_for(seed, f"clients {self.name}")
        variants = served.family.variants
        clients = []
        for number in range(section.count):
            id = f"{self.name}:{number}"
            link: ConstantLink | TraceLink = ConstantLink(self.bandwidth, section.link.rtt)
            if self.trace is not None:
                offset = float(random.uniform(0.0, self.trace.period))
                link = TraceLink(self.trace, section.link.rtt, offset)
            settings = ClientSettings(slo=section.slo, rate=section.rate)
            clients.append(
                SimulatedClient(
                    id=id,
                    model=section.model,
                    logic=ClientCore(settings, Random(f"{seed} {id}")),
                    link=link,
                    rate=section.rate,
                    slo=section.slo,
                    variants=variants,
                    smallest_run_s=served.profiles[variants[0].name].p99_alone(None, 1),
                    frame_bytes=self._bytes,
                    jitter=_jitter(section.jitter, rng_for(seed, f"frames of {id}")),
                    joins=section.join_every * number,
                    leaves=length,
                    camera=section.camera,
                    min_accuracy=section.accuracy_floor,
                    weight=section.weight,
                    application=self.name,
                )
            )
        return clients

    def _bytes(self, side: int) -> float:
        width, height = self.section.camera
        return self.section.bytes_per_pixel * (side * side if side else width * height)


def _jitter(spread: float, random: np.random.Generator) -> Iterator[float]:
    while True:
        yield math.exp(spread * random.standard_normal()) if spread else 1.0


def without_frames(answered: Answered) -> Answered:
    """Return `answered` without the requests of frames, which clients report themselves."""
    return lambda request, outcome: None if request.id >= FIRST_ID else answered(request, outcome)


def frame_reporter(answered: Answered) -> Callable[[SimulatedClient, FrameRecord], None]:
    """Return a function that reports to `answered` how a frame ended for its client."""

    def report(client: SimulatedClient, record: FrameRecord) -> None:
        assert record.outcome is not None
        deadline = record.captured + client.slo
        request = Request(
            id=0,
            model=client.model,
            arrival=record.captured,
            deadline=deadline,
            application=client.application,
        )
        reason = _REASONS[record.outcome.result]
        answered(request, Outcome(reason, record.captured + record.outcome.seconds))

    return report
