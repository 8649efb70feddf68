"""`slacktide serve REPOSITORY`: flags for `ServerSettings`; `serving.py` does the rest."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer

from slacktide.cli.flags import from_flags, printed, with_flags
from slacktide.cli.output import fail, option, print_json
from slacktide.frontends.security import TlsFiles
from slacktide.observability.logs import LogFormat, configure
from slacktide.server.settings import ServerSettings

ENV = "SLACKTIDE_"
_ACCESS = "Who may do what"
_SEEN = "What can be seen"


def values_from_file(context: typer.Context, path: Path | None) -> Path | None:
    """`--config FILE`: defaults from a YAML file; its keys are the flags without dashes in front.

    A callback of an eager option. Ends the program for a file or a key that cannot be used.
    """
    if path is None:
        return None
    import yaml

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


@with_flags(ServerSettings, env=ENV, after="config")
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
    tls_cert: Annotated[
        Path | None,
        option(_ACCESS, "Certificate chain (PEM).", metavar="FILE", envvar=f"{ENV}TLS_CERT"),
    ] = None,
    tls_key: Annotated[
        Path | None,
        option(_ACCESS, "Its private key (PEM).", metavar="FILE", envvar=f"{ENV}TLS_KEY"),
    ] = None,
    tls_client_ca: Annotated[
        Path | None,
        option(
            _ACCESS,
            "Require client certificates of this CA.",
            metavar="FILE",
            envvar=f"{ENV}TLS_CLIENT_CA",
        ),
    ] = None,
    log_level: Annotated[
        str, option(_SEEN, "debug, info, warning or error.", envvar=f"{ENV}LOG_LEVEL")
    ] = "info",
    log_format: Annotated[
        LogFormat, option(_SEEN, "Lines for people or for machines.", envvar=f"{ENV}LOG_FORMAT")
    ] = LogFormat.TEXT,
    print_config: Annotated[
        bool,
        typer.Option("--print-config", help="Print the settings in effect, and exit."),
    ] = False,
    **given: Any,
) -> None:
    """Serve the models of a repository over HTTP and gRPC, on time.

    Example: slacktide serve models/ --http-port 8000 --log-format json

    Example: slacktide serve models/ --cores 4 --allow-fewer-cores --cpu-allocator cgroup
    """
    settings = from_flags(ServerSettings, given)
    if tls_cert is not None or tls_key is not None or tls_client_ca is not None:
        if tls_cert is None or tls_key is None:
            fail("--tls-cert and --tls-key: both are needed")
        settings = replace(settings, tls=TlsFiles(tls_cert, tls_key, tls_client_ca))
    if print_config:
        print_json(printed(settings))
        return
    try:
        configure(log_level, log_format)
    except ValueError as error:
        fail(f"--log-level: {error}")
    from slacktide.cli.serving import run

    raise typer.Exit(run(repository, settings))
