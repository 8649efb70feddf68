"""The open-loop load generator: sends on time, whatever comes back, and judges by its own clock.

It is a client of any Open Inference Protocol server, HTTP or gRPC; it knows nothing of Slacktide's
server but the wire. What it measures becomes a `Report`, which `slacktide.reports` shows.
"""

from slacktide.load.build import build_spec, parse_target
from slacktide.load.discover import discover, server_metadata
from slacktide.load.errors import LoadError, LoadSpecError, TargetError
from slacktide.load.generate import run_load, run_load_sync
from slacktide.load.run import Progress
from slacktide.load.spec import (
    FilePayload,
    LoadSpec,
    RandomPayload,
    RawPayload,
    Stream,
    Target,
    Transport,
)

__all__ = [
    "FilePayload",
    "LoadError",
    "LoadSpec",
    "LoadSpecError",
    "Progress",
    "RandomPayload",
    "RawPayload",
    "Stream",
    "Target",
    "TargetError",
    "Transport",
    "build_spec",
    "discover",
    "parse_target",
    "run_load",
    "run_load_sync",
    "server_metadata",
]
