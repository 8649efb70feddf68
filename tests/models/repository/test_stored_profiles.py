"""Profiles beside the model, or in the state folder; never a wrong one."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from slacktide.models.repository import profile_store
from slacktide.models.repository.errors import UnwritableError
from slacktide.models.repository.profile_store import (
    ProfileKey,
    ProfileStore,
)
from slacktide.models.repository.repository import ModelDefinition

Define = Callable[..., ModelDefinition]

KEY = ProfileKey("a" * 64, "some cpu, 2 cores")
PROFILE = {"points": [{"rows": 1, "p50_s": 0.001}]}


def test_a_saved_profile_is_found(define: Define) -> None:
    definition, store = define(), ProfileStore()
    path = store.save(definition, KEY, PROFILE)
    assert path.parent == definition.folder
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert store.find(definition, KEY) == PROFILE
    assert [p.name for p in definition.folder.iterdir() if p.name.startswith(".")] == []


def test_each_hardware_has_its_own(define: Define) -> None:
    definition, store = define(), ProfileStore()
    other = ProfileKey(KEY.model_hash, "another cpu")
    store.save(definition, KEY, PROFILE)
    store.save(definition, other, {"points": []})
    profile = store.find(definition, other)
    assert profile == {"points": []}
    assert store.find(definition, KEY) == PROFILE


def test_nothing_stored(define: Define) -> None:
    assert ProfileStore().find(define(), KEY) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_sha256": "b" * 64}, "was measured on another model"),
        ({"hardware": "forged"}, "was measured on other hardware"),
        ({"schema": 0}, "expected a document of schema 1"),
        ({"profile": []}, "holds no profile"),
    ],
)
def test_a_stale_profile_is_missing_with_a_reason(
    define: Define, change: dict[str, object], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    definition, store = define(), ProfileStore()
    path = store.save(definition, KEY, PROFILE)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert store.find(definition, KEY) is None
    assert caplog.messages == [f"profile ignored: m/1/{path.name}: {reason}"]


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"3", b"[" * 100_000])
def test_a_broken_file_is_missing_with_a_reason(
    define: Define, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    definition, store = define(), ProfileStore()
    path = store.save(definition, KEY, PROFILE)
    path.write_bytes(data)
    assert store.find(definition, KEY) is None
    assert len(caplog.messages) == 1


def _read_only(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """As if `folder` were on a read-only disk (rights do not bind the user root)."""
    write = profile_store.write_atomically

    def refuse(path: Path, data: bytes) -> None:
        if path.parent == folder:
            raise OSError(30, "Read-only file system")
        write(path, data)

    monkeypatch.setattr(profile_store, "write_atomically", refuse)


def test_a_read_only_repository_falls_back_to_the_state_folder(
    define: Define, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = define()
    _read_only(monkeypatch, definition.folder)
    store = ProfileStore(tmp_path / "state")
    path = store.save(definition, KEY, PROFILE)
    assert path.parent == tmp_path / "state" / "profiles" / "m" / "1"
    assert store.find(definition, KEY) == PROFILE


def test_without_a_state_folder_the_error_names_the_way_out(
    define: Define, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = define()
    _read_only(monkeypatch, definition.folder)
    with pytest.raises(UnwritableError, match=r"Read-only file system; name a state folder"):
        ProfileStore().save(definition, KEY, PROFILE)


def test_the_folder_of_a_model_that_was_deleted_is_not_made_anew(define: Define) -> None:
    definition = define()
    shutil.rmtree(definition.folder)
    with pytest.raises(UnwritableError, match="No such file"):
        ProfileStore().save(definition, KEY, PROFILE, "learnt")
    assert not definition.folder.exists()


def test_the_newest_of_two_wins(define: Define, tmp_path: Path) -> None:
    definition = define()
    store = ProfileStore(tmp_path / "state")
    beside = store.save(definition, KEY, {"points": ["beside"]})
    away = tmp_path / "state" / "profiles" / "m" / "1" / beside.name
    away.parent.mkdir(parents=True)
    away.write_text(beside.read_text().replace("beside", "away"))
    for beside_time, away_time, winner in ((1, 2, "away"), (3, 2, "beside")):
        os.utime(beside, (beside_time, beside_time))
        os.utime(away, (away_time, away_time))
        assert store.find(definition, KEY) == {"points": [winner]}


def test_a_profile_must_be_json(define: Define) -> None:
    definition, store = define(), ProfileStore()
    with pytest.raises(ValueError, match="JSON"):
        store.save(definition, KEY, {"p50": float("nan")})
    assert store.find(definition, KEY) is None


def test_a_failed_write_leaves_the_old_file_and_no_litter(
    define: Define, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition, store = define(), ProfileStore()
    store.save(definition, KEY, PROFILE)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UnwritableError, match="No space left"):
        store.save(definition, KEY, {"points": []})
    assert store.find(definition, KEY) == PROFILE
    assert len(list(definition.folder.iterdir())) == 2
