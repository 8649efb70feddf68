"""The demo from beginning to end: make, profile, serve, measure, compare."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from slacktide.lab.cli.demo.traffic import (
    LOADS,
    BatchingPolicy,
    DemoTraffic,
    MeasuredModel,
    backlog,
    by_default,
    fifo_limited,
    waits,
)
from slacktide.lab.examples import make_repository
from slacktide.lab.load.generate import run_load_sync
from slacktide.lab.load.server_process import serving, slacktide
from slacktide.lab.load.spec import LoadSpec, Target, Transport
from slacktide.lab.reports import Comparison, Report
from slacktide.profiles import LatencyTable

Move = Callable[[float, str], None]
"""(share done, what is being done)."""

CALIBRATION_LOAD = LOADS[1]
"""Where the queue limit is chosen: overloaded, as limits are for."""


@dataclass(frozen=True, slots=True)
class QueueLimit:
    """One queue limit that was tried."""

    wait_s: float
    policy: BatchingPolicy
    goodput: float


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Everything the demo found."""

    traffic: DemoTraffic
    server_cores: tuple[int, ...]
    client_cores: tuple[int, ...]
    limits: tuple[QueueLimit, ...]
    comparison: Comparison
    grpc: Report | None
    """`slack` at the lowest load over gRPC, where there is a client."""
    cpu_share: float = 1.0
    """Least share of CPU time that was free on these cores between the runs."""

    @property
    def chosen(self) -> QueueLimit:
        """The queue limit with the most goodput; the shortest of equals."""
        return max(self.limits, key=lambda limit: limit.goodput)


@dataclass
class Demo:
    """Holds what all steps share: folder, cores, progress."""

    folder: Path
    models: Sequence[str]
    cores: tuple[tuple[int, ...], tuple[int, ...]]
    seconds: float
    seed: int
    move: Move

    def __post_init__(self) -> None:
        self._repository = self.folder / "models"
        self._log = self.folder / "server.log"
        self._done = 0
        tried = len(waits(DemoTraffic((MeasuredModel("", 1.0, 1.0, 1),), 1.0, 0).deadlines))
        # make, profiles, peaks; a run for each limit, load and policy, and the one over gRPC
        self._steps = 1 + 2 * len(self.models) + tried + 3 * len(LOADS) + 1

    def run(self) -> DemoResult:
        """Everything, in order. Raises ProcessError, LoadError; KeyboardInterrupt ends it."""
        self._step("making the models")
        make_repository(self._repository, models=self.models)
        self._settings = {
            model: (self._repository / model / "slacktide.yaml").read_text()
            for model in self.models
        }
        profiled = [self._profile(model) for model in self.models]
        unlimited = by_default("fifo", self.models)
        with self._serving(unlimited) as targets:
            measured = tuple(self._peak(targets, model) for model in profiled)
            traffic = DemoTraffic(measured, self.seconds, self.seed)
            entries = self._judge(targets, traffic, unlimited)
        limits = tuple(self._try_limit(traffic, wait) for wait in waits(traffic.deadlines))
        limited = max(limits, key=lambda limit: limit.goodput).policy
        with self._serving(limited) as targets:
            entries += self._judge(targets, traffic, limited)
        chosen = by_default("slack", self.models)
        with self._serving(chosen) as targets:
            entries += self._judge(targets, traffic, chosen)
            grpc = None
            self._step("slack over gRPC")
            if find_spec("grpc") is not None:  # an extra
                spec = traffic.spec(targets[Transport.GRPC], LOADS[0], title="slack over gRPC")
                grpc = self._load(replace(spec, duration=self.seconds / 2))
        title = f"Slacktide demo: {' and '.join(self.models)}"
        return DemoResult(traffic, *self.cores, limits, Comparison.of(title, entries), grpc)

    def _profile(self, model: str) -> MeasuredModel:
        """What the model can do on the server's cores, server not counted."""
        self._step(f"profiling {model}")
        folder, cores = str(self._repository / model), len(self.cores[0])
        flags = ("--budget", "1500ms", "--cores", str(cores), "--json")
        output = slacktide(["profile", folder, *flags], self.cores[0], self._log)
        (record,) = json.loads(output).values()
        table = LatencyTable.from_dict(record["table"])
        peak = table.peak(cores)
        return MeasuredModel(model, table.expected(1, cores), peak.rows_per_s, peak.batch)

    def _peak(self, targets: Mapping[Transport, Target], model: MeasuredModel) -> MeasuredModel:
        """How fast the server works a backlog off, HTTP and all."""
        self._step(f"measuring the peak of {model.model}")
        report = self._load(backlog(targets[Transport.HTTP], model, self.seconds / 2))
        latency = report.total.latency
        if latency is None or latency.count < report.total.submitted:
            raise RuntimeError(f"{model.model}: some of the backlog was not answered")
        return replace(model, served_peak_rps=latency.count / latency.max)

    def _try_limit(self, traffic: DemoTraffic, wait: float) -> QueueLimit:
        policy = fifo_limited(traffic.measured, wait)
        self._step(f"fifo with queues of {wait * 1e3:.0f} ms")
        with self._serving(policy) as targets:
            target = targets[Transport.HTTP]
            spec = traffic.spec(target, CALIBRATION_LOAD, title=policy.name, calibrate=True)
            return QueueLimit(wait, policy, self._load(spec).goodput)

    def _judge(
        self, targets: Mapping[Transport, Target], traffic: DemoTraffic, policy: BatchingPolicy
    ) -> list[tuple[str, str, Report]]:
        """One policy under every load: the same arrivals for all policies."""
        entries = []
        for load in LOADS:
            name = f"{load:g} × peak"
            title = f"{policy.name} at {name}"
            self._step(title)
            report = self._load(traffic.spec(targets[Transport.HTTP], load, title=title))
            entries.append((policy.name, name, report))
        return entries

    @contextmanager
    def _serving(self, policy: BatchingPolicy) -> Iterator[Mapping[Transport, Target]]:
        """A fresh server under `policy`."""
        for model, scheduler in policy.settings.items():
            path = self._repository / model / "slacktide.yaml"
            path.write_text(f"{self._settings[model]}scheduler: {scheduler}\n")
        with serving(self._repository, self.cores[0], self._log) as targets:
            yield targets

    def _load(self, spec: LoadSpec) -> Report:
        """Generate load; an interrupt is passed on once the run has ended."""
        before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            report = run_load_sync(spec)
        finally:  # a run has handlers of its own, and leaves the defaults behind
            for number, handler in before.items():
                signal.signal(number, handler)
        if report.interrupted:
            raise KeyboardInterrupt
        return report

    def _step(self, text: str) -> None:
        self.move(self._done / self._steps, text)
        self._done += 1
