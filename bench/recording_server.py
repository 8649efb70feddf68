"""`slacktide serve`, with a line for every batch in the file that BENCH_BATCH_LOG names.

    model rows cpu_s infer_s seconds

`cpu_s` is the CPU time of the worker's threads over the batch, as the worker measured it. The
server's own metrics hold histograms; a p99 within 15 % needs each value.
"""

from __future__ import annotations

import os

from slacktide.cli.main import main as serve
from slacktide.domain import Batch, BatchTiming
from slacktide.models.replica_launcher import ReplicaLauncher
from slacktide.server import app


class RecordingLauncher(ReplicaLauncher):
    """The server's, with a pen."""

    _log = open(os.environ["BENCH_BATCH_LOG"], "a", buffering=1)  # noqa: SIM115  (for good)

    def finished(self, batch: Batch, timing: BatchTiming, seconds: float) -> None:
        model = batch.replica.pool.model
        self._log.write(f"{model} {batch.rows} {timing.cpu_s} {timing.infer_s} {seconds}\n")
        super().finished(batch, timing, seconds)


def main() -> None:
    """Run the command line with it in the place of the server's."""
    app.ReplicaLauncher = RecordingLauncher  # the one seam that sees every batch
    serve()
