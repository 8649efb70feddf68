"""Train the small networks behind the detector: brand, plate, clothing and direction.

    python examples/models/train_road_users.py NAME [MINUTES]

Each sees one road user, cut out of a street scene by its box. The reader of plates takes pictures
of any width: it looks for each of the four characters by an attention of its own.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
import onnx
import torch
from common import EXAM_SEED, TRAIN_SEED, conv, export, open_session, ship
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from slacktide.lab.examples.road_users import QUESTIONS, Box, CropTask, crops
from slacktide.lab.examples.street import _BADGES, KINDS, RoadUser

POOL, FRESH, ROWS = 4000, 6, 64
"""Crops kept in memory, how many are drawn anew for each step, and rows of a step."""
RATE, WARM_UP = 4e-3, 0.05
EXAM = 1000


class Task(NamedTuple):
    """How one network is made and trained."""

    description: str
    widths: tuple[int, ...]
    """Channels."""
    minutes: float
    """Of processor time: a busy machine trains as long."""


TASKS = {
    "brand": Task(
        "Names the brand of a vehicle by its emblem, in a crop of 64x64", (24, 40, 64), 25
    ),
    "plate": Task(
        "Reads the four characters of a vehicle's plate, in a crop that is 64 pixels high",
        (16, 32, 36),
        22,
    ),
    "clothing": Task("Names the colour of a person's coat, in a crop of 48x48", (16, 24, 48), 7),
    "direction": Task(
        "Says whether a person goes left or right, in a crop of 48x48", (16, 24, 48), 9
    ),
}


def scaled(image: torch.Tensor) -> torch.Tensor:
    return (image.permute(0, 3, 1, 2).float() - 80) / 60


class Classifier(nn.Module):
    """uint8 crops (batch, height, width, 3) to logits (batch, classes)."""

    def __init__(self, widths: tuple[int, ...], answers: int) -> None:
        super().__init__()
        a, b, c = widths
        self.body = nn.Sequential(conv(3, a, 3, 2), conv(a, b, 3, 2), conv(b, c), conv(c, c, 3, 2))
        self.head = nn.Linear(2 * c, answers)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.body(scaled(image))
        return self.head(torch.cat([x.mean((2, 3)), x.amax((2, 3))], 1))


class PlateReader(nn.Module):
    """uint8 crops (batch, 64, width, 3) to logits (batch, 4, CHARACTERS).

    Columns that are black all over are taken for padding, and nothing is read off them: so a crop
    has the same answer in any batch.
    """

    def __init__(self, widths: tuple[int, ...], answers: int) -> None:
        super().__init__()
        a, b, c = widths
        self.fine = nn.ModuleList([conv(3, a, 3, 2), conv(a, b), conv(b, c, 3, 2), conv(c, c)])
        self.coarse = nn.ModuleList([conv(c, c, 3, 2), conv(c, c, 3, 2), conv(c, c)])
        self.where = nn.Sequential(conv(2 * c, c, 1), nn.Conv2d(c, 4, 1))
        self.head = nn.Linear(c, answers)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        there = (image.amax((1, 3)) > 0).float()[:, None, None]
        x, there = self.through(self.fine, scaled(image) * there, there)
        around, _ = self.through(self.coarse, x, there)
        around = nn.functional.interpolate(around, scale_factor=4.0, mode="nearest")
        around = around[:, :, :, : x.shape[3]]
        looks = self.where(torch.cat([x, around], 1)) - 1e4 * (1 - there)
        self.looks = looks.flatten(2)
        return self.head(self.looks.softmax(2) @ x.flatten(2).transpose(1, 2))

    @staticmethod
    def through(
        layers: nn.ModuleList, x: torch.Tensor, there: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        for layer in layers:
            height = x.shape[2]
            x = layer(x)
            there = there if x.shape[2] == height else there[:, :, :, ::2]
            x = x * there
        return x, there


class Batches(IterableDataset[list[torch.Tensor]]):
    """Batches from a pool of crops, some of which are drawn anew for each."""

    def __init__(self, question: CropTask) -> None:
        self._question = question

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        question, rng = self._question, np.random.default_rng(TRAIN_SEED)
        source = crops(question, rng)
        pool = list(islice(source, POOL // 8))
        while True:
            fresh = list(islice(source, FRESH))
            for crop in fresh:
                if len(pool) < POOL:
                    pool.append(crop)
                else:
                    pool[int(rng.integers(POOL))] = crop
            rows = [pool[place] for place in rng.permutation(len(pool))[: ROWS - FRESH]] + fresh
            yield [torch.from_numpy(part) for part in joined(question, rows)]


def joined(
    question: CropTask, rows: list[tuple[np.ndarray, RoadUser, Box]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Crops as one array, padded to the widest, their labels, and in which cells of four pixels a
    plate's characters stand (-100: it is not known)."""
    width = max(crop.shape[1] for crop, _, _ in rows)
    width += -width % 4
    images = np.zeros((len(rows), question.height, width, 3), np.uint8)
    cells = np.full((len(rows), 4), -100)
    for image, at, (crop, user, box) in zip(images, cells, rows, strict=True):
        image[:, : crop.shape[1]] = crop
        if user.plate is not None:
            at[:] = _cells(user, box, crop.shape[1] / 4, question.height // 4, width // 4)
    return images, np.array([question.label(user) for _, user, _ in rows]), cells


_EXTENTS = {
    "car": (-20, 20, 18),
    "taxi": (-20, 20, 22),
    "van": (-22, 22, 26),
    "pickup": (-23, 22, 21),
    "truck": (-32, 28, 36),
    "bus": (-34, 34, 32),
    "motorcycle": (-22.6, 15, 29.7),
}
"""From the rear to the front, and how high, in units of the vehicle."""


def _cells(user: RoadUser, box: Box, across: float, down: int, row: int) -> list[int]:
    rear, front, top = _EXTENTS[KINDS[user.kind]]
    x, y, height = _BADGES[KINDS[user.kind]][:3]
    x0, y0, x1, y1 = user.box
    if x0 <= 0 or x1 >= 1 or y1 >= 1:  # cut off
        return [-100] * 4
    unit = (x1 - x0) / (front - rear)
    middle = x0 + (x - rear) * unit if user.direction == "right" else x1 - (x - rear) * unit
    targets = []
    for dot in (3.5, 9.5, 15.5, 21.5):
        at_x = (middle + (dot - 12.5) / 9 * height * unit - box[0]) / (box[2] - box[0]) * across
        at_y = (y1 - y / top * (y1 - y0) - box[1]) / (box[3] - box[1]) * down
        outside = not (0 <= at_x < across and 0 <= at_y < down)
        targets.append(-100 if outside else int(at_y) * row + int(at_x))
    return targets


def exported(model: nn.Module, question: CropTask) -> onnx.ModelProto:
    free = {0: "batch"} if question.width else {0: "batch", 2: "width"}
    size = (2, question.height, question.width or 112, 3)
    example = {"image": torch.zeros(size, dtype=torch.uint8)}
    model = model.to(memory_format=torch.contiguous_format)
    proto = export(model, example, ["logits"], {"image": free, "logits": {0: "batch"}})
    if question.width is None:  # the exporter loses how many characters there are
        proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 4
    return proto


def exam(proto: onnx.ModelProto, question: CropTask) -> float:
    """Share of road users of whom all is said right."""
    session = open_session(proto)
    source = crops(question, np.random.default_rng(EXAM_SEED))
    right = 0
    for image, user, _ in islice(source, EXAM):
        (logits,) = session.run(["logits"], {"image": image[None]})
        right += logits[0].argmax(-1).tolist() == question.label(user)
    return right / EXAM


def main() -> None:
    name = sys.argv[1]
    task, question = TASKS[name], QUESTIONS[name]
    torch.set_num_threads(1)
    torch.manual_seed(TRAIN_SEED)
    model = (Classifier if question.width else PlateReader)(
        task.widths, len(question.answers)
    ).train()
    model = model.to(memory_format=torch.channels_last)
    print(sum(p.numel() for p in model.parameters()), "parameters", flush=True)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.02)
    seconds = 60 * (float(sys.argv[2]) if sys.argv[2:] else task.minutes)
    started, losses = time.process_time(), []
    for step, (images, labels, cells) in enumerate(DataLoader(Batches(question), batch_size=None)):
        done = (time.process_time() - started) / seconds
        if done >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(done / WARM_UP, (1 + math.cos(math.pi * done)) / 2 + 0.002)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(images)
        loss = nn.functional.cross_entropy(logits.float().flatten(0, -2), labels.flatten())
        if isinstance(model, PlateReader):  # where to look is soon learnt where it is told
            looks = model.looks.float().flatten(0, 1)
            loss = loss + 0.3 * nn.functional.cross_entropy(looks, cells.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 50 == 49:
            spent = time.process_time() - started
            print(f"{step + 1}: loss {np.mean(losses[-50:]):.3f} {spent:.0f} s", flush=True)
    proto = exported(model, question)
    score = exam(proto, question)
    script = "train_road_users.py"
    ship(proto, name, task.description, question.answers, score, script=script)


if __name__ == "__main__":
    main()
