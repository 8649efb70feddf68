"""The hash that profiles are keyed by."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from slacktide.models.repository.errors import OutsideRepositoryError
from slacktide.models.repository.profile_store import model_hash
from slacktide.models.repository.repository import ModelDefinition
from slacktide.models.repository.single_model import SingleModel

Define = Callable[..., ModelDefinition]


def test_one_file_hashes_as_sha256sum_does(define: Define) -> None:
    assert model_hash(define(data=b"abc")) == hashlib.sha256(b"abc").hexdigest()


def test_external_data_counts_and_so_does_its_name(define: Define) -> None:
    definition = define(data=b"abc")
    hashes = {model_hash(definition)}
    weights = definition.folder / "weights.bin"
    for content in (b"1", b"2"):
        weights.write_bytes(content)
        hashes.add(model_hash(definition))
    weights.rename(definition.folder / "other.bin")
    hashes.add(model_hash(definition))
    (definition.folder / "sub").mkdir()
    (definition.folder / "sub" / "more.bin").write_bytes(b"3")
    hashes.add(model_hash(definition))
    assert len(hashes) == 5


def test_profiles_and_hidden_files_do_not_count(define: Define) -> None:
    definition = define(data=b"abc")
    before = model_hash(definition)
    (definition.folder / "profile.0123.json").write_text("{}")
    (definition.folder / ".profile.tmp").write_text("{}")
    assert model_hash(definition) == before


def test_of_a_model_that_is_one_file_only_what_is_named_like_it_counts(tmp_path: Path) -> None:
    file = tmp_path / "net.onnx"
    file.write_bytes(b"abc")

    def hashed() -> str:
        return model_hash(SingleModel(file, tmp_path / "state").read("net")[0])

    assert hashed() == hashlib.sha256(b"abc").hexdigest()
    (tmp_path / "network.onnx").write_bytes(b"another model")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "net.data").write_bytes(b"elsewhere")
    (tmp_path / "net.link").symlink_to("/etc/hostname")
    assert hashed() == hashlib.sha256(b"abc").hexdigest()
    hashes = {hashed()}
    for name in ("net.onnx.data", "net.onnx_data", "net.weights"):
        (tmp_path / name).write_bytes(b"1")
        hashes.add(hashed())
    assert len(hashes) == 4


def test_a_link_out_of_the_folder_is_refused(define: Define, tmp_path: Path) -> None:
    definition = define()
    (tmp_path / "secret").write_text("x")
    (definition.folder / "weights.bin").symlink_to(tmp_path / "secret")
    with pytest.raises(OutsideRepositoryError, match=r"m/1/model\.onnx: weights\.bin"):
        model_hash(definition)


def test_data_behind_links_beside_a_linked_file_counts(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    for file, blob in (("net.onnx", "0a1b"), ("net.onnx_data", "2c3d")):
        (tmp_path / "blobs" / blob).write_bytes(b"x")
        (tmp_path / "snapshot" / file).symlink_to(f"../blobs/{blob}")
    definition = SingleModel(tmp_path / "snapshot" / "net.onnx", tmp_path / "state").read("net")[0]
    before = model_hash(definition)
    (tmp_path / "blobs" / "unrelated").write_bytes(b"y")
    assert model_hash(definition) == before
    (tmp_path / "blobs" / "2c3d").write_bytes(b"z")
    assert model_hash(definition) != before
