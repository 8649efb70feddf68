"""What is learnt is stored when it has moved, and by the minute."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from slacktide.domain import Request
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.hand_over.arena import Arena
from slacktide.models import learnt as learnt_module
from slacktide.models.calls.model_counters import ModelCounters
from slacktide.models.learnt import LearntTimes, is_shaped
from slacktide.models.profile_cache import ProfiledModel
from slacktide.models.repository.profile_store import ProfileKey, ProfileStore
from slacktide.models.repository.repository import Repository
from slacktide.models.repository.settings import ModelSettings
from slacktide.models.versions import LoadedVersion
from slacktide.profiles import LatencyTable, ProfileRecord, ShapedTimes

NOTHING: Any = None
KEY = ProfileKey("m" * 64, "this machine")
SHAPED = ModelInterface((TensorSpec("x", Datatype.FP32, (-1, -1)),), (), 8)


def served(root: Path, store: ProfileStore, settings: str = "") -> LoadedVersion:
    folder = root / "m" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(b"model")
    (folder.parent / "slacktide.yaml").write_text(settings)
    (definition,) = Repository(root).read("m")
    profiled = ProfiledModel(
        ProfileRecord(LatencyTable.linear(0.004, 0.002, 8), {"x": (4,)}), SHAPED, key=KEY
    )
    version = LoadedVersion(
        "m", "1", 0, definition, SHAPED, Arena(1 << 20), NOTHING, ModelCounters()
    )
    times = LearntTimes(store).times(definition, profiled)
    version.add_pool(NOTHING, times, profile=profiled)
    return version


def learn(version: LoadedVersion, seconds: float, length: int = 4) -> None:
    request = Request(0, "m", 0.0, 1.0, signature=((length,),))
    version.pool.times.observe(seconds, (request,), 1, 1)


def stored(root: Path) -> list[Path]:
    return sorted(root.rglob("profile.*.learnt.json"))


def test_it_is_written_when_predictions_have_moved_and_only_then(tmp_path: Path) -> None:
    version = served(tmp_path, ProfileStore())
    times = LearntTimes(ProfileStore())
    asyncio.run(times.save([version]))
    assert stored(tmp_path) == []
    learn(version, 0.05, length=9)
    asyncio.run(times.save([version]))
    (path,) = stored(tmp_path)
    again = served(tmp_path, ProfileStore()).pool.times
    assert isinstance(again, ShapedTimes)
    assert again.export() == version.pool.times.export()
    path.unlink()
    asyncio.run(times.save([version]))
    assert stored(tmp_path) == []
    version.arena.close()


async def test_it_is_looked_at_by_the_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learnt_module, "SAVE_S", 0.001)
    version = served(tmp_path, ProfileStore())
    learn(version, 0.05, length=9)

    keeping = asyncio.create_task(LearntTimes(ProfileStore()).keep(lambda: [version]))
    async with asyncio.timeout(30.0):
        while not stored(tmp_path):
            await asyncio.sleep(0.001)
    keeping.cancel()
    version.arena.close()


def test_times_of_a_profiled_replica_are_not_kept(tmp_path: Path) -> None:
    version = served(tmp_path, ProfileStore(), "executor: profiled\n")
    learn(version, 0.05, length=9)
    asyncio.run(LearntTimes(ProfileStore()).save([version]))
    assert stored(tmp_path) == []
    version.arena.close()


def test_where_nothing_can_be_written_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unwritable(path: Path, data: bytes) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("slacktide.models.repository.profile_store.write_atomically", unwritable)
    version = served(tmp_path, ProfileStore())
    times = LearntTimes(ProfileStore())
    for seconds in (0.05, 0.5):
        learn(version, seconds, length=9)
        asyncio.run(times.save([version]))
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(
        "learnt corrections of m:1 cannot be stored: m/1: record of learnt corrections"
    )
    assert "Permission denied; name a state folder (--state-dir)" in message
    version.arena.close()


@pytest.mark.parametrize(
    ("shape", "settings", "shaped"),
    [
        ((-1, 4), {}, False),
        ((-1, -1), {}, True),
        ((-1, 3, -1, -1), {}, True),
        ((-1, -1), {"work_hint": "bytes"}, False),
        ((-1, -1), {"padding": "exact", "inputs": {"x": {"pad": {"axis": 1}}}}, False),
        ((-1, -1, -1), {"padding": "exact", "inputs": {"x": {"pad": {"axis": 1}}}}, True),
    ],
)
def test_which_models_are_judged_by_shape(
    shape: tuple[int, ...], settings: dict[str, Any], shaped: bool
) -> None:
    interface = ModelInterface((TensorSpec("x", Datatype.FP32, shape),), (), 8)
    assert is_shaped(interface, ModelSettings.model_validate(settings)) is shaped


def test_without_a_batch_axis_the_first_axis_may_be_free_too() -> None:
    interface = ModelInterface((TensorSpec("x", Datatype.FP32, (-1,)),), (), 0)
    assert is_shaped(interface, ModelSettings())
