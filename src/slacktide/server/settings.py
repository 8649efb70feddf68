"""What can be set on a server; the command line and the Python API fill the same dataclass."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from slacktide.domain.options import OptionError
from slacktide.frontends.security import (
    PortRules,
    TlsFiles,
    checked_origin,
    host_name,
    is_loopback,
)
from slacktide.frontends.sizes import MIB
from slacktide.models.plugins import admit_name
from slacktide.scheduling import POLICIES

CpuAllocatorName = Literal["affinity", "cgroup", "kubernetes"]


_POSITIVE = re.compile("max_.*|.*memory_limit|(header|body|idle)_timeout_s|profile_budget_s")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Everything but the models. Seconds and bytes. Raises ValueError for what cannot be."""

    host: str = "127.0.0.1"
    """Address to bind: this machine only, unless told otherwise."""
    http_port: int | None = 8000
    """0 takes a free port; None: no HTTP."""
    grpc_port: int | None = 8001
    metrics_port: int | None = 8002
    control_port: int | None = None
    """A port (HTTP) for loading and unloading alone, which needs no token; None: there is none."""
    control_host: str = "127.0.0.1"
    """Address that it binds."""
    allowed_hosts: tuple[str, ...] = ()
    """Names, without port, that requests may have in their Host header beside the loopback ones.
    Checked where the server is bound to a loopback address, and elsewhere if any are stated."""
    allowed_origins: tuple[str, ...] = ()
    """Origins (`https://app.example`) whose web pages may use the server; no others may."""
    cores: int | None = None
    """Most cores that models may use; None: all that this process may use."""
    allow_fewer_cores: bool = False
    """Whether a model that wishes for more cores than that is served with those; else it is not."""
    cpu_allocator: CpuAllocatorName = "affinity"
    """How workers get their cores: by affinity alone, with a control group's quota on top, or by
    having our own pod resized first."""
    core_share: float = 1.0
    """Part of the time of each of its cores that a worker gets under `cgroup`, 0.1 to 1."""
    pod_overhead: int = 500
    """Millicores of the pod that are the server's own loop's, under `kubernetes`."""
    scheduler: str | None = None
    """One policy for every model, whatever their settings say; None: theirs."""
    scheduler_options: Mapping[str, object] = field(default_factory=dict)
    state_dir: Path | None = None
    """Where profiles and uploads go that cannot lie in the repository."""
    profile_budget_s: float = 2.0
    """What measuring a version may take when it is loaded without a stored profile."""
    memory_limit: int = 2048 * MIB
    """Payload bytes of requests in flight, all models together; beyond that: 429."""
    client_memory_limit: int | None = None
    """The same for one client address; None: half of `memory_limit`."""
    max_in_flight_per_client: int | None = None
    """Requests in flight of one client address; None: no limit but memory."""
    max_connections: int = 4096
    max_request_bytes: int = 64 * MIB
    """One request's body, as sent and as inflated; larger: 413."""
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    idle_timeout_s: float = 75.0
    drain_delay_s: float = 0.0
    """From failing readiness to closing the listeners: load balancers learn of it meanwhile."""
    drain_timeout_s: float = 30.0
    """Longest that what is in flight may take after that."""
    allow_control: bool = False
    """Whether clients may load and unload models on all ports; needs `token_file`, or
    `control_port` and then holds there alone."""
    allow_uploads: bool = False
    """Whether the load call may bring files; needs `allow_control` or `control_port`."""
    triton_strict: bool = False
    """Overload and missed deadlines answer as Triton's do: 503, UNAVAILABLE."""
    token_file: Path | None = None
    """File whose first line is the bearer token that every call but health must carry."""
    tls: TlsFiles | None = None
    access_log: bool = False
    """A line for every request."""
    trace_endpoint: str | None = None
    """OTLP/HTTP endpoint for traces (extra `otel`); None: no traces."""
    record: Path | None = None
    """Where the engine's events and commands are recorded; None: nowhere."""
    record_limit: int = 1024 * MIB
    """Size at which a part of the recording is set aside; the one before it is deleted."""

    def __post_init__(self) -> None:
        ports = ("http_port", "grpc_port", "metrics_port", "control_port")
        for name in ports:
            port = getattr(self, name)
            if port is not None and not 0 <= port <= 65535:
                raise ValueError(f"{name}: expected 0 to 65535, got {port}")
        stated = [port for name in ports if (port := getattr(self, name))]
        if len(set(stated)) != len(stated):
            raise ValueError(f"{', '.join(ports[:-1])} and {ports[-1]} must differ")
        for name in filter(_POSITIVE.fullmatch, self.__slots__):
            number = getattr(self, name)
            if number is not None and number <= 0:
                raise ValueError(f"{name}: expected more than 0, got {number}")
        for name in ("drain_delay_s", "drain_timeout_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: expected 0 or more, got {getattr(self, name)}")
        if self.scheduler is not None:
            admit_name(POLICIES, self.scheduler, imports=True)
            for name, options in (("scheduler", {}), ("scheduler_options", self.scheduler_options)):
                try:
                    POLICIES.read(self.scheduler, options)
                except OptionError as error:
                    raise ValueError(f"{name}: {error}") from None
        elif self.scheduler_options:
            raise ValueError("scheduler_options: needs scheduler")
        if self.cores is not None and self.cores < 1:
            raise ValueError(f"cores: expected 1 or more, got {self.cores}")
        if self.cpu_allocator not in get_args(CpuAllocatorName):
            names = " or ".join(get_args(CpuAllocatorName))
            raise ValueError(f"cpu_allocator: expected {names}, got {self.cpu_allocator!r}")
        if not 0.1 <= self.core_share <= 1.0:
            raise ValueError(f"core_share: expected 10% to 100%, got {self.core_share:.0%}")
        if self.core_share < 1.0 and self.cpu_allocator != "cgroup":
            raise ValueError("core_share: needs cpu_allocator 'cgroup'")
        if self.pod_overhead < 0:
            raise ValueError(f"pod_overhead: expected 0 or more, got {self.pod_overhead}")
        if self.record_limit < MIB:
            raise ValueError(f"record_limit: expected 1MiB or more, got {self.record_limit}")
        if self.allow_control and self.token_file is None and self.control_port is None:
            raise ValueError(
                "allow_control: needs a token (--token-file FILE) or a port of its own for "
                "control (--control-port PORT); by itself it let every web page open on this "
                "machine load models"
            )
        if self.allow_uploads and not (self.allow_control or self.control_port is not None):
            raise ValueError("allow_uploads: needs --control-port, or --allow-control with a token")
        for name in self.allowed_hosts:
            if not host_name(name):
                raise ValueError(
                    f"allowed_hosts: expected names such as host.example, got {name!r}"
                )
        try:
            list(map(checked_origin, self.allowed_origins))
        except ValueError as error:
            raise ValueError(f"allowed_origins: {error}") from None

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
