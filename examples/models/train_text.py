"""Train the text encoder with free sequence length (about 90 s on one core with bfloat16).

    python examples/models/train_text.py

A small transformer whose four layers share one set of weights (ALBERT, Lan et al. 2020): the work
of a real encoder in a file that can be committed.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from common import EXAM_SEED, TRAIN_SEED, Feed, accuracy, export, ship
from numpy.typing import NDArray
from torch import nn

from slacktide.lab.examples.sentences import TOPICS, VOCABULARY, texts

WIDTH, HEADS, LAYERS = 256, 8, 4
POSITIONS = 512
"""Longest sequence the model takes; twice what the generator writes."""
TEXTS, EPOCHS, BATCH = 6000, 3, 40


class Layer(nn.Module):
    """Pre-norm attention and feed-forward. x (batch, tokens, WIDTH), bias (batch, 1, 1, tokens)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.grow, self.shrink = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        rows, tokens, _ = x.shape
        q, k, v = (
            part.view(rows, tokens, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(WIDTH, dim=2)
        )
        scores = (q @ k.transpose(2, 3)) / math.sqrt(WIDTH // HEADS) + bias
        mixed = (scores.softmax(dim=3) @ v).transpose(1, 2).reshape(rows, tokens, WIDTH)
        x = x + self.out(mixed)
        return x + self.shrink(nn.functional.gelu(self.grow(self.norm2(x))))


class Encoder(nn.Module):
    """Ids and mask (batch, tokens) to logits (batch, len(TOPICS)) and embedding (batch, WIDTH).

    The mask is 1 for tokens and 0 for padding; what is padding has no influence at all.
    """

    positions: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(len(VOCABULARY), WIDTH)
        nn.init.normal_(self.words.weight, std=0.5)
        self.register_buffer("positions", _sinusoids())
        self.layer = Layer()
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, len(TOPICS))

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.words(input_ids) + self.positions[: input_ids.shape[1]]
        mask = attention_mask.float()
        bias = (mask - 1)[:, None, None, :] * 1e4
        for _ in range(LAYERS):
            x = self.layer(x, bias)
        weights = mask / mask.sum(dim=1, keepdim=True).clamp(min=1)
        embedding = (self.norm(x) * weights[:, :, None]).sum(dim=1)
        return self.head(embedding), embedding


def _sinusoids() -> torch.Tensor:
    """Fixed positions (POSITIONS, WIDTH) of Vaswani et al. 2017, section 3.5, at a fifth size."""
    rates = torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(10_000) / WIDTH))
    angles = torch.arange(POSITIONS)[:, None] * rates
    return 0.2 * torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)


def batches(count: int, rng: np.random.Generator) -> list[tuple[Feed, NDArray[np.int64]]]:
    """Texts in batches of about equal length, padded with a mask."""
    ids, labels = texts(count, rng)
    order = sorted(range(count), key=lambda i: len(ids[i]))
    out: list[tuple[Feed, NDArray[np.int64]]] = []
    for start in range(0, count, BATCH):
        rows = order[start : start + BATCH]
        padded = np.zeros((len(rows), len(ids[rows[-1]])), np.int64)
        mask = np.zeros_like(padded)
        for i, row in enumerate(rows):
            padded[i, : len(ids[row])] = ids[row]
            mask[i, : len(ids[row])] = 1
        out.append(({"input_ids": padded, "attention_mask": mask}, labels[rows]))
    return out


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(TRAIN_SEED)
    rng = np.random.default_rng(TRAIN_SEED)
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    data = batches(TEXTS, rng)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, EPOCHS * len(data))
    for epoch in range(EPOCHS):
        losses = []
        for i in rng.permutation(len(data)):
            feed, labels = data[i]
            ids, mask = (torch.from_numpy(a) for a in feed.values())
            with torch.autocast("cpu", torch.bfloat16):
                logits, _ = model(ids, mask)
                loss = nn.functional.cross_entropy(logits, torch.from_numpy(labels))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {np.mean(losses):.3f}", flush=True)

    both = {0: "batch", 1: "tokens"}
    ids, mask = (torch.from_numpy(a) for a in data[0][0].values())
    exported = export(
        model,
        {"input_ids": ids, "attention_mask": mask},
        ["logits", "embedding"],
        {
            "input_ids": both,
            "attention_mask": both,
            "logits": {0: "batch"},
            "embedding": {0: "batch"},
        },
    )
    score = accuracy(exported, batches(1000, np.random.default_rng(EXAM_SEED)))
    ship(exported, "text", "Tells the topic of a text of up to 512 tokens", TOPICS, score)


if __name__ == "__main__":
    main()
