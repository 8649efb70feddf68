"""What the detector `street_depth` takes and finds: whole, at each depth, and with exits by judges.

    taskset -c 0 python examples/models/measure_depths.py [SCENES]

Depths: processor time of the part of the file that a depth opens, and its mean average precision on
scenes that training never saw. Exits: a picture leaves after the first head whose judge says that
its detections are good enough; the others go on, and have paid for that head. For each share of
pictures that leave, the mean time against that of the whole chain without such heads, and the mean
average precision over all pictures; beside it the same share of pictures chosen at random, and by
the truth (those that lose least by themselves), which no judge knows. Handing tensors from stage to
stage is not counted.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import cv2
import numpy as np
import onnxruntime

import slacktide.lab.examples
from slacktide.executors.onnx_file import OnnxFile
from slacktide.lab.examples.catalog import Array
from slacktide.lab.examples.street import Street
from slacktide.models.accuracy import Boxes, score_detections

FIRST = 2_000_000_000
"""Seed of the first scene."""
SIZE = 416
FILE = Path(slacktide.lab.examples.__file__).parent / "models" / "street_depth" / "model.onnx"
RUNS = 40


def main() -> None:
    scenes = [Street(FIRST + i).scene() for i in range(int((sys.argv[1:] or ["150"])[0]))]
    truth = [Boxes(scene.boxes(), scene.kinds()) for scene in scenes]
    shape = (SIZE, SIZE)
    pictures = [cv2.resize(scene.picture, shape, interpolation=cv2.INTER_AREA) for scene in scenes]
    heads = [
        [f"{prefix}{name}" for name in ("boxes", "scores", "classes")]
        for prefix in ("depth1/", "depth2/", "")
    ]
    judges = ["depth1/quality", "depth2/quality"]
    whole = opened([*heads[0], *heads[1], *heads[2], *judges])
    answers = [whole.run(None, {"image": picture[None]}) for picture in pictures]
    detections = [
        [Boxes(a[3 * d][0], a[3 * d + 2][0], a[3 * d + 1][0]) for a in answers] for d in range(3)
    ]
    quality = np.array([[float(a[9][0]), float(a[10][0])] for a in answers])

    print(f"| depth | mAP at {SIZE} pixels | ms | of the whole |\n| --- | ---: | ---: | ---: |")
    alone = times([opened(head) for head in heads], pictures)
    for depth, seconds in enumerate(alone):
        score = score_detections(detections[depth], truth).ap50
        share = seconds / alone[-1]
        print(f"| {depth + 1} | {score:.3f} | {1e3 * seconds:.1f} | {share:.2f} |")

    chain = times(
        [
            opened([*heads[0], judges[0]]),
            opened([*heads[0], *heads[2], judges[0]]),
            opened([*heads[1], judges[1]]),
            opened([*heads[1], *heads[2], judges[1]]),
        ],
        pictures,
    )
    rng = np.random.default_rng(0)
    for head in (0, 1):
        out, through = chain[2 * head : 2 * head + 2]
        print(f"\nExits after depth {head + 1}:\n")
        print("| leave | mean time | mAP | at random | by the truth |")
        print("| ---: | ---: | ---: | ---: | ---: |")
        order = np.argsort(-quality[:, head])
        by_truth = np.argsort(
            [lost(detections[head][i], detections[2][i], t) for i, t in enumerate(truth)]
        )
        for share in (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1):
            count = round(share * len(order))
            mean = (share * out + (1 - share) * through) / alone[-1]
            scores = []
            for ranked in (order, rng.permutation(order), by_truth):
                left = set(ranked[:count].tolist())
                mixed = [detections[head if i in left else 2][i] for i in range(len(truth))]
                scores.append(score_detections(mixed, truth).ap50)
            cells = " | ".join(f"{score:.3f}" for score in scores)
            print(f"| {share:.0%} | {mean:.2f} | {cells} |", flush=True)


def lost(early: Boxes, late: Boxes, truth: Boxes) -> float:
    """What a picture by itself loses, in mean average precision."""
    scores = [score_detections([boxes], [truth]).ap50 for boxes in (late, early)]
    return scores[0] - scores[1]


def opened(outputs: list[str]) -> onnxruntime.InferenceSession:
    """The part of the file that these outputs need."""
    content = OnnxFile(FILE, FILE.parent, dict(zip(outputs, outputs, strict=True))).content
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def times(sessions: list[onnxruntime.InferenceSession], pictures: list[Array]) -> list[float]:
    """Processor seconds of a picture in each session, medians of runs in turn."""
    taken: list[list[float]] = [[] for _ in sessions]
    for run in range(RUNS):
        for session, seconds in zip(sessions, taken, strict=True):
            start = time.thread_time()
            session.run(None, {"image": pictures[run % len(pictures)][None]})
            seconds.append(time.thread_time() - start)
    return [float(np.median(seconds)) for seconds in taken]


if __name__ == "__main__":
    main()
