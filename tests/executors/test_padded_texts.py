"""The text encoder, padded with others and alone: the same answers, whatever the lengths."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slacktide.domain.padding import PaddedInput, Padding
from slacktide.executors.hand_over.arena import Arena, Slot
from slacktide.executors.ports import ModelSource, Payload, TensorRef
from slacktide.executors.session import ModelSession
from slacktide.lab.examples import example

PADDING = Padding(
    {"input_ids": PaddedInput(1, 0), "attention_mask": PaddedInput(1, 0, mask=True)}, {}
)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> ModelSession:
    path: Path = tmp_path_factory.mktemp("text") / "model.onnx"
    path.write_bytes(example("text").onnx())
    source = ModelSource("text", "1", path, path.parent, 8, padding=PADDING)
    return ModelSession.open(source, threads=1)


@pytest.fixture(scope="module")
def memory() -> Iterator[Arena]:
    arena = Arena(1 << 20)
    yield arena
    arena.close()


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 2), st.booleans()), min_size=2, max_size=5
    ),
    st.integers(0, 2**32 - 1),
)
def test_padded_texts_answer_as_alone(
    session: ModelSession, memory: Arena, shapes: list[tuple[int, int, bool]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    members, slots = [], []
    for length, rows, sends_mask in shapes:
        ids = rng.integers(3, 100, (rows, length), np.int64)
        data = ids.tobytes() + (np.ones_like(ids).tobytes() if sends_mask else b"")
        slot = memory.allocate(len(data))
        memory.view(slot)[:] = data
        slots.append(slot)
        mask = TensorRef(slot.offset + ids.nbytes, len(data) - ids.nbytes, ids.shape)
        members.append(Payload(rows, (TensorRef(slot.offset, ids.nbytes, ids.shape), mask)))
    view: Any = memory.view(Slot(0, 1 << 20))
    together = session.run(members, view).arrays
    at = 0
    for member in members:
        for padded, single in zip(together, session.run([member], view).arrays, strict=True):
            np.testing.assert_allclose(padded[at : at + member.rows], single, atol=1e-4)
        at += member.rows
    for slot in slots:
        memory.free(slot)
