"""Train the family of vehicle classifiers, at five depths (some ten minutes on one core).

    python examples/models/train_vehicles.py

All name the road user in front in a street frame, as `residual` does, with less of everything. Each
depth adds residual layers to the one before, from whose weights it starts, and takes about 1.5
times as long.
"""

from __future__ import annotations

import numpy as np
import torch
from common import EXAM_SEED, TRAIN_SEED, accuracy, conv, export, ship, train_classifier
from torch import nn

from slacktide.lab.examples.frames import KINDS, SIZE, frames

WIDTHS = (24, 48, 64)
"""Channels at strides 2, 4 and 8."""
LAYERS = {1: (0, 0, 1), 2: (0, 1, 1), 3: (0, 2, 2), 4: (1, 3, 2), 5: (3, 4, 2)}
"""By depth, how many residual layers there are at each of these strides."""
FRAMES = 6000
EPOCHS = {1: 8, 2: 4, 3: 4, 4: 4, 5: 4}


class Layer(nn.Module):
    """A residual block of one convolution: with two, the steps of depth would be too long."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = conv(channels, channels)[:2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.body(x))


class Classifier(nn.Module):
    """uint8 images (batch, SIZE, SIZE, 3) to logits (batch, len(KINDS))."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.stages = nn.ModuleList()
        before, size = 3, 5
        for width, count in zip(WIDTHS, LAYERS[depth], strict=True):
            first = conv(before, width, size, 2)
            self.stages.append(nn.Sequential(first, *(Layer(width) for _ in range(count))))
            before, size = width, 3
        self.head = nn.Linear(before, len(KINDS))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = (image.permute(0, 3, 1, 2).float() - 80) / 60
        for stage in self.stages:
            x = stage(x)
        return self.head(x.mean((2, 3)))


def main() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(TRAIN_SEED)
    pictures, kinds = (torch.from_numpy(a) for a in frames(FRAMES, rng))
    pictures = pictures.permute(0, 2, 3, 1).contiguous()
    x, labels = frames(2000, np.random.default_rng(EXAM_SEED))
    x = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    exam = [({"image": x[i : i + 50]}, labels[i : i + 50]) for i in range(0, len(x), 50)]
    model = None
    for depth in LAYERS:
        model = trained(depth, model, pictures, kinds)
        batch = {0: "batch"}
        proto = export(
            model.to(memory_format=torch.contiguous_format),
            {"image": torch.zeros(2, SIZE, SIZE, 3, dtype=torch.uint8)},
            ["logits"],
            {"image": batch, "logits": batch},
        )
        description = f"Names the road user in front in a 96x96 street frame, at depth {depth} of 5"
        ship(
            proto, "vehicles", description, KINDS, accuracy(proto, exam), file=f"depth{depth}.onnx"
        )


def trained(
    depth: int, shallower: Classifier | None, pictures: torch.Tensor, kinds: torch.Tensor
) -> Classifier:
    torch.manual_seed(TRAIN_SEED)
    rng = np.random.default_rng(TRAIN_SEED)
    model = Classifier(depth)
    if shallower is not None:
        # New layers come last in a stage, and pass on what they get until they have learnt.
        for layer in model.modules():
            if isinstance(layer, Layer):
                nn.init.zeros_(layer.body[1].weight)
        model.load_state_dict(shallower.state_dict(), strict=False)
    print(f"depth {depth}: {sum(p.numel() for p in model.parameters())} parameters", flush=True)
    train_classifier(model, pictures, kinds, axes=(1, 2), epochs=EPOCHS[depth], rng=rng)
    return model


if __name__ == "__main__":
    main()
