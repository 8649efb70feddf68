"""Train the residual classifier of street frames (some eight minutes on one core with bfloat16).

    python examples/models/train_residual.py

Most of its work is done at high resolution with few channels: many operations on few weights, so
that batching gains next to nothing, as with most vision models on a processor.
"""

from __future__ import annotations

import numpy as np
import torch
from common import EXAM_SEED, TRAIN_SEED, Block, accuracy, conv, export, ship, train_classifier
from torch import nn

from slacktide.lab.examples.frames import KINDS, SIZE, frames

STAGES = ((64, 4), (80, 3), (96, 2))
"""Channels and blocks; each stage after the first halves the resolution."""
FRAMES, EPOCHS = 5000, 5


class Residual(nn.Module):
    """uint8 frames (batch, 3, SIZE, SIZE) to logits (batch, len(KINDS))."""

    def __init__(self) -> None:
        super().__init__()
        channels = STAGES[0][0]
        self.stem = conv(3, channels, 5, 2)
        blocks: list[nn.Module] = []
        for stage, (width, depth) in enumerate(STAGES):
            for i in range(depth):
                blocks.append(Block(channels, width, 2 if stage > 0 and i == 0 else 1))
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, len(KINDS))

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        # The pixels are scaled inside the model, so that clients send a quarter of the bytes.
        x = (frames.float() - 80) / 60
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(TRAIN_SEED)
    rng = np.random.default_rng(TRAIN_SEED)
    pictures, kinds = (torch.from_numpy(a) for a in frames(FRAMES, rng))
    model = Residual()
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
    description = "Names the road user in front in a 96x96 street frame"
    ship(exported, "residual", description, KINDS, accuracy(exported, exam))


if __name__ == "__main__":
    main()
