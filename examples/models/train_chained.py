"""Train the chained classifier of street frames (some six minutes on one core with bfloat16).

    python examples/models/train_chained.py

Plain convolutions one after the other, after Simonyan and Zisserman 2014 (VGG): nothing is passed
around a layer, and where the picture is halved there are more channels, so that no layer does most
of the work. Half of what it learns from are unrelated frames, half are frames of videos under the
conditions of the streams, on other streets.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from common import EXAM_SEED, TRAIN_SEED, accuracy, conv, export, ship, train_classifier
from numpy.typing import NDArray
from torch import nn

from slacktide.lab.examples.frames import (
    KINDS,
    SIZE,
    STREAM_FRAMES,
    STREAMS,
    Frame,
    Video,
    frames,
)

LAYERS = ((32, 3), (64, 4), (96, 4))
"""Channels and convolutions at a resolution; each group after the first halves it."""
FRAMES, EPOCHS = 6400, 4
STREETS = 5
"""Videos under the conditions of each stream."""


class Chained(nn.Module):
    """uint8 frames (batch, 3, SIZE, SIZE) to logits (batch, len(KINDS))."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for group, (width, count) in enumerate(LAYERS):
            if group:
                layers.append(nn.MaxPool2d(2))
            for _ in range(count):
                layers.append(conv(before, width))
                before = width
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(before, len(KINDS))

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        x = (frames.float() - 80) / 60
        return self.head(self.layers(x).mean((2, 3)))


def lesson(rng: np.random.Generator) -> tuple[Frame, NDArray[np.int64]]:
    """FRAMES frames and their labels: half unrelated, half of videos."""
    pictures, labels = frames(FRAMES // 2, rng)
    filmed, labels_seen = [pictures], [labels]
    count = FRAMES // 2 // len(STREAMS) // STREETS
    for conditions in STREAMS.values():
        for _ in range(STREETS):
            video = Video(replace(conditions, seed=int(rng.integers(1_000, 2**31))))
            drawn = [video.frame(int(rng.integers(STREAM_FRAMES))) for _ in range(count)]
            filmed.append(np.stack([picture for picture, _ in drawn]))
            labels_seen.append(np.array([label for _, label in drawn]))
    return np.concatenate(filmed), np.concatenate(labels_seen)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(TRAIN_SEED)
    rng = np.random.default_rng(TRAIN_SEED)
    pictures, kinds = (torch.from_numpy(a) for a in lesson(rng))
    model = Chained()
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    train_classifier(model, pictures, kinds, axes=(2, 3), epochs=EPOCHS, rng=rng)
    batch = {0: "batch"}
    example = {"frames": torch.zeros(2, 3, SIZE, SIZE, dtype=torch.uint8)}
    exported = export(
        model.to(memory_format=torch.contiguous_format),
        example,
        ["logits"],
        {"frames": batch, "logits": batch},
    )
    x, labels = frames(1000, np.random.default_rng(EXAM_SEED))
    exam = [({"frames": x[i : i + 50]}, labels[i : i + 50]) for i in range(0, 1000, 50)]
    description = "Names the road user in front in a 96x96 street frame, layer by layer"
    ship(exported, "chained", description, KINDS, accuracy(exported, exam))


if __name__ == "__main__":
    main()
