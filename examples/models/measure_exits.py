"""What leaving `street_depth` after its first head takes, for Figures 20 and 21 of Jellyfish.

    taskset -c 0 python examples/models/measure_exits.py [SCENES]

Writes `papers/src/slacktide_papers/jellyfish/street_depth.json`: by side of the pictures and batch,
the processor milliseconds of the uncut model, of the stage up to the first head's answers (judge
included), and of the rest, as a worker runs them; and the mean average precision by share of
pictures that leave, best first by the judge. Then prints what batches take that shrink, beside
those where the others run a deeper tail (`enlarge`).
"""

from __future__ import annotations

import json
import queue
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from measure_depths import FILE, FIRST

import slacktide
from slacktide.domain import ExitPolicy, Leaving, PoolId
from slacktide.executors.arranging import Arranger
from slacktide.executors.gathering import GatheredBatch
from slacktide.executors.ports import NO_FAULTS, ExitSource, ModelSource
from slacktide.executors.session import ModelSession
from slacktide.executors.session_pool import SessionPool
from slacktide.executors.staged import StageChain, StagedBatch
from slacktide.exits.own_exits import OwnExit
from slacktide.lab.examples.catalog import Array
from slacktide.lab.examples.street import Street
from slacktide.models.accuracy import Boxes, score_detections

SIDES, BATCHES, RUNS = (128, 288, 448, 608), (1, 2, 4, 8, 12), 12
SIZE = 416
WHOLE = ("boxes", "scores", "classes")
EXITS = tuple(
    OwnExit({name: f"depth{depth}/{name}" for name in WHOLE}, f"depth{depth}/quality")
    for depth in (1, 2)
)
DATA = Path(slacktide.__file__).parent / "reproduce" / "jellyfish" / "street_depth.json"


def main() -> None:
    count = int((sys.argv[1:] or ["400"])[0])
    scenes = [Street(FIRST + i).scene() for i in range(count)]
    rows = []
    for side in SIDES:
        pictures = resized(scenes[: max(BATCHES)], side)
        whole, cut = opened(side), opened(side, EXITS[0])
        for batch in BATCHES:
            feeds = {"image": pictures[:batch]}
            runs = []
            for _ in range(RUNS):
                alone = seconds(partial(whole.whole.run, list(WHOLE), feeds))
                runs.append((alone, *stages(cut, pictures[:batch], (0.0,), 0)))
            least = [round(1e3 * least_s, 3) for least_s in np.min(runs, axis=0)]
            rows.append([side, batch, *least])
            print(rows[-1], flush=True)
    enlarged(scenes)
    tables = {"times": rows, "accuracy": accuracy(scenes)}
    lists = [
        f' "{name}": [\n  ' + ",\n  ".join(map(json.dumps, table)) + "\n ]"
        for name, table in tables.items()
    ]
    DATA.write_text("{\n" + ",\n".join(lists) + "\n}\n")


def accuracy(scenes: list) -> list[list[float]]:
    """Share that leaves, mean average precision."""
    truth = [Boxes(scene.boxes(), scene.kinds()) for scene in scenes]
    names = [*WHOLE, *EXITS[0].outputs.values(), EXITS[0].quality]
    session = ModelSession.open(source(SIZE, dict(zip(names, names, strict=True))), threads=1).whole
    answers = [session.run(names, {"image": picture[None]}) for picture in resized(scenes, SIZE)]
    late, early = ([Boxes(a[at][0], a[at + 2][0], a[at + 1][0]) for a in answers] for at in (0, 3))
    order = np.argsort([-float(a[6][0]) for a in answers])
    points = []
    for share in np.arange(0.0, 1.01, 0.05):
        left = set(order[: round(float(share) * len(order))].tolist())
        mixed = [early[i] if i in left else late[i] for i in range(len(truth))]
        score = score_detections(mixed, truth).ap50
        points.append([round(float(share), 2), round(score, 4)])
    return points


