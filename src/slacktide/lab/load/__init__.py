"""The open-loop load generator: sends on time, however slow the server, and uses its own clock.

It is a client for any Open Inference Protocol server over HTTP or gRPC, independent of Slacktide's
server code. A run ends in a `Report`, which `slacktide.lab.reports` shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slacktide._faces import lazy_names

if TYPE_CHECKING:
    from slacktide.lab.load.played_rows import PlayedRow as PlayedRow
    from slacktide.lab.load.played_rows import exit_stats as exit_stats
    from slacktide.lab.load.played_rows import play_rows as play_rows
    from slacktide.lab.load.server_process import ProcessError as ProcessError
    from slacktide.lab.load.server_process import serving as serving
    from slacktide.lab.load.server_process import split_cores as split_cores
    from slacktide.lab.load.spec import Transport as Transport
    from slacktide.lab.load.traces import read_bandwidths as read_bandwidths
    from slacktide.lab.load.traces import read_trace as read_trace
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "played_rows": "PlayedRow exit_stats play_rows",
            "server_process": "ProcessError serving split_cores",
            "spec": "Transport",
            "traces": "read_bandwidths read_trace",
        },
    )
