"""From a log to a `Report`. Pure, given the provenance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slacktide.load.report import (
    Percentiles,
    Provenance,
    Records,
    Report,
    merge,
    percentiles,
    score,
    timeline,
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
    start, stop = spec.warmup, max(spec.warmup, end.sent_until)
    parts = [part.between(start, stop) for part in _records(spec, schedule, log, rows)]
    every = merge("total", parts)
    lateness = percentiles(every.lateness)
    due = schedule.due[: log.submitted]
    network = log.network()[(due >= start) & (due < stop)]
    return Report(
        kind="load",
        title=spec.title or f"load on {spec.target.url}",
        seed=spec.seed,
        configuration=describe(spec),
        provenance=provenance,
        warmup_s=spec.warmup,
        duration_s=stop - start,
        total=score(every, stop - start),
        streams=tuple(score(part, stop - start) for part in parts),
        lateness=lateness,
        network=percentiles(network[np.isfinite(network)]),
        timeline=timeline(every, start, stop),
        interrupted=end.interrupted,
        warnings=(*_lateness_warning(spec, lateness), *warnings),
        errors=log.complaints(),
    )


def _records(
    spec: LoadSpec, schedule: Schedule, log: RequestLog, rows: Sequence[int]
) -> list[Records]:
    sent = slice(0, log.submitted)
    stream_of = schedule.stream[sent]
    due = schedule.due[sent]
    rows_of = np.array(rows, dtype=np.int64)[schedule.payload[sent]]
    lateness, latency, endings = log.lateness(), log.latency(), log.endings()
    found = []
    for number, stream in enumerate(spec.streams):
        mine = stream_of == number
        found.append(
            Records(
                name=stream.label,
                model=stream.model,
                application=stream.application,
                intended=due[mine],
                lateness=lateness[mine],
                latency=latency[mine],
                rows=rows_of[mine],
                ending=endings[mine],
                endings=ENDINGS,
            )
        )
    return found


def _lateness_warning(spec: LoadSpec, lateness: Percentiles | None) -> tuple[str, ...]:
    if lateness is None or lateness.p99 <= spec.lateness_warning:
        return ()
    return (
        f"the generator itself was late: {lateness.p99 * 1e3:.1f} ms at p99 (warned above "
        f"{spec.lateness_warning * 1e3:g} ms). Latencies include this, so the server looks worse "
        "than it is; give the generator a core of its own or a lower rate",
    )
