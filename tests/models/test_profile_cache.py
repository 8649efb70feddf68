"""A profile is used again only for what it was measured with."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from slacktide.executors.cores import available_cores
from slacktide.executors.in_process import InProcessExecutor
from slacktide.models.profile_cache import ProfileCache, ProfiledModel
from slacktide.models.replica_launcher import source_of
from slacktide.models.repository.profile_store import ProfileStore
from slacktide.models.repository.repository import ModelDefinition, Repository


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A model `m`, y = x of any width."""
    value = helper.make_tensor_value_info
    x, y = (value(name, TensorProto.FLOAT, ["n", "width"]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    opsets = [helper.make_opsetid("", 17)]
    folder = tmp_path / "repository" / "m" / "1"
    folder.mkdir(parents=True)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / "model.onnx")
    return tmp_path / "repository"


def read(root: Path, yaml: str) -> ModelDefinition:
    (root / "m" / "slacktide.yaml").write_text(yaml)
    return Repository(root).read("m")[0]


def measured(definition: ModelDefinition) -> ProfiledModel:
    async def body() -> ProfiledModel:
        executor = InProcessExecutor()
        try:
            cache = ProfileCache(ProfileStore(), budget_s=0.01)
            cores = [tuple(available_cores()[:1])]
            return await cache.known(definition, source_of(definition), executor, cores)
        finally:
            await executor.close()

    return asyncio.run(body())


def test_other_values_or_samples_are_measured_anew(root: Path) -> None:
    cache = ProfileCache(ProfileStore())
    plain = read(root, "max_batch: 2")
    assert measured(plain).record.shapes == {"x": (128,)}
    assert cache.find(plain, [1]) is not None
    valued = read(root, "max_batch: 2\ninputs: {x: {value: 2}}")
    assert cache.find(valued, [1]) is None
    measured(valued)
    assert cache.find(valued, [1]) is not None
    assert cache.find(plain, [1]) is None
    np.savez(root / "m" / "rows.npz", x=np.ones((1, 5), np.float32))
    sampled = read(root, "max_batch: 2\nsamples: rows.npz")
    assert cache.find(sampled, [1]) is None
    assert measured(sampled).record.shapes == {"x": (5,)}
    assert cache.find(sampled, [1]) is not None
    np.savez(root / "m" / "rows.npz", x=np.zeros((1, 5), np.float32))
    assert cache.find(sampled, [1]) is None
