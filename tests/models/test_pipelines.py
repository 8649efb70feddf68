"""Pipelines keep in step with the loads of their models, and say why they do not answer."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.hand_over.arena import Arena, MemoryBudget
from slacktide.models.calls.model_counters import ModelCounters
from slacktide.models.check import check_repository
from slacktide.models.model_manager import ModelManager, ModelManagerSettings
from slacktide.models.pipelines import LoadedPipeline, PipelineShelf
from slacktide.models.profile_cache import ProfileCache
from slacktide.models.repository.errors import SettingsError
from slacktide.models.repository.pipeline import PipelineDefinition, parse_pipeline
from slacktide.models.repository.profile_store import ProfileStore
from slacktide.models.repository.repository import ModelDefinition, Repository
from slacktide.models.repository.settings import ModelSettings
from slacktide.models.versions import UNLOADED, Catalog, LoadedVersion, VersionState
from slacktide.planning.variants import Family, FamilyVariant
from slacktide.wire.errors import ControlError

NOTHING: Any = None
CHAIN = "slo: 100ms\nmax_slo: 1s\nstages: {a: first, b: second}\nedges: [{from: a, to: b}]"


def interface(takes: str, gives: str, width: int = 4) -> ModelInterface:
    def spec(name: str) -> TensorSpec:
        return TensorSpec(name, Datatype.FP32, (-1, width))

    return ModelInterface((spec(takes),), (spec(gives),), 8)


def definition(text: str = CHAIN, name: str = "chain") -> PipelineDefinition:
    settings = parse_pipeline(text.encode(), where=f"{name}/pipeline.yaml")
    return PipelineDefinition(name, settings, settings.pipeline(name))


class Host:
    """Takes pipelines as a server does."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.serving: dict[str, LoadedPipeline] = {}

    def serve(self, loaded: LoadedPipeline) -> None:
        self.serving[loaded.name] = loaded

    def withdraw(self, name: str, reason: str) -> None:
        del self.serving[name]
        self.catalog.mark_absent(name, "1", VersionState.UNAVAILABLE, reason)


