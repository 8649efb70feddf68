"""What the training scripts share: layers, the training of classifiers, export, and the exam."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from torch import nn

import slacktide.lab.examples

OPSET = 17
"""Old enough for every runtime in use, new enough for LayerNormalization."""

SHIPPED = Path(slacktide.lab.examples.__file__).parent / "models"
"""Package data: `NAME/model.onnx` goes here."""

TRAIN_SEED, EXAM_SEED = 1, 2
"""Seeds of the generated data; tests and `slacktide models make` use others."""

BATCH = 50
"""Rows of a step of training."""

Feed = dict[str, NDArray[np.generic]]


def conv(channels_in: int, channels: int, size: int = 3, stride: int = 1) -> nn.Sequential:
    """A convolution that keeps the size (divided by `stride`), normalised and rectified."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels, size, stride, size // 2, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
    )


class Block(nn.Module):
    """The basic residual block of He et al. 2016, figure 2."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *conv(channels_in, channels, 3, stride), *conv(channels, channels)[:2]
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = conv(channels_in, channels, 1, stride)[:2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def train_classifier(
    model: nn.Module,
    pictures: torch.Tensor,
    labels: torch.Tensor,
    *,
    axes: tuple[int, int],
    epochs: int,
    rng: np.random.Generator,
) -> None:
    """Train on uint8 pictures, shifted a little along `axes` (height, width) anew each time."""
    model.to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.02)
    steps = epochs * -(-len(pictures) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, steps)
    for epoch in range(epochs):
        losses = []
        for rows in torch.from_numpy(rng.permutation(len(pictures))).split(BATCH):
            x = pictures[rows].roll(tuple(rng.integers(-6, 7, 2)), axes)
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x), labels[rows], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {np.mean(losses):.3f}", flush=True)


def export(
    model: nn.Module,
    example: Mapping[str, torch.Tensor],
    outputs: Sequence[str],
    free_axes: Mapping[str, Mapping[int, str]],
) -> onnx.ModelProto:
    """Export with `example` (two rows or more) as inputs; axes in `free_axes` stay free."""
    stream = io.BytesIO()
    with warnings.catch_warnings():
        # The scripted exporter is called old by torch, but it alone works without more packages.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.eval(),
            tuple(example.values()),
            stream,
            dynamo=False,
            opset_version=OPSET,
            input_names=list(example),
            output_names=list(outputs),
            dynamic_axes={name: dict(axes) for name, axes in free_axes.items()},
        )
    return onnx.load_from_string(stream.getvalue())


def open_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """The exported model in ONNX Runtime, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def accuracy(model: onnx.ModelProto, batches: Sequence[tuple[Feed, NDArray[np.int64]]]) -> float:
    """Share of right answers of the exported model, as ONNX Runtime computes it."""
    session = open_session(model)
    right = total = 0
    for feed, labels in batches:
        (logits,) = session.run(["logits"], feed)
        right += int((logits.argmax(axis=1) == labels).sum())
        total += len(labels)
    return right / total


def ship(
    model: onnx.ModelProto,
    name: str,
    description: str,
    classes: Sequence[str],
    score: float,
    *,
    file: str = "model.onnx",
    script: str = "",
) -> None:
    """Describe the model in its metadata and write it where the package looks for it. `script`:
    what trained it, unless that is called after it."""
    model.graph.name = name
    model.doc_string = description
    onnx.helper.set_model_props(
        model,
        {
            "description": description,
            "classes": ",".join(classes),
            "accuracy": f"{score:.4f}",
            "trained_by": f"examples/models/{script or f'train_{name}.py'}",
        },
    )
    onnx.checker.check_model(model, full_check=True)
    path = SHIPPED / name / file
    path.parent.mkdir(exist_ok=True)
    onnx.save_model(model, path)
    print(f"{name}/{file}: accuracy {score:.4f}, {path.stat().st_size / 1e6:.2f} MB")
