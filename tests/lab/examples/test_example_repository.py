"""Writing the example repository: layout, repetition, strangers in the directory, atomicity."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest
import yaml

from slacktide.lab.examples import (
    MODELS,
    PIPELINES,
    ExamplesError,
    Samples,
    make_inputs,
    make_repository,
)
from slacktide.lab.examples.street import KINDS
from slacktide.models.check import check_repository
from slacktide.models.repository.repository import Repository

SMALL = ("mlp", "text")
"""Models quick to write, for tests of everything but the models."""


def files(directory: Path) -> set[str]:
    return {str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file()}


@pytest.mark.slow
def test_every_model_is_written_in_tritons_layout(tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    folders = make_repository(
        tmp_path / "repo", progress=lambda name, done, total: steps.append((name, done, total))
    )
    everything = [*MODELS, *PIPELINES]
    assert folders == [tmp_path / "repo" / name for name in everything]
    for name, folder in zip(MODELS, folders, strict=False):
        models = [f"depth{i}" for i in range(1, 6)] if name == "vehicles" else ["model"]
        expected = {f"1/{model}.onnx" for model in models}
        expected |= {"slacktide.yaml", "inputs/samples.npz", ".slacktide-example"}
        if MODELS[name].classes:
            expected.add("labels.txt")
        if name == "residual":
            expected.add("config.pbtxt")
        assert files(folder) == expected
        for model in models:
            onnx.checker.check_model(onnx.load(folder / "1" / f"{model}.onnx"))
        samples = Samples.read(folder / "inputs" / "samples.npz")
        assert len(samples) == MODELS[name].samples
    for name in PIPELINES:
        assert files(tmp_path / "repo" / name) == {"pipeline.yaml", ".slacktide-example"}
    total = len(everything)
    assert steps[:-1] == [(name, i, total) for i, name in enumerate(everything)]
    assert steps[-1] == ("surveillance", total, total)
    assert all(f"`{name}`" in (tmp_path / "repo" / "README.md").read_text() for name in everything)


def test_a_pipeline_comes_with_its_models(tmp_path: Path) -> None:
    folders = make_repository(tmp_path, models=["clothing", "surveillance"])
    names = ["clothing", "street", "direction", "surveillance"]
    assert folders == [tmp_path / name for name in names]
    make_repository(tmp_path, models=["surveillance"], overwrite=True)
    assert (tmp_path / "surveillance" / "pipeline.yaml").is_file()
    assert check_repository(tmp_path) == []


def test_only_the_named_models_are_written_once_each(tmp_path: Path) -> None:
    assert make_repository(tmp_path, models=["text", "mlp", "text"]) == [
        tmp_path / "text",
        tmp_path / "mlp",
    ]
    assert {p.name for p in tmp_path.iterdir()} == {"README.md", "mlp", "text"}


def test_models_already_there_are_kept_and_missing_ones_added(tmp_path: Path) -> None:
    make_repository(tmp_path, models=["mlp"])
    settings = tmp_path / "mlp" / "slacktide.yaml"
    settings.write_text("slo: 1s\n")
    make_repository(tmp_path, models=SMALL)
    assert settings.read_text() == "slo: 1s\n"
    assert (tmp_path / "text" / "1" / "model.onnx").is_file()


def test_overwrite_makes_them_anew(tmp_path: Path) -> None:
    make_repository(tmp_path, models=["mlp"])
    before = files(tmp_path)
    (tmp_path / "mlp" / "slacktide.yaml").write_text("slo: 1s\n")
    (tmp_path / "mlp" / "stray").touch()
    make_repository(tmp_path, models=["mlp"], overwrite=True)
    assert files(tmp_path) == before
    assert "slo: 20ms" in (tmp_path / "mlp" / "slacktide.yaml").read_text()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("stranger", ["notes.txt", "other/1/model.onnx", "mlp/1/model.onnx"])
def test_a_directory_with_anything_else_is_refused_untouched(
    stranger: str, overwrite: bool, tmp_path: Path
) -> None:
    path = tmp_path / stranger
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    with pytest.raises(ExamplesError, match=stranger.split("/")[0]):
        make_repository(tmp_path, models=SMALL, overwrite=overwrite)
    assert files(tmp_path) == {stranger}


def test_someone_elses_readme_is_refused(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# My thesis\n")
    with pytest.raises(ExamplesError, match=r"README\.md"):
        make_repository(tmp_path, models=SMALL, overwrite=True)


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "repo").touch()
    with pytest.raises(ExamplesError, match="got the file"):
        make_repository(tmp_path / "repo")


def test_an_unknown_model_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ExamplesError, match="did you mean 'text'"):
        make_repository(tmp_path / "repo", models=["mlp", "texts"])
    assert not (tmp_path / "repo").exists()


@pytest.mark.parametrize("models", [["mlp"], ["mlp", "text"]])
def test_a_model_that_cannot_be_finished_leaves_nothing_behind(
    models: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_repository(tmp_path, models=models)
    before = files(tmp_path)

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(Samples, "write", full)
    with pytest.raises(OSError, match="No space"):
        make_repository(tmp_path, models=["mlp"], overwrite=True)
    assert files(tmp_path) == before


def test_leavings_of_a_run_that_was_killed_are_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".slacktide-making-abc").mkdir()
    make_repository(tmp_path, models=["mlp"])
    assert (tmp_path / "mlp" / "1" / "model.onnx").is_file()


def test_written_samples_are_those_of_a_known_seed(tmp_path: Path) -> None:
    make_repository(tmp_path, models=["mlp"])
    written = Samples.read(tmp_path / "mlp" / "inputs" / "samples.npz")
    drawn = make_inputs("mlp", MODELS["mlp"].samples, seed=7)
    assert (written.batch()["features"] == drawn.batch()["features"]).all()


@pytest.mark.slow
def test_the_repository_reads_back_without_a_warning(tmp_path: Path) -> None:
    make_repository(tmp_path)
    listed = Repository(tmp_path).scan()
    assert [model.name for model in listed] == sorted([*MODELS, *PIPELINES])
    assert {model.problem for model in listed} == {None}
    for model in listed:
        if model.pipeline is not None:
            assert model.pipeline.models == PIPELINES[model.name].models
            assert model.pipeline.settings.stages["street"].classes == KINDS
            continue
        (definition,) = model.definitions
        assert definition.warnings == ()
        assert definition.settings.slo is not None
        assert definition.settings.max_batch in (8, 16, 32, 64)
    text = next(model.definitions[0] for model in listed if model.name == "text")
    assert text.warmup_shapes == {"input_ids": (44,), "attention_mask": (44,)}


@pytest.mark.parametrize("name", MODELS)
def test_settings_name_inputs_that_the_model_has(name: str) -> None:
    """A typical shape for an input there is none of would go unnoticed until the model loads."""
    stated = yaml.safe_load(MODELS[name].extras()["slacktide.yaml"]).get("inputs", {})
    drawn = make_inputs(name, 1, seed=0).requests[0]
    assert set(stated) <= set(drawn)
    for key, value in stated.items():
        assert len(value["shape"]) == drawn[key].ndim - 1
