"""Train the street detector for so many minutes on two cores, one of them for drawing.

    python examples/models/train_street.py [MINUTES]

Anchor-free, after Zhou et al. 2019 (Objects as Points): a heat map of centres for each class at a
quarter of the resolution, and the distances from a centre to the four edges of its box. It is
trained at sizes from 128 to 608, so that one file serves as a family of variants by size.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from typing import cast

import cv2
import numpy as np
import onnx
import torch
from common import (
    EXAM_SEED,
    TRAIN_SEED,
    Block,
    conv,
    export,
    open_session,
    ship,
)
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from slacktide.lab.examples.street import KINDS, SIZE, Street
from slacktide.models.accuracy import Boxes, score_detections

SIZES = tuple(range(128, 609, 32))
STRIDE, DETECTIONS = 4, 96
WIDTHS = (16, 24, 56, 96, 64)
"""Channels at strides 2, 4, 8, 16 and 32."""
MERGED = 32
POOL, FRESH = 500, 2
"""Scenes kept in memory, and how many of them are drawn anew in each step."""
PIXELS = 900_000
"""In a batch, about: two scenes of 608, forty-eight of 128."""
EXAM_SCENES = 150
MINUTES, RATE, WARM_UP = 45.0, 3e-3, 0.04


class Detector(nn.Module):
    """uint8 pictures (batch, height, width, 3) to boxes, scores and classes of DETECTIONS peaks."""

    def __init__(self) -> None:
        super().__init__()
        a, b, c, d, e = WIDTHS
        self.to_4 = nn.Sequential(conv(3, a, 3, 2), conv(a, b, 3, 2))
        self.to_8 = nn.Sequential(conv(b, c, 3, 2), Block(c, c, 1))
        self.to_16 = nn.Sequential(conv(c, d, 3, 2), Block(d, d, 1))
        self.to_32 = conv(d, e, 3, 2)
        self.up_16 = nn.Conv2d(e, d, 1)
        self.up_8 = nn.Conv2d(d, c, 1)
        self.up_4 = nn.Conv2d(c, MERGED, 1)
        self.across_4 = nn.Conv2d(b, MERGED, 1)
        self.head = nn.Sequential(conv(MERGED, MERGED), nn.Conv2d(MERGED, len(KINDS) + 4, 1))
        bias = cast("nn.Conv2d", self.head[1]).bias
        assert bias is not None
        with torch.no_grad():
            bias[: len(KINDS)] = -4.0
            bias[len(KINDS) :] = 1.0

    def maps(self, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (batch, classes, h, w); logarithms of distances (batch, 4, h, w) in cells."""
        x = (pictures.permute(0, 3, 1, 2).float() - 80) / 60
        x = x.contiguous(memory_format=torch.channels_last) if self.training else x
        at_4 = self.to_4(x)
        at_8 = self.to_8(at_4)
        at_16 = self.to_16(at_8)
        at_16 = torch.relu(at_16 + self.up(self.up_16(self.to_32(at_16))))
        at_8 = torch.relu(at_8 + self.up(self.up_8(at_16)))
        at_4 = torch.relu(self.across_4(at_4) + self.up(self.up_4(at_8)))
        out = self.head(at_4)
        return out[:, : len(KINDS)], out[:, len(KINDS) :]

    @staticmethod
    def up(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")

    def forward(self, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.found(*self.maps(pictures))

    @staticmethod
    def found(
        logits: torch.Tensor, distances: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The boxes, scores and classes at the highest peaks of maps."""
        height, width = logits.shape[2], logits.shape[3]
        best, kind = logits.max(1)
        summit = nn.functional.max_pool2d(best[:, None], 3, 1, 1)[:, 0]
        peaks = torch.where(best == summit, best, torch.full_like(best, -20.0))
        scores, at = peaks.flatten(1).topk(DETECTIONS)
        edges = distances.flatten(2).gather(2, at[:, None].expand(-1, 4, -1)).clamp(-3, 5).exp()
        x = (at % width).float() + 0.5
        y = torch.div(at, width, rounding_mode="floor").float() + 0.5
        left, top, right, bottom = edges.unbind(1)
        boxes = torch.stack(
            [(x - left) / width, (y - top) / height, (x + right) / width, (y + bottom) / height], 2
        )
        return boxes.clamp(0, 1), scores.sigmoid(), kind.flatten(1).gather(1, at)


class Batches(IterableDataset[list[torch.Tensor]]):
    """Batches from a pool of scenes, some of which are drawn anew for each."""

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        self._seed = TRAIN_SEED * 1_000_000
        self._kept = [self._drawn() for _ in range(POOL)]
        rng = np.random.default_rng(TRAIN_SEED)
        # Batches of large pictures have few of them.
        shares = np.square(SIZES) / np.sum(np.square(SIZES))
        while True:
            yield self._batch(rng, int(rng.choice(SIZES, p=shares)))

    def _drawn(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self._seed += 1
        scene = Street(self._seed).scene(self._seed % 100)
        return scene.picture, scene.boxes(), scene.kinds()

    def _batch(self, rng: np.random.Generator, size: int) -> list[torch.Tensor]:
        """Pictures, heat (batch, classes, h, w), where it counts (batch, h, w), edges (batch, 4, h,
        w) in cells, and the edges' weights (batch, h, w)."""
        for _ in range(FRESH):
            self._kept[int(rng.integers(POOL))] = self._drawn()
        count, cells = max(2, min(48, PIXELS // size**2)), size // STRIDE
        pictures = np.empty((count, size, size, 3), np.uint8)
        heat = np.zeros((count, len(KINDS), cells, cells), np.float32)
        counts = np.ones((count, cells, cells), np.float32)
        edges = np.ones((count, 4, cells, cells), np.float32)
        weights = np.zeros((count, cells, cells), np.float32)
        for i, n in enumerate(rng.choice(POOL, count, replace=False)):
            picture, boxes, kinds = self._kept[n]
            how = cv2.INTER_AREA if rng.random() < 0.7 else cv2.INTER_LINEAR
            if size != SIZE:
                picture = cv2.resize(picture, (size, size), interpolation=how)
            if rng.random() < 0.5:
                picture, boxes = picture[:, ::-1], boxes[:, [2, 1, 0, 3]] * (-1, 1, -1, 1)
                boxes = boxes + np.array([1, 0, 1, 0])
            pictures[i] = picture
            _targets(boxes * cells, kinds, heat[i], counts[i], edges[i], weights[i])
        return [torch.from_numpy(a) for a in (pictures, heat, counts, edges, weights)]


def _targets(
    boxes: np.ndarray,
    kinds: np.ndarray,
    heat: np.ndarray,
    counts: np.ndarray,
    edges: np.ndarray,
    weights: np.ndarray,
) -> None:
    """Fill the targets of one picture; boxes in cells. What is too small does not count."""
    cells = heat.shape[1]
    for (x0, y0, x1, y1), kind in zip(boxes, kinds, strict=True):
        width, height = x1 - x0, y1 - y0
        x, y = min(int((x0 + x1) / 2), cells - 1), min(int((y0 + y1) / 2), cells - 1)
        reach_x, reach_y = int(width / 4) + 1, int(height / 4) + 1
        rows = slice(max(y - reach_y, 0), y + reach_y + 1)
        columns = slice(max(x - reach_x, 0), x + reach_x + 1)
        ys, xs = np.ogrid[
            rows.start : min(rows.stop, cells), columns.start : min(columns.stop, cells)
        ]
        near = np.exp(
            -((xs - x) ** 2) / (2 * max(width / 8, 0.4) ** 2)
            - (ys - y) ** 2 / (2 * max(height / 8, 0.4) ** 2)
        ).astype(np.float32)
        if min(width, height) * STRIDE < 2 or max(width, height) * STRIDE < 4:
            counts[rows, columns] = 0
            continue
        np.maximum(heat[kind, rows, columns], near, out=heat[kind, rows, columns])
        mine = (near > 0.4) & (near > weights[rows, columns])
        mine &= (xs + 0.5 > x0) & (xs + 0.5 < x1) & (ys + 0.5 > y0) & (ys + 0.5 < y1)
        weights[rows, columns][mine] = near[mine]
        for target, value in zip(
            edges, (xs + 0.5 - x0, ys + 0.5 - y0, x1 - xs - 0.5, y1 - ys - 0.5), strict=True
        ):
            target[rows, columns][mine] = np.broadcast_to(value, mine.shape)[mine]


def heat_loss(logits: torch.Tensor, heat: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The focal loss of Objects as Points, equation 1, for each centre."""
    p = logits.float().sigmoid().clamp(1e-4, 1 - 1e-4)
    centre = heat > 0.999
    at = ((1 - p) ** 2 * p.log())[centre].sum()
    off = ((1 - heat) ** 4 * p**2 * (1 - p).log() * counts[:, None])[~centre].sum()
    return -(at + off) / centre.sum().clamp(min=1)


def edge_loss(logarithms: torch.Tensor, edges: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """One minus the generalised IoU of boxes around the same point."""
    where = weights > 0
    weight = weights[where]
    a = logarithms.float().clamp(-3, 5).exp().permute(0, 2, 3, 1)[where]
    b = edges.permute(0, 2, 3, 1)[where].clamp(min=0.02)
    small, large = torch.minimum(a, b), torch.maximum(a, b)
    overlap = (small[:, 0] + small[:, 2]) * (small[:, 1] + small[:, 3])
    around = (large[:, 0] + large[:, 2]) * (large[:, 1] + large[:, 3])
    area = [(x[:, 0] + x[:, 2]) * (x[:, 1] + x[:, 3]) for x in (a, b)]
    union = area[0] + area[1] - overlap
    loss = 1 - overlap / union + (around - union) / around
    return (loss * weight).sum() / weight.sum().clamp(min=1)


def exported(model: Detector) -> onnx.ModelProto:
    free = {0: "batch", 1: "height", 2: "width"}
    proto = export(
        model.to(memory_format=torch.contiguous_format),
        {"image": torch.zeros(2, 192, 192, 3, dtype=torch.uint8)},
        ["boxes", "scores", "classes"],
        {"image": free, "boxes": {0: "batch"}, "scores": {0: "batch"}, "classes": {0: "batch"}},
    )
    # The exporter cannot tell how many peaks TopK takes.
    for output in proto.graph.output:
        output.type.tensor_type.shape.dim[1].dim_value = DETECTIONS
    return proto


def exam(proto: onnx.ModelProto) -> dict[int, float]:
    """Mean average precision at IoU 0.5 by size, on scenes that were never trained on."""
    session = open_session(proto)
    scenes = [Street(EXAM_SEED * 1_000_000_000 + i).scene() for i in range(EXAM_SCENES)]
    truth = [Boxes(scene.boxes(), scene.kinds()) for scene in scenes]
    scores = {}
    for size in SIZES:
        detections = []
        for scene in scenes:
            picture = cv2.resize(scene.picture, (size, size), interpolation=cv2.INTER_AREA)
            boxes, confidence, kinds = session.run(None, {"image": picture[None]})
            detections.append(Boxes(boxes[0], kinds[0], confidence[0]))
        scores[size] = score_detections(detections, truth).ap50
        print(f"{size} pixels: mAP {scores[size]:.3f}", flush=True)
    return scores


def ship_detector(model: Detector) -> None:
    proto = exported(model)
    scores = exam(proto)
    description = "Finds road users in pictures of a street, of 128 to 608 pixels a side"
    ship(proto, "street", description, KINDS, scores[SIZES[-1]])


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(TRAIN_SEED)
    model = Detector().to(memory_format=torch.channels_last).train()
    print(sum(p.numel() for p in model.parameters()), "parameters", flush=True)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.02)
    seconds = 60 * (float(sys.argv[1]) if sys.argv[1:] else MINUTES)
    started, losses = time.monotonic(), []
    # One more process draws, so that two cores are used without threads that wait for each other.
    batches = DataLoader(Batches(), batch_size=None, num_workers=1)
    for step, (pictures, heat, counts, edges, weights) in enumerate(batches):
        done = (time.monotonic() - started) / seconds
        if done >= 1:
            break
        # A cosine after a short warm-up, over time instead of steps.
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(done / WARM_UP, (1 + math.cos(math.pi * done)) / 2 + 0.002)
        with torch.autocast("cpu", torch.bfloat16):
            logits, logarithms = model.maps(pictures)
        parts = heat_loss(logits, heat, counts), edge_loss(logarithms, edges, weights)
        loss = parts[0] + 2 * parts[1]
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        losses.append([part.item() for part in parts])
        if step % 50 == 49:
            heat_part, edge_part = np.mean(losses[-50:], axis=0)
            print(
                f"{step + 1}: centres {heat_part:.3f} edges {edge_part:.3f} "
                f"{time.monotonic() - started:.0f} s",
                flush=True,
            )
    ship_detector(model)


if __name__ == "__main__":
    main()
