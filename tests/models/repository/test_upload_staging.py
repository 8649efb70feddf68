"""Models built from load calls: whole or not at all, and under the same rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from slacktide.models.repository.errors import (
    InvalidNameError,
    ModelConfigError,
    NotFoundError,
    RefusedFieldError,
    RepositoryError,
    UnwritableError,
    UploadError,
)
from slacktide.models.repository.staging import Staging, split_parameters


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(tmp_path / "staging", most_bytes=100, most_files=3)


def test_a_staged_model_is_read_like_any_other(staging: Staging) -> None:
    files = {"file:1/model.onnx": b"one", "file:2/model.onnx": memoryview(b"two")}
    config = '{"max_batch_size": 4, "version_policy": {"all": {}}}'
    staged = staging.stage("m", files, config)
    first, second = staged.repository().read("m")
    assert first.model_path.read_bytes() == b"one"
    assert second.model_path.read_bytes() == b"two"
    assert first.settings.max_batch == 4
    staged.discard()
    staged.discard()
    assert not staged.root.exists()


def test_two_uploads_of_one_name_do_not_meet(staging: Staging) -> None:
    first = staging.stage("m", {"file:1/model.onnx": b"one"})
    two = staging.stage("m", {"file:1/model.onnx": b"two"})
    assert first.root != two.root
    assert first.repository().read("m")[0].model_path.read_bytes() == b"one"


@pytest.mark.parametrize(
    ("key", "error"),
    [
        ("file:1/../../secret", InvalidNameError),
        ("file:../model.onnx", InvalidNameError),
        ("file:1//etc/passwd", InvalidNameError),
        ("file:/model.onnx", InvalidNameError),
        ("file:01/model.onnx", InvalidNameError),
        ("file:0/model.onnx", InvalidNameError),
        ("file:1/.hidden", InvalidNameError),
        ("file:1/a\0b", InvalidNameError),
        ("file:1/", InvalidNameError),
        ("file:1", UploadError),
        ("file:slacktide.yaml", UploadError),
        ("1/model.onnx", UploadError),
    ],
)
def test_bad_places(
    staging: Staging, tmp_path: Path, key: str, error: type[RepositoryError]
) -> None:
    with pytest.raises(error):
        staging.stage("m", {"file:1/model.onnx": b"x", key: b"x"})
    assert not (tmp_path / "staging").exists()


@pytest.mark.parametrize("model", ["..", "a/b", ".hidden", ""])
def test_bad_model_names(staging: Staging, model: str) -> None:
    with pytest.raises(InvalidNameError):
        staging.stage(model, {"file:1/model.onnx": b"x"})


def test_limits(staging: Staging) -> None:
    with pytest.raises(UploadError, match="expected at most 100 bytes in total, got 101"):
        staging.stage("m", {"file:1/a": b"x" * 60, "file:1/b": b"x" * 41})
    with pytest.raises(UploadError, match="expected at most 3 files, got 4"):
        staging.stage("m", {f"file:1/{number}": b"" for number in range(4)})
    with pytest.raises(UploadError, match="expected at least one"):
        staging.stage("m", {})


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ('{"max_batch_sise": 4}', ModelConfigError),
        ('{"sequence_batching": {}}', RefusedFieldError),
        ('{"name": "other"}', ModelConfigError),
        ("nonsense", ModelConfigError),
    ],
)
def test_a_bad_config_leaves_nothing_behind(
    staging: Staging, tmp_path: Path, config: str, error: type[RepositoryError]
) -> None:
    with pytest.raises(error, match="parameter 'config'"):
        staging.stage("m", {"file:1/model.onnx": b"x"}, config)
    assert not (tmp_path / "staging").exists()


def test_a_failed_write_leaves_nothing_behind(
    staging: Staging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UnwritableError, match="m: cannot be staged: No space left on device"):
        staging.stage("m", {"file:1/model.onnx": b"x"})
    assert list((tmp_path / "staging").iterdir()) == []


def test_files_that_are_no_model_are_found_out_by_reading(staging: Staging) -> None:
    staged = staging.stage("m", {"file:1/other.onnx": b"x"})
    with pytest.raises(NotFoundError, match=r"m/1/model\.onnx"):
        staged.repository().read("m")


def test_parameters_of_a_load_call_are_told_apart() -> None:
    files, config = split_parameters({"config": "{}", "file:1/model.onnx": b"x"})
    assert (files, config) == ({"file:1/model.onnx": b"x"}, "{}")
    assert split_parameters({}) == ({}, None)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"config": 3}, "parameter 'config': expected a JSON string"),
        ({"file:1/model.onnx": "text"}, "expected bytes"),
        ({"confg": "{}"}, "unknown parameter 'confg'"),
    ],
)
def test_other_parameters_are_refused(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(UploadError, match=message):
        split_parameters(parameters)
