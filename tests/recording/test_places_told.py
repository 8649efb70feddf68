"""`--decisions` says which models run on other lanes, and which stages elsewhere."""

from __future__ import annotations

import orjson

from slacktide.domain import Deployment, LaneSpec, Plan, PlanChanged, PoolId, StagePlace
from slacktide.lab.replay.decisions import Decision, Notes, PlacesChanged
from slacktide.lab.replay.explain import lines
from slacktide.recording import Call
from slacktide.recording.records import Reader, plain_events

POOL = PoolId("brand", "1")


def plan(*lanes: str, device: str = "") -> Plan:
    places = (StagePlace("cars", "brand", device),) if device else ()
    return Plan(
        tuple(LaneSpec(name, (core,)) for core, name in enumerate("ab")),
        tuple(Deployment(POOL, lane, 1) for lane in lanes),
        places=places,
    )


def test_why_is_kept_in_the_recording() -> None:
    whole = Call(2.0, (PlanChanged(plan("b"), "regular plan"),))
    written = orjson.loads(orjson.dumps((2.0, plain_events(whole.events), ())))
    read = Reader().record(written)
    assert read == whole
    decisions: list[Decision] = []
    notes = Notes(decisions.append)
    for call in (Call(0.0, (PlanChanged(plan("a")),)), read):
        notes.after(call, None, [])  # type: ignore[arg-type]
    assert decisions == [PlacesChanged(2.0, "brand", ("a",), ("b",), "regular plan")]
    (line,) = lines(decisions[0], begin=0.0)
    assert line.endswith("brand moves from a to b: regular plan")


def test_a_move_is_told_once() -> None:
    decisions: list[Decision] = []
    notes = Notes(decisions.append)
    plans = [plan("a"), plan("a"), plan("a", "b"), plan("b", device="box"), plan("b")]
    for at, changed in enumerate(plans):
        notes.after(Call(float(at), (PlanChanged(changed),)), None, [])  # type: ignore[arg-type]
    assert [type(decision) for decision in decisions] == [PlacesChanged] * 4
    assert [next(lines(decision, begin=0.0)).split(" s  ")[1] for decision in decisions] == [
        "brand moves from a to a, b",
        "brand moves from a, b to b",
        "cars/brand moves from here to box",
        "cars/brand moves from box to here",
    ]
