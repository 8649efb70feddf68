"""`slacktide serve REPOSITORY`: flags for `ServerSettings`; `serving.py` does the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
import yaml
from typer.models import OptionInfo

from slacktide.cli.flag_file import values_from_file
from slacktide.cli.output import fail, print_json
from slacktide.cli.serving import run
from slacktide.repository.units import parse_bytes, parse_percent, parse_seconds
from slacktide.server.logs import LogFormat, configure
from slacktide.server.security import TlsFiles
from slacktide.server.settings import ServerSettings

ENV = "SLACKTIDE_"

Command = TypeVar("Command", bound=Callable[..., None])

_LISTEN = "Where it listens"
_MODELS = "How models run"
_LIMITS = "Limits and timeouts"
_ACCESS = "Who may do what"
_SEEN = "What can be seen"

_FLAGS = {"max_request_bytes": "max_request_size", "scheduler_options": "scheduler_option"}
"""Flags that are not called like their setting."""


def _seconds(text: str, flag: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as error:
        fail(f"--{flag}: {error}")


def _bytes(text: str, flag: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        fail(f"--{flag}: {error}")


def _percent(text: str, flag: str) -> float:
    try:
        return parse_percent(text)
    except ValueError as error:
        fail(f"--{flag}: {error}")


def _flag(panel: str, help: str, *, metavar: str | None = None, min: int | None = None) -> Any:
    """An option in a panel of the help."""
    return typer.Option(rich_help_panel=panel, help=help, metavar=metavar, min=min)


def _named_alike(command: Command) -> Command:
    """Have the environment know each option by its parameter's name, as SLACKTIDE_NAME; one that
    takes no value has no `--no-` form."""
    hints = get_type_hints(command, include_extras=True)
    for name, hint in hints.items():
        for option in getattr(hint, "__metadata__", ()):
            if isinstance(option, OptionInfo) and option.rich_help_panel is not None:
                option.envvar = f"{ENV}{name.upper()}"
                if hint.__origin__ is bool:
                    option.param_decls = (f"--{name.replace('_', '-')}",)
    command.__annotations__ = hints
    return command


@_named_alike
def serve(
    repository: Annotated[
        Path,
        typer.Argument(help="Folder of models, in Triton's layout.", envvar=f"{ENV}REPOSITORY"),
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with flags as keys; environment and flags win over it.",
            envvar=f"{ENV}CONFIG",
            callback=values_from_file,
            is_eager=True,
        ),
    ] = None,
    host: Annotated[str, _flag(_LISTEN, "Address to listen on.", metavar="ADDRESS")] = "127.0.0.1",
    http_port: Annotated[int, _flag(_LISTEN, "0: a free one; -1: no HTTP.", metavar="PORT")] = 8000,
    grpc_port: Annotated[int, _flag(_LISTEN, "0: a free one; -1: no gRPC.", metavar="PORT")] = 8001,
    metrics_port: Annotated[
        int, _flag(_LISTEN, "0: a free one; -1: no metrics.", metavar="PORT")
    ] = 8002,
    control_port: Annotated[
        int,
        _flag(
            _ACCESS,
            "HTTP port for loading and unloading alone; 0: a free one; -1: none.",
            metavar="PORT",
        ),
    ] = -1,
    control_host: Annotated[
        str, _flag(_ACCESS, "Address of that port.", metavar="ADDRESS")
    ] = "127.0.0.1",
    allowed_hosts: Annotated[
        str | None,
        _flag(
            _ACCESS,
            "Host names, with commas, that requests may be for beside localhost.",
            metavar="NAMES",
        ),
    ] = None,
    allowed_origins: Annotated[
        str | None,
        _flag(
            _ACCESS,
            "Origins, with commas, whose web pages may use the server (CORS); default: none.",
            metavar="ORIGINS",
        ),
    ] = None,
    cores: Annotated[
        int | None,
        _flag(
            _MODELS, "Most cores that models use; default: all this process may use.", metavar="N"
        ),
    ] = None,
    allow_fewer_cores: Annotated[
        bool,
        _flag(
            _MODELS, "Serve models that wish for more cores than there are with those, and warn."
        ),
    ] = False,
    cpu_allocator: Annotated[
        str,
        _flag(
            _MODELS,
            "How workers get their cores: affinity, cgroup (a quota on top, where writable) or "
            "kubernetes (our own pod is resized first).",
            metavar="NAME",
        ),
    ] = "affinity",
    core_share: Annotated[
        str,
        _flag(
            _MODELS,
            "With --cpu-allocator cgroup: part of the time of each core that a worker gets.",
            metavar="PERCENT",
        ),
    ] = "100%",
    pod_overhead: Annotated[
        int,
        _flag(
            _MODELS,
            "With --cpu-allocator kubernetes: CPU of the pod for the server's own loop.",
            metavar="MILLICORES",
        ),
    ] = 500,
    scheduler: Annotated[
        str | None,
        _flag(
            _MODELS,
            "slack, edf or fifo for every model, whatever its settings say.",
            metavar="NAME",
        ),
    ] = None,
    scheduler_option: Annotated[
        list[str] | None,
        _flag(
            _MODELS, "KEY=VALUE for --scheduler; may be given several times.", metavar="KEY=VALUE"
        ),
    ] = None,
    state_dir: Annotated[
        Path | None,
        _flag(_MODELS, "Where profiles go if the repository is read-only.", metavar="DIR"),
    ] = None,
    profile_budget: Annotated[
        str, _flag(_MODELS, "Time to measure a version that has no stored profile.", metavar="TIME")
    ] = "2s",
    memory_limit: Annotated[
        str, _flag(_LIMITS, "Payloads of requests in flight.", metavar="SIZE")
    ] = "2GiB",
    client_memory_limit: Annotated[
        str | None,
        _flag(_LIMITS, "The same for one client address; default: half of it.", metavar="SIZE"),
    ] = None,
    max_in_flight_per_client: Annotated[
        int | None, _flag(_LIMITS, "Requests in flight of one client address.", metavar="N", min=1)
    ] = None,
    max_connections: Annotated[
        int, _flag(_LIMITS, "Connections per port.", metavar="N", min=1)
    ] = 4096,
    max_request_size: Annotated[str, _flag(_LIMITS, "Largest body.", metavar="SIZE")] = "64MiB",
    header_timeout: Annotated[
        str, _flag(_LIMITS, "For a request's headers.", metavar="TIME")
    ] = "10s",
    body_timeout: Annotated[
        str, _flag(_LIMITS, "For a request's body, beyond what its size allows.", metavar="TIME")
    ] = "30s",
    idle_timeout: Annotated[str, _flag(_LIMITS, "For a quiet connection.", metavar="TIME")] = "75s",
    drain_delay: Annotated[
        str,
        _flag(_LIMITS, "On SIGTERM: from failing readiness to closing the ports.", metavar="TIME"),
    ] = "0s",
    drain_timeout: Annotated[
        str, _flag(_LIMITS, "After that: longest wait for what is in flight.", metavar="TIME")
    ] = "30s",
    allow_control: Annotated[
        bool, _flag(_ACCESS, "Let clients load and unload on every port; needs --token-file.")
    ] = False,
    allow_uploads: Annotated[bool, _flag(_ACCESS, "Let the load call bring model files.")] = False,
    triton_strict: Annotated[
        bool,
        _flag(_MODELS, "Answer overload and missed deadlines as Triton does (503, UNAVAILABLE)."),
    ] = False,
    token_file: Annotated[
        Path | None,
        _flag(_ACCESS, "File with the bearer token that calls must carry.", metavar="FILE"),
    ] = None,
    tls_cert: Annotated[
        Path | None, _flag(_ACCESS, "Certificate chain (PEM).", metavar="FILE")
    ] = None,
    tls_key: Annotated[
        Path | None, _flag(_ACCESS, "Its private key (PEM).", metavar="FILE")
    ] = None,
    tls_client_ca: Annotated[
        Path | None, _flag(_ACCESS, "Require client certificates of this CA.", metavar="FILE")
    ] = None,
    log_level: Annotated[str, _flag(_SEEN, "debug, info, warning or error.")] = "info",
    log_format: Annotated[
        LogFormat, _flag(_SEEN, "Lines for people or for machines.")
    ] = LogFormat.TEXT,
    access_log: Annotated[bool, _flag(_SEEN, "A line for each request.")] = False,
    trace_endpoint: Annotated[
        str | None, _flag(_SEEN, "OTLP/HTTP endpoint for traces (extra 'otel').", metavar="URL")
    ] = None,
    record: Annotated[
        Path | None,
        _flag(
            _SEEN,
            "Record the engine's events and commands, for `slacktide simulate --replay`.",
            metavar="FILE",
        ),
    ] = None,
    record_limit: Annotated[
        str, _flag(_SEEN, "Size at which FILE becomes FILE.1 and begins anew.", metavar="SIZE")
    ] = "1GiB",
    print_config: Annotated[
        bool,
        typer.Option("--print-config", help="Print the settings in effect, and exit."),
    ] = False,
) -> None:
    """Serve the models of a repository over HTTP and gRPC, on time.

    Example: slacktide serve models/ --http-port 8000 --log-format json

    Example: slacktide serve models/ --cores 4 --allow-fewer-cores --cpu-allocator cgroup
    """
    tls = None
    if tls_cert is not None or tls_key is not None or tls_client_ca is not None:
        if tls_cert is None or tls_key is None:
            fail("--tls-cert and --tls-key: both are needed")
        tls = TlsFiles(tls_cert, tls_key, tls_client_ca)
    try:
        settings = ServerSettings(
            host=host,
            http_port=_port(http_port),
            grpc_port=_port(grpc_port),
            metrics_port=_port(metrics_port),
            control_port=_port(control_port),
            control_host=control_host,
            allowed_hosts=_listed(allowed_hosts),
            allowed_origins=_listed(allowed_origins),
            cores=cores,
            allow_fewer_cores=allow_fewer_cores,
            cpu_allocator=cpu_allocator,  # type: ignore[arg-type]  # checked there
            core_share=_percent(core_share, "core-share"),
            pod_overhead=pod_overhead,
            scheduler=scheduler,
            scheduler_options=_options(scheduler_option or []),
            state_dir=state_dir,
            profile_budget_s=_seconds(profile_budget, "profile-budget"),
            memory_limit=_bytes(memory_limit, "memory-limit"),
            client_memory_limit=(
                None
                if client_memory_limit is None
                else _bytes(client_memory_limit, "client-memory-limit")
            ),
            max_in_flight_per_client=max_in_flight_per_client,
            max_connections=max_connections,
            max_request_bytes=_bytes(max_request_size, "max-request-size"),
            header_timeout_s=_seconds(header_timeout, "header-timeout"),
            body_timeout_s=_seconds(body_timeout, "body-timeout"),
            idle_timeout_s=_seconds(idle_timeout, "idle-timeout"),
            drain_delay_s=_seconds(drain_delay, "drain-delay"),
            drain_timeout_s=_seconds(drain_timeout, "drain-timeout"),
            allow_control=allow_control,
            allow_uploads=allow_uploads,
            triton_strict=triton_strict,
            token_file=token_file,
            tls=tls,
            access_log=access_log,
            trace_endpoint=trace_endpoint,
            record=record,
            record_limit=_bytes(record_limit, "record-limit"),
        )
    except ValueError as error:
        fail(_naming_the_flag(str(error)))
    if print_config:
        print_json(_plain(settings))
        return
    try:
        configure(log_level, log_format)
    except ValueError as error:
        fail(f"--log-level: {error}")
    raise typer.Exit(run(repository, settings))


def _naming_the_flag(message: str) -> str:
    """`http_port: expected …` as `--http-port: expected …`; a text of another form as it is."""
    name, colon, rest = message.partition(": ")
    if not colon or not name.isidentifier():
        return message
    flag = _FLAGS.get(name, name.removesuffix("_s"))
    return f"--{flag.replace('_', '-')}: {rest}"


def _port(number: int) -> int | None:
    return None if number == -1 else number


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(word for part in (text or "").split(",") if (word := part.strip()))


def _options(pairs: list[str]) -> dict[str, object]:
    """KEY=VALUE pairs; values are read as YAML scalars (numbers, true, text)."""
    options: dict[str, object] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            fail(f"--scheduler-option: expected KEY=VALUE, got {pair!r}")
        try:
            options[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            fail(
                f"--scheduler-option: {key}: expected a number, true, false or text, got {value!r}"
            )
    return options


def _plain(settings: ServerSettings) -> dict[str, Any]:
    """Settings as JSON."""

    def plain(value: Any) -> Any:
        if isinstance(value, Path):
            return str(value)
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return value

    return {key: plain(value) for key, value in dataclasses.asdict(settings).items()}
