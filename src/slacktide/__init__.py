"""Slacktide: an inference server that answers on time.

`Server` runs a whole server inside a program; everything else is on the command line
(`slacktide --help`). Nothing heavy is loaded before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slacktide._version import __version__

if TYPE_CHECKING:
    from slacktide.server.embedded import Server

__all__ = ["Server", "__version__"]


def __getattr__(name: str) -> object:
    if name == "Server":
        from slacktide.server.embedded import Server

        return Server
    raise AttributeError(f"module 'slacktide' has no attribute {name!r}")
