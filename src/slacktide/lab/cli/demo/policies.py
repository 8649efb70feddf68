"""The main demo: several servers in turn, each with a different batching policy, under the same
load. Makes and profiles the models, measures their peak, tries queue limits, and compares.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace

import uvloop
from rich.padding import Padding
from rich.text import Text

from slacktide.domain import OutcomeKind, percent
from slacktide.lab.cli.demo.shared import DemoContext, Document, Part
from slacktide.lab.cli.demo.traffic import (
    BACKLOG_CONNECTIONS,
    CALIBRATION_LOAD,
    CV,
    LOADS,
    PATIENCE,
    SEED,
    DemoTraffic,
    MeasuredModel,
    QueueLimit,
    Settings,
    backlog,
    by_default,
)
from slacktide.lab.examples import make_repository
from slacktide.lab.load.generate import run_load
from slacktide.lab.load.server_process import ProcessError
from slacktide.lab.load.spec import LoadSpec, Target, Transport
from slacktide.lab.reports import (
    Comparison,
    Report,
    StreamReport,
    TextTable,
    comparison_page,
    render_comparison,
)
from slacktide.profiles import LatencyTable

FIFO, LIMITED, SLACK = "fifo", "fifo + limit", "slack"


def play_policies(models: Sequence[str], seconds: float, context: DemoContext) -> Document:
    """Run the demo and return its report. Raises ExamplesError, ProcessError, LoadError."""
    context.move(0.0, "making the models")
    make_repository(context.models, models=models)
    files = [context.models / model / "slacktide.yaml" for model in models]
    texts = [file.read_text() for file in files]

    @contextmanager
    def serving(settings: Settings) -> Iterator[Target]:
        """Run a new server whose models use these schedulers."""
        for file, text in zip(files, texts, strict=True):
            file.write_text(f"{text}scheduler: {settings[file.parent.name]}\n")
        with context.serve() as targets:
            yield targets[Transport.HTTP]

    def judged(policy: str, target: Target, done: float) -> Iterator[tuple[str, str, Report]]:
        """Run one policy under every load, with the same arrivals for all policies."""
        for number, load in enumerate(LOADS):
            name = f"{load:g} × peak"
            title = f"{policy} at {name}"
            context.move(done + 0.05 * number, title)
            yield policy, name, under_load(traffic.spec(target, load, title=title))

    context.move(0.05, "profiling the models")
    profiled = [profiled_model(model, context) for model in models]
    with serving(by_default("fifo", models)) as target:
        context.move(0.15, "measuring the peak of each model")
        measured = tuple(with_peak(model, target, seconds / 2) for model in profiled)
        traffic = DemoTraffic(measured, seconds)
        runs = [*judged(FIFO, target, 0.25)]
    limits: list[QueueLimit] = []
    for wait in traffic.waits:
        context.move(0.4 + 0.05 * len(limits), f"fifo with a queue limit of {wait * 1e3:.0f} ms")
        with serving(settings := traffic.fifo_limited(wait)) as target:
            spec = traffic.spec(target, CALIBRATION_LOAD, title=LIMITED, calibrate=True)
            limits.append(QueueLimit(wait, settings, under_load(spec).goodput))
    with serving(best(limits).settings) as target:
        runs += judged(LIMITED, target, 0.65)
    with serving(by_default("slack", models)) as target:
        runs += judged(SLACK, target, 0.85)
    comparison = Comparison.of(f"Slacktide demo: {' and '.join(models)}", runs)
    return document(traffic, context.cores, limits, comparison)


def profiled_model(model: str, context: DemoContext) -> MeasuredModel:
    """Profile a model on the server's cores, without a server."""
    folder, cores = str(context.models / model), len(context.cores[0])
    output = context.run("profile", folder, "--budget=1500ms", f"--cores={cores}", "--json")
    (record,) = json.loads(output).values()
    table = LatencyTable.from_dict(record["table"])
    peak = table.peak(cores)
    return MeasuredModel(model, table.expected(1, cores), peak.rows_per_s, peak.batch)


def with_peak(model: MeasuredModel, target: Target, seconds: float) -> MeasuredModel:
    """Measure how fast the server works off a backlog of the model's requests, including HTTP.
    Raises ProcessError if it does not answer all of them."""
    total = under_load(backlog(target, model, seconds)).total
    if total.latency is None or total.latency.count < total.submitted:
        raise ProcessError(f"{model.model}: the server did not answer all requests of the backlog")
    return replace(model, served_peak_rps=total.latency.count / total.latency.max)


def under_load(spec: LoadSpec) -> Report:
    """Generate load. Ctrl-C ends the whole demo."""
    return uvloop.run(run_load(spec))


def best(limits: Sequence[QueueLimit]) -> QueueLimit:
    """Return the queue limit with the highest goodput; in a tie, the shortest."""
    return max(limits, key=lambda limit: limit.goodput)


