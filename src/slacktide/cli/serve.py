"""`slacktide serve REPOSITORY`."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from slacktide.cli.output import fail, print_json
from slacktide.repository.errors import RepositoryError
from slacktide.repository.units import parse_bytes, parse_seconds
from slacktide.server.logs import LogFormat, configure
from slacktide.server.security import SecurityError, TlsFiles
from slacktide.server.settings import ServerSettings
from slacktide.server.tracing import TracingUnavailable

ENV = "SLACKTIDE_"


def _file_values(context: typer.Context, path: Path | None) -> Path | None:
    """Take defaults from a YAML file whose keys are the flags without dashes in front."""
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
            callback=_file_values,
            is_eager=True,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on.", envvar=f"{ENV}HOST")
    ] = "127.0.0.1",
    http_port: Annotated[
        int, typer.Option(help="0: a free one; -1: no HTTP.", envvar=f"{ENV}HTTP_PORT")
    ] = 8000,
    grpc_port: Annotated[
        int, typer.Option(help="0: a free one; -1: no gRPC.", envvar=f"{ENV}GRPC_PORT")
    ] = 8001,
    metrics_port: Annotated[
        int, typer.Option(help="0: a free one; -1: no metrics.", envvar=f"{ENV}METRICS_PORT")
    ] = 8002,
    cores: Annotated[
        int | None,
        typer.Option(
            help="Most cores that models use; default: all this process may use.",
            envvar=f"{ENV}CORES",
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            help="slack, edf or fifo for every model, whatever its settings say.",
            envvar=f"{ENV}SCHEDULER",
        ),
    ] = None,
    scheduler_option: Annotated[
        list[str] | None,
        typer.Option(
            help="KEY=VALUE for --scheduler; may be given several times.",
            envvar=f"{ENV}SCHEDULER_OPTION",
        ),
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            help="Where profiles go if the repository is read-only.", envvar=f"{ENV}STATE_DIR"
        ),
    ] = None,
    profile_budget: Annotated[
        str,
        typer.Option(
            help="Time to measure a version that has no stored profile.",
            envvar=f"{ENV}PROFILE_BUDGET",
        ),
    ] = "2s",
    memory_limit: Annotated[
        str,
        typer.Option(help="Payloads of requests in flight.", envvar=f"{ENV}MEMORY_LIMIT"),
    ] = "2GiB",
    client_memory_limit: Annotated[
        str | None,
        typer.Option(
            help="The same for one client address; default: half of it.",
            envvar=f"{ENV}CLIENT_MEMORY_LIMIT",
        ),
    ] = None,
    max_in_flight_per_client: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Requests in flight of one client address.",
            envvar=f"{ENV}MAX_IN_FLIGHT_PER_CLIENT",
        ),
    ] = None,
    max_connections: Annotated[
        int, typer.Option(min=1, help="Connections per port.", envvar=f"{ENV}MAX_CONNECTIONS")
    ] = 4096,
    max_request_size: Annotated[
        str, typer.Option(help="Largest body.", envvar=f"{ENV}MAX_REQUEST_SIZE")
    ] = "64MiB",
    header_timeout: Annotated[
        str, typer.Option(help="For a request's headers.", envvar=f"{ENV}HEADER_TIMEOUT")
    ] = "10s",
    body_timeout: Annotated[
        str,
        typer.Option(
            help="For a request's body, beyond what its size allows.", envvar=f"{ENV}BODY_TIMEOUT"
        ),
    ] = "30s",
    idle_timeout: Annotated[
        str, typer.Option(help="For a quiet connection.", envvar=f"{ENV}IDLE_TIMEOUT")
    ] = "75s",
    drain_delay: Annotated[
        str,
        typer.Option(
            help="On SIGTERM: from failing readiness to closing the ports.",
            envvar=f"{ENV}DRAIN_DELAY",
        ),
    ] = "0s",
    drain_timeout: Annotated[
        str,
        typer.Option(
            help="After that: longest wait for what is in flight.", envvar=f"{ENV}DRAIN_TIMEOUT"
        ),
    ] = "30s",
    allow_control: Annotated[
        bool,
        typer.Option(
            "--allow-control", help="Let clients load and unload.", envvar=f"{ENV}ALLOW_CONTROL"
        ),
    ] = False,
    allow_uploads: Annotated[
        bool,
        typer.Option(
            "--allow-uploads",
            help="Let the load call bring model files.",
            envvar=f"{ENV}ALLOW_UPLOADS",
        ),
    ] = False,
    triton_strict: Annotated[
        bool,
        typer.Option(
            "--triton-strict",
            help="Answer overload and missed deadlines as Triton does (503, UNAVAILABLE).",
            envvar=f"{ENV}TRITON_STRICT",
        ),
    ] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the bearer token that calls must carry.", envvar=f"{ENV}TOKEN_FILE"
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate chain (PEM).", envvar=f"{ENV}TLS_CERT")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="Its private key (PEM).", envvar=f"{ENV}TLS_KEY")
    ] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(help="Require client certificates of this CA.", envvar=f"{ENV}TLS_CLIENT_CA"),
    ] = None,
    log_level: Annotated[
        str, typer.Option(help="debug, info, warning or error.", envvar=f"{ENV}LOG_LEVEL")
    ] = "info",
    log_format: Annotated[
        LogFormat, typer.Option(help="Lines for people or for machines.", envvar=f"{ENV}LOG_FORMAT")
    ] = LogFormat.TEXT,
    access_log: Annotated[
        bool,
        typer.Option("--access-log", help="A line for each request.", envvar=f"{ENV}ACCESS_LOG"),
    ] = False,
    trace_endpoint: Annotated[
        str | None,
        typer.Option(
            help="OTLP/HTTP endpoint for traces (extra 'otel').", envvar=f"{ENV}TRACE_ENDPOINT"
        ),
    ] = None,
    print_config: Annotated[
        bool,
        typer.Option("--print-config", help="Print the settings in effect, and exit."),
    ] = False,
) -> None:
    """Serve the models of a repository over HTTP and gRPC, on time.

    Example: slacktide serve models/ --http-port 8000 --log-format json
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
            cores=cores,
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
        )
    except ValueError as error:
        fail(str(error))
    if print_config:
        print_json(_plain(settings))
        return
    try:
        configure(log_level, log_format)
    except ValueError as error:
        fail(f"--log-level: {error}")
    raise typer.Exit(run(repository, settings))


def run(repository: Path, settings: ServerSettings) -> int:
    """Serve until a signal comes; the exit code."""
    import uvloop

    from slacktide.server.app import App

    async def main() -> None:
        app = App(repository, settings)
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()

        def on_signal() -> None:
            if stopping.is_set():
                os._exit(1)  # a second signal: at once
            stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        starting = asyncio.create_task(app.start())
        stop = asyncio.create_task(stopping.wait())
        await asyncio.wait({starting, stop}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            await stop
            await app.drain()
        else:
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await starting
        stop.cancel()
        await app.close()

    try:
        uvloop.run(main())
    except (OSError, RepositoryError, SecurityError, TracingUnavailable, ValueError) as error:
        fail(str(error))
    return 0


def _port(number: int) -> int | None:
    return None if number == -1 else number


def _options(pairs: list[str]) -> dict[str, object]:
    """KEY=VALUE pairs; values are read as YAML scalars (numbers, true, text)."""
    options: dict[str, object] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            fail(f"--scheduler-option: expected KEY=VALUE, got {pair!r}")
        options[key] = yaml.safe_load(value)
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
