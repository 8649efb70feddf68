"""The main demo: one server after the other, each with another way of batching, under the same
load. Makes and profiles the models, measures their peak, tries queue limits, and compares.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec

import uvloop
from rich.padding import Padding
from rich.text import Text

from slacktide.domain import OutcomeKind, percent
from slacktide.lab.cli.demo.shared import DemoContext, Document, Part, headline
from slacktide.lab.cli.demo.traffic import (
    BACKLOG_CONNECTIONS,
    CALIBRATION_LOAD,
    CV,
    LIMITS,
    LOADS,
    PATIENCE,
    DemoTraffic,
    MeasuredModel,
    QueueLimit,
    Settings,
    backlog,
    by_default,
    fifo_limited,
    waits,
)
from slacktide.lab.examples import make_repository
from slacktide.lab.load.generate import run_load
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


def play_policies(
    models: Sequence[str], seconds: float, seed: int, context: DemoContext
) -> Document:
    """The report of runs of so many seconds. Raises ExamplesError, ProcessError, LoadError."""
    run = _Runs(list(dict.fromkeys(models)), context)
    run.step("making the models")
    make_repository(context.models, models=run.models)
    profiled = [run.profiled(model) for model in run.models]
    with run.serving(by_default("fifo", run.models)) as targets:
        measured = tuple(run.with_peak(model, targets, seconds) for model in profiled)
        traffic = DemoTraffic(measured, seconds, seed)
        entries = run.judged(FIFO, traffic, targets)
    limits = [run.limited(traffic, wait) for wait in waits(traffic.deadlines)]
    with run.serving(best(limits).settings) as targets:
        entries += run.judged(LIMITED, traffic, targets)
    with run.serving(by_default("slack", run.models)) as targets:
        entries += run.judged(SLACK, traffic, targets)
        grpc = None
        run.step("slack over gRPC")
        if find_spec("grpc") is not None:  # an extra
            spec = traffic.spec(targets[Transport.GRPC], LOADS[0], title="slack over gRPC")
            grpc = under_load(replace(spec, duration=seconds / 2))
    comparison = Comparison.of(f"Slacktide demo: {' and '.join(run.models)}", entries)
    return document(traffic, context.cores, limits, comparison, grpc)


@dataclass
class _Runs:
    """Steps of the demo, and how many of them are done."""

    models: Sequence[str]
    context: DemoContext
    _done: int = 0
    _stated: dict[str, str] = field(default_factory=dict)
    """Settings of each model as they come."""

    def step(self, text: str) -> None:
        # make, profiles, peaks; a run for each limit, load and policy, and the one over gRPC
        steps = 1 + 2 * len(self.models) + LIMITS + 3 * len(LOADS) + 1
        self.context.move(self._done / steps, text)
        self._done += 1

    def profiled(self, model: str) -> MeasuredModel:
        """Profile a model on the server's cores, without a server."""
        self.step(f"profiling {model}")
        folder, cores = str(self.context.models / model), len(self.context.cores[0])
        flags = ("--budget", "1500ms", "--cores", str(cores), "--json")
        (record,) = json.loads(self.context.run("profile", folder, *flags)).values()
        table = LatencyTable.from_dict(record["table"])
        peak = table.peak(cores)
        return MeasuredModel(model, table.expected(1, cores), peak.rows_per_s, peak.batch)

    def with_peak(
        self, model: MeasuredModel, targets: Mapping[Transport, Target], seconds: float
    ) -> MeasuredModel:
        """Measure how fast the server works a backlog of the model off, HTTP and all."""
        self.step(f"measuring the peak of {model.model}")
        report = under_load(backlog(targets[Transport.HTTP], model, seconds / 2))
        latency = report.total.latency
        if latency is None or latency.count < report.total.submitted:
            raise RuntimeError(f"{model.model}: some of the backlog was not answered")
        return replace(model, served_peak_rps=latency.count / latency.max)

    def limited(self, traffic: DemoTraffic, wait: float) -> QueueLimit:
        """Goodput of `fifo` with queues of `wait` seconds."""
        self.step(f"fifo with queues of {wait * 1e3:.0f} ms")
        settings = fifo_limited(traffic.measured, wait)
        with self.serving(settings) as targets:
            target = targets[Transport.HTTP]
            spec = traffic.spec(target, CALIBRATION_LOAD, title=LIMITED, calibrate=True)
            return QueueLimit(wait, settings, under_load(spec).goodput)

    def judged(
        self, policy: str, traffic: DemoTraffic, targets: Mapping[Transport, Target]
    ) -> list[tuple[str, str, Report]]:
        """One policy under every load: the same arrivals for all policies."""
        entries = []
        for load in LOADS:
            name = f"{load:g} × peak"
            title = f"{policy} at {name}"
            self.step(title)
            spec = traffic.spec(targets[Transport.HTTP], load, title=title)
            entries.append((policy, name, under_load(spec)))
        return entries

    @contextmanager
    def serving(self, settings: Settings) -> Iterator[Mapping[Transport, Target]]:
        """A fresh server whose models state these schedulers."""
        for model, scheduler in settings.items():
            file = self.context.models / model / "slacktide.yaml"
            text = self._stated.setdefault(model, file.read_text())
            file.write_text(f"{text}scheduler: {scheduler}\n")
        with self.context.serve() as targets:
            yield targets


