"""The demo from beginning to end: make, profile, serve, measure, compare."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from slacktide.cli.demo.child import Server, slacktide
from slacktide.cli.demo.scenario import (
    LOADS,
    Measured,
    Policy,
    Scenario,
    backlog,
    fifo,
    fifo_limited,
    slack,
    waits,
)
from slacktide.examples import make_repository
from slacktide.load import LoadSpec, Transport, run_load_sync
from slacktide.profiles import LatencyTable
from slacktide.reports import Comparison, Report

Move = Callable[[float, str], None]
"""(share done, what is being done)."""

CALIBRATION_LOAD = LOADS[1]
"""Where the queue limit is chosen: overloaded, as limits are for."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One queue limit that was tried."""

    wait_s: float
    policy: Policy
    goodput: float


@dataclass(frozen=True, slots=True)
class Result:
    """Everything the demo found."""

    scenario: Scenario
    server_cores: tuple[int, ...]
    client_cores: tuple[int, ...]
    limits: tuple[Limit, ...]
    comparison: Comparison
    grpc: Report
    """`slack` at the lowest load over gRPC."""

    @property
    def chosen(self) -> Limit:
        """The queue limit with the most goodput; the shortest of equals."""
        return max(self.limits, key=lambda limit: limit.goodput)


class Conductor:
    """Holds what all steps share: folder, cores, progress."""

    def __init__(
        self,
        folder: Path,
        models: Sequence[str],
        cores: tuple[tuple[int, ...], tuple[int, ...]],
        *,
        seconds: float,
        seed: int,
        move: Move,
    ) -> None:
        self._repository = folder / "models"
        self._log = folder / "server.log"
        self._models = models
        self._server_cores, self._client_cores = cores
        self._seconds = seconds
        self._seed = seed
        self._move = move
        self._done = 0
        tried = len(waits(Scenario((Measured("", 1.0, 1.0, 1),), 1.0, 0).deadlines))
        # make, profiles, peaks; a run for each limit, load and policy, and the one over gRPC
        self._steps = 1 + 2 * len(models) + tried + 3 * len(LOADS) + 1

    def conduct(self) -> Result:
        """Everything, in order. Raises ChildError, LoadError; KeyboardInterrupt ends it."""
        self._step("making the models")
        make_repository(self._repository, models=self._models)
        self._settings = {
            model: (self._repository / model / "slacktide.yaml").read_text()
            for model in self._models
        }
        profiled = [self._profile(model) for model in self._models]
        unlimited = fifo(self._models)
        with self._serving(unlimited) as server:
            measured = tuple(self._peak(server, model) for model in profiled)
            scenario = Scenario(measured, self._seconds, self._seed)
            entries = self._judge(server, scenario, unlimited)
        limits = tuple(self._try_limit(scenario, wait) for wait in waits(scenario.deadlines))
        limited = max(limits, key=lambda limit: limit.goodput).policy
        with self._serving(limited) as server:
            entries += self._judge(server, scenario, limited)
        chosen = slack(self._models)
        with self._serving(chosen) as server:
            entries += self._judge(server, scenario, chosen)
            self._step("slack over gRPC")
            over_grpc = scenario.spec(
                server.target(Transport.GRPC), LOADS[0], title="slack over gRPC"
            )
            grpc = self._load(replace(over_grpc, duration=self._seconds / 2))
        title = f"Slacktide demo: {' and '.join(self._models)}"
        return Result(
            scenario,
            self._server_cores,
            self._client_cores,
            limits,
            Comparison.of(title, entries),
            grpc,
        )

    def _profile(self, model: str) -> Measured:
        """What the model can do on the server's cores, server not counted."""
        self._step(f"profiling {model}")
        folder = str(self._repository / model)
        cores = len(self._server_cores)
        output = slacktide(
            ["profile", folder, "--budget", "1500ms", "--cores", str(cores), "--json"],
            self._server_cores,
            self._log,
        )
        (record,) = json.loads(output).values()
        table = LatencyTable.from_dict(record["table"])
        peak = table.peak(cores)
        return Measured(model, table.expected(1, cores), peak.rows_per_s, peak.batch)

    def _peak(self, server: Server, model: Measured) -> Measured:
        """How fast the server works a backlog off, HTTP and all."""
        self._step(f"measuring the peak of {model.model}")
        report = self._load(backlog(server.target(), model, self._seconds / 2))
        latency = report.total.latency
        if latency is None or latency.count < report.total.submitted:
            raise RuntimeError(f"{model.model}: some of the backlog was not answered")
        return replace(model, served_peak_rps=latency.count / latency.max)

    def _try_limit(self, scenario: Scenario, wait: float) -> Limit:
        policy = fifo_limited(scenario.measured, wait)
        self._step(f"fifo with queues of {wait * 1e3:.0f} ms")
        with self._serving(policy) as server:
            report = self._load(
                scenario.spec(server.target(), CALIBRATION_LOAD, title=policy.name, calibrate=True)
            )
        return Limit(wait, policy, report.goodput)

    def _judge(
        self, server: Server, scenario: Scenario, policy: Policy
    ) -> list[tuple[str, str, Report]]:
        """One policy under every load: the same arrivals for all policies."""
        entries = []
        for load in LOADS:
            name = f"{load:g} × peak"
            self._step(f"{policy.name} at {name}")
            spec = scenario.spec(server.target(), load, title=f"{policy.name} at {name}")
            entries.append((policy.name, name, self._load(spec)))
        return entries

    @contextmanager
    def _serving(self, policy: Policy) -> Iterator[Server]:
        """A fresh server under `policy`."""
        for model, scheduler in policy.settings.items():
            path = self._repository / model / "slacktide.yaml"
            path.write_text(f"{self._settings[model]}scheduler: {scheduler}\n")
        with Server(self._repository, self._server_cores, self._log) as server:
            yield server

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
        self._move(self._done / self._steps, text)
        self._done += 1
