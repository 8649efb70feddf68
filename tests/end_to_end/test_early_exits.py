"""Models that are left early, served for real: what is learnt, released, refused and told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from slacktide.executors.process import ProcessExecutor
from slacktide.models.exit_files import save_ramps
from slacktide.models.exit_samples import learn_from_samples
from slacktide.models.repository.repository import Repository

LAYERS, WIDTH, CLASSES = 6, 768, 4
EXITS = "early_exit: {accuracy_loss: 10%, ramp_budget: 100%}\nmax_batch: 8\n"


def chain(zoo: Any, name: str, settings: str = EXITS) -> Path:
    """A classifier of rows [WIDTH]: layers that hardly change what the first has found, so that
    ramps agree with its end. Its second output comes at the end alone."""
    rng = np.random.default_rng(0)
    nodes, weights, before = [], [], "x"
    for layer in range(LAYERS):
        weight = np.eye(WIDTH) + rng.normal(0.0, 0.2 / WIDTH**0.5, (WIDTH, WIDTH))
        weights.append(numpy_helper.from_array(weight.astype(np.float32), f"w{layer}"))
        nodes.append(helper.make_node("MatMul", [before, f"w{layer}"], [f"m{layer}"]))
        nodes.append(helper.make_node("Relu", [f"m{layer}"], [f"r{layer}"]))
        before = f"r{layer}"
    last = rng.normal(0.0, 1.0 / WIDTH**0.5, (WIDTH, CLASSES)).astype(np.float32)
    weights.append(numpy_helper.from_array(last, "last"))
    nodes.append(helper.make_node("MatMul", [before, "last"], ["logits"]))
    nodes.append(helper.make_node("Softmax", ["logits"], ["scores"], axis=-1))
    nodes.append(helper.make_node("Identity", [before], ["state"]))
    value = helper.make_tensor_value_info
    path: Path = zoo.save(
        name,
        nodes,
        [value("x", TensorProto.FLOAT, ["n", WIDTH])],
        [
            value("scores", TensorProto.FLOAT, ["n", CLASSES]),
            value("state", TensorProto.FLOAT, ["n", WIDTH]),
        ],
        weights,
        settings=settings,
    )
    return path


def rows(count: int, seed: int = 1) -> NDArray[np.float32]:
    """Of four kinds, some of them faint."""
    rng = np.random.default_rng(seed)
    kinds = np.random.default_rng(5).uniform(0.0, 1.0, (CLASSES, WIDTH))
    strength = rng.choice([0.3, 3.0, 9.0], (count, 1))
    drawn = kinds[rng.integers(CLASSES, size=count)] * strength
    return (drawn + rng.normal(0.0, 0.3, drawn.shape)).astype(np.float32)


def learn(zoo: Any, name: str, folder: Path, data: NDArray[np.float32]) -> None:
    """Have its ramps learnt, as `slacktide exits add` does."""
    (definition,) = Repository(zoo.root).read(name)
    np.savez(folder / "rows.npz", x=data)

    async def work() -> Any:
        executor = ProcessExecutor()
        try:
            return await learn_from_samples(
                executor, definition, folder / "rows.npz", cores=(0,), revision=1
            )
        finally:
            await executor.close()

    learnt = asyncio.run(work())
    save_ramps(definition, definition.folder / "exits", learnt.manifest)


def exit_stats(house: Any, model: str) -> dict[str, Any]:
    (stats,) = house.get(f"/v2/models/{model}/stats").json["model_stats"]
    return dict(stats["exit_stats"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("exits")
    zoo = zoo_at(folder / "repository")
    zoo.matmul()
    for name in ("learnt", "foreign", "torn", "fresh"):
        chain(zoo, name)
    chain(zoo, "inside", "early_exit: 1%\nexecutor: in_process\nmax_batch: 8\n")
    learn(zoo, "learnt", folder, rows(600))
    found = (zoo.root / "learnt/1/exits").iterdir()
    files = {path.name: path.read_bytes() for path in found}
    for name, change in (("foreign", b""), ("torn", b"[" * 100_000)):
        (zoo.root / name / "1/exits").mkdir()
        for file, content in files.items():
            (zoo.root / name / "1/exits" / file).write_bytes(content)
        if change:
            (zoo.root / name / "1/exits/manifest.json").write_bytes(change)
        else:  # the ramps of another model
            path = zoo.root / name / "1/exits/manifest.json"
            stated = json.loads(path.read_text())
            path.write_text(json.dumps({**stated, "model_sha256": "0" * 64}))
    with serve(zoo, record=folder / "server.rec", control_port=0) as house:
        yield house


@pytest.fixture
def exits(server: Any) -> Iterator[Any]:
    yield server
    server.settle()


def test_what_was_learnt_before_is_planned_with(exits: Any) -> None:
    def learnt(app: Any) -> bool:
        (status,) = [s for pool, s in app.exits.status().items() if pool.model == "learnt"]
        return bool(status.policy.ramps)

    exits.until(learnt, "the ramps of the manifest are active")
    stats = exit_stats(exits, "learnt")
    assert stats["revision"] == 1
    assert (stats["mode"], stats["feedback"]) == ("auto", 1.0), "nothing is judged yet"
    tensors = [each["tensor"] for each in stats["ramps"]]
    assert set(tensors) <= {f"r{layer}" for layer in range(LAYERS)}
    assert {each["threshold"] for each in stats["ramps"]} == {0.0}


@pytest.mark.parametrize("name", ["foreign", "torn", "fresh"])
def test_without_ramps_of_its_own_a_model_is_served_as_it_is(exits: Any, name: str) -> None:
    stats = exit_stats(exits, name)
    assert (stats["revision"], stats["ramps"]) == (0, [])
    assert stats["reason"]
    document = exits.call_of({"x": ("FP32", [1, WIDTH], rows(1)[0].tolist())}, report_timing=True)
    answer = exits.infer(name, document)
    assert answer.status == 200
    assert answer.json["parameters"]["exit"] == ""
    assert [each["name"] for each in answer.json["outputs"]] == ["scores", "state"]


def test_models_that_state_none_have_none(exits: Any) -> None:
    for name in ("matmul", "inside"):
        (stats,) = exits.get(f"/v2/models/{name}/stats").json["model_stats"]
        assert "exit_stats" not in stats
        assert exits.look(lambda app, name=name: app.catalog.find(name, None).exits) is None
