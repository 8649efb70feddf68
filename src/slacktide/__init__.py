"""Slacktide: an inference server that answers on time.

`Server` runs a complete server inside a program. Everything else is on the command line
(`slacktide --help`). Heavy modules are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slacktide._faces import lazy_names
from slacktide._version import __version__

if TYPE_CHECKING:
    from slacktide.server.embedded import Server
else:
    __getattr__ = lazy_names(__name__, {"server.embedded": "Server"})

__all__ = ["Server", "__version__"]
