"""`Metrics`: the page for Prometheus, made at each scrape."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from slacktide.cluster import PodAllocator
from slacktide.executors.hand_over.arena import MemoryBudget
from slacktide.executors.process import ProcessExecutor
from slacktide.frontends.http import HttpRoute
from slacktide.frontends.http import metrics_routes as routes_of
from slacktide.models.resize_tracker import ResizeTracker
from slacktide.models.versions import Catalog
from slacktide.observability.metrics import own, stages, triton, usage
from slacktide.observability.metrics.families import OLD_NAMES, MetricFamily, look, pieces, single
from slacktide.observability.metrics.usage import Machine, Nvml, open_nvml
from slacktide.planning.exits import ExitsPlanner
from slacktide.planning.pipelines import ServerPipelinesPlanner
from slacktide.planning.scaling import ScalingPlanner
from slacktide.planning.variants import VariantsPlanner
from slacktide.recording import Recorder
from slacktide.runtime import Runtime

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True, eq=False)
class Metrics:
    """The metrics of a server. Belongs to the server's loop."""

    catalog: Catalog
    runtime: Runtime
    budget: MemoryBudget
    scaling: ScalingPlanner
    variants: VariantsPlanner
    exits: ExitsPlanner
    resizes: ResizeTracker
    clients: Callable[[], Mapping[str, int]]
    """Returns sums over all sessions, by name of the metric."""
    placement: ServerPipelinesPlanner | None = None
    process_executor: ProcessExecutor | None = None
    pod: PodAllocator | None = None
    recorder: Recorder | None = None
    offered: Callable[[], float] = float
    """Returns the work offered by clients ÷ the lanes' capacity."""
    peers: Callable[[], Iterable[MetricFamily]] = own.peer_families
    """Returns the metric families of peers."""
    machine: Machine = field(default_factory=Machine)
    nvml: Nvml | None = field(default_factory=open_nvml)

    def pieces(self) -> Iterator[bytes]:
        """The page, of type CONTENT_TYPE, in pieces small enough to write in one turn of the loop;
        40 ms in all for sixty models. All numbers of the engine are from the same moment."""
        snapshot = self.runtime.engine.snapshot(now=time.monotonic()).detach()
        views = look(self.catalog, snapshot)
        gpus = () if self.nvml is None else triton.gpu_families(self.nvml.gpus())
        families = chain(
            triton.model_families(views),
            triton.machine_families(self.machine.cpu_utilization(), self.machine.memory()),
            gpus,
            own.version_families(views, self.catalog),
            own.session_families(views),
            stages.stage_families(self.catalog, self.runtime),
            own.client_families(self.clients()),
            own.scaling_families(snapshot, self.runtime, self.scaling, self.resizes),
            own.variants_families(self.variants.status()),
            () if self.placement is None else own.placement_families(self.placement.status()),
            own.exit_families(views, self.exits.status()),
            () if self.pod is None else own.pod_families(self.pod),
            own.server_families(snapshot, self.budget, usage.usage_of(self.process_executor)),
            own.recording_families(self.recorder),
            (single("offered_share", self.offered()),),
            self.peers(),
            own.log_families(),
            usage.process_families(),
        )
        return pieces(_with_old_names(families))


def _with_old_names(families: Iterable[MetricFamily]) -> Iterator[MetricFamily]:
    for family in families:
        yield family
        old_name = OLD_NAMES.get(family.name)
        if old_name is not None:
            yield MetricFamily(old_name, family.kind, f"Old name of {family.name}", family.samples)


def metrics_routes(metrics: Metrics) -> tuple[HttpRoute, ...]:
    """The routes of the metrics port: GET /metrics."""
    return routes_of(lambda: (200, CONTENT_TYPE, metrics.pieces()))