def document(
    traffic: DemoTraffic,
    cores: tuple[tuple[int, ...], tuple[int, ...]],
    limits: Sequence[QueueLimit],
    comparison: Comparison,
) -> Document:
    """Return the demo's document: every run in full, with its conditions."""
    return {
        **comparison.to_dict(),
        "kind": "demo",
        "headline": _sentence(comparison),
        "notes": _notes(traffic, cores, limits),
        "models": [asdict(model) for model in traffic.measured],
        "limits": [limit._asdict() for limit in limits],
    }


def _sentence(comparison: Comparison) -> str:
    """Return the figures of this run in words, or why there are none."""
    rivals = {FIFO: "dynamic batching (fifo)", LIMITED: "fifo with the best queue limit"}
    parts = [
        f"{times} requests as {words}"
        for rival, words in rivals.items()
        if (times := comparison.times_as_many(SLACK, rival)) is not None
    ]
    if not parts:
        return "Too few requests were answered on time to compare the policies."
    return f"slack answered on time {', and '.join(parts)}."


def _notes(
    traffic: DemoTraffic,
    cores: tuple[tuple[int, ...], tuple[int, ...]],
    limits: Sequence[QueueLimit],
) -> list[str]:
    """Return one sentence for each condition of the figures."""
    server, client = (", ".join(map(str, processors)) for processors in cores)
    if set(cores[0]) & set(cores[1]):
        client += " (shared with the server, which costs goodput)"
    tried = ", ".join(f"{limit.wait_s * 1e3:.0f} ms: {percent(limit.goodput)}" for limit in limits)
    chosen = " and ".join(f"{model} {text}" for model, text in best(limits).settings.items())
    peaks = [
        f"{model.model}: by its profile {model.alone_s * 1e3:.1f} ms for one row alone, at best "
        f"{model.profile_peak_rps:,.0f} rows/s (batch {model.best_batch}). Peak: "
        f"{model.served_peak_rps:,.0f} requests/s, measured with fifo on a backlog sent over HTTP, "
        f"{BACKLOG_CONNECTIONS} requests at once."
        for model in traffic.measured
    ]
    return [
        f"Cores of the server and its models: {server}; of the client: {client}.",
        *peaks,
        f"Arrivals: gamma gaps, cv {CV:g}, seed {SEED}, equal for every policy. At load 1 × each "
        f"model gets its peak ÷ {len(traffic.measured)}. A run lasts {traffic.seconds:g} s.",
        f"Deadlines: {traffic.deadlines.describe()}, equally frequent, sent with each request. The "
        "client's clock judges them from the moment a request was due to leave; requests are "
        f"cancelled {PATIENCE:g} s after their deadline.",
        "fifo: dynamic batching without delay or queue limit. fifo + limit: the best of "
        f"{len(limits)} limits on other arrivals at {CALIBRATION_LOAD:g} × ({tried}), here "
        f"{chosen}. slack: the default scheduler with default options.",
        "Runs are short and on one machine, so a few points are noise. `make bench` measures "
        "thoroughly.",
    ]


def show_policies(report: Document) -> Iterator[Part]:
    """The tables and the notes."""
    comparison = Comparison.from_dict(report)
    yield render_comparison(comparison)
    yield _outcomes(comparison)
    for note in report["notes"]:
        yield Padding.indent(Text(f"- {note}"), 2)
    yield ""


def page(report: Document) -> str:
    """The report as HTML. Raises ReportError."""
    return comparison_page(Comparison.from_dict(report), report["notes"], report["headline"])


def _outcomes(comparison: Comparison) -> TextTable:
    """Outcomes of each run in percent; requests on time also by model."""
    models = [stream.model for stream in comparison.entries[0].report.streams]
    models = models if len(models) > 1 else []
    lines = []
    for run in comparison:
        total = run.report.total
        shares = [
            _part(total, OutcomeKind.SERVED),
            *(_part(stream, OutcomeKind.SERVED) for stream in run.report.streams[: len(models)]),
            # Cancelled requests are late, too: the client waited until well after their deadlines.
            _part(total, OutcomeKind.LATE, OutcomeKind.CANCELLED),
            _part(total, OutcomeKind.REJECTED, OutcomeKind.DROPPED),
            _part(total, OutcomeKind.FAILED),
        ]
        lines.append((run.policy, run.load.removesuffix(" peak"), str(total.submitted), *shares))
    title = "Of 100 requests (by model: of 100 of its own, on time)"
    headings = ("policy", "load", "sent", "on time", *models, "late", "refused", "failed")
    return TextTable(title, headings, lines, words=2)


def _part(stream: StreamReport, *kinds: OutcomeKind) -> str:
    """Return how many of 100 requests ended with one of `kinds`."""
    count = sum(stream.outcomes.get(kind.value, 0) for kind in kinds)
    return f"{100 * count / stream.submitted:.1f}" if stream.submitted else "–"
