"""Writing and reading a recording: parts, killed servers, full disks, files that are none."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from slacktide.domain import PoolId, TimerFired
from slacktide.engine import EngineSettings
from slacktide.lab.replay import replay
from slacktide.profiles import ClassedTimes, LatencyTable
from slacktide.recording import Call, PoolOpened, Recorder, Recording, RecordingError
from slacktide.recording import recorder as recorder_module
from slacktide.recording.times import export_times, load_times

MIB = 1 << 20


def records(path: Path) -> list[Any]:
    return [line.record for line in Recording(path).lines()]


def test_a_recording_states_what_it_takes_to_make_the_engine_again(
    world: Any, happenings: Any
) -> None:
    recorded = world("edf", guarantee="p99")
    recorded.run(happenings(seed=1))
    recording = Recording(recorded.path)
    assert recording.header.settings == EngineSettings(hang_floor=0.5)
    opened = [record for record in records(recorded.path) if isinstance(record, PoolOpened)]
    assert [pool.pool for pool in opened] == [
        PoolId("a", "1"),
        PoolId("b", "1"),
        PoolId("a", "1", generation=1),
    ]
    assert (opened[0].recipe.scheduler, opened[0].recipe.options) == ("edf", {"guarantee": "p99"})
    calls = [record for record in records(recorded.path) if isinstance(record, Call)]
    assert sum(len(call.events) for call in calls) == recorded.recorder.events
    assert recorded.path.stat().st_size == recorded.recorder.bytes


def test_predictions_survive(world: Any, happenings: Any) -> None:
    recorded = world()
    recorded.run(happenings(seed=1))
    for times in recorded.times.values():
        again = load_times(orjson.loads(orjson.dumps(export_times(times))))
        assert again.export() == times.export()
        assert again.drift == times.drift
    fresh = orjson.loads(orjson.dumps(export_times(times)))
    fresh["correction"]["own"] = [[0.0]]
    with pytest.raises(RecordingError, match="own: expected 4 rows of 1"):
        load_times(fresh)


def test_predictions_are_the_same_on_cores_that_were_not_measured() -> None:
    """A lane may be resized to any number of them."""
    seconds = [[0.03, 0.01], [0.05, 0.02]]
    table = LatencyTable.from_grid((1, 4), (3, 6), seconds, seconds)
    times = ClassedTimes(table)
    again = load_times(orjson.loads(orjson.dumps(export_times(times))))
    assert isinstance(again, ClassedTimes)
    for cores in range(1, 10):
        assert again.latency(cores) == times.latency(cores)


# ── parts ────────────────────────────────────────────────────────────────────────────────────


def test_two_parts_are_one_recording(world: Any, happenings: Any) -> None:
    recorded = world(limit=70_000)
    recorded.run(happenings(seed=1))
    older = recorded.path.with_name("run.rec.1")
    recording = Recording(recorded.path)
    assert recording.paths == (older, recorded.path)
    assert recording.whole
    replayed = replay(recording)
    assert replayed.difference is None
    assert replayed.events == recorded.engine.events_seen
    newest = Recording(older).header, Recording(recorded.path).header
    assert older.stat().st_size < 2 * 70_000
    assert newest[0].recording == newest[1].recording


def test_of_many_parts_the_newest_two_are_kept_and_are_no_whole(
    world: Any, happenings: Any
) -> None:
    recorded = world(limit=20_000)
    recorded.run(happenings(seed=1))
    assert sorted(path.name for path in recorded.path.parent.iterdir()) == ["run.rec", "run.rec.1"]
    recording = Recording(recorded.path)
    assert recording.header.part > 1
    assert recording.header.plan is not None
    stated = next(line.record for line in recording.lines())
    assert isinstance(stated, PoolOpened)
    assert stated.times["correction"]["batches"] > 0
    with pytest.raises(RecordingError, match="expected all parts of the recording"):
        replay(recording)


def test_an_older_recording_is_set_aside_and_is_no_part_of_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    for _ in range(2):
        Recorder(path, EngineSettings(), limit=MIB).close()
    assert path.with_name("a.rec.1").exists()
    assert Recording(path).paths == (path,)


# ── what goes wrong ──────────────────────────────────────────────────────────────────────────


def test_a_file_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(
        RecordingError, match=r"--record .*nowhere/a.rec: cannot be written: No such"
    ):
        Recorder(tmp_path / "nowhere" / "a.rec", EngineSettings(), limit=MIB)
    with pytest.raises(RecordingError, match="expected a file"):
        Recorder(tmp_path, EngineSettings(), limit=MIB)
    with pytest.raises(RecordingError, match="/dev/full: expected a file"):
        Recorder(Path("/dev/full"), EngineSettings(), limit=MIB)


def test_a_full_disk_ends_the_recording_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.rec"
    recorder = Recorder(path, EngineSettings(), limit=MIB, flush_s=60.0)
    real, room = os.write, [4000]

    def write(file: int, data: Any) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        part = data[: room[0]]
        if len(part) < len(data) and part[-1:] == b"\n":
            part = part[:-1]  # what is cut off is to be seen
        room[0] = 0 if len(part) < len(data) else room[0] - len(part)
        return real(file, part)

    monkeypatch.setattr(recorder_module.os, "write", write)
    for i in range(200):
        recorder.called((TimerFired(),), float(i), ())
        recorder.encode()
    recorder.close()
    assert recorder.stopped == "the file cannot be written: No space left on device"
    recorder.called((TimerFired(),), 1e9, ())
    recorder.encode()
    recording = Recording(path)
    calls = [line.record for line in recording.lines()]
    assert 0 < len(calls) < 200
    assert len(recording.warnings) == 1


def test_a_part_that_cannot_be_begun_ends_the_recording_and_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tmp_path / "a.rec", EngineSettings(), limit=100, flush_s=60.0)
    real, closed = os.close, []
    folder = os.open(tmp_path, os.O_RDONLY)

    def close(file: int) -> None:
        closed.append(file)
        real(file)

    def refuse(*_: Any) -> int:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(recorder_module.os, "close", close)
    monkeypatch.setattr(recorder_module.os, "open", refuse)
    recorder.called((TimerFired(),), 1.0, ())
    recorder.encode()
    recorder.close()
    real(folder)
    assert recorder.stopped is not None
    assert "cannot be written: Permission denied" in recorder.stopped
    assert len(closed) == 1, "the number of a closed file may be another's by now"


def test_only_its_owner_may_read_a_recording(tmp_path: Path) -> None:
    Recorder(tmp_path / "a.rec", EngineSettings(), limit=MIB).close()
    assert (tmp_path / "a.rec").stat().st_mode & 0o077 == 0


def test_a_disk_that_is_too_slow_ends_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "MOST_WAITING", 5000)
    recorder = Recorder(tmp_path / "a.rec", EngineSettings(), limit=MIB, flush_s=60.0)
    for i in range(200):
        recorder.called((TimerFired(),), float(i), ())
        recorder.encode()
    assert recorder.stopped is not None
    assert "too slow" in recorder.stopped
    recorder.close()
    assert records(tmp_path / "a.rec")


def test_a_value_that_json_cannot_hold_ends_the_recording_alone(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a.rec", EngineSettings(), limit=MIB)
    recorder.called((TimerFired(),), 2**70, ())  # type: ignore[arg-type]
    recorder.encode()
    assert recorder.stopped is not None
    recorder.close()


def test_the_last_line_of_a_killed_server_is_skipped_with_a_warning(
    world: Any, happenings: Any
) -> None:
    recorded = world()
    recorded.run(happenings(seed=1))
    whole = recorded.path.read_bytes()
    lines = whole.count(b"\n")
    recorded.path.write_bytes(whole[:-7])
    recording = Recording(recorded.path)
    assert replay(recording).difference is None
    (warning,) = recording.warnings
    assert warning.startswith(f"{recorded.path}:{lines}: skipping the incomplete last line")


def test_a_file_that_is_no_recording_is_refused(
    tmp_path: Path, world: Any, happenings: Any
) -> None:
    path = tmp_path / "other.json"
    with pytest.raises(RecordingError, match="cannot be read: No such file"):
        Recording(path)
    for text in (b"", b"nothing\n", b"[1, 2]\n", b"{}\n"):
        path.write_bytes(text)
        with pytest.raises(RecordingError, match=":1: expected the header of a recording"):
            Recording(path)
    recorded = world()
    recorded.run(happenings(seed=1, count=3))
    recorded.path.write_bytes(recorded.path.read_bytes() + b"[0.5, [], [],\n")
    with pytest.raises(RecordingError, match=r"run.rec:\d+: expected a line of JSON"):
        replay(Recording(recorded.path))
