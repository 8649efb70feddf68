"""What can be set on a server; the command line and the Python API fill the same class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from slacktide.domain.options import OptionError, Options, option
from slacktide.domain.units import BYTES, PORT, SECONDS, SHARE
from slacktide.frontends.security import (
    PortRules,
    TlsFiles,
    checked_origin,
    host_name,
    is_loopback,
)
from slacktide.frontends.settings import MIB

CpuAllocatorName = Literal["affinity", "cgroup", "kubernetes"]

_LISTEN = "Addresses"
_MODELS = "How models run"
_LIMITS = "Limits and timeouts"
_ACCESS = "Access"
_SEEN = "Logs, traces, recordings"
_PORT: Mapping[str, Any] = {"unit": PORT, "least": 0, "most": 65535}


@dataclass(frozen=True, slots=True)
class ServerSettings(Options):
    """Everything but the models. Seconds and bytes. Raises OptionError for what cannot be."""

    host: str = option("127.0.0.1", "Address to listen on.", panel=_LISTEN, metavar="ADDRESS")
    http_port: int | None = option(
        8000, "HTTP port; 0: a free one; -1: none.", panel=_LISTEN, **_PORT
    )
    grpc_port: int | None = option(
        8001, "gRPC port; 0: a free one; -1: none.", panel=_LISTEN, **_PORT
    )
    metrics_port: int | None = option(
        8002, "Port for metrics; 0: a free one; -1: none.", panel=_LISTEN, **_PORT
    )
    control_port: int | None = option(
        None,
        "HTTP port for loading and unloading only, token optional; 0: a free one; default: none.",
        panel=_ACCESS,
        **_PORT,
    )
    control_host: str = option(
        "127.0.0.1", "Address of the control port.", panel=_ACCESS, metavar="ADDRESS"
    )
    allowed_hosts: tuple[str, ...] = option(
        (),
        "Further names accepted in Host, without port, comma-separated; checked on a loopback "
        "address, and elsewhere if any are given.",
        panel=_ACCESS,
        metavar="NAMES",
    )
    allowed_origins: tuple[str, ...] = option(
        (),
        "Origins of web pages that may use it, comma-separated.",
        panel=_ACCESS,
        metavar="ORIGINS",
    )
    cores: int | None = option(
        None,
        "Most cores that models use; default: all this process may use.",
        panel=_MODELS,
        least=1,
    )
    allow_fewer_cores: bool = option(
        False,
        "If a model asks for more cores than the server has, serve it with those and warn.",
        panel=_MODELS,
    )
    cpu_allocator: CpuAllocatorName = option(
        "affinity",
        "How workers get their cores: affinity, cgroup (also a quota, where writable) or "
        "kubernetes (the server's own pod is resized first).",
        panel=_MODELS,
        metavar="NAME",
    )
    core_share: float = option(
        1.0,
        "With --cpu-allocator cgroup: share of each of its cores that a worker gets.",
        panel=_MODELS,
        unit=SHARE,
        least=0.1,
        most=1.0,
    )
    pod_overhead: int = option(
        500,
        "With --cpu-allocator kubernetes: CPU of the pod for the server's own event loop.",
        panel=_MODELS,
        metavar="MILLICORES",
        least=0,
    )
    scheduler: str | None = option(
        None,
        "One scheduler for every model, whatever its settings: a name, or module:Class.",
        panel=_MODELS,
        metavar="NAME",
    )
    scheduler_options: Mapping[str, object] = option(
        {},
        "KEY=VALUE for --scheduler; may be given several times.",
        panel=_MODELS,
        flag="scheduler-option",
        metavar="KEY=VALUE",
        repeated=True,
    )
    state_dir: Path | None = option(
        None,
        "Folder for profiles and uploads if the repository is read-only.",
        panel=_MODELS,
        metavar="DIR",
    )
    profile_budget_s: float = option(
        2.0,
        "Time to measure a version that has no stored profile.",
        panel=_MODELS,
        unit=SECONDS,
        above=0,
    )
    memory_limit: int = option(
        2048 * MIB,
        "Memory for payloads of requests in flight, all models together.",
        panel=_LIMITS,
        unit=BYTES,
        above=0,
    )
    client_memory_limit: int | None = option(
        None,
        "The same for one client address; default: half of --memory-limit.",
        panel=_LIMITS,
        unit=BYTES,
        above=0,
    )
    max_in_flight_per_client: int | None = option(
        None, "Most requests in flight of one client address.", panel=_LIMITS, least=1
    )
    max_connections: int = option(4096, "Most connections per port.", panel=_LIMITS, least=1)
    max_request_bytes: int = option(
        64 * MIB,
        "Largest request body, as sent and as inflated.",
        panel=_LIMITS,
        flag="max-request-size",
        unit=BYTES,
        above=0,
    )
    header_timeout_s: float = option(
        10.0, "Longest wait for a request's headers.", panel=_LIMITS, unit=SECONDS, above=0
    )
    body_timeout_s: float = option(
        30.0,
        "Longest wait for a request's body, beyond the time that its size allows.",
        panel=_LIMITS,
        unit=SECONDS,
        above=0,
    )
    idle_timeout_s: float = option(
        75.0, "Longest time that a connection may be idle.", panel=_LIMITS, unit=SECONDS, above=0
    )
    drain_delay_s: float = option(
        0.0,
        "On SIGTERM: time from failing readiness to closing the ports.",
        panel=_LIMITS,
        unit=SECONDS,
        least=0,
    )
    drain_timeout_s: float = option(
        30.0,
        "After that: longest wait for requests in flight.",
        panel=_LIMITS,
        unit=SECONDS,
        least=0,
    )
    allow_control: bool = option(
        False,
        "Let clients load and unload models on all ports; needs --token-file, or applies to "
        "--control-port only.",
        panel=_ACCESS,
    )
    allow_uploads: bool = option(False, "Let load calls contain model files.", panel=_ACCESS)
    triton_strict: bool = option(
        False,
        "Answer overload and missed deadlines as Triton does (503, UNAVAILABLE).",
        panel=_MODELS,
    )
    token_file: Path | None = option(
        None, "File with the bearer token that calls must carry.", panel=_ACCESS
    )
    tls: TlsFiles | None = None
    access_log: bool = option(False, "Log a line for each request.", panel=_SEEN)
    trace_endpoint: str | None = option(
        None, "OTLP/HTTP endpoint for traces (extra 'otel').", panel=_SEEN, metavar="URL"
    )
    record: Path | None = option(
        None,
        "Record the engine's events and commands, for `slacktide simulate --replay`.",
        panel=_SEEN,
    )
    record_limit: int = option(
        1024 * MIB,
        "Size at which FILE is renamed to FILE.1 and a new FILE begins.",
        panel=_SEEN,
        unit=BYTES,
        least=MIB,
    )

    def check(self) -> None:
        """What several say together."""
        ports = ("http_port", "grpc_port", "metrics_port", "control_port")
        stated = [port for name in ports if (port := getattr(self, name))]
        if len(set(stated)) != len(stated):
            raise OptionError(("", f"{', '.join(ports[:-1])} and {ports[-1]} must differ"))
        self._check_scheduler()
        if self.cpu_allocator not in get_args(CpuAllocatorName):
            names = " or ".join(get_args(CpuAllocatorName))
            raise OptionError(("cpu_allocator", f"expected {names}, got {self.cpu_allocator!r}"))
        if self.core_share < 1.0 and self.cpu_allocator != "cgroup":
            raise OptionError(("core_share", "needs cpu_allocator 'cgroup'"))
        if self.allow_control and self.token_file is None and self.control_port is None:
            told = (
                "needs a token (--token-file FILE) or a port of its own for control "
                "(--control-port PORT); by itself it would let every web page open on this machine "
                "load models"
            )
            raise OptionError(("allow_control", told))
        if self.allow_uploads and not (self.allow_control or self.control_port is not None):
            told = "needs --control-port, or --allow-control with a token"
            raise OptionError(("allow_uploads", told))
        for name in self.allowed_hosts:
            if not host_name(name):
                expected = f"expected names such as host.example, got {name!r}"
                raise OptionError(("allowed_hosts", expected))
        try:
            list(map(checked_origin, self.allowed_origins))
        except ValueError as error:
            raise OptionError(("allowed_origins", str(error))) from None

    def _check_scheduler(self) -> None:
        if self.scheduler is None:
            if self.scheduler_options:
                raise OptionError(("scheduler_options", "needs scheduler"))
            return
        # Only here: the flags of a command line are listed without the schedulers.
        from slacktide.models.plugins import admit_name
        from slacktide.scheduling import POLICIES

        try:
            admit_name(POLICIES, self.scheduler, imports=True)
            POLICIES.find(self.scheduler)
        except OptionError as error:
            raise OptionError(("scheduler", error.problems[0][1])) from error
        try:
            POLICIES.read(self.scheduler, self.scheduler_options)
        except OptionError as error:
            raise OptionError(("scheduler_options", str(error))) from error

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        return is_loopback(self.host)

    @property
    def exposed(self) -> bool:
        """Reachable from elsewhere with neither a token nor TLS in the way."""
        return not self.loopback and self.token_file is None and self.tls is None

    @property
    def control_exposed(self) -> bool:
        """Whether others than this machine's users may load models without a token."""
        return (
            self.control_port is not None
            and not is_loopback(self.control_host)
            and self.token_file is None
            and (self.tls is None or self.tls.client_ca is None)
        )

    def host_of(self, port: str) -> str:
        """The address that `http`, `grpc`, `metrics` or `control` binds."""
        return self.control_host if port == "control" else self.host

    def rules(self, *, control_port: bool = False) -> PortRules:
        """What the gate goes by on the control port, or on the others."""
        local = is_loopback(self.control_host) if control_port else self.loopback
        hosts = frozenset(map(host_name, self.allowed_hosts))
        return PortRules(
            hosts if local or hosts else None,
            frozenset(map(checked_origin, self.allowed_origins)),
            control=control_port or (self.allow_control and self.token_file is not None),
        )
