"""Models of others in OpenVINO, bfloat16 and int8: rows/s and agreement, by `slacktide profile`.

Each model gets its file's own inputs: pages and lines of text, photographs or files of this
machine, prepared as its package prepares them (real_pictures.py). Every second row gives int8 its
ranges, and answers are compared on the others. One core. Needs a package index.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.machine import ROOT, cores
from bench.measurement import Figure, Options, Result, Table, at_least
from bench.others_rows import pages
from bench.pinned_models import CACHE
from bench.real_pictures import SEED, tasks
from slacktide.lab.examples.packaged import fetch
from slacktide.lab.examples.zoo import ZOO

MODELS = ("orientation", "direction", "opennsfw", "magika")
COUNT, QUICK = 400, 80
BUDGET, QUICK_BUDGET = "12s", "3s"
GOALS = {"bf16": (1.7, 0.99), "int8": (2.0, 0.98)}
"""Times the rows/s, and share of rows with the same class."""
GAINING = 2
"""Number of models that should reach both."""


def run(options: Options) -> Result:
    count, budget = (QUICK, QUICK_BUDGET) if options.quick else (COUNT, BUDGET)
    result = Result("precisions")
    columns = ("model", "precision", "backend", "× rows/s", "same class", "largest error", "MiB")
    rows: list[tuple[str, ...]] = []
    reached = dict.fromkeys(GOALS, 0)
    for name in MODELS:
        if not options.wants(name):
            continue
        ways = _ways(name, count, budget)
        first = ways[0]
        best = dict.fromkeys(GOALS, False)
        for way in ways:
            if way["reason"]:
                result.remarks.append(
                    f"{name}: {way['precision']}, {way['backend']}: {way['reason']}"
                )
                continue
            ratio, agreement = way["rows_per_s"] / first["rows_per_s"], way["agreement"]
            cells = ("–", "–")
            if agreement is not None:
                cells = f"{agreement['top1']:.3f}", f"{agreement['error']:.4f}"
            memory = f"{way['memory'] / (1 << 20):.0f}"
            rows.append((name, way["precision"], way["backend"], f"{ratio:.2f}", *cells, memory))
            if agreement is not None and way["precision"] in GOALS:
                least, share = GOALS[way["precision"]]
                best[way["precision"]] |= ratio >= least and agreement["top1"] >= share
        for precision, is_reached in best.items():
            reached[precision] += is_reached
    for precision, (least, share) in GOALS.items():
        title = f"models with {least:g} × rows/s in {precision}, {share:.0%} of classes the same"
        result.figures.append(Figure(title, reached[precision], goal=at_least(GAINING)))
    result.tables.append(Table(f"one core, {count} rows at most", columns, tuple(rows)))
    return result


def _ways(name: str, count: int, budget: str) -> list[dict[str, Any]]:
    """The rows of `slacktide profile --precisions` for a model."""
    packaged = ZOO[name].file
    fetch([packaged], CACHE)
    if name == "orientation":  # of documents, not of photographs
        feeds = [{"x": page[None]} for page in pages(count, np.random.default_rng(SEED))]
    else:
        task = tasks(count)[name]()
        feeds = [task.feeds(sample) for sample in task.samples]
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / name
        (model / "1").mkdir(parents=True)
        (model / "1" / "model.onnx").write_bytes(packaged.path(CACHE).read_bytes())
        arrays = {key: np.concatenate([feed[key] for feed in feeds]) for key in feeds[0]}
        fitting = max(1, (60 << 20) // sum(rows[:1].nbytes for rows in arrays.values()))
        np.savez(model / "rows.npz", **{key: rows[:fitting] for key, rows in arrays.items()})
        (model / "slacktide.yaml").write_text("max_batch: 8\nsamples: rows.npz\n")
        command = [
            "taskset",
            "-c",
            str(cores().server),
            sys.executable,
            "-m",
            "slacktide",
            "profile",
        ]
        command += [str(model), "--precisions", "--json", "--cores", "1", "--budget", budget]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        (ways,) = json.loads(done.stdout).values()
        return list(ways)
