"""Train the classifier of stories, to which the order of words matters (2.3 minutes of one core).

    python examples/models/train_whereabouts.py [MINUTES]

A small transformer, each of whose layers has weights of its own. Where a token stands is known from
attention alone, which falls off with the distance, at another rate in each head and direction
(ALiBi, Press et al. 2022).
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence

import numpy as np
import torch
from common import EXAM_SEED, TRAIN_SEED, Feed, accuracy, export, ship
from numpy.typing import NDArray
from torch import nn

from slacktide.lab.examples.stories import LEVELS, LONGEST, MIX, PLACES, VOCABULARY, stories

WIDTH, LAYERS = 64, 6
SLOPES = ((1.0, 4.0, 0.0), (4.0, 1.0, 0.0), (0.05, 4.0, 9.0), (0.0, 0.0, 9.0))
"""For each head, how fast attention falls off to the left and to the right, and how much less of it
a token gives to itself: heads that look far would see nothing else where they look for the same."""
HEADS = len(SLOPES)
BATCH, DRAWN = 40, 2000
SHORT = 56
"""Tokens of the longest stories at first."""
MINUTES, RATE, WARM_UP = 2.3, 2e-3, 0.03
"""MINUTES are of processor time."""
NOWHERE = -100
"""Label of tokens that have no place, which the loss leaves out."""


class Layer(nn.Module):
    """Pre-norm attention and feed-forward. x (batch, tokens, WIDTH), bias (batch, HEADS, tokens,
    tokens)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.grow, self.shrink = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        with torch.no_grad():
            # At first, tokens attend to those that are like them.
            self.qkv.weight[WIDTH : 2 * WIDTH] = self.qkv.weight[:WIDTH]
            self.qkv.weight[: 2 * WIDTH] *= 2

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        rows, tokens, _ = x.shape
        q, k, v = (
            part.view(rows, tokens, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(WIDTH, dim=2)
        )
        scores = (q @ k.transpose(2, 3)) / math.sqrt(WIDTH // HEADS) + bias
        mixed = (scores.softmax(dim=3) @ v).transpose(1, 2).reshape(rows, tokens, WIDTH)
        x = x + self.out(mixed)
        return x + self.shrink(torch.relu(self.grow(self.norm2(x))))


class Reader(nn.Module):
    """Ids and mask (batch, tokens) to logits (batch, len(PLACES)).

    The mask is 1 for tokens and 0 for padding; what is padding has no influence at all.
    """

    slopes: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(len(VOCABULARY), WIDTH)
        nn.init.normal_(self.words.weight, std=0.5)
        self.register_buffer("slopes", torch.tensor(SLOPES).T[:, :, None, None])
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, len(PLACES))
        self.where = nn.Linear(WIDTH, len(PLACES))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.both(input_ids, attention_mask)[0]

    def both(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The logits, and those of the place so far of what each token names, (batch, tokens,
        len(PLACES)), one layer before: only for training."""
        x = self.words(input_ids)
        mask = attention_mask.float()
        at = torch.arange(input_ids.shape[1])
        ahead = (at[None, :] - at[:, None]).float()
        far = self.slopes[0] * torch.relu(-ahead) + self.slopes[1] * torch.relu(ahead)
        far = far + self.slopes[2] * (ahead == 0).float()
        bias = (mask - 1)[:, None, None, :] * 1e4 - far
        before = x
        for layer in self.layers:
            before, x = x, layer(x, bias)
        weights = mask / mask.sum(dim=1, keepdim=True).clamp(min=1)
        logits = self.head((self.norm(x) * weights[:, :, None]).sum(dim=1))
        return logits, self.where(before)


def places(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each token of a story: where the thing that it names has been until then, or NOWHERE."""
    at: dict[str, int] = {}
    carried: dict[str, set[str]] = {}
    out = [NOWHERE]
    for sentence in " ".join(VOCABULARY[i] for i in ids[1:]).split(" . "):
        who, what, *rest = sentence.split()
        out += [at.get(word, NOWHERE) for word in (who, what, *rest, ".")]
        if what == "put":
            at[rest[1]] = PLACES.index(rest[-1])
        elif what == "took":
            carried.setdefault(who, set()).add(rest[1])
        elif what == "went":
            at |= dict.fromkeys(carried.get(who, ()), PLACES.index(rest[-1]))
    return np.array(out[: len(ids)])


def batches(
    count: int,
    rng: np.random.Generator,
    mix: Sequence[float] = MIX,
    longest: int = LONGEST,
) -> list[tuple[Feed, NDArray[np.int64]]]:
    """Stories in batches of about equal length, padded with a mask."""
    ids, labels = stories(count, rng, mix, longest)
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
    model = Reader()
    print(sum(p.numel() for p in model.parameters()), "parameters", flush=True)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01, betas=(0.9, 0.98))
    seconds = 60 * (float(sys.argv[1]) if sys.argv[1:] else MINUTES)
    started, step, done = time.process_time(), 0, 0.0
    while done < 1:
        longest = int(np.interp(done, (0.3, 0.7), (SHORT, LONGEST)))
        data, losses = batches(DRAWN, rng, longest=longest), []
        for i in rng.permutation(len(data)):
            done = min((time.process_time() - started) / seconds, 1.0)
            # A cosine after a short warm-up, over time instead of steps.
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(done / WARM_UP, (1 + math.cos(math.pi * done)) / 2)
            feed, labels = data[i]
            ids, mask = (torch.from_numpy(a) for a in feed.values())
            logits, where = model.both(ids, mask)
            hints = np.full(ids.shape, NOWHERE)
            for row, (tokens, there) in enumerate(zip(*feed.values(), strict=True)):
                hints[row, : there.sum()] = places(tokens[: there.sum()])
            loss = nn.functional.cross_entropy(logits, torch.from_numpy(labels))
            wanted = torch.from_numpy(hints).flatten()
            hint = nn.functional.cross_entropy(where.flatten(0, 1), wanted)
            optimizer.zero_grad()
            (loss + hint).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            losses.append((loss.item(), hint.item()))
        of_story, of_tokens = np.mean(losses, axis=0)
        print(f"{step}: {of_story:.3f}, tokens {of_tokens:.3f}, {done * seconds:.0f} s", flush=True)

    both = {0: "batch", 1: "tokens"}
    ids, mask = (torch.from_numpy(a) for a in data[0][0].values())
    exported = export(
        model,
        {"input_ids": ids, "attention_mask": mask},
        ["logits"],
        {"input_ids": both, "attention_mask": both, "logits": {0: "batch"}},
    )
    for i, level in enumerate(LEVELS):
        mix = tuple(float(i == j) for j in range(len(LEVELS)))
        score = accuracy(exported, batches(400, np.random.default_rng(EXAM_SEED + 1), mix))
        print(f"{level}: accuracy {score:.3f}")
    score = accuracy(exported, batches(1000, np.random.default_rng(EXAM_SEED)))
    ship(exported, "whereabouts", "Tells where a thing is at the end of a story", PLACES, score)


if __name__ == "__main__":
    main()
