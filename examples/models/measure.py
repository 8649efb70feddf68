"""Latency of the example models by batch, on one core, in ONNX Runtime alone.

    taskset -c 0 python examples/models/measure.py [MODEL ...]

Prints a row for each model: the median time of a run in milliseconds at each batch, and how much
more one core does at the best batch than at batch 1. The text encoder gets a row for each length.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import onnxruntime

from slacktide.examples import MODELS, example, make_inputs
from slacktide.examples.catalog import Array

BATCHES = (1, 2, 4, 8, 16, 32, 64)
LENGTHS = (8, 32, 64, 128, 256)
SECONDS = 0.5
"""How long each point is measured, five runs at the least."""


def main() -> None:
    print("| model |" + "".join(f" {batch} |" for batch in BATCHES) + " gain |")
    print("| --- |" + " ---: |" * (len(BATCHES) + 1))
    for name in sys.argv[1:] or MODELS:
        session = _open(name)
        if name == "text":
            for length in LENGTHS:
                _row(f"text, {length} tokens", session, _tokens(length))
        else:
            _row(name, session, make_inputs(name, 1, seed=0).batch())


def _open(name: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    content = example(name).onnx()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _tokens(length: int) -> dict[str, Array]:
    ids = np.random.default_rng(0).integers(3, 200, (1, length))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def _row(title: str, session: onnxruntime.InferenceSession, one: dict[str, Array]) -> None:
    times = {}
    for batch in BATCHES:
        feed = {name: np.repeat(value, batch, axis=0) for name, value in one.items()}
        times[batch] = _median_ms(session, feed)
    gain = max(batch * times[1] / t for batch, t in times.items())
    print(f"| {title} |" + "".join(f" {t:.3g} |" for t in times.values()) + f" {gain:.1f} × |")


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
