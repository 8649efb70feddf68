"""Train the street detector whose later stages may be left out (four minutes of processor time).

    python examples/models/train_street_depth.py [MINUTES]

One chain of three stages, each of which adds to the features of the one before; after each a thin
head finds road users. All depths are trained at once, starting from the weights of `street`, whose
residual blocks are the second and the third stage here. Then, with all else frozen, each head but
the last gets a judge: from the scores it found and the features' means and maxima it tells the loss
of its detections over those of the whole chain, which is known in training.
"""

from __future__ import annotations

import math
import sys
import time

import cv2
import numpy as np
import onnx
import torch
import train_street
from common import EXAM_SEED, TRAIN_SEED, export, open_session, ship
from onnx import numpy_helper
from torch import nn
from torch.utils.data import DataLoader
from train_street import (
    DETECTIONS,
    MERGED,
    STRIDE,
    WIDTHS,
    Batches,
    Detector,
    edge_loss,
    heat_loss,
)

from slacktide.lab.examples import example
from slacktide.lab.examples.street import KINDS, Street
from slacktide.models.accuracy import Boxes, score_detections

DEPTHS = 3
SIZES = (224, 288, 352, 416, 480, 544, 608)
SHARES = (1.0, 0.6, 1.0)
"""Weights of the depths' losses."""
MINUTES, RATE, WARM_UP = 4.0, 1e-3, 0.05
"""MINUTES are of processor time."""
JUDGED, JUDGE_SEED = 600, 5_000_000
"""Scenes from which the judges learn."""
WHOLE = ("boxes", "scores", "classes")
EXAM_SCENES, EXAM_SIZE = 150, 416


