"""The command line: `slacktide VERB`. Each verb has a file of its own here, imported when used.

Exit codes: 0 done, 1 the result falls short of what was asked, 2 bad usage, 130 stopped by Ctrl-C,
143 stopped by SIGTERM.
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
    "profile": "Measure a model's latency by batch size and cores, and store it beside the model.",
    "load": "Send open-loop load with deadlines, and report how much was answered on time.",
    "simulate": "Run a scenario under virtual time, with the server's own engine and schedulers.",
    "demo": "Serve example models under bursty load with deadlines, once for each way of batching.",
    "models": "Make example models; check a repository.",
    "exits": "Learn where a classifier can answer early.",
    "reproduce": "Rerun a published evaluation, and print our figures beside the published ones.",
}
"""Every verb, and the first sentence of its help."""

PLACES: Mapping[str, str] = {
    "load": "slacktide.lab.cli.load:load",
    "simulate": "slacktide.lab.cli.simulate:simulate",
    "demo": "slacktide.lab.cli.demo:demo",
    "models make": "slacktide.lab.cli.models:make",
}
"""The verbs of `lab`. These strings and `PROFILE_PAGE` are all that the server knows of it."""

ELSEWHERE: Mapping[str, str] = {"reproduce": PAPERS}
"""Verbs of other distributions of ours, each with the command that installs it."""

PROFILE_PAGE = "slacktide.lab.reports:profile_page"
"""Draws the page of `profile --plot`."""


def load_verb(name: str) -> Any:
    """The command that a verb is, with all that it imports. Ends the program with a sentence if it
    belongs to a distribution that is not installed or cannot be imported."""
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
    """Lists the verbs, and completes their names, without importing any."""

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
    # Every flag can be set from the environment too, as SLACKTIDE_VERB_FLAG.
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
    """Run the verb of the command line. SIGTERM does what Ctrl-C does, whatever that is in a
    verb, so that no process, semaphore or temporary folder is left behind."""
    terminated = False

    def terminate(number: int, frame: FrameType | None) -> None:
        nonlocal terminated
        terminated = True
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun with & in a script
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
        if not _of_an_interrupt(error):
            raise
        code = INTERRUPTED
    sys.exit(128 + signal.SIGTERM if terminated else code)


def _of_an_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C struck in the middle of an import, say, and came out as what that makes of
    it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None
