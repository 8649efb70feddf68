"""`slacktide serve` whose workers may run on every core, whatever their lane has: as where nothing
keeps models off each other's cores (bench/windows.py)."""

from __future__ import annotations

import os

from slacktide.cli.main import main as serve
from slacktide.executors import process
from slacktide.executors.allocator import AffinityAllocator, Confirm, Grant, bind


class LooseAllocator(AffinityAllocator):
    """Says that it did as it was told."""

    def grant(self, pid: int, cores: tuple[int, ...], confirm: Confirm) -> None:
        bind(pid, tuple(sorted(os.sched_getaffinity(0))))
        confirm(Grant(cores, float(len(cores))))


def main() -> None:
    """Run the command line with it in the place of the server's."""
    process.AffinityAllocator = LooseAllocator  # type: ignore[misc]  # the default of executors
    serve()
