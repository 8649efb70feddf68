"""Latency of the example models by batch, on one core, in ONNX Runtime alone.

    taskset -c 0 python examples/models/measure.py [MODEL ...]

Prints a row for each model: the median time of a run in milliseconds at each batch, and how much
more one core does at the best batch than at batch 1. The text encoder gets a row for each length,
the detector for each size, the family of vehicle classifiers for each depth.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import onnxruntime

from slacktide.lab.examples import MODELS, example, make_inputs
from slacktide.lab.examples.catalog import Array

BATCHES = (1, 2, 4, 8, 16, 32, 64)
LENGTHS = (8, 32, 64, 128, 256)
SIZES = range(128, 609, 32)
SECONDS = 0.5
"""How long each point is measured, five runs at the least."""


def main() -> None:
    print("| model |" + "".join(f" {batch} |" for batch in BATCHES) + " gain |")
    print("| --- |" + " ---: |" * (len(BATCHES) + 1))
    for name in sys.argv[1:] or MODELS:
        inputs = make_inputs(name, 1, seed=0).batch()
        for file, content in example(name).onnx_files().items():
            session = _open(content)
            if name == "text":
                for length in LENGTHS:
                    _row(f"text, {length} tokens", session, _tokens(length))
            elif name.startswith("street"):
                for size in SIZES:
                    cut = {"image": np.ascontiguousarray(inputs["image"][:, :size, :size])}
                    _row(f"{name}, {size} pixels", session, cut, BATCHES[:4])
            else:
                title = name if file == "model.onnx" else f"{name}, {file.removesuffix('.onnx')}"
                _row(title, session, inputs)


def _open(content: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _tokens(length: int) -> dict[str, Array]:
    ids = np.random.default_rng(0).integers(3, 200, (1, length))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def _row(
    title: str,
    session: onnxruntime.InferenceSession,
    row: dict[str, Array],
    batches: tuple[int, ...] = BATCHES,
) -> None:
    times = {}
    for batch in batches:
        feed = {name: np.repeat(value, batch, axis=0) for name, value in row.items()}
        times[batch] = _median_ms(session, feed)
    gain = max(batch * times[1] / t for batch, t in times.items())
    cells = [f" {t:.3g} |" for t in times.values()] + [" |"] * (len(BATCHES) - len(times))
    print(f"| {title} |" + "".join(cells) + f" {gain:.1f} × |", flush=True)


def _median_ms(session: onnxruntime.InferenceSession, feed: dict[str, Array]) -> float:
    session.run(None, feed)
    taken: list[float] = []
    while len(taken) < 5 or sum(taken) < SECONDS:
        start = time.perf_counter()
        session.run(None, feed)
        taken.append(time.perf_counter() - start)
    return float(np.median(taken)) * 1e3


if __name__ == "__main__":
    main()