def enlarged(scenes: list) -> None:
    """Batches that are planned to end at depth 2: all of it, with an exit after depth 1, and with
    the least sure going on in the time that others have left."""
    truth = [Boxes(scene.boxes(), scene.kinds()) for scene in scenes]
    pictures, cut = resized(scenes, SIZE), opened(SIZE, *EXITS)
    chain, batch = cut.stages, 8
    runs = np.min([ends(chain, pictures[:batch]) for _ in range(RUNS)], axis=0).tolist()
    small = np.min([ends(chain, pictures[:1]) for _ in range(RUNS)], axis=0).tolist()
    print("threshold, leave at depth 1, reach depth 3, ms a batch of 8, longest, mAP", flush=True)
    for limit in (0.0, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6):
        for grows in (False, True):
            chain.planned_end = -1
            if grows:
                chain.enlarge([1, batch], [small, runs])
            detections: list[Boxes] = []
            left, taken = [0, 0, 0], []
            for at in range(0, len(pictures), batch):
                boxes, counts, spent = answered(chain, pictures[at : at + batch], limit, grows)
                detections += boxes
                left = [a + b for a, b in zip(left, counts, strict=True)]
                taken.append(1e3 * spent)
            score = score_detections(detections, truth).ap50
            shares = ", ".join(f"{count / len(detections):.0%}" for count in (left[0], left[2]))
            mean, most = np.mean(taken), np.percentile(taken, 95)
            label = "enlarge" if grows else "shrink"
            print(f"{label} {limit}: {shares}, {mean:.1f}, {most:.1f}, {score:.3f}", flush=True)


def ends(chain: StageChain, pictures: Array) -> list[float]:
    """Seconds up to the end of each stage."""
    batch = gathered(pictures)
    run = StagedBatch(chain, batch, {}, Leaving.NONE, (), clock=time.thread_time)
    for _ in run.run(chain.stages(1)):
        pass
    return [*run.report().stage_s, time.thread_time() - batch.begin]


def answered(
    chain: StageChain, pictures: Array, limit: float, grows: bool
) -> tuple[list[Boxes], list[int], float]:
    """What was found, how many were answered at each depth, and the seconds."""
    batch = gathered(pictures)
    limits = {0: limit, 1: 0.0 if grows else np.inf}
    run = StagedBatch(chain, batch, limits, Leaving.SHRINK, (), clock=time.thread_time)
    detections: dict[int, Boxes] = {}
    counts = [0, 0, 0]
    for released in run.run(chain.stages(1)):
        boxes, scores, kinds = released.arrays
        counts[released.ramp] += len(released.places)
        for row, place in enumerate(released.places):
            detections[place] = Boxes(boxes[row], kinds[row], scores[row])
    spent = time.thread_time() - batch.begin
    rest = [place for place in range(len(pictures)) if place not in detections]
    if rest:
        (boxes, scores, kinds), counts[2] = run.rest()
        for row, place in enumerate(rest):
            detections[place] = Boxes(boxes[row], kinds[row], scores[row])
    return [detections[place] for place in range(len(pictures))], counts, spent


def gathered(pictures: Array) -> GatheredBatch:
    feeds, ones = {"image": pictures}, [1] * len(pictures)
    return GatheredBatch(feeds, ones, None, NO_FAULTS, time.thread_time(), 0.0)


def resized(scenes: list, side: int) -> Array:
    shape = (side, side)
    return np.stack(
        [cv2.resize(scene.picture, shape, interpolation=cv2.INTER_AREA) for scene in scenes]
    )


def source(side: int, outputs: dict[str, str], *exits: OwnExit) -> ModelSource:
    return ModelSource(
        "street_depth",
        "1",
        FILE,
        FILE.parent,
        max(BATCHES),
        warmup_shapes={"image": (side, side, 3)},
        threads=(1,),
        outputs=outputs,
        exits=ExitSource(FILE.parent / "exits"),
        own_exits=exits,
    )


def opened(side: int, *exits: OwnExit) -> ModelSession:
    """The model at this size, cut at these exits as a worker cuts it."""
    outputs = {name: name for name in WHOLE}
    session = SessionPool.open(source(side, outputs, *exits), cores=1, device="cpu").session
    if exits:
        arranged: queue.SimpleQueue = queue.SimpleQueue()
        ramps = tuple(range(len(exits)))
        policy = ExitPolicy(PoolId("m", "1"), ramps, (0.0,) * len(ramps), revision=1)
        Arranger(session, [1], arranged.put).publish(policy)
        assert not (arrangement := arranged.get()).detail, arrangement.detail
    return session


def stages(session: ModelSession, pictures: Array, limits: tuple, keep: int) -> tuple[float, float]:
    """Seconds up to the first answers, and of the rest; rows behind the first `keep` may leave."""
    chain = session.stages
    batch = gathered(pictures)
    thresholds = dict(enumerate(limits))
    run = StagedBatch(chain, batch, thresholds, Leaving.SHRINK, range(keep), clock=time.thread_time)
    for _ in run.run(chain.stages(1)):
        pass
    end = time.thread_time() - batch.begin
    first = run.report().stage_s[0]
    return first, end - first


def seconds(run: Callable[[], object]) -> float:
    begin = time.thread_time()
    run()
    return time.thread_time() - begin


if __name__ == "__main__":
    main()
