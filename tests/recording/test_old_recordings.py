"""What earlier versions recorded is replayed to the bit, in every field that it has.

The names of the files begin with the commit whose code recorded them, in virtual time but for
those of live servers. They stay as they are: a change that breaks one changes what the engine or a
policy does. (Last bits that only one kind of processor gives were written anew: decision 0016.)

The engine has changed once: since efd1dbf a request whose batch crashed runs again alone even if
its deadline passes or its client leaves meanwhile (decision 0011). `RERUN` lists the recordings in
which that happens. They are replayed up to there; recordings of efd1dbf replace their rest.
"""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from slacktide.domain import ReplicaLost, RowsReleased
from slacktide.lab.replay import replay
from slacktide.recording import Recording
from slacktide.recording.records import Call, answers, of_type

DATA = Path(__file__).with_name("data")
NAMES = sorted(path.name.removesuffix(".rec.xz") for path in DATA.glob("*.rec.xz"))
RERUN = {
    *(
        f"4c85b65-{name}"
        for name in ("clipper", "clockwork", "edf", "edf-classes", "fifo", "nexus")
    ),
    *(f"4c85b65-{name}" for name in ("orloj", "orloj-classes", "slack", "slack-classes")),
    *("4c85b65-slack-refuses", "4c85b65-slack-resized", "cfbb9e7-exits"),
}


def unpacked(name: str, folder: Path) -> Recording:
    path = folder / f"{name}.rec"
    path.write_bytes(lzma.decompress((DATA / f"{name}.rec.xz").read_bytes()))
    return Recording(path)


def test_there_are_some_of_all_versions_that_are_kept() -> None:
    assert {name.partition("-")[0] for name in NAMES} >= {"163e51c", "4c85b65", "efd1dbf"}


@pytest.mark.parametrize("name", NAMES)
def test_it_is_replayed_to_the_bit(name: str, tmp_path: Path) -> None:
    recording = unpacked(name, tmp_path)
    replayed = replay(recording)
    assert replayed.commands > 0
    difference = replayed.difference
    assert (difference is not None) == (name in RERUN)
    if difference is not None:
        _, _, request, reason, *_ = difference.recorded[0]
        assert reason in ("expired", "disconnected")
        assert request in members_of_lost_batches(recording)


def members_of_lost_batches(recording: Recording) -> set[int]:
    """Requests that were running when their replica was lost."""
    running: dict[int, list[int]] = {}
    members: set[int] = set()
    for line in recording.lines():
        if not isinstance(line.record, Call):
            continue
        for event in line.record.events:
            if isinstance(event, ReplicaLost):
                members.update(running.get(event.replica, ()))
        for _, _, replica, batch, *_ in of_type(line.record, "RunBatch"):
            running[replica] = batch
    return members


@pytest.mark.parametrize("name", NAMES)
def test_its_outcomes_are_read(name: str, tmp_path: Path) -> None:
    calls = [line.record for line in unpacked(name, tmp_path).lines()]
    outcomes = [outcome for call in calls if isinstance(call, Call) for _, outcome in answers(call)]
    assert outcomes
    # The others lack both fields; the live one was recorded without deadlines.
    assert any(outcome.needed_s is not None for outcome in outcomes) == (
        name.startswith(("cfbb9e7", "efd1dbf")) and not name.endswith("fifo")  # it refuses nothing
    )
    assert any(outcome.ramp is not None for outcome in outcomes) == name.endswith("-exits")


def test_a_live_one_with_early_exits_has_workers_killed_between_stages(tmp_path: Path) -> None:
    released: set[int] = set()
    lost = again = 0
    for line in unpacked("a19fcc51-live-exits", tmp_path).lines():
        if not isinstance(line.record, Call):
            continue
        for event in line.record.events:
            if isinstance(event, RowsReleased):
                released.update(event.ids)
            lost += isinstance(event, ReplicaLost)
        for _, _, _, members, *_ in of_type(line.record, "RunBatch"):
            again += bool(released & set(members))
    assert len(released) > 100
    assert lost == 2
    assert again == 0, "what was released never runs again"
