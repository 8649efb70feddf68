"""mosec with one ONNX model: `python mosec_server.py MODEL.onnx PORT MAX_BATCH`.

Runs in mosec's own environment. One setting for every model and load: see peers/__init__.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

if __name__ == "__main__":
    # mosec reads flags of its own: ours go into the environment, where its worker finds them.
    os.environ["BENCH_MODEL"], os.environ["MOSEC_PORT"], os.environ["BENCH_BATCH"] = sys.argv[1:4]
    os.environ["MOSEC_ADDRESS"] = "127.0.0.1"
    os.environ["MOSEC_LOG_LEVEL"] = "error"
    sys.argv[1:] = []

from mosec import Server, Worker
from raw_model import RawModel, Row

WAIT_MS = 1
"""The least that mosec offers; its default of 10 ms is a model's whole run here."""


class Inference(Worker):
    """Raw bodies in batches; mosec hands over one row where it may not batch."""

    req_mime_type = "application/octet-stream"
    resp_mime_type = "application/octet-stream"

    def __init__(self) -> None:
        super().__init__()
        self.model = RawModel(Path(os.environ["BENCH_MODEL"]))

    def deserialize(self, data: bytes) -> Row:
        return self.model.read(data)

    def forward(self, data: list[Row] | Row) -> list[bytes] | bytes:
        if isinstance(data, list):
            return self.model.run(data)
        return self.model.run([data])[0]

    def serialize(self, data: bytes) -> bytes:
        return data


if __name__ == "__main__":
    server = Server()
    batch = int(os.environ["BENCH_BATCH"])
    server.append_worker(Inference, num=1, max_batch_size=batch, max_wait_time=WAIT_MS)
    server.run()
