"""What the demo prints and writes: figures, and beside them what they rest on."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import orjson
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from slacktide.domain import OutcomeKind
from slacktide.domain.units import percent
from slacktide.executors.core_probe import busy_warning
from slacktide.lab.cli.demo.run import CALIBRATION_LOAD, DemoResult, QueueLimit
from slacktide.lab.cli.demo.traffic import BACKLOG_CONNECTIONS, CV, LOADS, PATIENCE, MeasuredModel
from slacktide.lab.reports import (
    Report,
    StreamReport,
    TextTable,
    comparison_page,
    render_comparison,
    rich_table,
)

JSON_NAME = "demo-report.json"
HTML_NAME = "demo-report.html"


def headline(result: DemoResult) -> str:
    """A sentence from the figures of this run, or why there is none."""
    if warning := busy_warning(result.cpu_share):
        return warning
    comparison = result.comparison
    others = {"fifo": "dynamic batching (fifo)", "fifo + limit": "fifo with the best queue limit"}
    found = {words: comparison.times_as_many("slack", name) for name, words in others.items()}
    parts = [f"{times} requests as {words}" for words, times in found.items() if times is not None]
    if not parts:
        return "Too few requests were answered on time to compare the policies."
    return f"slack answered on time {', and '.join(parts)}."


def notes(result: DemoResult) -> list[str]:
    """What was measured, and what the figures rest on: one sentence each."""
    traffic = result.traffic
    models = traffic.measured
    shared = set(result.server_cores) & set(result.client_cores)
    client = "the same, which costs goodput" if shared else _cores(result.client_cores)
    late = [entry.report.lateness for entry in result.comparison]
    latest = max((one.p99 for one in late if one is not None), default=0.0)
    found = [
        f"Server, with its models, on {_cores(result.server_cores)}; client on {client}.",
        *map(_peak, models),
    ]
    if len(models) > 1:
        found.append(f"At load 1 × each model is sent 1/{len(models)} of its peak.")
    found += [
        f"Arrivals: gamma gaps, cv {CV:g}, seed {traffic.seed}, the same for every policy; "
        f"{traffic.seconds:g} s a run, one row a request.",
        f"Deadlines: {traffic.deadlines.describe()}, drawn evenly and sent along. Judged by the "
        "client's clock from the moment a request should have left; cancelled "
        f"{PATIENCE:g} s after its deadline.",
        "fifo: dynamic batching, no delay, no limit on the queue. fifo + limit: the best of "
        f"{len(result.limits)} limits on other arrivals at {CALIBRATION_LOAD:g} × "
        f"({', '.join(map(_limit, result.limits))}), here "
        f"{_settings(result.chosen)}. slack: the default, with default options.",
        f"slack over gRPC, {LOADS[0]:g} ×, {traffic.seconds / 2:g} s: {_grpc(result.grpc)}.",
        f"The client sent at most {latest * 1e3:.1f} ms late (p99 of the worst "
        "run), which counts against the policy.",
        "Short runs on one machine: a few points are noise. `make bench` measures thoroughly.",
    ]
    return found


def _peak(model: MeasuredModel) -> str:
    return (
        f"{model.model}: {model.alone_s * 1e3:.1f} ms for one row alone, at best "
        f"{model.profile_peak_rps:,.0f} rows/s (batch {model.best_batch}) by its profile. Peak: "
        f"{model.served_peak_rps:,.0f} requests/s, measured as fifo works a backlog off over HTTP, "
        f"{BACKLOG_CONNECTIONS} at once."
    )


def _grpc(report: Report | None) -> str:
    if report is None:
        return "not run (it needs the extra grpc-client)"
    return f"{percent(report.goodput)} of {report.total.submitted} on time"


def show(result: DemoResult, out: Console) -> None:
    """The headline, the tables and the notes."""
    out.print()
    out.print(Text(headline(result), style="bold"))
    out.print()
    out.print(render_comparison(result.comparison))
    out.print(rich_table(_outcomes(result)))
    for note in notes(result):
        out.print(Padding.indent(Text(f"- {note}"), 2))
    out.print()


def write_json(result: DemoResult, folder: Path) -> Path:
    """The document: every run in full, with all that it rests on. Raises OSError."""
    document = {
        **result.comparison.to_dict(),
        "kind": "demo",
        "cpu_share": result.cpu_share,
        "headline": headline(result),
        "notes": notes(result),
        "models": [asdict(model) for model in result.traffic.measured],
        "limits": [
            {"wait_s": limit.wait_s, "settings": limit.policy.settings, "goodput": limit.goodput}
            for limit in result.limits
        ],
        "grpc": None if result.grpc is None else result.grpc.to_dict(),
    }
    path = folder / JSON_NAME
    path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return path


def write_page(result: DemoResult, folder: Path) -> Path:
    """The same as a page. Raises OSError, ReportError."""
    path = folder / HTML_NAME
    text = comparison_page(result.comparison, notes(result), headline(result))
    path.write_text(text, encoding="utf-8")
    return path


def _outcomes(result: DemoResult) -> TextTable:
    """What became of the requests of each run, in percent; on time also by model."""
    models = [model.model for model in result.traffic.measured]
    models = models if len(models) > 1 else []
    lines = []
    for entry in result.comparison:
        total = entry.report.total
        streams = {stream.model: stream for stream in entry.report.streams}
        line = (
            entry.policy,
            entry.load.removesuffix(" peak"),
            str(total.submitted),
            _part(total, OutcomeKind.SERVED),
            *(_part(streams[model], OutcomeKind.SERVED) for model in models),
            # Cancelled is late too: the client waited until well after the deadline.
            _part(total, OutcomeKind.LATE, OutcomeKind.CANCELLED),
            _part(total, OutcomeKind.REJECTED, OutcomeKind.DROPPED),
            _part(total, OutcomeKind.FAILED),
        )
        lines.append(line)
    title = "Of 100 requests (by model: of 100 of its own, on time)"
    headings = ("policy", "load", "sent", "on time", *models, "late", "refused", "failed")
    return TextTable(title, headings, lines, words=2)


def _part(stream: StreamReport, *kinds: OutcomeKind) -> str:
    """How many of 100 ended so."""
    count = sum(stream.outcomes.get(kind.value, 0) for kind in kinds)
    return f"{100 * count / stream.submitted:.1f}" if stream.submitted else "–"


def _limit(limit: QueueLimit) -> str:
    return f"{limit.wait_s * 1e3:.0f} ms: {percent(limit.goodput)}"


def _settings(limit: QueueLimit) -> str:
    return " and ".join(f"{model} {text}" for model, text in limit.policy.settings.items())


def _cores(cores: tuple[int, ...]) -> str:
    return f"core {cores[0]}" if len(cores) == 1 else f"cores {', '.join(map(str, cores))}"
