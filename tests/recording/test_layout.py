"""Every event survives a recording to the bit, and what is not one is refused by name."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain import (
    Announced,
    Answer,
    Batch,
    BatchAborted,
    BatchFailed,
    BatchFinished,
    BatchTiming,
    Cancelled,
    Circuit,
    Command,
    Deployment,
    DriverStalled,
    Event,
    ExitMode,
    ExitPolicy,
    ExitReport,
    FreeSlots,
    InputSize,
    LaneResized,
    LaneSpec,
    Leaving,
    Notice,
    Outcome,
    Plan,
    PlanChanged,
    PoolId,
    PublishExits,
    Reason,
    Refused,
    Replica,
    ReplicaLost,
    ReplicaUp,
    Request,
    ResizeLane,
    Route,
    RowsReleased,
    RunBatch,
    StartReplica,
    StopReplica,
    Submitted,
    TellCircuit,
)
from slacktide.engine import EngineSettings
from slacktide.recording import Call
from slacktide.recording.layout import LayoutError
from slacktide.recording.records import (
    EVENTS,
    Header,
    PoolOpened,
    Reader,
    answers,
    header_line,
    layout,
    plain_commands,
    plain_events,
    pool_line,
    read_header,
    started,
)
from slacktide.scheduling import PoolRecipe

finite = st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(min_value=0.0, exclude_min=True, allow_infinity=False)
ids = st.integers(0, 2**53)
names = st.text(max_size=8)
pools = st.builds(PoolId, names, names, names, st.integers(0, 9))
cores = st.lists(st.integers(0, 64), min_size=1, max_size=4, unique=True).map(tuple)
requests = st.builds(
    Request,
    ids,
    names,
    finite,
    finite,
    rows=st.integers(1, 64),
    penalty=positive,
    signature=st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), max_size=3).map(tuple),
    best_effort=st.booleans(),
    version=st.none() | names,
    application=names,
    client=names,
    work_hint=st.none() | finite,
    reserve=finite,
    network_time=finite,
    parent=st.none() | ids,
    size=st.integers(0, 4096),
    final=st.booleans(),
)
notices = st.builds(
    Notice,
    ids,
    names,
    finite,
    finite,
    st.integers(0, 2**40),
    finite | st.just(math.inf),
    penalty=positive,
    best_effort=st.booleans(),
    version=st.none() | names,
    application=names,
    client=names,
    size=st.integers(0, 4096),
)


shares = st.floats(0, 1)
reports = st.builds(
    ExitReport,
    st.lists(ids, max_size=3).map(tuple),
    st.lists(st.lists(shares, max_size=3).map(tuple), max_size=3).map(tuple),
    st.lists(st.lists(st.booleans(), max_size=3).map(tuple), max_size=3).map(tuple),
    st.lists(st.integers(-1, 3), max_size=3).map(tuple),
    st.lists(positive, max_size=3).map(tuple),
)


@st.composite
def policies(draw: st.DrawFn, pool: PoolId) -> ExitPolicy:
    ramps = sorted(draw(st.sets(st.integers(0, 30), max_size=3)))
    thresholds = tuple(draw(shares) for _ in ramps)
    mode, revision = draw(st.sampled_from(ExitMode)), draw(st.integers(0, 9))
    features, share = draw(st.booleans()), draw(shares)
    return ExitPolicy(pool, tuple(ramps), thresholds, mode, draw(shares), revision, features, share)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    lanes = [LaneSpec("gpu", (), "cuda:0"), LaneSpec("one", (0, 1)), LaneSpec("two", (2,))]
    chosen = draw(st.lists(pools, max_size=3, unique=True))
    placed = tuple(
        Deployment(pool, draw(st.sampled_from(lanes)).name, draw(st.integers(1, 9)))
        for pool in chosen
    )
    routes = {
        pool.model: Route(pool.model, pool, version=draw(st.none() | names)) for pool in chosen
    }
    clients = draw(st.lists(names, max_size=3, unique=True))
    inputs = tuple(InputSize("m", client, draw(names)) for client in clients)
    exits = tuple(draw(policies(pool)) for pool in chosen)
    return Plan(tuple(lanes), placed, tuple(routes.values()), inputs, exits)


PARTS: dict[type, Any] = {
    Announced: st.tuples(notices),
    Submitted: st.tuples(requests),
    Refused: st.tuples(ids, names, st.sampled_from(Reason), st.none() | names, names),
    Cancelled: st.tuples(ids, st.sampled_from(Reason)),
    RowsReleased: st.tuples(ids, st.lists(ids, max_size=4).map(tuple), st.integers(-1, 30)),
    BatchFinished: st.tuples(
        ids, st.builds(BatchTiming, finite, finite, finite, finite), st.none() | reports
    ),
    BatchFailed: st.tuples(ids, names),
    BatchAborted: st.tuples(ids, st.none() | reports),
    ReplicaUp: st.tuples(ids),
    ReplicaLost: st.tuples(ids, names, st.booleans(), st.booleans(), st.booleans()),
    LaneResized: st.tuples(names, cores),
    PlanChanged: st.tuples(plans()),
    DriverStalled: st.tuples(finite),
}
"""Arguments of every event that has some."""

any_event = st.one_of(
    [st.builds(type_, *()) for type_ in EVENTS.values() if type_ not in PARTS]
    + [arguments.map(lambda values, of=type_: of(*values)) for type_, arguments in PARTS.items()]
)


def test_every_event_that_has_fields_is_drawn() -> None:
    assert {t for t in get_args(Event) if fields(t)} == set(PARTS)


@given(st.lists(any_event, max_size=3), finite)
def test_events_survive_to_the_bit(events: list[Event], now: float) -> None:
    line = orjson.dumps((now, plain_events(events), []))
    read = Reader().record(orjson.loads(line))
    assert read == Call(now, tuple(events))
    assert repr(read) == repr(Call(now, tuple(events)))  # 0.0 and -0.0 are equal, 1 and 1.0 too


REPLICA = Replica(3, PoolId("m", "1"), "lane", (0, 1), 8, "cuda:0")
REQUEST = Request(5, "m", 1.0, 2.0)
OUTCOME = Outcome(Reason.HOPELESS, 9.5, 0.1, 0.2, 4, None, "why", 0.3, 0.4, 2)
ANSWER = Answer(Reason.HOPELESS, 9.5, 0.1, 0.2, 4, None, "why", 0.3, 0.4, 2, id=5, cause=11)
BATCH = Batch(7, REPLICA, (REQUEST, REQUEST), 2, 9.5, 12.5, False, Leaving.SHRINK, True)
COMMANDS: tuple[Command, ...] = (
    RunBatch(BATCH, 11, 0.004, 0.006),
    ANSWER,
    FreeSlots((5, 6), 11),
    StartReplica(REPLICA, 11),
    StopReplica(REPLICA, True, 11),
    ResizeLane("lane", (0,), (REPLICA,), 11),
    TellCircuit(REPLICA.pool, Circuit.OPEN, "it crashed", 10.0, 11),
    PublishExits(REPLICA, ExitPolicy(REPLICA.pool, (2, 5), (0.1, 0.0), ExitMode.SHRINK), 11),
)


def test_commands_stand_in_a_recording_as_its_layout_says() -> None:
    stated = layout()
    for command, plain in zip(COMMANDS, plain_commands(COMMANDS), strict=True):
        assert plain[0] == type(command).__name__
        assert plain[1] == 11
        assert len(plain) == 1 + len(stated[plain[0]])
    assert set(get_args(Command)) - {type(command) for command in COMMANDS} == {
        arg for arg in get_args(Command) if arg.__name__ == "AbortBatch"
    }


def test_nothing_is_left_out_but_what_equals_the_time_of_the_call() -> None:
    stated = layout()
    assert {f.name for f in fields(Batch)} - set(stated["RunBatch"]) == {"started"}
    assert {f.name for f in fields(Outcome)} - set(stated["Answer"]) == {"at"}


def test_answers_and_replicas_are_read_back() -> None:
    call = Reader().record(orjson.loads(orjson.dumps((9.5, [], plain_commands(COMMANDS)))))
    assert isinstance(call, Call)
    assert list(answers(call)) == [(5, OUTCOME)]
    assert list(started(call)) == [REPLICA]


def test_a_header_survives() -> None:
    settings = EngineSettings(start_limit=1.5)
    plan = Plan((LaneSpec("one", (0,)),))
    header = Header("ab", 2, "0.1", "2026-01-01T00:00:00+0000", settings, 17, plan)
    assert read_header(orjson.loads(orjson.dumps(header_line(header)))) == header


def refusal(line: object) -> str:
    with pytest.raises(LayoutError) as raised:
        Reader().record(line)
    return str(raised.value)


def submitted(**changed: Any) -> list[Any]:
    ((_, values),) = plain_events([Submitted(REQUEST)])
    named = dict(zip(layout()["Request"], values, strict=True)) | changed
    line: list[Any] = orjson.loads(orjson.dumps([0.0, [["Submitted", list(named.values())]], []]))
    return line


def test_faults_of_a_line_are_named() -> None:
    assert refusal([0.0, []]) == "expected [now, events, commands]"
    assert refusal(["0", [], []]) == "now: expected a number, got '0'"
    assert "expected one of Announced, " in refusal([0.0, [["Sumbitted"]], []])
    assert "expected one of Announced, " in refusal([0.0, [[["Submitted"]]], []])
    assert refusal([0.0, [["ReplicaUp"]], []]) == "ReplicaUp: expected 1 values (replica)"
    assert refusal([0.0, [["ReplicaUp", True]], []]) == (
        "ReplicaUp.replica: expected a whole number, got True"
    )
    assert refusal(submitted(rows=1.5)) == (
        "Submitted.request.rows: expected a whole number, got 1.5"
    )
    assert refusal(submitted(rows=0)) == "Submitted.request: rows must be at least 1, got 0"
    assert refusal(submitted(client=3)) == "Submitted.request.client: expected text, got 3"
    assert refusal(submitted(best_effort=0)) == (
        "Submitted.request.best_effort: expected true or false, got 0"
    )
    assert refusal(submitted(signature=[3])) == (
        "Submitted.request.signature: expected a list, got 3"
    )
    assert "Cancelled.reason: expected one of on_time, " in refusal(
        [0.0, [["Cancelled", 1, "bored", ""]], []]
    )
    assert refusal({"pool": ["m", "1", "", 0]}) == (
        "pool: missing max_batch, scheduler, options, share, profiling, times"
    )


def test_a_recording_of_another_version_is_refused_and_says_which_fields() -> None:
    header = header_line(Header("ab", 1, "9.9", "", EngineSettings()))
    plain = orjson.loads(orjson.dumps(header))
    with pytest.raises(LayoutError, match="this version reads 1, got 2"):
        read_header(plain | {"slacktide_recording": 2})
    other = plain | {"layout": plain["layout"] | {"Request": ["id", "mood"]}}
    with pytest.raises(LayoutError, match=r"Request: fields differ: mood; .* \(9\.9\)"):
        read_header(other)
    lacking = plain | {"layout": plain["layout"] | {"Request": ["id"]}}
    with pytest.raises(LayoutError, match="Request: fields differ: model, arrival, deadline;"):
        read_header(lacking)
    fewer = {name: fields for name, fields in plain["layout"].items() if name != "RowsReleased"}
    assert read_header(plain | {"layout": fewer}).part == 1


def test_fields_of_another_version_are_found_by_name() -> None:
    """What it lacked has its default; of commands it is left open, and not compared."""
    reader = Reader(
        {
            "Request": ["deadline", "id", "model", "arrival"],
            "Answer": ["id", "cause", "reason"],
        }
    )
    event = ["Submitted", [2.0, 5, "m", 1.0]]
    answer = ["Answer", 5, 11, "hopeless"]
    call = reader.record([9.5, [event], [answer, ["FreeSlots", 11, [5]]]])
    assert isinstance(call, Call)
    assert call.events == (Submitted(REQUEST),)
    (read, freed) = call.commands
    assert read[:4] == ["Answer", 11, 5, "hopeless"]
    assert len(read) == len(layout()["Answer"]) + 1
    assert set(read[4:]) == {None}
    assert freed == ["FreeSlots", 11, [5]]
    plain = orjson.loads(orjson.dumps(plain_commands([ANSWER])))
    assert reader.recorded(plain) == [read]
    with pytest.raises(LayoutError, match="Answer has too few values"):
        reader.record([9.5, [], [answer[:3]]])


def test_a_pool_survives_and_an_earlier_one_has_no_variants() -> None:
    recipe = PoolRecipe("slack", {"kappa": 0.9}, 2.0, 0.1, 256, ("160", "128"))
    opened = PoolOpened(PoolId("m", "1", "256"), 4, recipe, {})
    line = orjson.loads(orjson.dumps(pool_line(opened)))
    read = Reader().record(line)
    assert isinstance(read, PoolOpened)
    assert read == opened
    del line["size"], line["rescue"]
    earlier = Reader().record(line)
    assert isinstance(earlier, PoolOpened)
    assert (earlier.recipe.size, earlier.recipe.rescue) == (0, ())
