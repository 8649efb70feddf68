"""Errors of the load generator.

    LoadError               whatever stops a run before it starts
    ├── LoadSpecError       the run that was asked for cannot be; names the flag
    └── TargetError         the server cannot be reached or does not know the model

What goes wrong with single requests is no error here but an outcome, counted.
"""

from __future__ import annotations


class LoadError(Exception):
    """A run that cannot start."""


class LoadSpecError(LoadError):
    """The run that was asked for cannot be. `flag` names what is wrong."""

    def __init__(self, flag: str, message: str) -> None:
        super().__init__(f"{flag}: {message}")
        self.flag = flag


class TargetError(LoadError):
    """The server cannot be reached, or does not know what was asked of it."""
