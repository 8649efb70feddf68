"""One ONNX file in place of a repository."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.models.repository.errors import (
    FolderError,
    InvalidNameError,
    NotFoundError,
    RepositoryError,
    UnreadableError,
)
from slacktide.models.repository.paths import is_name
from slacktide.models.repository.repository import Repository
from slacktide.models.repository.settings import ModelSettings
from slacktide.models.repository.single_model import SingleModel, open_repository

STATE = Path("/state")


def test_it_is_one_model_of_one_version_with_default_settings(tmp_path: Path) -> None:
    """Files beside it that would be a repository's are not read."""
    file = tmp_path / "net.onnx"
    file.write_bytes(b"x")
    (tmp_path / "slacktide.yaml").write_text("max_bach: 1")
    (tmp_path / "config.pbtxt").write_text("nonsense")
    repository = open_repository(file, STATE)
    assert repository.names() == ("net",)
    (listed,) = repository.scan()
    (definition,) = listed.definitions
    assert (definition.name, definition.version, definition.where) == ("net", "1", "net.onnx")
    assert (definition.model_path, definition.data_root) == (file, tmp_path)
    assert definition.settings == ModelSettings()
    assert definition.single_file


def test_its_profile_lies_below_the_state_folder_by_its_path(tmp_path: Path) -> None:
    folders = []
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "model.onnx").write_bytes(b"x")
        repository = SingleModel(tmp_path / place / "model.onnx", STATE)
        folders.append(repository.read("model")[0].folder)
    assert len(set(folders)) == 2
    for folder in folders:
        assert folder.parts[:3] == ("/", "state", "profiles")
        assert folder.parts[3].startswith("model-")


def test_it_can_be_loaded_again_with_a_config_and_nothing_else_can(tmp_path: Path) -> None:
    file = tmp_path / "net.onnx"
    file.write_bytes(b"x")
    (tmp_path / "other" / "1").mkdir(parents=True)
    (tmp_path / "other" / "1" / "model.onnx").write_bytes(b"x")
    repository = SingleModel(file, STATE)
    (definition,) = repository.read("net", config_override='{"max_batch_size": 4}')
    assert definition.settings.max_batch == 4
    with pytest.raises(NotFoundError, match="no model 'other'; known: net"):
        repository.read("other")
    only = '{"version_policy": {"specific": {"versions": [3]}}}'
    with pytest.raises(NotFoundError, match="expected version 1, got 3"):
        repository.read("net", config_override=only)
    file.unlink()
    with pytest.raises(NotFoundError, match=r"^net\.onnx: expected a regular file, found none"):
        repository.read("net")


def test_a_link_is_followed_and_gives_the_name(tmp_path: Path) -> None:
    """As in the cache of a model hub, whose files are called by their hashes."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "0a1b").write_bytes(b"x")
    link = tmp_path / "net.onnx"
    link.symlink_to("blobs/0a1b")
    (definition,) = SingleModel(link, STATE).read("net")
    assert definition.model_path == link
    assert definition.data_root == tmp_path / "blobs"
    assert definition.where == "net.onnx"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("net.onnx", "net"),
        ("Net-1.2_x.ONNX", "Net-1.2_x"),
        ("my net (1).onnx", "my_net_1"),
        ("_net.onnx", "net"),
        ("modèle.onnx", "mod_le"),
        (f"{'n' * 200}.onnx", "n" * 128),
    ],
)
def test_the_name_of_a_single_file(file: str, name: str) -> None:
    assert SingleModel(Path(file), STATE).model == name


@given(st.text(min_size=1, max_size=200))
def test_every_file_with_a_letter_or_digit_has_a_valid_name(stem: str) -> None:
    file = Path(f"{stem.replace('/', '')}.onnx")
    if any(letter.isascii() and letter.isalnum() for letter in file.stem):
        assert is_name(SingleModel(file, STATE).model)
    else:
        with pytest.raises(InvalidNameError, match="letters, digits"):
            SingleModel(file, STATE)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("nothing", NotFoundError, "expected a repository folder, found none"),
        ("net.onnx", NotFoundError, "no such file"),
        ("n" * 300, UnreadableError, "cannot be read: File name too long"),
        ("notes.txt", FolderError, "expected a folder of models, or one file that ends in .onnx"),
        (
            "–.onnx",
            InvalidNameError,
            "expected a file name that is valid as a model's name: letters",
        ),
    ],
)
def test_a_file_that_cannot_be_opened_is_named(
    tmp_path: Path, name: str, error: type[RepositoryError], message: str
) -> None:
    for file in ("notes.txt", "–.onnx"):
        (tmp_path / file).write_bytes(b"x")
    with pytest.raises(error) as refused:
        open_repository(tmp_path / name, STATE)
    assert str(refused.value).startswith(f"{tmp_path / name}: {message}")


def test_a_folder_is_a_repository(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").mkdir()
    assert type(open_repository(tmp_path, STATE)) is Repository
    assert type(open_repository(tmp_path / "net.onnx", STATE)) is Repository
