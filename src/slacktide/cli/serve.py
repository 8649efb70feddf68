"""`slacktide serve REPOSITORY`: flags for `ServerSettings`; `serving.py` does the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
import yaml
from typer.models import OptionInfo

from slacktide.cli.output import fail, option, print_json
from slacktide.cli.serving import run
from slacktide.domain.units import parse_bytes, parse_percent, parse_seconds
from slacktide.frontends.security import TlsFiles
from slacktide.observability.logs import LogFormat, configure
from slacktide.server.settings import ServerSettings


def values_from_file(context: typer.Context, path: Path | None) -> Path | None:
    """`--config FILE`: defaults from a YAML file; its keys are the flags without dashes in front.

    A callback of an eager option. Ends the program for a file or a key that cannot be used.
    """
    if path is None:
        return None
    try:
        document = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        fail(f"--config: {error}")
    if not isinstance(document, dict):
        fail("--config: expected a mapping of flags to values")
    known = {
        name.lstrip("-"): parameter.name
        for parameter in context.command.params
        for name in parameter.opts
        if name.startswith("--")
    }
    unknown = [key for key in document if str(key).replace("_", "-") not in known]
    if unknown:
        near = get_close_matches(str(unknown[0]).replace("_", "-"), known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        fail(f"--config: unknown key {unknown[0]!r}{hint}")
    values = {known[str(key).replace("_", "-")]: value for key, value in document.items()}
    context.default_map = {**(context.default_map or {}), **values}
    return path


ENV = "SLACKTIDE_"

Command = TypeVar("Command", bound=Callable[..., None])

_LISTEN = "Where it listens"
_MODELS = "How models run"
_LIMITS = "Limits and timeouts"
_ACCESS = "Who may do what"
_SEEN = "What can be seen"

_FLAGS = {"max_request_bytes": "max_request_size", "scheduler_options": "scheduler_option"}
"""Flags that are not called like their setting."""


def _named_alike(command: Command) -> Command:
    """Have the environment know each option by its parameter's name, as SLACKTIDE_NAME; one that
    takes no value has no `--no-` form."""
    hints = get_type_hints(command, include_extras=True)
    for name, hint in hints.items():
        for made in getattr(hint, "__metadata__", ()):
            if isinstance(made, OptionInfo) and made.rich_help_panel is not None:
                made.envvar = f"{ENV}{name.upper()}"
                if hint.__origin__ is bool:
                    made.param_decls = (f"--{name.replace('_', '-')}",)
    command.__annotations__ = hints
    return command


def _port(number: int) -> int | None:
    return None if number == -1 else number


def _listed(text: str) -> tuple[str, ...]:
    return tuple(word for part in text.split(",") if (word := part.strip()))


def _options(pairs: list[str]) -> dict[str, object]:
    """KEY=VALUE pairs; values are read as YAML scalars (numbers, true, text). Raises ValueError."""
    options: dict[str, object] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"expected KEY=VALUE, got {pair!r}")
        try:
            options[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            what = "a number, true, false or text"
            raise ValueError(f"{key}: expected {what}, got {value!r}") from None
    return options


_PARSERS: dict[str, Callable[[Any], object]] = {
    **dict.fromkeys(("http_port", "grpc_port", "metrics_port", "control_port"), _port),
    **dict.fromkeys(("allowed_hosts", "allowed_origins"), _listed),
    **dict.fromkeys(("memory_limit", "client_memory_limit", "max_request_size"), parse_bytes),
    **dict.fromkeys(("header_timeout", "body_timeout", "idle_timeout"), parse_seconds),
    **dict.fromkeys(("drain_delay", "drain_timeout", "profile_budget"), parse_seconds),
    "core_share": parse_percent,
    "record_limit": parse_bytes,
    "scheduler_option": _options,
}
"""How the text of a flag becomes its setting."""


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    """Settings by name, of the flags that are given or have a default."""
    settings = {}
    names = {_FLAGS.get(name, name.removesuffix("_s")): name for name in ServerSettings.__slots__}
    for flag, value in given.items():
        if flag in names and value is not None:
            try:
                settings[names[flag]] = _PARSERS[flag](value) if flag in _PARSERS else value
            except ValueError as error:
                fail(f"--{flag.replace('_', '-')}: {error}")
    return settings


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
    host: Annotated[str, option(_LISTEN, "Address to listen on.", metavar="ADDRESS")] = "127.0.0.1",
    http_port: Annotated[
        int, option(_LISTEN, "0: a free one; -1: no HTTP.", metavar="PORT")
    ] = 8000,
    grpc_port: Annotated[
        int, option(_LISTEN, "0: a free one; -1: no gRPC.", metavar="PORT")
    ] = 8001,
    metrics_port: Annotated[
        int, option(_LISTEN, "0: a free one; -1: no metrics.", metavar="PORT")
    ] = 8002,
    control_port: Annotated[
        int, option(_ACCESS, "HTTP for loading alone; 0: a free port; -1: none.", metavar="PORT")
    ] = -1,
    control_host: Annotated[
        str, option(_ACCESS, "Address of that port.", metavar="ADDRESS")
    ] = "127.0.0.1",
    allowed_hosts: Annotated[
        str | None, option(_ACCESS, "Further names for Host, with commas.", metavar="NAMES")
    ] = None,
    allowed_origins: Annotated[
        str | None, option(_ACCESS, "Web pages that may use it, with commas.", metavar="ORIGINS")
    ] = None,
    cores: Annotated[
        int | None,
        option(
            _MODELS, "Most cores that models use; default: all this process may use.", metavar="N"
        ),
    ] = None,
    allow_fewer_cores: Annotated[
        bool,
        option(
            _MODELS, "Serve models that wish for more cores than there are with those, and warn."
        ),
    ] = False,
    cpu_allocator: Annotated[
        str,
        option(
            _MODELS,
            "How workers get their cores: affinity, cgroup (a quota on top, where writable) or "
            "kubernetes (our own pod is resized first).",
            metavar="NAME",
        ),
    ] = "affinity",
    core_share: Annotated[
        str,
        option(
            _MODELS,
            "With --cpu-allocator cgroup: part of the time of each core that a worker gets.",
            metavar="PERCENT",
        ),
    ] = "100%",
    pod_overhead: Annotated[
        int,
        option(
            _MODELS,
            "With --cpu-allocator kubernetes: CPU of the pod for the server's own loop.",
            metavar="MILLICORES",
        ),
    ] = 500,
    scheduler: Annotated[
        str | None,
        option(
            _MODELS,
            "slack, edf or fifo for every model, whatever its settings say.",
            metavar="NAME",
        ),
    ] = None,
    scheduler_option: Annotated[
        list[str] | None,
        option(
            _MODELS, "KEY=VALUE for --scheduler; may be given several times.", metavar="KEY=VALUE"
        ),
    ] = None,
    state_dir: Annotated[
        Path | None,
        option(_MODELS, "Where profiles go if the repository is read-only.", metavar="DIR"),
    ] = None,
    profile_budget: Annotated[
        str,
        option(_MODELS, "Time to measure a version that has no stored profile.", metavar="TIME"),
    ] = "2s",
    memory_limit: Annotated[
        str, option(_LIMITS, "Payloads of requests in flight.", metavar="SIZE")
    ] = "2GiB",
    client_memory_limit: Annotated[
        str | None,
        option(_LIMITS, "The same for one client address; default: half of it.", metavar="SIZE"),
    ] = None,
    max_in_flight_per_client: Annotated[
        int | None, option(_LIMITS, "Requests in flight of one client address.", metavar="N", min=1)
    ] = None,
    max_connections: Annotated[
        int, option(_LIMITS, "Connections per port.", metavar="N", min=1)
    ] = 4096,
    max_request_size: Annotated[str, option(_LIMITS, "Largest body.", metavar="SIZE")] = "64MiB",
    header_timeout: Annotated[
        str, option(_LIMITS, "For a request's headers.", metavar="TIME")
    ] = "10s",
    body_timeout: Annotated[
        str, option(_LIMITS, "For a request's body, beyond what its size allows.", metavar="TIME")
    ] = "30s",
    idle_timeout: Annotated[
        str, option(_LIMITS, "For a quiet connection.", metavar="TIME")
    ] = "75s",
    drain_delay: Annotated[
        str,
        option(_LIMITS, "On SIGTERM: from failing readiness to closing the ports.", metavar="TIME"),
    ] = "0s",
    drain_timeout: Annotated[
        str, option(_LIMITS, "After that: longest wait for what is in flight.", metavar="TIME")
    ] = "30s",
    allow_control: Annotated[
        bool, option(_ACCESS, "Let clients load and unload; needs --token-file.")
    ] = False,
    allow_uploads: Annotated[bool, option(_ACCESS, "Let the load call bring model files.")] = False,
    triton_strict: Annotated[
        bool,
        option(_MODELS, "Answer overload and missed deadlines as Triton does (503, UNAVAILABLE)."),
    ] = False,
    token_file: Annotated[
        Path | None,
        option(_ACCESS, "File with the bearer token that calls must carry.", metavar="FILE"),
    ] = None,
    tls_cert: Annotated[
        Path | None, option(_ACCESS, "Certificate chain (PEM).", metavar="FILE")
    ] = None,
    tls_key: Annotated[
        Path | None, option(_ACCESS, "Its private key (PEM).", metavar="FILE")
    ] = None,
    tls_client_ca: Annotated[
        Path | None, option(_ACCESS, "Require client certificates of this CA.", metavar="FILE")
    ] = None,
    log_level: Annotated[str, option(_SEEN, "debug, info, warning or error.")] = "info",
    log_format: Annotated[
        LogFormat, option(_SEEN, "Lines for people or for machines.")
    ] = LogFormat.TEXT,
    access_log: Annotated[bool, option(_SEEN, "A line for each request.")] = False,
    trace_endpoint: Annotated[
        str | None, option(_SEEN, "OTLP/HTTP endpoint for traces (extra 'otel').", metavar="URL")
    ] = None,
    record: Annotated[
        Path | None,
        option(
            _SEEN,
            "Record the engine's events and commands, for `slacktide simulate --replay`.",
            metavar="FILE",
        ),
    ] = None,
    record_limit: Annotated[
        str, option(_SEEN, "Size at which FILE becomes FILE.1 and begins anew.", metavar="SIZE")
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
    given = dict(locals())
    tls = None
    if tls_cert is not None or tls_key is not None or tls_client_ca is not None:
        if tls_cert is None or tls_key is None:
            fail("--tls-cert and --tls-key: both are needed")
        tls = TlsFiles(tls_cert, tls_key, tls_client_ca)
    try:
        settings = ServerSettings(**_settings(given), tls=tls)
    except ValueError as error:
        fail(_naming_theflag(str(error)))
    if print_config:
        print_json(_plain(settings))
        return
    try:
        configure(log_level, log_format)
    except ValueError as error:
        fail(f"--log-level: {error}")
    raise typer.Exit(run(repository, settings))


def _naming_theflag(message: str) -> str:
    """`http_port: expected …` as `--http-port: expected …`; a text of another form as it is."""
    name, colon, rest = message.partition(": ")
    if not colon or not name.isidentifier():
        return message
    flag = _FLAGS.get(name, name.removesuffix("_s"))
    return f"--{flag.replace('_', '-')}: {rest}"


def _plain(settings: ServerSettings) -> dict[str, Any]:
    """Settings as JSON."""

    def plain(value: Any) -> Any:
        if isinstance(value, Path):
            return str(value)
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return value

    return {key: plain(value) for key, value in dataclasses.asdict(settings).items()}
