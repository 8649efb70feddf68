"""From a request log to a `Report`. Pure, given the provenance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slacktide.load.report import (
    Percentiles,
    Provenance,
    Report,
    StreamScore,
    Window,
    percentiles,
)
from slacktide.load.request_log import RequestLog
from slacktide.load.results import ENDINGS
from slacktide.load.run import RunEnd
from slacktide.load.schedule import Schedule
from slacktide.load.spec import LoadSpec, describe


def make_report(
    spec: LoadSpec,
    schedule: Schedule,
    log: RequestLog,
    rows: Sequence[int],
    end: RunEnd,
    provenance: Provenance,
    warnings: Sequence[str] = (),
) -> Report:
    """Score what was sent after the warm-up. `rows[p]` are the rows of payload p.

    Every submitted request must have ended.
    """
    window = Window(spec.warmup, max(spec.warmup, end.sent_until) - spec.warmup)
    sent = slice(0, log.submitted)
    due, stream_of = schedule.due[sent], schedule.stream[sent]
    columns = (
        due,
        log.latency(),
        np.array(rows, dtype=np.int64)[schedule.payload[sent]],
        log.endings(),
    )
    scores = [StreamScore(ENDINGS, window) for _ in spec.streams]
    for number, score in enumerate(scores):
        score.add(*(column[stream_of == number] for column in columns))
    total = scores[0].merged(scores[1:])
    inside = (due >= window.start) & (due < window.end)
    lateness, network = percentiles(log.lateness()[inside]), log.network()[inside]
    return Report(
        kind="load",
        title=spec.title or f"load on {spec.target.url}",
        seed=spec.seed,
        configuration=describe(spec),
        provenance=provenance,
        warmup_s=window.start,
        duration_s=window.duration,
        total=total.report("total"),
        streams=tuple(
            score.report(stream.label, stream.model, stream.application)
            for stream, score in zip(spec.streams, scores, strict=True)
        ),
        lateness=lateness,
        network=percentiles(network[np.isfinite(network)]),
        timeline=total.timeline(),
        interrupted=end.interrupted,
        warnings=(*_lateness_warning(spec, lateness), *warnings),
        errors=log.errors(),
    )


def _lateness_warning(spec: LoadSpec, lateness: Percentiles | None) -> tuple[str, ...]:
    if lateness is None or lateness.p99 <= spec.lateness_warning:
        return ()
    return (
        f"the generator itself was late: {lateness.p99 * 1e3:.1f} ms at p99 (warned above "
        f"{spec.lateness_warning * 1e3:g} ms). Latencies include this, so the server looks worse "
        "than it is; give the generator a core of its own or a lower rate",
    )