def conv(channels_in: int, channels: int, size: int = 3, stride: int = 1) -> nn.Sequential:
    """As in `street`, with its normalisation folded into the weights."""
    return nn.Sequential(nn.Conv2d(channels_in, channels, size, stride, size // 2), nn.ReLU())


class Refine(nn.Module):
    """A residual block, that starts as no change at all where it is not told otherwise."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.grow, self.mix = conv(channels, channels), nn.Conv2d(channels, channels, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.mix(self.grow(x)))


class Merge(nn.Module):
    """Adds coarser features, made twice as large, to those at a quarter of the resolution."""

    def __init__(self, coarse: int) -> None:
        super().__init__()
        self.up = nn.Conv2d(coarse, MERGED, 1)
        self.each = nn.Conv2d(MERGED, MERGED, 3, 1, 1, groups=MERGED)
        self.across = nn.Conv2d(MERGED, MERGED, 1)
        for layer in (self.up, self.across):
            nn.init.normal_(layer.weight, std=0.02)

    def forward(self, x: torch.Tensor, coarse: torch.Tensor) -> torch.Tensor:
        x = torch.relu(x + Detector.up(self.up(coarse)))
        return torch.relu(x + self.across(self.each(x)))


class Judge(nn.Module):
    """Features and sorted scores of a head to how likely its detections are as good as the whole
    chain's, (batch,)."""

    centre: torch.Tensor
    spread: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        inputs = 2 * MERGED + DETECTIONS
        self.register_buffer("centre", torch.zeros(inputs))
        self.register_buffer("spread", torch.ones(inputs))
        self.body = nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, features: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return self.of(self.look(features, scores))

    @staticmethod
    def look(features: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.cat([features.mean((2, 3)), features.amax((2, 3)), scores], 1)

    def of(self, values: torch.Tensor) -> torch.Tensor:
        return self.body((values - self.centre) / self.spread)[:, 0]


class Chain(nn.Module):
    """uint8 pictures (batch, height, width, 3) to what each depth finds in them."""

    def __init__(self) -> None:
        super().__init__()
        a, b, c, d, e = WIDTHS
        self.to_4 = nn.Sequential(conv(3, a, 3, 2), conv(a, b, 3, 2))
        self.to_8, self.to_16, self.to_32 = conv(b, c, 3, 2), conv(c, d, 3, 2), conv(d, e, 3, 2)
        self.up_16, self.up_8 = nn.Conv2d(e, d, 1), nn.Conv2d(d, c, 1)
        self.up_4, self.across_4 = nn.Conv2d(c, MERGED, 1), nn.Conv2d(b, MERGED, 1)
        self.trunk = conv(MERGED, MERGED)
        self.at_16, self.back_8, self.at_8 = Refine(d), nn.Conv2d(d, c, 1), Refine(c)
        self.merges = nn.ModuleList([Merge(c), Merge(c)])
        self.heads = nn.ModuleList(nn.Conv2d(MERGED, len(KINDS) + 4, 1) for _ in range(DEPTHS))
        self.judges = nn.ModuleList(Judge() for _ in range(DEPTHS - 1))

    def features(self, pictures: torch.Tensor) -> list[torch.Tensor]:
        """What the heads look at, (batch, MERGED, height / 4, width / 4), by depth."""
        x = (pictures.permute(0, 3, 1, 2).float() - 80) / 60
        x = x.contiguous(memory_format=torch.channels_last) if self.training else x
        at_4 = self.to_4(x)
        at_8 = self.to_8(at_4)
        at_16 = self.to_16(at_8)
        up = Detector.up
        at_16 = torch.relu(at_16 + up(self.up_16(self.to_32(at_16))))
        at_8 = torch.relu(at_8 + up(self.up_8(at_16)))
        at_4 = self.trunk(torch.relu(self.across_4(at_4) + up(self.up_4(at_8))))
        merged = [at_4]
        at_8 = torch.relu(at_8 + up(self.back_8(self.at_16(at_16))))
        merged.append(self.merges[0](at_4, at_8))
        merged.append(self.merges[1](merged[1], self.at_8(at_8)))
        return merged

    def maps(self, pictures: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """By depth: logits (batch, classes, h, w); logarithms of distances (batch, 4, h, w)."""
        out = [head(x) for head, x in zip(self.heads, self.features(pictures), strict=True)]
        return [(o[:, : len(KINDS)], o[:, len(KINDS) :]) for o in out]

    def forward(self, pictures: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Boxes, scores and classes of the whole chain, then for each depth before it also, each
        with what its judge says."""
        out: list[tuple[torch.Tensor, ...]] = []
        for depth, x in enumerate(self.features(pictures)):
            maps = self.heads[depth](x)
            boxes, scores, kinds = Detector.found(maps[:, : len(KINDS)], maps[:, len(KINDS) :])
            judged = depth < DEPTHS - 1
            quality = (self.judges[depth](x, scores).sigmoid(),) if judged else ()
            out.append((boxes, scores, kinds, *quality))
        return tuple(tensor for tensors in (out[-1], *out[:-1]) for tensor in tensors)

    def start(self) -> None:
        """Take the weights of `street`, whose blocks become the second and third stage."""
        proto = onnx.load_from_string(example("street").onnx())
        weights = {i.name: numpy_helper.to_array(i) for i in proto.graph.initializer}
        convs = {n.name: n.input[1:] for n in proto.graph.node if n.op_type == "Conv"}
        places: dict[str, nn.Module] = {
            "/to_4/to_4.0/to_4.0.0": self.to_4[0][0],
            "/to_4/to_4.1/to_4.1.0": self.to_4[1][0],
            "/to_8/to_8.0/to_8.0.0": self.to_8[0],
            "/to_8/to_8.1/body/body.0": self.at_8.grow[0],
            "/to_8/to_8.1/body/body.3": self.at_8.mix,
            "/to_16/to_16.0/to_16.0.0": self.to_16[0],
            "/to_16/to_16.1/body/body.0": self.at_16.grow[0],
            "/to_16/to_16.1/body/body.3": self.at_16.mix,
            "/to_32/to_32.0": self.to_32[0],
            "/up_16": self.up_16,
            "/up_8": self.up_8,
            "/across_4": self.across_4,
            "/up_4": self.up_4,
            "/head/head.0/head.0.0": self.trunk[0],
            "/head/head.1": self.heads[0],
        }
        with torch.no_grad():
            for name, layer in places.items():
                weight, bias = (torch.from_numpy(weights[i].copy()) for i in convs[f"{name}/Conv"])
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)
            for head in self.heads[1:]:
                head.load_state_dict(self.heads[0].state_dict())
            nn.init.normal_(self.back_8.weight, std=0.02)


def train(model: Chain, seconds: float) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    started, losses = time.process_time(), []
    train_street.SIZES, train_street.PIXELS, train_street.POOL = SIZES, 600_000, 120
    # One more process draws, so that two cores are used without threads that wait for each other.
    loader = DataLoader(Batches(), batch_size=None, num_workers=1)
    for step, (pictures, heat, counts, edges, weights) in enumerate(loader):
        if step == 0:
            started = time.process_time()
        done = (time.process_time() - started) / seconds
        if done >= 1:
            break
        # A cosine after a short warm-up, over time instead of steps.
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(
                (done + 1e-3) / WARM_UP, (1 + math.cos(math.pi * done)) / 2 + 0.002
            )
        with torch.autocast("cpu", torch.bfloat16):
            maps = model.maps(pictures)
        by_depth = [
            heat_loss(m[0], heat, counts) + 2 * edge_loss(m[1], edges, weights) for m in maps
        ]
        loss = sum(share * part for share, part in zip(SHARES, by_depth, strict=True))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        losses.append([part.item() for part in by_depth])
        if step % 25 == 24:
            means = " ".join(f"{mean:.3f}" for mean in np.mean(losses[-25:], axis=0))
            print(f"{step + 1}: {means}, {time.process_time() - started:.0f} s", flush=True)


def judge(model: Chain) -> None:
    """Teach the judges, with all else frozen, on scenes that the rest has not seen."""
    rng = np.random.default_rng(TRAIN_SEED)
    looks: list[list[torch.Tensor]] = [[] for _ in range(DEPTHS - 1)]
    losses: list[list[float]] = []
    model.eval()
    for i in range(JUDGED):
        scene = Street(JUDGE_SEED + i).scene(int(rng.integers(100)))
        size = int(rng.choice(SIZES))
        picture = cv2.resize(scene.picture, (size, size), interpolation=cv2.INTER_AREA)
        heat, counts, edges, weights = targets(scene.boxes(), scene.kinds(), size // STRIDE)
        with torch.no_grad():
            features = model.features(torch.from_numpy(picture[None]))
            maps = [head(x) for head, x in zip(model.heads, features, strict=True)]
            parts = [(m[:, : len(KINDS)], m[:, len(KINDS) :]) for m in maps]
            losses.append(
                [
                    float(heat_loss(a, heat, counts) + 2 * edge_loss(b, edges, weights))
                    for a, b in parts
                ]
            )
            for depth in range(DEPTHS - 1):
                _, scores, _ = Detector.found(*parts[depth])
                looks[depth].append(Judge.look(features[depth], scores))
        if i % 100 == 99:
            print(f"{i + 1} judged", flush=True)
    regret = torch.tensor(losses)
    for depth, judge in enumerate(model.judges):
        x, worse = torch.cat(looks[depth]), regret[:, depth] - regret[:, -1]
        middle, width = worse.median(), worse.std() / 4
        good = ((middle - worse) / width).sigmoid()
        fit, held = slice(0, len(x) * 4 // 5), slice(len(x) * 4 // 5, None)
        judge.centre.copy_(x[fit].mean(0))
        judge.spread.copy_(x[fit].std(0) + 0.02)
        optimizer = torch.optim.AdamW(judge.body.parameters(), lr=3e-3, weight_decay=0.1)
        for _ in range(400):
            loss = nn.functional.binary_cross_entropy_with_logits(judge.of(x[fit]), good[fit])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            judged_quality, meant = judge.of(x[held]), worse[held]
        order = np.corrcoef(judged_quality.argsort().argsort(), (-meant).argsort().argsort())[0, 1]
        print(f"depth {depth + 1}: rank correlation of judge and loss {order:.2f}", flush=True)


def targets(
    boxes: np.ndarray, kinds: np.ndarray, cells: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Those of `train_street` for one picture, with a batch axis."""
    heat = np.zeros((1, len(KINDS), cells, cells), np.float32)
    counts = np.ones((1, cells, cells), np.float32)
    edges = np.ones((1, 4, cells, cells), np.float32)
    weights = np.zeros((1, cells, cells), np.float32)
    train_street._targets(boxes * cells, kinds, heat[0], counts[0], edges[0], weights[0])
    heat_, counts_, edges_, weights_ = map(torch.from_numpy, (heat, counts, edges, weights))
    return heat_, counts_, edges_, weights_


def exported(model: Chain) -> onnx.ModelProto:
    free = {0: "batch", 1: "height", 2: "width"}
    names = list(WHOLE)
    for depth in range(1, DEPTHS):
        names += [f"depth{depth}/{name}" for name in (*WHOLE, "quality")]
    proto = export(
        model.to(memory_format=torch.contiguous_format),
        {"image": torch.zeros(2, 192, 192, 3, dtype=torch.uint8)},
        names,
        {"image": free, **{name: {0: "batch"} for name in names}},
    )
    # The exporter cannot tell how many peaks TopK takes.
    for output in proto.graph.output:
        if len(output.type.tensor_type.shape.dim) > 1:
            output.type.tensor_type.shape.dim[1].dim_value = DETECTIONS
    return proto


def exam(proto: onnx.ModelProto) -> list[float]:
    """Mean average precision of each depth at EXAM_SIZE."""
    session = open_session(proto)
    scenes = [Street(EXAM_SEED * 1_000_000_000 + i).scene() for i in range(EXAM_SCENES)]
    truth = [Boxes(scene.boxes(), scene.kinds()) for scene in scenes]
    detections: list[list[Boxes]] = [[] for _ in range(DEPTHS)]
    for scene in scenes:
        size = (EXAM_SIZE, EXAM_SIZE)
        picture = cv2.resize(scene.picture, size, interpolation=cv2.INTER_AREA)
        for depth in range(DEPTHS):
            prefix = f"depth{depth + 1}/" if depth < DEPTHS - 1 else ""
            names = [prefix + name for name in WHOLE]
            boxes, confidence, kinds = session.run(names, {"image": picture[None]})
            detections[depth].append(Boxes(boxes[0], kinds[0], confidence[0]))
    scores = [score_detections(boxes, truth).ap50 for boxes in detections]
    for depth, score in enumerate(scores):
        print(f"depth {depth + 1}: mAP {score:.3f} at {EXAM_SIZE} pixels", flush=True)
    return scores


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(TRAIN_SEED)
    model = Chain()
    model.start()
    model = model.to(memory_format=torch.channels_last).train()
    print(sum(p.numel() for p in model.parameters()), "parameters", flush=True)
    train(model, 60 * (float(sys.argv[1]) if sys.argv[1:] else MINUTES))
    judge(model)
    proto = exported(model)
    description = "Finds road users in pictures of a street, at three depths of one chain"
    ship(proto, "street_depth", description, KINDS, exam(proto)[-1])


if __name__ == "__main__":
    main()
