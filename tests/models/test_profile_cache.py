"""A profile is used again only for what it was measured with."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from slacktide.domain.padding import PaddedOutput
from slacktide.executors.agreement import Agreement
from slacktide.executors.cores import available_cores
from slacktide.executors.in_process import InProcessExecutor
from slacktide.executors.session import ModelSession
from slacktide.executors.timed_replica import MeasuringError
from slacktide.executors.warm_up import WarmUp
from slacktide.models import profile_cache
from slacktide.models.families import PreparedVersion, prepare_version
from slacktide.models.learnt import times_of
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


def measured(
    definition: ModelDefinition, budget_s: float = 0.01, *, stages: Collection[str] = ()
) -> ProfiledModel:
    async def body() -> ProfiledModel:
        executor = InProcessExecutor()
        try:
            cache = ProfileCache(ProfileStore(), budget_s=budget_s)
            cache.stages.update(stages)
            cores = [tuple(available_cores()[:1])]
            return await cache.find_or_measure(definition, source_of(definition), executor, cores)
        finally:
            await executor.close()

    return asyncio.run(body())


def prepared(definition: ModelDefinition, cache: ProfileCache) -> PreparedVersion:
    async def prepare() -> PreparedVersion:
        executor = InProcessExecutor()
        try:
            cores = [tuple(available_cores()[:1])]
            return await prepare_version(definition, (1,), cores, executor, cache)
        finally:
            await executor.close()

    return asyncio.run(prepare())


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


def test_a_family_that_is_slower_than_the_budget_is_timed_at_every_size(tmp_path: Path) -> None:
    """A row of each is run once, whatever it takes: without a time a variant could not serve."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["image"], ["x"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMean", ["x"], ["y"], axes=[1, 2, 3], keepdims=0),
        ],
        "g",
        [value("image", TensorProto.UINT8, ["n", "h", "w", 3])],
        [value("y", TensorProto.FLOAT, ["n"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (tmp_path / "m" / "1").mkdir(parents=True)
    onnx.save(model, tmp_path / "m" / "1" / "model.onnx")
    definition = read(tmp_path, "max_batch: 1\nvariants: [32, 64, 96, 128, 160, 192, 224]")
    profile = measured(definition, budget_s=1e-9)
    assert profile.record.shapes == {"image": (224, 224, 3)}
    sides = [size.signature[0][0] for size in profile.record.sizes]
    assert sides == [32, 96, 128, 160], "five of seven, with that of the table"
    stored = ProfileCache(ProfileStore()).find(definition, [1])
    assert stored is not None
    for size in (32, 64, 224):
        assert times_of(stored, definition.settings, size).of(1, 1).expected > 0.0
    farther = read(tmp_path, "max_batch: 1\nvariants: [8, 2048]")
    assert ProfileCache(ProfileStore()).find(farther, [1]) is None, "the law does not reach so far"


def mixing(root: Path) -> None:
    """In the place of `m`: the softmax of a column, over all rows."""
    value = helper.make_tensor_value_info
    x, y = (value(name, TensorProto.FLOAT, ["n", 4]) for name in "xy")
    nodes = [helper.make_node("Softmax", ["x"], ["y"], axis=0)]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    onnx.save(model, root / "m" / "1" / "model.onnx")


def test_the_verdict_on_rows_is_kept_beside_the_profile(root: Path) -> None:
    mixing(root)
    plain = read(root, "")
    profile = measured(plain)
    assert profile.dependence
    assert not profile.interface.batches, "its first axis may be of any length"
    again = ProfileCache(ProfileStore()).find(plain, [1])
    assert again is not None
    assert again == replace(profile, sessions=again.sessions)


def test_strides_of_padded_outputs_are_kept_and_not_searched_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = helper.make_tensor_value_info
    x, y = (value(name, TensorProto.FLOAT, ["n", 2, name]) for name in "xy")
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[4], strides=[4], ceil_mode=1)
    opsets = [helper.make_opsetid("", 17)]
    graph = helper.make_graph([node], "g", [x], [y])
    path = root / "m" / "1" / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    definition = read(
        root, "max_batch: 2\ninputs: {x: {pad: {axis: 2}}}\npadding: exact\nlengths: [8, 20]"
    )
    searches: list[int] = []
    search = WarmUp._try_length
    monkeypatch.setattr(
        WarmUp, "_try_length", lambda self, length: searches.append(length) or search(self, length)
    )
    pool = {"y": PaddedOutput(2, 4, 3)}
    assert measured(definition).padded_outputs == pool
    assert searches
    searches.clear()
    (part,) = prepared(definition, ProfileCache(ProfileStore())).pools
    assert part.source.padding is not None
    assert part.source.padding.detected_outputs == pool
    session = ModelSession.open(part.source, threads=1)
    session.warm_up()
    assert not searches
    (profile,) = (root / "m" / "1").glob("profile.*.json")
    document = json.loads(profile.read_text())
    for odd in (None, [], {"y": 1}, {"y": {"axis": 2, "stride": 0, "added": 0}}):
        document["profile"]["padded_outputs"] = odd
        profile.write_text(json.dumps(document))
        stored = ProfileCache(ProfileStore()).find(definition, [1])
        assert stored is not None
        assert stored.padded_outputs == {}


def test_rows_that_are_stated_keep_their_axis(root: Path) -> None:
    mixing(root)
    for text in ("max_batch: 8", "inputs: {x: {shape: [4]}}"):
        profile = measured(read(root, text))
        assert profile.dependence, text
        assert profile.interface.batches, text
    silenced = measured(read(root, "max_batch: 0"))
    assert (silenced.dependence, silenced.interface.batches) == ("", False)


def test_stages_of_pipelines_keep_their_axis(root: Path) -> None:
    mixing(root)
    definition = read(root, "")
    assert not measured(definition).interface.batches
    profile = measured(definition, stages={"m"})
    assert profile.dependence
    assert profile.interface.batches


def test_a_profile_of_before_rows_were_checked_is_taken_anew(root: Path) -> None:
    definition = read(root, "")
    assert measured(definition).dependence == ""
    (path,) = (root / "m" / "1").glob("profile.*.json")
    document = json.loads(path.read_text())
    assert document["profile"].pop("dependence") == ""
    path.write_text(json.dumps(document))
    assert ProfileCache(ProfileStore()).find(definition, [1]) is None


def test_the_agreement_of_another_backend_is_kept_and_a_damaged_one_is_measured_anew(
    root: Path,
) -> None:
    definition = read(root, "backend: openvino\ninputs: {x: {shape: [4]}}")
    agreement = measured(definition).agreement
    assert agreement is not None
    assert agreement.error == 0.0
    found = ProfileCache(ProfileStore()).find(definition, [1])
    assert found is not None
    assert found.agreement == agreement
    (path,) = (root / "m" / "1").glob("profile.*.json")
    document = json.loads(path.read_text())
    document["profile"]["agreement"] = {"error": 0.0, "rows": 3}
    path.write_text(json.dumps(document))
    assert ProfileCache(ProfileStore()).find(definition, [1]) is None


@pytest.mark.replaces_parts
def test_answers_of_another_shape_are_refused_and_not_stored(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def differs(*_: object, **__: object) -> Agreement:
        return Agreement(math.inf, "y", None, 1, sampled=False)

    monkeypatch.setattr(profile_cache, "find_agreement", differs)
    definition = read(root, "backend: openvino\ninputs: {x: {shape: [4]}}")
    with pytest.raises(MeasuringError, match="answers differ too much"):
        measured(definition)
    assert not [*(root / "m" / "1").glob("profile.*.json")]


def test_a_verdict_from_serving_counts_at_the_next_start(root: Path) -> None:
    definition = read(root, "")
    before = measured(definition)
    cache = ProfileCache(ProfileStore())
    cache.note_dependence(definition, before, "output 'y' has 2 rows for 1")
    profile = measured(definition)
    assert profile.dependence == "output 'y' has 2 rows for 1"
    assert not profile.interface.batches
    assert cache.find(definition, [1]) == replace(profile, sessions=profile.sessions)


# ── accuracies ───────────────────────────────────────────────────────────────────────────────────


SCORES = {
    "accuracy": {"small": 0.5, "large": 0.49},
    "differences": {"large": {"small": [-0.03, 0.02]}},
}
FILES = "variants: {files: {small: model.onnx, large: large.onnx}"


@pytest.fixture
def pair(root: Path) -> Path:
    shutil.copy(root / "m" / "1" / "model.onnx", root / "m" / "1" / "large.onnx")
    return root


def test_accuracies_and_their_differences_are_kept_with_the_files(pair: Path) -> None:
    cache, plain = ProfileCache(ProfileStore()), read(pair, f"{FILES}}}")
    assert cache.accuracies(plain) == ({}, {})
    cache.save_accuracies(plain, SCORES)
    assert cache.accuracies(plain).by_name == {"small": 0.5, "large": 0.49}
    assert cache.accuracies(plain).differences == {("large", "small"): (-0.03, 0.02)}
    stated = read(pair, f"{FILES}, accuracy: {{small: 0.4}}}}")
    assert cache.accuracies(stated).differences == {}, "a stated accuracy has no interval"


@pytest.mark.parametrize(
    "differences",
    [None, 3, {"large": 3}, {"large": {"small": [1.0]}}, {"large": {"small": ["a", "b"]}}],
)
def test_older_and_odd_documents_have_no_differences(pair: Path, differences: object) -> None:
    cache, definition = ProfileCache(ProfileStore()), read(pair, f"{FILES}}}")
    document = {"accuracy": SCORES["accuracy"], "metric": "mean average precision"}
    extra = {} if differences is None else {"differences": differences}
    cache.save_accuracies(definition, document | extra)
    assert cache.accuracies(definition).by_name == SCORES["accuracy"]
    assert cache.accuracies(definition).differences == {}


def test_another_decoder_or_preparation_has_other_accuracies(pair: Path) -> None:
    cache = ProfileCache(ProfileStore())
    texts = (
        f"{FILES}}}",
        f"{FILES}}}\ndecode: {{as: yolo, confidence: 0.1}}",
        f"{FILES}}}\ndecode: {{as: yolo, confidence: 0.2}}",
        f"{FILES}}}\ninputs: {{x: {{image: imagenet}}}}",
    )
    for number, text in enumerate(texts):
        definition = read(pair, text)
        assert cache.accuracies(definition).by_name == {}, text
        cache.save_accuracies(definition, {"accuracy": {"small": number / 10}})
        assert cache.accuracies(definition).by_name == {
            "small": pytest.approx(number / 10, abs=1e-5)
        }


def test_planners_see_a_variant_that_is_hardly_worse_as_equal(pair: Path) -> None:
    cache, definition = ProfileCache(ProfileStore(), budget_s=0.01), read(pair, f"{FILES}}}")
    cache.save_accuracies(definition, SCORES)

    family = prepared(definition, cache).family
    assert family is not None
    assert [(variant.name, variant.accuracy) for variant in family.variants] == [
        ("small", 0.5),
        ("large", 0.5),
    ]
