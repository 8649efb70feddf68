"""The command line: `slacktide VERB`. Each verb has its own file, which is imported when used.

Exit codes: 0 success, 1 the result falls short of what was required, 2 bad usage, 130 stopped by
Ctrl-C, 143 stopped by SIGTERM.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from slacktide._extensions import import_named, installed
from slacktide._version import BUILD, PAPERS, __version__
from slacktide.cli.arguments import take_service_links
from slacktide.cli.extension_group import ExtensionGroup, load_extension, make_command
from slacktide.cli.output import fail

INTERRUPTED = 128 + signal.SIGINT

VERBS: Mapping[str, str] = {
    "serve": "Serve the models of a repository over HTTP and gRPC, on time.",
    "profile": "Measure a model's latency by batch size and cores, and store it with the model.",
    "load": "Send open-loop load with deadlines, and report how much was answered on time.",
    "simulate": "Run a scenario in virtual time, with the server's own engine and schedulers.",
    "cluster": "Keep several servers running, as one.",
    "demo": "Serve example models under bursty load with deadlines, once per batching policy.",
    "models": "Make example models; check a repository.",
    "exits": "Learn where a classifier can answer early.",
    "reproduce": "Rerun a published evaluation, and compare our figures with the published ones.",
}
"""All verbs, with the first sentence of their help."""

PLACES: Mapping[str, str] = {
    "load": "slacktide.lab.cli.load:load",
    "simulate": "slacktide.lab.cli.simulate:simulate",
    "demo": "slacktide.lab.cli.demo:demo",
    "models make": "slacktide.lab.cli.models:make",
}
"""Verbs of `lab`. The server refers to `lab` only in these strings and `PROFILE_PAGE`."""

ELSEWHERE: Mapping[str, str] = {"reproduce": PAPERS}
"""Verbs of our other distributions, with the commands that install them."""

PROFILE_PAGE = "slacktide.lab.reports:profile_page"
"""The function that draws the page of `profile --plot`."""


def load_verb(name: str) -> Any:
    """Import the command of a verb. Ends the program with a message if its distribution is not
    installed or cannot be imported."""
    if name in ELSEWHERE:
        extension = installed("verbs").get(name)
        if extension is None:
            fail(f"{name} is not installed; install it with: {ELSEWHERE[name]}")
        return make_command(name, load_extension("verb", extension))
    command = make_command(name, import_named(PLACES.get(name, f"slacktide.cli.{name}:{name}")))
    for path in PLACES:
        if path.startswith(f"{name} "):
            subcommand = load_verb(path)
            subcommand.name = path.removeprefix(f"{name} ")
            command.add_command(subcommand)
    return command


class _Verbs(ExtensionGroup):
    """The group of all verbs. Listing and completing them imports none."""

    kind = "verb"

    def built_in(self) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in VERBS and cmd_name not in self.commands:
            return TyperCommand(cmd_name, help=VERBS[cmd_name])
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        ctx.obj = take_service_links()
        try:
            return super().invoke(ctx)
        except OSError as error:
            from slacktide.executors.kernel import UnsupportedKernelError

            if isinstance(error, UnsupportedKernelError):
                fail(str(error))
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in VERBS:
            self.commands[args[0]] = load_verb(args[0])
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="slacktide",
    cls=_Verbs,
    help="An inference server that answers on time.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    # Every flag can also be set in the environment, as SLACKTIDE_VERB_FLAG.
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "SLACKTIDE"},
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"slacktide {__version__} ({BUILD})")
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
    """Run the command line. SIGTERM has the same effect as Ctrl-C, so that no process, semaphore or
    temporary folder is left behind."""
    terminated = False

    def terminate(number: int, frame: FrameType | None) -> None:
        nonlocal terminated
        terminated = True
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started with & in a script
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, terminate)
    try:
        app()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except SystemExit as end:
        if end.code != INTERRUPTED:
            raise
        code = INTERRUPTED
    except Exception as error:
        if not _caused_by_interrupt(error):
            raise
        code = INTERRUPTED
    sys.exit(128 + signal.SIGTERM if terminated else code)


def _caused_by_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C caused an error, for instance in the middle of an import."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None