class House:
    """A catalog with models in it, and the shelf above."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.shelf = PipelineShelf(self.catalog)
        self.shelf.host = self.host = Host(self.catalog)
        self._loads = 0

    def put(self, name: str, has: ModelInterface) -> LoadedVersion:
        self._loads += 1
        own = ModelDefinition(name, "1", Path(), Path(), ModelSettings(), {})
        arena: Any = Arena(1 << 16)
        version = LoadedVersion(name, "1", self._loads, own, has, arena, NOTHING, ModelCounters())
        version.ready()
        self.catalog.serve(name, {"1": version})
        self.shelf.refresh()
        return version

    def drop(self, name: str) -> None:
        self.catalog.serve(name, {})
        self.catalog.mark_absent(name, "1", VersionState.UNAVAILABLE, UNLOADED)
        self.shelf.refresh()


@pytest.fixture
def house() -> House:
    house = House()
    house.put("first", interface("x", "y"))
    house.put("second", interface("y", "z"))
    return house


def pins(loaded: LoadedPipeline) -> list[str | None]:
    return [stage.version for stage in loaded.pipeline.stages]


def test_a_pipeline_names_the_loads_that_it_was_checked_against(house: House) -> None:
    house.shelf.load(definition())
    loaded = house.host.serving["chain"]
    assert pins(loaded) == ["1.1", "1.2"]
    assert [version.pin for version in loaded.stages.values()] == ["1.1", "1.2"]
    assert [spec.name for spec in loaded.interface.outputs] == ["a.y", "b.z"]
    assert (loaded.slo, loaded.max_slo, loaded.version) == (0.1, 1.0, "1")
    house.put("other", interface("x", "y"))
    assert house.host.serving["chain"] is loaded, "nothing of it has changed"


def test_classes_are_named_by_the_labels_of_the_loaded_model(house: House) -> None:
    text = "stages: {a: scored, b: second}\nedges: [{from: a, to: b, when: {class: taxi}}]"
    scores = TensorSpec("scores", Datatype.FP32, (-1, 2))
    scored = interface("x", "y")
    scored = ModelInterface(scored.inputs, (*scored.outputs, scores), 8)
    version = house.put("scored", scored)
    with pytest.raises(SettingsError, match=r"when\.class\[0\]: expected 'stages\.a\.classes' or"):
        house.shelf.load(definition(text))
    version.labels = ("car", "taxi")
    house.shelf.load(definition(text))
    (edge,) = house.host.serving["chain"].pipeline.edges
    assert edge.when is not None
    assert edge.when.classes == (1,)


def test_a_model_that_is_loaded_anew_makes_the_pipeline_anew(house: House) -> None:
    house.shelf.load(definition())
    house.put("second", interface("y", "w"))
    loaded = house.host.serving["chain"]
    assert pins(loaded) == ["1.1", "1.3"]
    assert [spec.name for spec in loaded.interface.outputs] == ["a.y", "b.w"]


def test_a_model_that_goes_takes_the_pipeline_along_until_it_is_back(house: House) -> None:
    house.shelf.load(definition())
    house.drop("second")
    assert house.host.serving == {}
    reason = "chain/pipeline.yaml: stages.b.model: model 'second' is not loaded"
    assert house.catalog.absence("chain", None) == reason
    house.drop("first")
    assert "stages.a.model" in (house.catalog.absence("chain", None) or "")
    house.put("first", interface("x", "y"))
    assert house.host.serving == {}
    house.put("second", interface("y", "z"))
    assert pins(house.host.serving["chain"]) == ["1.3", "1.4"]


def test_a_model_that_fits_no_more_takes_it_along_as_well(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.shelf.load(definition())
    house.put("first", interface("x", "y", width=5))
    assert house.host.serving == {}
    assert "edges[0].tensors" in (house.catalog.absence("chain", None) or "")
    assert "pipeline chain is unavailable" in caplog.text


def test_an_accuracy_is_wanted_of_variants_only(house: House) -> None:
    text = CHAIN.replace("a: first", "a: {model: first, accuracy: 0.5}")
    with pytest.raises(SettingsError, match=r"stages.a.accuracy: not allowed: the model has no"):
        house.shelf.load(definition(text))
    sizes = (FamilyVariant("1", 0.4, 1), FamilyVariant("2", 0.7, 2))
    house.catalog.find("first", None).family = Family(sizes)
    house.shelf.load(definition(text))
    other = definition(text.replace("0.5", "0.6"), "other")
    house.shelf.load(other)
    assert house.shelf.floors() == {"first": 0.6}
    house.shelf.unload("other")
    assert house.shelf.floors() == {"first": 0.5}
    with pytest.raises(SettingsError, match=r"stages.a.accuracy: expected at most 0.7"):
        house.shelf.load(definition(text.replace("0.5", "0.8")))


def test_a_pipeline_that_cannot_be_loaded_leaves_the_one_before(house: House) -> None:
    house.shelf.load(definition())
    before = house.host.serving["chain"]
    with pytest.raises(SettingsError, match=r"stages.b.model: model 'third' is not loaded"):
        house.shelf.load(definition(CHAIN.replace("second", "third")))
    why = {"secnd": "no model 'secnd'; did you mean 'second'?"}
    with pytest.raises(SettingsError, match=r"stages.b.model: no model 'secnd'; did you mean"):
        house.shelf.load(definition(CHAIN.replace("second", "secnd")), missing=why)
    with pytest.raises(SettingsError, match=r"edges\[0\].tensors: no output of 'second'"):
        house.shelf.load(definition(CHAIN.replace("first", "second")))
    assert house.host.serving["chain"] is before
    house.put("second", interface("y", "z"))
    assert pins(house.host.serving["chain"]) == ["1.1", "1.3"], "of what was loaded last"


def test_a_pipeline_of_pipelines_is_refused(house: House) -> None:
    house.shelf.load(definition())
    with pytest.raises(
        SettingsError, match=r"stages.a.model: expected a model, got the pipeline 'chain"
    ):
        house.shelf.load(definition(CHAIN.replace("first", "chain"), "other"))
    with pytest.raises(SettingsError, match="expected a model, got the pipeline 'second'"):
        house.shelf.load(definition(name="second"))


def test_one_that_is_unloaded_stays_so(house: House) -> None:
    house.shelf.load(definition())
    house.shelf.load(definition("stages: {only: first}", "other"))
    house.drop("second")
    assert house.shelf.unload("chain") == ("second",), "the other one needs `first`"
    assert house.catalog.absence("chain", None) == UNLOADED
    house.put("second", interface("y", "z"))
    assert [*house.host.serving] == ["other"]
    assert not house.shelf.knows("chain")


def test_where_nobody_takes_frames_none_is_loaded(house: House) -> None:
    house.shelf.host = None
    with pytest.raises(ControlError, match="this server does not serve pipelines"):
        house.shelf.load(definition())


class Manager(ModelManager):
    """Models come up at once, unless they are called so that they cannot."""

    def __init__(self, house: House) -> None:
        super().__init__(
            ModelManagerSettings((0,)),
            house.catalog,
            ProfileCache(ProfileStore()),
            {},
            MemoryBudget(1),
            NOTHING,
            NOTHING,
        )
        self.house = house
        self.pipelines = house.shelf
        self.loads: list[str] = []

    async def _load(self, name: str, *_: object) -> None:
        self.loads.append(name)
        if name == "broken":
            raise ControlError("unavailable", "it does not start")
        self.house.put(name, interface(*("xy" if name == "first" else "yz")))


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[str, str], None]:
    def add(name: str, text: str) -> None:
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "pipeline.yaml").write_text(text)

    for name in ("first", "second", "broken"):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "model.onnx").write_bytes(b"")
    add("chain", CHAIN)
    return add


async def test_a_server_starts_pipelines_after_models_and_loads_what_one_needs(
    tmp_path: Path, folder: Callable[[str, str], None]
) -> None:
    folder("a", CHAIN.replace("second", "broken"))

    house = House()
    manager = Manager(house)
    repository = Repository(tmp_path)
    await manager.load_all(repository)
    assert manager.loads == ["broken", "first", "second"], "each once"
    assert [*house.host.serving] == ["chain"]
    why = house.catalog.absence("a", None) or ""
    assert why.startswith("a/pipeline.yaml: stages.b.model: model 'broken' is not loaded: it d")
    house.put("broken", interface("y", "z"))
    assert [*house.host.serving] == ["chain", "a"], "it has waited for its model"
    house.drop("broken")
    await manager.unload("chain")
    house.drop("first")
    manager.loads.clear()
    await manager.load(repository, "chain")
    assert manager.loads == ["first"]
    assert [*house.host.serving] == ["chain"]
    with pytest.raises(ControlError, match=r"failed to load 'a': a/pipeline.yaml: stages.b"):
        await manager.load(repository, "a")
    assert manager.loads == ["first", "broken"], "it may have been repaired meanwhile"


async def test_a_name_stays_a_models_or_a_pipelines_while_it_serves(
    tmp_path: Path, folder: Callable[[str, str], None]
) -> None:
    manager = Manager(House())
    repository = Repository(tmp_path)
    await manager.load(repository, "chain")
    with pytest.raises(ControlError, match="parameter 'config': cannot be used"):
        await manager.load(repository, "chain", config_override="{}")
    shutil.rmtree(tmp_path / "second" / "1")
    folder("second", "stages: {a: first}")
    with pytest.raises(ControlError, match="a model with this name is loaded; unload it first"):
        await manager.load(repository, "second")
    (tmp_path / "chain" / "pipeline.yaml").unlink()
    (tmp_path / "chain" / "1").mkdir()
    (tmp_path / "chain" / "1" / "model.onnx").write_bytes(b"")
    with pytest.raises(ControlError, match="a pipeline with this name is loaded; unload it fi"):
        await manager.load(repository, "chain")
    await manager.unload("chain")
    await manager.load(repository, "chain")
    with pytest.raises(ControlError, match="no model 'nothing'"):
        await manager.load(repository, "nothing")


@pytest.mark.parametrize("at_start", [True, False])
async def test_no_such_model_and_a_pipeline_in_its_place_are_told_apart(
    tmp_path: Path, folder: Callable[[str, str], None], at_start: bool
) -> None:
    folder("a", CHAIN.replace("second", "z"))
    folder("m", CHAIN.replace("second", "secnd"))
    folder("z", CHAIN.replace("second", "a"))
    reasons = {
        "a": "expected a model, got the pipeline 'z'",
        "m": "there is no model 'secnd' in the repository; did you mean 'second'?",
        "z": "expected a model, got the pipeline 'a'",
    }

    house, repository = House(), Repository(tmp_path)
    manager = Manager(house)
    if at_start:
        await manager.load_all(repository)
    for name, why in reasons.items():
        if not at_start:
            with pytest.raises(ControlError) as raised:
                await manager.load(repository, name)
            assert str(raised.value).endswith(f"stages.b.model: {why}")
        expected = f"{name}/pipeline.yaml: stages.b.model: {why}"
        assert house.catalog.absence(name, None) == expected
    assert manager.loads == (["broken", "first", "second"] if at_start else ["first"])
    assert [*house.host.serving] == (["chain"] if at_start else [])
    messages = [(finding.model, finding.message) for finding in check_repository(tmp_path)]
    for name, why in reasons.items():
        assert (name, f"{name}/pipeline.yaml: stages.b.model: {why}") in messages
