"""Ramps beside a model: found for the same files alone, and written whole."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from slacktide.exits.errors import ExitError
from slacktide.exits.manifest import ExitManifest, Ramp
from slacktide.models.exit_files import exit_source, find_ramps, save_ramps
from slacktide.models.repository.profile_store import ProfileStore, model_hash
from slacktide.models.repository.repository import ModelDefinition, Repository


@pytest.fixture
def definition(tmp_path: Path) -> ModelDefinition:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.onnx").write_bytes(b"a network")
    return Repository(tmp_path).read("m")[0]


def manifest(definition: ModelDefinition, revision: int = 1) -> ExitManifest:
    weights, bias = np.full((2, 3), revision, np.float32), np.zeros(3, np.float32)
    ramp = Ramp(0, "x", weights, bias, 1.0, 0.9, 0.5)
    return ExitManifest(model_hash(definition), revision, 300, "traffic", ("y",), (ramp,))


def test_saved_ramps_are_found_and_are_no_part_of_the_model(definition: ModelDefinition) -> None:
    before = model_hash(definition)
    folder = ProfileStore().exits_folder(definition)
    assert find_ramps(definition, folder) is None
    save_ramps(definition, folder, manifest(definition))
    stored = find_ramps(definition, folder)
    assert stored is not None
    assert stored.ramps[0].weights[0, 0] == 1.0
    assert model_hash(definition) == before
    assert folder == definition.folder / "exits"


@pytest.mark.parametrize(
    ("settings", "output"),
    [
        ("early_exit: 1%\ndecode: {as: softmax, from: logits}\n", "logits"),
        ("early_exit: {output: y}\ndecode: {as: softmax, from: logits}\n", "y"),
        ("early_exit: 1%\ndecode: {as: sigmoid, from: logits}\n", ""),
    ],
)
def test_a_softmax_decoder_names_the_classes(
    definition: ModelDefinition, settings: str, output: str
) -> None:
    root = definition.folder.parent.parent
    (root / "m/slacktide.yaml").write_text(settings)
    (decoded,) = Repository(root).read("m")
    assert exit_source(decoded, root / "exits").output == output


def test_the_weights_of_the_revision_before_stay(definition: ModelDefinition) -> None:
    folder = ProfileStore().exits_folder(definition)
    for revision in (1, 2, 3):
        save_ramps(definition, folder, manifest(definition, revision))
    assert sorted(path.name for path in folder.iterdir()) == [
        *("manifest.json", "ramps.2.npz", "ramps.3.npz")
    ]
    stored = find_ramps(definition, folder)
    assert stored is not None
    assert stored.revision == 3


def test_ramps_of_a_model_that_has_changed_are_refused(definition: ModelDefinition) -> None:
    folder = ProfileStore().exits_folder(definition)
    save_ramps(definition, folder, manifest(definition))
    definition.model_path.write_bytes(b"another network")
    with pytest.raises(ExitError, match="another model"):
        find_ramps(definition, folder)


def test_a_deleted_model_stays_deleted(definition: ModelDefinition) -> None:
    folder = ProfileStore().exits_folder(definition)
    stored = manifest(definition)
    shutil.rmtree(definition.folder)
    with pytest.raises(ExitError, match=r"m/1: ramps cannot be saved: No such file"):
        save_ramps(definition, folder, stored)
    assert not definition.folder.exists()


def test_under_a_state_folder_folders_are_made(definition: ModelDefinition, tmp_path: Path) -> None:
    folder = tmp_path / "state" / "profiles" / "m" / "1" / "exits"
    save_ramps(definition, folder, manifest(definition))
    assert find_ramps(definition, folder) is not None
    assert os.listdir(definition.folder) == ["model.onnx"]