def under_load(spec: LoadSpec) -> Report:
    """Generate load. Ctrl-C ends it, as everything else."""
    return uvloop.run(run_load(spec))


def best(limits: Sequence[QueueLimit]) -> QueueLimit:
    """The queue limit with the most goodput; the shortest of equals."""
    return max(limits, key=lambda limit: limit.goodput)


def document(
    traffic: DemoTraffic,
    cores: tuple[tuple[int, ...], tuple[int, ...]],
    limits: Sequence[QueueLimit],
    comparison: Comparison,
    grpc: Report | None,
) -> Document:
    """Every run in full, with all that it rests on. `grpc`: of `slack` at the lowest load, where
    there is a client."""
    return {
        **comparison.to_dict(),
        "kind": "demo",
        "headline": _sentence(comparison),
        "notes": _notes(traffic, cores, limits, comparison, grpc),
        "models": [asdict(model) for model in traffic.measured],
        "limits": [limit._asdict() for limit in limits],
        "grpc": None if grpc is None else grpc.to_dict(),
    }


def _sentence(comparison: Comparison) -> str:
    """The figures of this run in words, or why there are none."""
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
    comparison: Comparison,
    grpc: Report | None,
) -> list[str]:
    """One sentence for each thing that the figures rest on."""
    models, (server, client) = traffic.measured, map(_cores, cores)
    if set(cores[0]) & set(cores[1]):
        client = "the same, which costs goodput"
    lateness = [entry.report.lateness for entry in comparison]
    latest = max((late.p99 for late in lateness if late is not None), default=0.0)
    tried = ", ".join(f"{limit.wait_s * 1e3:.0f} ms: {percent(limit.goodput)}" for limit in limits)
    chosen = " and ".join(f"{model} {text}" for model, text in best(limits).settings.items())
    by_grpc = "not run (it needs the extra grpc-client)"
    if grpc is not None:
        by_grpc = f"{percent(grpc.goodput)} of {grpc.total.submitted} on time"
    shares = f"At load 1 × each model is sent 1/{len(models)} of its peak."
    return [
        f"Server, with its models, on {server}; client on {client}.",
        *map(_peak, models),
        *([shares] if len(models) > 1 else ()),
        f"Arrivals: gamma gaps, cv {CV:g}, seed {traffic.seed}, the same for every policy; "
        f"{traffic.seconds:g} s a run, one row a request.",
        f"Deadlines: {traffic.deadlines.describe()}, drawn evenly and sent along. Judged by the "
        "client's clock from the moment a request should have left; cancelled "
        f"{PATIENCE:g} s after its deadline.",
        "fifo: dynamic batching, no delay, no limit on the queue. fifo + limit: the best of "
        f"{len(limits)} limits on other arrivals at {CALIBRATION_LOAD:g} × ({tried}), here "
        f"{chosen}. slack: the default, with default options.",
        f"slack over gRPC, {LOADS[0]:g} ×, {traffic.seconds / 2:g} s: {by_grpc}.",
        f"The client sent at most {latest * 1e3:.1f} ms late (p99 of the worst "
        "run), which counts against the policy.",
        "Short runs on one machine: a few points are noise. `make bench` measures thoroughly.",
    ]


def _peak(model: MeasuredModel) -> str:
    return (
        f"{model.model}: {model.alone_s * 1e3:.1f} ms for one row alone, at best "
        f"{model.profile_peak_rps:,.0f} rows/s (batch {model.best_batch}) by its profile. Peak: "
        f"{model.served_peak_rps:,.0f} requests/s, measured as fifo works a backlog off over HTTP, "
        f"{BACKLOG_CONNECTIONS} at once."
    )


def _cores(cores: tuple[int, ...]) -> str:
    return f"core {cores[0]}" if len(cores) == 1 else f"cores {', '.join(map(str, cores))}"


def show_policies(report: Document) -> Iterator[Part]:
    """The headline, the tables and the notes."""
    comparison = Comparison.from_dict(report)
    yield ""
    yield headline(report, report["headline"])
    yield ""
    yield render_comparison(comparison)
    yield _outcomes(comparison)
    for note in report["notes"]:
        yield Padding.indent(Text(f"- {note}"), 2)
    yield ""


def page(report: Document) -> str:
    """The report as HTML. Raises ReportError."""
    return comparison_page(Comparison.from_dict(report), report["notes"], report["headline"])


def _outcomes(comparison: Comparison) -> TextTable:
    """Outcomes of each run in percent; those on time also by model."""
    models = [stream.model for stream in comparison.entries[0].report.streams]
    models = models if len(models) > 1 else []
    lines = []
    for entry in comparison:
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
