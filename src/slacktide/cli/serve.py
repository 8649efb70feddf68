"""`slacktide serve REPOSITORY`: flags for `ServerSettings`, and a server that runs until a signal.

The server is imported only to serve, so that completing a command line stays fast.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_origin, get_type_hints

import typer

from slacktide._files import open_file
from slacktide.cli.flags import flag_of, from_flags, with_flags
from slacktide.cli.output import FELL_SHORT, fail, option, print_json
from slacktide.domain.options import options_of
from slacktide.domain.suggestions import did_you_mean
from slacktide.executors.kernel import require_kernel
from slacktide.frontends.common.security import SecurityError, TlsFiles
from slacktide.observability.log_writer import LogWriter, background_stderr
from slacktide.observability.logs import LogFormat, configure
from slacktide.server.settings import ServerSettings

log = logging.getLogger("slacktide.server")

ENV = "SLACKTIDE_"
_ACCESS = "Access"
_LOGS = "Logs, traces, recordings"


def values_from_file(context: typer.Context, path: Path | None) -> Path | None:
    """Callback of `--config FILE`, which must be eager: take defaults from a YAML file whose keys
    are flags without leading dashes. Ends the program for an invalid file or key."""
    if path is None:
        return None
    import yaml

    try:
        with open_file(path) as file:
            document = yaml.safe_load(file.read().decode()) or {}
    except OSError as error:
        fail(f"--config: {path}: cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        fail(f"--config: {path}: expected UTF-8")
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        fail(f"--config: {path}: expected YAML: {' '.join(str(error).split())}")
    if not isinstance(document, dict):
        fail("--config: expected a mapping of flags to values")
    parameters = {
        name.lstrip("-"): parameter.name
        for parameter in context.command.params
        for name in parameter.opts
        if name.startswith("--")
    }
    unknown = [key for key in document if str(key).replace("_", "-") not in parameters]
    if unknown:
        hint = did_you_mean(str(unknown[0]).replace("_", "-"), parameters)
        fail(f"--config: unknown key {unknown[0]!r}{hint}")
    values = {
        parameters[flag]: _flag_value(flag, value)
        for flag, value in ((str(key).replace("_", "-"), value) for key, value in document.items())
    }
    context.default_map = {**(context.default_map or {}), **values}
    return path


def _flag_value(flag: str, value: Any) -> Any:
    """Convert a list or mapping in the file to the flag's form. Ends the program if the flag takes
    neither."""
    if not isinstance(value, list | dict):
        return value
    hints, options = get_type_hints(ServerSettings), options_of(ServerSettings)
    origins = {
        flag_of(name, declared): get_origin(hints[name]) for name, declared in options.items()
    }
    if origins.get(flag) is Mapping:
        if isinstance(value, list):
            return [str(pair) for pair in value]
        # Values other than text are written as JSON, which is valid YAML.
        texts = (text if isinstance(text, str) else dumps(text) for text in value.values())
        return [f"{key}={text}" for key, text in zip(value, texts, strict=True)]
    if origins.get(flag) is tuple and isinstance(value, list):
        return ",".join(map(str, value))
    kind = "a list" if isinstance(value, list) else "keys and values"
    expected = "a list" if origins.get(flag) is tuple else "a single value"
    return fail(f"--config: {flag}: expected {expected}, got {kind}")


def _file(text: str, name: str) -> Any:
    """An option for a TLS file, with the environment variable `name`."""
    return option(_ACCESS, text, metavar="FILE", envvar=f"{ENV}{name}")


@with_flags(ServerSettings, env=ENV, after="config")
def serve(
    context: typer.Context,
    repository: Annotated[
        Path,
        typer.Argument(
            help="Folder of models in Triton's layout, or one ONNX file.",
            envvar=f"{ENV}REPOSITORY",
        ),
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with flags as keys. Environment variables and flags override it.",
            envvar=f"{ENV}CONFIG",
            callback=values_from_file,
            is_eager=True,
        ),
    ] = None,
    tls_cert: Annotated[Path | None, _file("Certificate chain (PEM).", "TLS_CERT")] = None,
    tls_key: Annotated[
        Path | None, _file("Private key of the certificate (PEM).", "TLS_KEY")
    ] = None,
    tls_client_ca: Annotated[
        Path | None, _file("Require client certificates signed by this CA.", "TLS_CLIENT_CA")
    ] = None,
    log_level: Annotated[
        str, option(_LOGS, "Log level: debug, info, warning or error.", envvar=f"{ENV}LOG_LEVEL")
    ] = "info",
    log_format: Annotated[
        LogFormat,
        option(
            _LOGS,
            "Format of log lines: text (for people) or json.",
            envvar=f"{ENV}LOG_FORMAT",
        ),
    ] = LogFormat.TEXT,
    take_over: Annotated[
        bool,
        option(
            "Addresses",
            "Load the models, then take the ports of the server that runs with this --state-dir; "
            "it drains.",
            "--take-over",
            envvar=f"{ENV}TAKE_OVER",
        ),
    ] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the effective settings, and exit.")
    ] = False,
    **flags: Any,
) -> None:
    """Serve the models of a repository over HTTP and gRPC, on time.

    Example: slacktide serve models/ --http-port 8000 --log-format json

    Example: slacktide serve model.onnx

    Example: slacktide serve models/ --cores 4 --allow-fewer-cores --cpu-allocator cgroup

    Example: slacktide serve models/ --placement pipeline --glue upright=shop.pictures:upright
    """
    settings = from_flags(ServerSettings, flags)
    if tls_cert is not None or tls_key is not None or tls_client_ca is not None:
        if tls_cert is None or tls_key is None:
            fail("--tls-cert and --tls-key: expected both")
        settings = replace(settings, tls=TlsFiles(tls_cert, tls_key, tls_client_ca))
    if print_config:
        print_json(settings)
        return
    with background_stderr():
        try:
            configure(log_level, log_format)
        except ValueError as error:
            fail(f"--log-level: {error}")
        if context.obj:
            log.info("ignored, as set by Kubernetes for Services: %s", ", ".join(context.obj))
        raise typer.Exit(run(repository, settings, take_over=take_over))


OTHER_DESCRIPTORS = 256
"""Descriptors besides connections: workers (a pipe, an arena, shared memory each), files, logs."""
FEWEST_DESCRIPTORS = 64
"""Minimum to start: ports, one worker and a few connections need about 40."""


def make_room_for_connections(settings: ServerSettings) -> str | None:
    """Raise this process's limit on open files to the system's maximum.

    Returns a warning if that is too low for `max_connections` on every port. Raises ValueError if
    it is too low to start.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # the limit is then unchanged
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft != resource.RLIM_INFINITY and soft < FEWEST_DESCRIPTORS:
        needs = f"and needs at least {FEWEST_DESCRIPTORS} to start"
        raise ValueError(
            f"this process may open {soft} files, {needs}: raise the limit (ulimit -n)"
        )
    ports = (settings.http_port, settings.grpc_port, settings.metrics_port, settings.control_port)
    open_ports = len(ports) - ports.count(None)
    needed = open_ports * settings.max_connections + OTHER_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return None
    affordable = max(1, (soft - OTHER_DESCRIPTORS) // max(1, open_ports))
    return (
        f"this process may open {soft} files, but {settings.max_connections} connections on each "
        f"of {open_ports} ports need {needed}: raise the limit (ulimit -n) or set "
        f"--max-connections to {affordable} or less"
    )


CLOSE_S = 15.0
"""Seconds between the drain limit and the end of the process, in which workers, recordings and
traces must finish."""
THREADS_S = 2.0
"""Seconds that threads may still wait for files after everything else has ended."""


def leave(code: int) -> NoReturn:
    """End this process whatever its threads do, after a moment to write the log."""
    if isinstance(sys.stderr, LogWriter):
        sys.stderr.finish(0.2)
    os._exit(code)


def _tune_gc() -> None:
    """Exclude all loaded objects from garbage collection, and collect less often: requests leave
    few cycles behind. By default Python would scan all objects some hundred times a second under
    load."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def run(repository: Path, settings: ServerSettings, *, take_over: bool = False) -> int:
    """Serve until a signal comes or another server takes over. Returns the exit code. Raises
    UnsupportedKernelError."""
    require_kernel()
    # Cores are for workers: multiply matrices on one core here. Must be set before NumPy loads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    import uvloop

    from slacktide.cluster import PodError
    from slacktide.models.repository.errors import RepositoryError
    from slacktide.observability.tracing import TracingUnavailable
    from slacktide.recording import RecordingError
    from slacktide.server.app import App

    async def main() -> int:
        code = 0
        app = App(repository, settings, take_over=take_over)
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()

        def on_signal() -> None:
            if stopping.is_set():
                leave(1)  # a second signal ends the process immediately
            stopping.set()
            # Ends the process even if something hangs, such as a thread waiting for a lost disk.
            limit_s = settings.drain_delay_s + settings.drain_timeout_s + CLOSE_S
            end = threading.Timer(limit_s, leave, (1,))
            end.daemon = True
            end.start()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        if app.credentials.files:
            loop.add_signal_handler(
                signal.SIGHUP, lambda: loop.run_in_executor(None, app.credentials.reload)
            )
        starting = asyncio.create_task(app.start())
        stop = asyncio.create_task(stopping.wait())
        await asyncio.wait({starting, stop}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            _tune_gc()
            broken = asyncio.create_task(app.driver.broken.wait())
            superseded = asyncio.create_task(app.superseded.wait())
            ends = {stop, broken, superseded}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            broken.cancel()
            if superseded.done() and not stopping.is_set():
                log.info("another server has taken over")
                on_signal()
            superseded.cancel()
            if app.driver.broken.is_set():
                code = FELL_SHORT
            else:
                await app.drain()
        else:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        stop.cancel()
        await app.close()
        try:
            async with asyncio.timeout(THREADS_S):
                await asyncio.shield(loop.shutdown_default_executor())
        except TimeoutError:
            log.warning("a thread is still waiting for a file; exiting without it")
            leave(code)
        return code

    try:
        if (shortage := make_room_for_connections(settings)) is not None:
            log.warning(shortage)
        return uvloop.run(main())
    except RepositoryError as error:
        fail(str(error) if error.where else f"{repository}: {error}")
    except (
        OSError,
        PodError,
        RecordingError,
        SecurityError,
        TracingUnavailable,
        ValueError,
    ) as error:
        fail((isinstance(error, OSError) and error.strerror) or str(error))
