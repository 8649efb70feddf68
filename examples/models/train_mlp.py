"""Train the tiny MLP 64-512-512-10 to tell ten kinds of signals apart (about 15 s).

    python examples/models/train_mlp.py

Writes the ONNX file that the package ships, and prints its accuracy.
"""

from __future__ import annotations

import numpy as np
import torch
from common import EXAM_SEED, TRAIN_SEED, accuracy, export, ship
from torch import nn

from slacktide.lab.examples.vectors import SIGNAL_KINDS, SIGNAL_LENGTH, signals

STEPS, BATCH = 4000, 256


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(TRAIN_SEED)
    rng = np.random.default_rng(TRAIN_SEED)
    model = nn.Sequential(
        nn.Linear(SIGNAL_LENGTH, 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, len(SIGNAL_KINDS)),
    )
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, STEPS)
    for step in range(STEPS):
        x, labels = signals(BATCH, rng)  # fresh signals every step: nothing to overfit to
        loss = nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 500 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)

    batch = {0: "batch"}
    example = {"features": torch.zeros(2, SIGNAL_LENGTH)}
    exported = export(model, example, ["logits"], {"features": batch, "logits": batch})
    x, labels = signals(5000, np.random.default_rng(EXAM_SEED))
    score = accuracy(exported, [({"features": x}, labels)])
    ship(exported, "mlp", "Tells ten kinds of 64-sample signals apart", SIGNAL_KINDS, score)


if __name__ == "__main__":
    main()
