"""`ExtensionGroup`: a group of commands that other distributions can extend."""

from __future__ import annotations

from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from slacktide._extensions import Extension, ExtensionError, find_extension, installed
from slacktide.cli.arguments import check_paths
from slacktide.cli.output import fail


class ExtensionGroup(TyperGroup):
    """Our own commands, those of entry points, and any that the command line names as
    `module:name`. Listing commands imports no extension. Our own commands cannot be replaced."""

    kind: ClassVar[str]
    """The kind of extension, such as `verb`; its plural names the extension point."""

    def built_in(self) -> list[str]:
        """The names of our own commands in the order of the help."""
        return super().list_commands(None)  # type: ignore[arg-type]  # no context is needed

    def make(self, name: str, extension: Any) -> Any:
        """Make the command of a loaded extension."""
        return make_command(name, extension)

    def list_commands(self, ctx: Any) -> list[str]:
        built_in = self.built_in()
        return [*built_in, *sorted(installed(f"{self.kind}s").keys() - {*built_in})]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        extension = find_extension(f"{self.kind}s", cmd_name)
        if extension is None or cmd_name in self.built_in():
            return None
        return TyperCommand(cmd_name, help=f"From {extension.origin}.")

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        is_built_in = name in self.built_in()
        extension = None if is_built_in else find_extension(f"{self.kind}s", name)
        if extension is not None:
            self.commands[name] = self.make(name, load_extension(self.kind, extension))
        elif not is_built_in:
            for command in self.list_commands(ctx):  # for "did you mean"
                self.commands.setdefault(command, self.get_command(ctx, command))
        return super().resolve_command(ctx, args)


def load_extension(kind: str, extension: Extension) -> Any:
    """Import an extension. Ends the program with a message if it cannot be used."""
    try:
        return extension.load()
    except ExtensionError as error:
        fail(f"{kind} {error}")


def make_command(name: str, verb: Any) -> Any:
    """Make a command from a function or a `typer.Typer`. Ends the program with a message for
    anything else."""
    if not callable(verb):
        kind = type(verb).__name__
        fail(f"verb {name!r} cannot be used: expected a function or a typer.Typer, got a {kind}")
    if not isinstance(verb, typer.Typer):
        function, verb = verb, typer.Typer(add_completion=False, rich_markup_mode="rich")
        verb.command(name)(function)
    command: Any = typer.main.get_command(verb)
    command.name = name
    check_paths(command)
    return command
