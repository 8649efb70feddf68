"""Families of pipelines: requests of each stage, and rows passed along edges. A pipeline's own
requests are counted as requests of a model. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from slacktide.domain import OutcomeKind
from slacktide.models.calls.model_counters import StageCounters
from slacktide.models.versions import Catalog
from slacktide.observability.metrics.families import MetricFamily, family
from slacktide.runtime import Runtime


def stage_families(catalog: Catalog, runtime: Runtime) -> Iterable[MetricFamily]:
    """Families of the stages and edges of every pipeline."""
    requests, loop = family("stage_requests_total"), family("stage_loop_seconds_total")
    seconds, slack = family("stage_seconds"), family("stage_slack_seconds")
    for version in catalog.all():
        if not version.stages:
            continue
        labels = {"model": version.name, "version": version.version}
        counters = version.counters
        loop.add(counters.loop_s, **labels)
        for stage in version.stages:
            ended: Counter[OutcomeKind] = Counter()
            counts = counters.stages.get(stage) or StageCounters()
            for reason, count in counts.by_reason.items():
                ended[reason.kind] += count
            for kind in OutcomeKind:
                requests.add(ended[kind], **labels, stage=stage, outcome=kind.value)
            if counts.request_s.count:
                for metric, read in ((seconds, counts.request_s), (slack, counts.slack_s)):
                    metric.add_histogram(
                        read.bounds, read.counts, read.total, **labels, stage=stage
                    )
    return requests, seconds, slack, loop, *_fan_outs(runtime)


def _fan_outs(runtime: Runtime) -> Iterable[MetricFamily]:
    rows, burstiness = family("edge_rows"), family("edge_burstiness")
    served = {} if runtime.frames is None else runtime.frames.pipelines
    for name, pipeline in sorted(served.items()):
        for edge, learnt in zip(pipeline.pipeline.edges, pipeline.fan_outs, strict=True):
            labels = {"model": name, "stage": edge.upstream, "next": edge.downstream}
            rows.add(learnt.mean, **labels)
            burstiness.add(learnt.burstiness, **labels)
    return rows, burstiness
