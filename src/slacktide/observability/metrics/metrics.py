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
from slacktide.observability.metrics.families import OLD_NAMES, MetricFamily, look, pieces
from slacktide.observability.metrics.own import (
    client_families,
    exit_families,
    log_families,
    placement_families,
    pod_families,
    recording_families,
    scaling_families,
    server_families,
    session_families,
    variants_families,
    version_families,
)
from slacktide.observability.metrics.stages import stage_families
from slacktide.observability.metrics.triton import gpu_families, machine_families, model_families
from slacktide.observability.metrics.usage import (
    Machine,
    Nvml,
    open_nvml,
    process_families,
    usage_of,
)
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
    """Sums over sessions by name of the metric."""
    placement: ServerPipelinesPlanner | None = None
    process_executor: ProcessExecutor | None = None
    pod: PodAllocator | None = None
    recorder: Recorder | None = None
    machine: Machine = field(default_factory=Machine)
    nvml: Nvml | None = field(default_factory=open_nvml)

    def pieces(self) -> Iterator[bytes]:
        """The page, of type CONTENT_TYPE, in pieces that each fit into a turn of the loop; 40 ms in
        all for sixty models. The engine's numbers are of a single moment."""
        snapshot = self.runtime.engine.snapshot(now=time.monotonic()).detach()
        views = look(self.catalog, snapshot)
        gpus = () if self.nvml is None else gpu_families(self.nvml.gpus())
        families = chain(
            model_families(views),
            machine_families(self.machine.cpu_utilization(), self.machine.memory()),
            gpus,
            version_families(views, self.catalog),
            session_families(views),
            stage_families(self.catalog, self.runtime),
            client_families(self.clients()),
            scaling_families(snapshot, self.runtime, self.scaling, self.resizes),
            variants_families(self.variants.status()),
            () if self.placement is None else placement_families(self.placement.status()),
            exit_families(views, self.exits.status()),
            () if self.pod is None else pod_families(self.pod),
            server_families(snapshot, self.budget, usage_of(self.process_executor)),
            recording_families(self.recorder),
            log_families(),
            process_families(),
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
