"""A replay is the run it replays, whatever happened in it, and finds the first difference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slacktide.domain import BatchFinished, OutcomeKind, Request, Submitted
from slacktide.engine import check_invariants
from slacktide.lab.replay import Watcher, replay
from slacktide.lab.replay.decisions import Ended, Finished, Notes, Ran, Waited
from slacktide.lab.replay.explain import concerns, lines
from slacktide.recording import Call, Recording, RecordingError
from slacktide.recording.records import answers
from slacktide.scheduling import POLICIES


class Seen(Watcher):
    """What a replay goes through."""

    def __init__(self) -> None:
        self.events: set[str] = set()
        self.kinds: set[OutcomeKind] = set()

    def after(self, call: Call, engine: Any, commands: Any) -> None:
        check_invariants(engine)
        self.events |= {type(event).__name__ for event in call.events}
        self.kinds |= {outcome.kind for _, outcome in answers(call)}


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_replay_is_identical_under_every_policy(policy: str, world: Any, happenings: Any) -> None:
    recorded = world(policy)
    recorded.run(happenings(seed=1), seed=1)
    counter = Seen()
    replayed = replay(Recording(recorded.path), counter)
    assert replayed.difference is None
    assert replayed.events == recorded.engine.events_seen
    assert replayed.engine.state.request_table.counts == recorded.engine.state.request_table.counts
    assert {"Submitted", "Announced", "Cancelled", "PlanChanged", "ReplicaLost"} <= counter.events
    assert {OutcomeKind.SERVED, OutcomeKind.CANCELLED, OutcomeKind.REJECTED} <= counter.kinds


@pytest.mark.parametrize(
    ("scheduler", "complaint"),
    [
        (
            "clockwork",
            "pool a:1: scheduler 'clockwork' is not installed; install it with: "
            "pip install ./papers",
        ),
        (
            "mine",
            "pool a:1: it was recorded with scheduler 'mine', which is not installed; install the "
            "package that registers it under slacktide.schedulers",
        ),
        (
            "shop.policies:Mine",
            "pool a:1: it was recorded with scheduler 'shop.policies:Mine'; --allow-imports "
            "imports it",
        ),
    ],
)
def test_a_recording_of_a_scheduler_that_is_not_here_says_so(
    scheduler: str, complaint: str, world: Any, happenings: Any
) -> None:
    recorded = world("fifo")
    recorded.run(happenings(seed=1), seed=1)
    text = recorded.path.read_bytes()
    recorded.path.write_bytes(text.replace(b'"fifo"', f'"{scheduler}"'.encode()))
    POLICIES.pop(scheduler, None)
    with pytest.raises(RecordingError) as refusal:
        replay(Recording(recorded.path))
    assert str(refusal.value) == complaint


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), rate=st.sampled_from([50.0, 300.0, 2000.0]))
def test_a_replay_is_identical_whatever_happened(
    seed: int, rate: float, world: Any, happenings: Any
) -> None:
    recorded = world("slack", kappa=0.5)
    recorded.run(happenings(seed, 150, rate=rate), seed=seed)
    replayed = replay(Recording(recorded.path))
    assert replayed.difference is None
    for pool, times in recorded.times.items():
        if pool in replayed.engine.state.pools:
            assert replayed.engine.state.pools[pool].times.export() == times.export()


@pytest.mark.parametrize("policy", ["slack", "orloj"])
def test_lengths_are_learnt_again(policy: str, world: Any, happenings: Any) -> None:
    """Classes of requests, and finished ones that are run again alone to tell them apart."""
    recorded = world(policy, profiling=0.2)
    quiet = happenings(seed=5, count=600, rate=60.0, trouble=False, hints=(1.0, 20.0))
    busy = happenings(seed=6, rate=400.0, hints=(1.0, 20.0))
    start = quiet[-1].arrival
    for item in busy:
        if isinstance(item, Request):
            moved = replace(
                item,
                id=item.id + 10**4,
                arrival=item.arrival + start,
                deadline=item.deadline + start,
            )
            quiet.append(moved)
    recorded.run(quiet, seed=5)
    assert any(times.classes(1) is not None for times in recorded.times.values())
    assert any(batch.solo for batch in recorded.batches)
    replayed = replay(Recording(recorded.path))
    assert replayed.difference is None
    for pool, times in recorded.times.items():
        again = replayed.engine.state.pools[pool].times
        assert again.export() == times.export()
        assert again.of(4, 1).expected == times.of(4, 1).expected


def test_an_event_beyond_the_engine_is_replayed_too(world: Any) -> None:
    """The driver hands over what follows it as a call of its own."""
    recorded = world()
    engine, recorder = recorded.engine, recorded.recorder
    events = (BatchFinished(99), Submitted(Request(1, "nobody", 0.0, 1.0)))
    with pytest.raises(ValueError):
        engine.handle_all(events, now=0.5)
    recorder.called(events, 0.5, engine.state.runs + engine.state.commands)
    recorder.called(events[1:], 0.5, engine.handle_all(events[1:], now=0.5))
    recorder.close()
    replayed = replay(Recording(recorded.path))
    assert (replayed.difference, replayed.calls) == (None, 2)


def test_it_stops_before_a_time(world: Any, happenings: Any) -> None:
    recorded = world()
    recorded.run(happenings(seed=2))
    replayed = replay(Recording(recorded.path), until=0.4)
    assert 0.39 < replayed.engine.state.now < 0.4


def tampered(path: Path, change: Callable[[Any], bool]) -> int:
    """Rewrite the first call that `change` changes; its line number."""
    lines = path.read_bytes().splitlines()
    for i, text in enumerate(lines):
        line = orjson.loads(text)
        if isinstance(line, list) and change(line):
            lines[i] = orjson.dumps(line)
            path.write_bytes(b"\n".join(lines) + b"\n")
            return i + 1
    raise AssertionError("nothing to change")


def test_the_first_difference_is_found_where_it_is(world: Any, happenings: Any) -> None:
    recorded = world()
    recorded.run(happenings(seed=3))

    def blame(line: Any) -> bool:
        for command in line[2]:
            if command[0] == "Answer" and command[3] == "hopeless":
                command[3] = "expired"
                return True
        return False

    number = tampered(recorded.path, blame)
    difference = replay(Recording(recorded.path)).difference
    assert difference is not None
    assert difference.line.place == f"{recorded.path}:{number}"
    assert difference.recorded[difference.place][3] == "expired"
    assert difference.replayed[difference.place][3] == "hopeless"
    assert difference.recorded[: difference.place] == difference.replayed[: difference.place]


def test_a_time_that_moves_by_a_bit_is_a_difference(world: Any, happenings: Any) -> None:
    recorded = world()
    recorded.run(happenings(seed=3))

    def nudge(line: Any) -> bool:
        if any(command[0] == "RunBatch" for command in line[2]) and line[0] > 0.2:
            line[0] += 2.0**-50
            return True
        return False

    number = tampered(recorded.path, nudge)
    difference = replay(Recording(recorded.path)).difference
    assert difference is not None
    assert difference.line.number >= number


def test_a_pool_that_was_not_recorded_is_named(world: Any, happenings: Any) -> None:
    recorded = world()
    recorded.run(happenings(seed=3, count=5))
    texts = recorded.path.read_bytes().splitlines()
    kept = [text for text in texts if b'"scheduler"' not in text]
    recorded.path.write_bytes(b"\n".join(kept) + b"\n")
    with pytest.raises(RecordingError, match="pool a:1 is not in the recording"):
        replay(Recording(recorded.path))


def test_a_share_that_cannot_be_is_named(world: Any, happenings: Any) -> None:
    recorded = world(profiling=0.02)
    recorded.run(happenings(seed=3, count=5))
    whole = recorded.path.read_bytes()
    recorded.path.write_bytes(whole.replace(b'"profiling":0.02', b'"profiling":2.0'))
    with pytest.raises(RecordingError, match="pool a:1: share must be above 0 and at most 1"):
        replay(Recording(recorded.path))


# ── decisions ────────────────────────────────────────────────────────────────────────────────


def decisions(recorded: Any) -> list[Any]:
    notes_made: list[Any] = []
    notes = Notes(notes_made.append)
    assert replay(Recording(recorded.path), notes, pools=notes.pools).difference is None
    return notes_made


def test_every_batch_and_every_refusal_is_told_with_its_reason(world: Any, happenings: Any) -> None:
    recorded = world()
    recorded.run(happenings(seed=4))
    all_decisions = decisions(recorded)
    commands = [
        command
        for line in Recording(recorded.path).lines()
        if isinstance(line.record, Call)
        for command in line.record.commands
    ]
    runs = [decision for decision in all_decisions if isinstance(decision, Ran)]
    assert [run.batch.id for run in runs] == [c[2] for c in commands if c[0] == "RunBatch"]
    unserved = [
        c for c in commands if c[0] == "Answer" and c[3] not in ("on_time", "after_deadline")
    ]
    turned_away = [c for c in unserved if c[2] >= 10**6]  # by the server, not by a policy
    ends = [decision for decision in all_decisions if isinstance(decision, Ended)]
    assert len(ends) == len(unserved) - len(turned_away)
    assert any(run.rivals for run in runs)
    assert any(run.proposal is None for run in runs)  # in quarantine, after a crash
    for run in runs:
        if run.proposal is not None:
            assert run.proposal.chosen is not None
            assert [member.request for member in run.proposal.members] == list(run.batch.members)
            assert run.proposal.pending >= len(run.batch.members)
    text = [line for decision in all_decisions for line in lines(decision, begin=0.0)]
    assert any("passed over b:1" in line for line in text)
    assert any("hopeless: it could hardly be on time" in line for line in text)
    assert any("after a crash" in line for line in text)


def test_samples_are_told_of_and_are_part_of_such_a_replay(world: Any, happenings: Any) -> None:
    recorded = world(profiling=0.2)
    quiet = happenings(seed=5, count=600, rate=60.0, trouble=False, hints=(1.0, 20.0))
    recorded.run(quiet, seed=5)
    runs = [decision for decision in decisions(recorded) if isinstance(decision, Ran)]
    samples = [run for run in runs if run.batch.solo]
    assert [run.batch.id for run in samples] == [b.id for b in recorded.batches if b.solo]
    assert "alone, again, to learn its length" in next(lines(samples[0], begin=0.0))


def test_one_that_is_singled_out_is_told_of(world: Any, happenings: Any) -> None:
    recorded = world(profiling=0.2)
    recorded.run(happenings(seed=6, count=600, rate=900.0, trouble=False, hints=(1.0, 20.0)))
    chosen = [
        decision
        for decision in decisions(recorded)
        if isinstance(decision, Ran) and decision.isolated
    ]
    assert chosen
    for run in chosen:
        assert len(run.batch.members) == 1
        assert "to learn its length; the rest of the" in next(lines(run, begin=0.0))


def test_a_policy_that_waits_is_told_of(world: Any, happenings: Any) -> None:
    recorded = world("fifo", max_delay=0.005)
    recorded.run(happenings(seed=4, count=20, trouble=False))
    waits = [decision for decision in decisions(recorded) if isinstance(decision, Waited)]
    assert waits
    assert "stays free" in next(lines(waits[0], begin=0.0))


def test_a_batch_that_has_run_is_told_of_with_what_was_predicted(
    world: Any, happenings: Any
) -> None:
    recorded = world()
    recorded.run(happenings(seed=4, trouble=False))
    all_decisions = decisions(recorded)
    ends = [decision for decision in all_decisions if isinstance(decision, Finished)]
    runs = {decision.batch.id: decision for decision in all_decisions if isinstance(decision, Ran)}
    assert {end.batch.id for end in ends} == set(runs)
    for end in ends:
        proposal = runs[end.batch.id].proposal
        assert proposal is not None
        assert proposal.chosen is not None
        assert (end.expected, end.p99) == (proposal.chosen.expected, proposal.p99)
        assert end.took == pytest.approx(end.now - runs[end.batch.id].now)
    text = next(lines(ends[0], begin=0.0))
    assert f"took {1e3 * ends[0].took:.2f} ms; expected " in text


def test_the_story_of_one_request(world: Any, happenings: Any) -> None:
    recorded = world()
    recorded.run(happenings(seed=4))
    all_decisions = decisions(recorded)
    (first, *_) = [decision for decision in all_decisions if isinstance(decision, Ran)]
    story = [
        decision for decision in all_decisions if concerns(decision, first.batch.members[0].id)
    ]
    assert story[0] is first
