"""`ServerSettings`: the settings of a server, for the command line and the Python API."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from slacktide.domain.options import OptionError, Options, option
from slacktide.domain.registry import Registry
from slacktide.domain.units import BYTES, PORT, SECONDS, SHARE
from slacktide.frontends.common.security import (
    PortRules,
    TlsFiles,
    checked_origin,
    host_name,
    is_loopback,
)
from slacktide.frontends.settings import MIB

CpuAllocatorName = Literal["affinity", "cgroup", "kubernetes"]
ReadyWhen = Literal["loaded", "all", "any"]

_listen = partial(option, panel="Addresses")
_model = partial(option, panel="How models run")
_limit = partial(option, panel="Limits and timeouts")
_size = partial(_limit, unit=BYTES, above=0)
_time = partial(_limit, unit=SECONDS)
_access = partial(option, panel="Access")
_peer = partial(option, panel="Peers")
_log_option = partial(option, panel="Logs, traces, recordings")
_MACHINE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:-]{0,126}[A-Za-z0-9])?")
_PORT: Mapping[str, Any] = {"unit": PORT, "least": 0, "most": 65535}


def _options_of(kind: str) -> Any:
    """Options of the extension that `--KIND` names."""
    flag = kind.replace("_", "-")
    text = f"KEY=VALUE for --{flag}; may be given several times."
    return _model({}, text, flag=f"{flag}-option", metavar="KEY=VALUE", repeated=True)


@dataclass(frozen=True, slots=True)
class ServerSettings(Options):
    """All settings except those of models, in seconds and bytes. Raises OptionError."""

    host: str = _listen("127.0.0.1", "Address to listen on.", metavar="ADDRESS")
    http_port: int | None = _listen(8000, "HTTP port; 0: any free port; -1: off.", **_PORT)
    grpc_port: int | None = _listen(8001, "gRPC port; 0: any free port; -1: off.", **_PORT)
    metrics_port: int | None = _listen(8002, "Metrics port; 0: any free port; -1: off.", **_PORT)
    control_port: int | None = _access(
        None,
        "HTTP port to load and unload models, with or without a token; 0: any free; default: off.",
        **_PORT,
    )
    control_host: str = _access("127.0.0.1", "Address of the control port.", metavar="ADDRESS")
    allowed_hosts: tuple[str, ...] = _access(
        (),
        "Further names accepted in Host, without port, comma-separated; checked on loopback "
        "addresses, and on others if any are given.",
        metavar="NAMES",
    )
    allowed_origins: tuple[str, ...] = _access(
        (), "Origins of web pages that may send requests, comma-separated.", metavar="ORIGINS"
    )
    cores: int | None = _model(
        None, "Maximum number of cores for models; default: all that this process may use.", least=1
    )
    allow_fewer_cores: bool = _model(
        False, "If a model asks for more cores than the server has, use all of these and warn."
    )
    cpu_allocator: CpuAllocatorName = _model(
        "affinity",
        "How workers get their cores: affinity; cgroup (with a quota too, if writable); "
        "kubernetes (resizes the server's own pod first).",
        metavar="NAME",
    )
    core_share: float = _model(
        1.0,
        "With --cpu-allocator cgroup: share that a worker gets of each of its cores.",
        unit=SHARE,
        least=0.1,
        most=1.0,
    )
    pod_overhead: int = _model(
        500,
        "With --cpu-allocator kubernetes: the pod's CPU for the server's event loop.",
        metavar="MILLICORES",
        least=0,
    )
    scheduler: str | None = _model(
        None,
        "Scheduler for every model, overriding its settings: a name, or module:Class.",
        metavar="NAME",
    )
    scheduler_options: Mapping[str, object] = _options_of("scheduler")
    scaling_policy: str | None = _model(
        None,
        "Scaling policy for every model with a range of cores or replicas: a name, or "
        "module:Class.",
        metavar="NAME",
    )
    scaling_policy_options: Mapping[str, object] = _options_of("scaling_policy")
    placement: str = _model(
        "none",
        "Placement policy for pipelines with an slo, which assigns stages to lanes and limits "
        "variants: pipeline, octopinf, …; none: as the models' settings state.",
        metavar="NAME",
    )
    placement_options: Mapping[str, object] = _options_of("placement")
    glue: Mapping[str, object] = _model(
        {},
        "NAME=MODULE:FUNCTION (or class) that settings may name; may be given several times.",
        metavar="NAME=TARGET",
        repeated=True,
    )
    state_dir: Path | None = _model(
        None, "Folder for profiles and uploads if the repository is read-only.", metavar="DIR"
    )
    profile_budget_s: float = _model(
        2.0, "Time to measure a version that has no stored profile.", unit=SECONDS, above=0
    )
    ready_when: ReadyWhen = _model(
        "loaded",
        "When the server is ready: loaded (every model present at the start has "
        "loaded or failed, and one "
        "serves); all (every one serves); any (one serves).",
        metavar="WHEN",
    )
    memory_limit: int = _size(2048 * MIB, "Memory for the payloads of all requests in flight.")
    client_memory_limit: int | None = _size(
        None, "Memory for the payloads of one client address; default: half of --memory-limit."
    )
    max_in_flight_per_client: int | None = _limit(
        None, "Maximum number of requests in flight per client address.", least=1
    )
    max_connections: int = _limit(4096, "Maximum number of connections per port.", least=1)
    max_sessions: int = _limit(
        4096, "Maximum number of open frame streams; half of them per client address.", least=1
    )
    max_request_bytes: int = _size(
        64 * MIB,
        "Maximum size of a request body, compressed and decompressed.",
        flag="max-request-size",
    )
    header_timeout_s: float = _time(10.0, "Maximum wait for a request's headers.", above=0)
    body_timeout_s: float = _time(
        30.0, "Maximum wait for a request's body, on top of the time allowed for its size.", above=0
    )
    idle_timeout_s: float = _time(75.0, "Time after which an idle connection is closed.", above=0)
    drain_delay_s: float = _time(
        0.0, "On SIGTERM: time between becoming unready and closing the ports.", least=0
    )
    drain_timeout_s: float = _time(
        30.0, "After --drain-delay: maximum wait for requests in flight.", least=0
    )
    allow_control: bool = _access(
        False,
        "Let clients load and unload models on all ports. Needs --token-file; otherwise applies to "
        "--control-port only.",
    )
    allow_uploads: bool = _access(False, "Let load calls upload model files.")
    triton_strict: bool = _model(
        False, "Answer overload and missed deadlines with Triton's statuses (503, UNAVAILABLE)."
    )
    ignore_unknown_parameters: bool = _model(
        False,
        "Ignore look-alikes of request parameters, such as deadline_ms, instead of refusing them.",
    )
    load_reports: bool = _model(
        False, "Put a load report (ORCA) into every answer, not only when the client asks."
    )
    token_file: Path | None = _access(None, "File with the bearer token that calls must send.")
    tls: TlsFiles | None = None
    machine: str | None = _peer(
        None,
        "Name of this server among its peers; default: host name and gRPC port.",
        metavar="NAME",
    )
    peers: tuple[str, ...] = _peer(
        (),
        "gRPC addresses of servers to share requests with, comma-separated; "
        "dns:NAME:PORT: every address of a DNS name.",
        metavar="ADDRESSES",
    )
    peer_token_file: Path | None = _peer(
        None, "File with the bearer token that peers must send, and that they are sent."
    )
    peer_names: tuple[str, ...] = _peer(
        (),
        "Without --peer-token-file: names in the TLS certificates of peers, comma-separated.",
        metavar="NAMES",
    )
    peer_ca: Path | None = _peer(
        None, "CA that signs the certificates of peers (PEM); default: --tls-client-ca."
    )
    advertise: str | None = _peer(
        None,
        "Host under which clients reach this server's ports, so that peers may send them here; "
        "default: --host, unless it means all addresses.",
        metavar="HOST",
    )
    access_log: bool = _log_option(False, "Log a line for each request except health probes.")
    access_log_health: bool = _log_option(False, "Log a line for each request and health probe.")
    trace_endpoint: str | None = _log_option(
        None, "OTLP/HTTP endpoint for traces (extra 'otel').", metavar="URL"
    )
    record: Path | None = _log_option(
        None, "Record the engine's events and commands, for `slacktide simulate --replay`."
    )
    record_limit: int = _log_option(
        1024 * MIB,
        "Size at which FILE is renamed to FILE.1 and a new FILE begins.",
        unit=BYTES,
        least=MIB,
    )

    def check(self) -> None:
        """Check settings that depend on each other. Raises OptionError."""
        ports = ("http_port", "grpc_port", "metrics_port", "control_port")
        stated = [port for name in ports if (port := getattr(self, name))]
        if len(set(stated)) != len(stated):
            raise OptionError(("", f"{', '.join(ports[:-1])} and {ports[-1]} must differ"))
        self._check_choices()
        for name, choices in (("cpu_allocator", CpuAllocatorName), ("ready_when", ReadyWhen)):
            if (stated_choice := getattr(self, name)) not in get_args(choices):
                expected = " or ".join(get_args(choices))
                raise OptionError((name, f"expected {expected}, got {stated_choice!r}"))
        if self.core_share < 1.0 and self.cpu_allocator != "cgroup":
            raise OptionError(("core_share", "needs cpu_allocator 'cgroup'"))
        if self.allow_control and self.token_file is None and self.control_port is None:
            message = (
                "needs a token (--token-file FILE) or a separate control port "
                "(--control-port PORT); otherwise every web page open on this machine could "
                "load models"
            )
            raise OptionError(("allow_control", message))
        if self.allow_uploads and not (self.allow_control or self.control_port is not None):
            message = "needs --control-port, or --allow-control with a token"
            raise OptionError(("allow_uploads", message))
        for name in self.allowed_hosts:
            if not host_name(name):
                expected = f"expected host names such as host.example, got {name!r}"
                raise OptionError(("allowed_hosts", expected))
        try:
            list(map(checked_origin, self.allowed_origins))
        except ValueError as error:
            raise OptionError(("allowed_origins", str(error))) from None
        if self.has_peers:
            self._check_peers()

    def _check_peers(self) -> None:
        from slacktide.server.peers.addresses import client_address, remote_peer

        if self.machine is not None and not _MACHINE.fullmatch(self.machine):
            expected = "expected at most 128 letters, digits, '.', '_', '-' and ':'"
            raise OptionError(("machine", f"{expected}, got {self.machine!r}"))
        if self.grpc_port is None:
            raise OptionError(("grpc_port", "peers need it"))
        try:
            remote = remote_peer(self.peers)
        except ValueError as error:
            raise OptionError(("peers", str(error))) from None
        if self.advertise is not None and not client_address(self.advertise, 1):
            expected = f"expected a host or an address without port, got {self.advertise!r}"
            raise OptionError(("advertise", expected))
        if remote is not None and self.peer_token_file is None and not self.peer_names:
            message = (
                f"{remote} may be another machine: needs a token that all peers share "
                "(--peer-token-file FILE), or certificates (--peer-names NAMES with --tls-cert)"
            )
            raise OptionError(("peers", message))
        for name in self.peer_names:
            if not host_name(name):
                expected = f"expected names such as host.example, got {name!r}"
                raise OptionError(("peer_names", expected))

    @property
    def tls_files(self) -> TlsFiles | None:
        """The TLS files with `peer_ca`. Raises OptionError if peers need a certificate."""
        if self.tls is None and (self.peer_names or self.peer_ca is not None):
            name = "peer_names" if self.peer_names else "peer_ca"
            raise OptionError((name, "needs --tls-cert and --tls-key"))
        if self.tls is None or self.peer_ca is None:
            return self.tls
        if self.tls.client_ca is not None and self.peer_token_file is None:
            message = (
                "with --tls-client-ca it needs --peer-token-file: else clients could pass as peers"
            )
            raise OptionError(("peer_ca", message))
        return replace(self.tls, peer_ca=self.peer_ca)

    @property
    def has_peers(self) -> bool:
        """Whether this server may have peers, dialled by either side."""
        stated = self.machine is not None or self.peer_token_file is not None
        return stated or bool(self.peers or self.peer_names)

    def _check_choices(self) -> None:
        kinds = {"scheduler": None, "scaling_policy": None, "placement": "none"}
        chosen = [kind for kind, default in kinds.items() if getattr(self, kind) != default]
        if chosen:  # imported only here: listing flags must not import schedulers
            from slacktide.planning.pipelines.policies import PLACEMENTS
            from slacktide.planning.scaling.policies import SCALING_POLICIES
            from slacktide.scheduling import POLICIES

            registries: tuple[Registry[Any], ...] = (POLICIES, SCALING_POLICIES, PLACEMENTS)
            for kind, registry in zip(kinds, registries, strict=True):
                if kind in chosen:
                    self._check_choice(kind, registry)
        for name, target in self.glue.items():
            from slacktide.models.plugins import offer_glue

            offer_glue(name, str(target))
        for kind in kinds:
            if kind not in chosen and getattr(self, f"{kind}_options"):
                raise OptionError((f"{kind}_options", f"needs {kind}"))

    def _check_choice(self, kind: str, registry: Registry[Any]) -> None:
        from slacktide.models.plugins import admit_name

        name, options = getattr(self, kind), getattr(self, f"{kind}_options")
        if not isinstance(name, str):
            raise OptionError((kind, f"expected a name, got {name!r}"))
        try:
            admit_name(registry, name, imports=True)
            registry.find(name)
        except OptionError as error:
            raise OptionError((kind, error.problems[0][1])) from error
        try:
            registry.read(name, options)
        except OptionError as error:
            raise OptionError((f"{kind}_options", str(error))) from error

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        return is_loopback(self.host_of("http"))

    @property
    def exposed(self) -> bool:
        """Whether other machines can connect without token or TLS."""
        return not self.loopback and self.token_file is None and self.tls is None

    @property
    def control_exposed(self) -> bool:
        """Whether other machines can load models without a token."""
        return (
            self.control_port is not None
            and not is_loopback(self.host_of("control"))
            and self.token_file is None
            and (self.tls is None or self.tls.client_ca is None)
        )

    def host_of(self, port: str) -> str:
        """Return the address that `http`, `grpc`, `metrics` or `control` binds, without
        brackets."""
        host = self.control_host if port == "control" else self.host
        return host[1:-1] if host.startswith("[") and host.endswith("]") else host

    def client_address(self, port: int | None) -> str:
        """The address of a port that peers give to clients; empty: they give none."""
        from slacktide.server.peers.addresses import client_address

        return client_address(self.advertise or self.host_of("http"), port)

    def rules(self, *, control_port: bool = False) -> PortRules:
        """Return the gate's rules for the control port, or for all other ports."""
        local = is_loopback(self.host_of("control")) if control_port else self.loopback
        hosts = frozenset(map(host_name, self.allowed_hosts))
        if self.has_peers and not control_port and (local or hosts):
            hosts |= {host_name(self.client_address(1))} - {""}  # peers send clients to this name
        return PortRules(
            hosts if local or hosts else None,
            frozenset(map(checked_origin, self.allowed_origins)),
            control=control_port or (self.allow_control and self.token_file is not None),
        )
