"""The command line: `slacktide VERB`. Each verb has a file of its own here.

Exit codes: 0 done, 1 the result falls short of what was asked, 2 bad usage.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from slacktide._version import __version__
from slacktide.cli.demo import demo
from slacktide.cli.load import load
from slacktide.cli.models import models
from slacktide.cli.profile import profile
from slacktide.cli.reproduce import reproduce
from slacktide.cli.serve import serve
from slacktide.cli.simulate import simulate

app = typer.Typer(
    name="slacktide",
    help="An inference server that answers on time.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    # Every flag can be set from the environment too, as SLACKTIDE_VERB_FLAG.
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "SLACKTIDE",
    },
)
app.command()(serve)
app.command()(profile)
app.command()(load)
app.command()(simulate)
app.command()(demo)
app.add_typer(models)
app.add_typer(reproduce)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"slacktide {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """An inference server that answers on time."""


def main() -> None:
    """Entry point of the `slacktide` program."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
