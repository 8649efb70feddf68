"""Sessions of clients that stream frames: what is told of them, and what they are told."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from types import SimpleNamespace
from typing import Any

import pytest

from slacktide.domain import InputSize, Outcome, Plan, Reason
from slacktide.domain.preprocessing import StatedPreprocessing
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.planning.sessions import SessionClosed, SessionMeasured, SessionOpened
from slacktide.planning.variants import Family, FamilyVariant
from slacktide.server.calls.sessions import MOST_ADVISED, MOST_JOINS, Sessions
from slacktide.wire.calls import SessionTerms, SizeAdvice
from slacktide.wire.errors import BadField, WireError

IMAGE = ModelInterface(
    (TensorSpec("image", Datatype.UINT8, (-1, -1, -1, 3)),),
    (TensorSpec("y", Datatype.FP32, (-1, 2)),),
    8,
)
FAMILY = Family(tuple(FamilyVariant(str(size), size / 1000, size) for size in (128, 256, 512)))
TERMS = SessionTerms("street", None, 10.0, 0.15, 0.2, 2.0, "gate 3")


class Bench:
    """Sessions on a clock of their own, with models and a loop that a test drives."""

    def __init__(self, family: Family | None = FAMILY, most: int = 4096) -> None:
        self.now = 100.0
        self.posted: list[Any] = []
        self.turns: list[Callable[[], None]] = []
        self.pushed: list[tuple[str, SizeAdvice]] = []
        self.version = SimpleNamespace(family=family, interface=IMAGE, name=TERMS.model, rest_s=0.0)
        self.version.front = self.version
        self.picture()
        catalog: Any = SimpleNamespace(find=lambda model, version: self.version)
        self.sessions = Sessions(
            catalog, self.posted.append, lambda: self.now, self.turns.append, most
        )

    def picture(self, image: StatedPreprocessing | None = None) -> None:
        """Have the model take pictures in this way."""
        self.version.definition = SimpleNamespace(settings=SimpleNamespace(preprocessing=image))

    def open(self, address: str = "10.0.0.1", terms: SessionTerms = TERMS) -> Any:
        opened: list[Any] = []
        opened.append(
            self.sessions.open(
                terms, address, lambda advice: self.pushed.append((opened[0].id, advice))
            )
        )
        return opened[0]

    def plan(self, **variants: str) -> None:
        """Sessions by number → variant, in force; then every turn there is to take."""
        inputs = tuple(InputSize("street", f"s:{id[1:]}", name) for id, name in variants.items())
        self.sessions.planned(Plan(inputs=inputs))
        while self.turns:
            self.turns.pop(0)()

    def frame(self, session: Any, nbytes: int = 20_000, seconds: float = 0.02, **more: Any) -> None:
        session.arrived(nbytes, seconds, more.get("size", (256, 256)), now=self.now)

    def measured(self) -> list[SessionMeasured]:
        return [event for event in self.posted if isinstance(event, SessionMeasured)]


def test_planners_hear_of_a_session_from_its_hello_to_its_end():
    bench = Bench()
    session = bench.open()
    assert session.id == "s:1"
    assert bench.posted == [SessionOpened("s:1", "street", 10.0, 0.15, 0.2, 2.0)]
    session.change(SessionTerms("street", None, 5.0, 0.1))
    assert bench.posted[1:] == [SessionOpened("s:1", "street", 5.0, 0.1, 0.0, 1.0)]
    session.close()
    session.close()
    assert bench.posted[2:] == [SessionClosed("s:1")]
    assert bench.open().id == "s:2"
    with pytest.raises(BadField, match="model: "):
        bench.open().change(SessionTerms("other", None, 5.0, 0.1))


def test_measurements_are_told_ten_times_a_second_and_falls_at_once():
    bench = Bench()
    session = bench.open()
    session.rtt = 0.03
    for _ in range(40):
        bench.frame(session)
        bench.now += 0.025
    measurements = bench.measured()
    assert 9 <= len(measurements) <= 11
    last = measurements[-1]
    assert last.bytes_per_s == pytest.approx(1e6, rel=0.05)
    assert last.rtt == 0.03
    assert last.bytes_per_pixel == pytest.approx(20_000 / 256**2, rel=0.01)
    assert 30.0 < last.rate < 40.0
    assert not last.fell
    count = len(measurements)
    bench.frame(session, seconds=0.02)
    bench.frame(session, seconds=0.2)  # a tenth
    fall = bench.measured()[count:][-1]
    assert fall.fell
    assert fall.bytes_per_s == pytest.approx(1e5)
    assert bench.sessions.counts["link_falls_total"] == 2  # the first: below the guess


@pytest.mark.parametrize("stated", [5e-324, 1e308, inf, nan, -1.0])
def test_absurd_rates_leave_all_numbers_finite(stated: float):
    bench = Bench()
    session = bench.open(terms=replace(TERMS, rate=5e-324, bytes_per_s=max(stated, 0.0)))
    for _ in range(5):
        session.report_rate(stated)
        assert 0.0 < session.transfer_time(20_000, now=bench.now) < inf
        bench.frame(session)
        assert 0.0 < session.transfer_time(20_000, now=bench.now) < inf
        bench.now += 0.1
    for event in bench.measured():
        assert 0.0 < event.bytes_per_s < inf
        assert 0.0 < event.rate < inf
    json.dumps(session.describe(), allow_nan=False)


def test_a_session_that_sends_nothing_is_planned_for_at_what_it_sends():
    bench = Bench()
    session = bench.open()
    bench.now += 4.0
    session.idle(bench.now)
    assert bench.measured() == []  # mapped to nothing, it takes nothing from others
    bench.plan(s1="256")
    session.idle(bench.now)
    assert bench.measured()[-1].rate == session.describe()["rate_seen"] == pytest.approx(0.25)
    bench.now += 0.2
    bench.frame(session)
    assert bench.measured()[-1].rate == pytest.approx(10.0)
    count = len(bench.measured())
    bench.now += 1.0
    session.idle(bench.now)
    assert len(bench.measured()) == count


def test_a_hello_with_equal_terms_changes_nothing():
    bench = Bench()
    session = bench.open(terms=replace(TERMS, bytes_per_s=1e6))
    for _ in range(5):
        bench.frame(session)
        bench.now += 0.1
    session.report_rate(2e6)
    posted, before = list(bench.posted), session.describe()
    for _ in range(40):
        session.change(replace(TERMS, bytes_per_s=1e6))
    assert bench.posted == posted
    assert session.describe() == before
    assert session.link.guess == 2e6


@pytest.mark.parametrize("hellos", ["none", "equal", "changing"])
def test_a_silent_session_has_no_part_in_plans_until_its_next_frame(hellos: str):
    bench = Bench()
    session = bench.open()
    bench.plan(s1="256")
    bench.frame(session)
    for second in range(40):
        bench.now += 1.0
        session.idle(bench.now)
        if hellos != "none":
            session.change(replace(TERMS, rate=10.0 + (second if hellos == "changing" else 0)))
    assert bench.posted.count(SessionClosed("s:1")) == 1
    gone = bench.posted.index(SessionClosed("s:1"))
    assert [event for event in bench.posted[gone + 1 :] if event.id == "s:1"] == []
    assert bench.sessions.sums()["client_sessions"] == 1
    assert session.advice is not None
    assert session.advice.size == 256  # as before: the next frame may be so large
    bench.frame(session)
    opened, measured = bench.posted[gone + 1 :]
    assert isinstance(opened, SessionOpened)
    assert isinstance(measured, SessionMeasured)
    assert opened.rate == session.terms.rate
    assert measured.rate < 1.0
    session.close()
    assert bench.posted[-1] == SessionClosed("s:1")


@pytest.mark.parametrize(("gap", "stays"), [(1.0, 5), (3.0, 9), (10.0, 15), (100.0, 15)])
def test_a_slow_camera_keeps_its_part_in_plans_between_frames(gap: float, stays: int):
    bench = Bench()
    session = bench.open(terms=replace(TERMS, rate=1.0 / gap))
    bench.frame(session)
    for second in range(1, 30):
        bench.now += 1.0
        session.idle(bench.now)
        assert session.is_planned is (second < stays)


def test_losses_of_a_hopeless_session_teach_others_nothing():
    bench = Bench()
    good, bad = bench.open(), bench.open("10.0.0.2")
    for number in range(300):
        lost = Reason.EXPIRED if number == 100 else Reason.HOPELESS if number == 200 else None
        for session, reason in ((good, lost or Reason.ON_TIME), (bad, Reason.EXPIRED)):
            bench.frame(session)
            session.answered(Outcome(reason, bench.now), bench.now)
        bench.now += 0.1
    bench.frame(good)
    last = {event.id: event for event in bench.measured()}
    mine, other = last[good.id], last[bad.id]
    assert (mine.ended, mine.lost_on_lanes, mine.lost_on_link) == (300, 1, 1)
    assert other.ended < 10
    assert other.lost_on_link == other.ended


def test_a_frame_that_is_given_up_on_its_way_may_be_a_fall():
    bench = Bench()
    session = bench.open()
    for _ in range(20):
        bench.frame(session)
        bench.now += 0.1
    count = len(bench.measured())
    session.stalled(0, 20_000, 0.015, now=bench.now)  # it was not due yet
    session.stalled(9_000, 20_000, 0.03, now=bench.now)  # hardly late
    assert len(bench.measured()) == count
    session.stalled(10_000, 20_000, 0.1, now=bench.now)
    assert bench.measured()[-1].fell
    assert session.bandwidth == pytest.approx(1e5)


def test_the_clients_statement_on_its_link_counts_until_it_is_measured():
    bench = Bench()
    session = bench.open(terms=SessionTerms("street", None, 10.0, 0.15, bytes_per_s=5e5))
    assert session.transfer_time(5_000, now=bench.now) == pytest.approx(0.01)
    session.report_rate(2e6)
    assert session.transfer_time(5_000, now=bench.now) == pytest.approx(0.0025)
    assert session.bandwidth == 0.0
    for _ in range(10):
        bench.frame(session)
        bench.now += 0.1
    session.report_rate(1e12)  # a lie
    assert session.bandwidth == pytest.approx(1e6, rel=0.05)
    assert session.transfer_time(10_000, now=bench.now) == pytest.approx(0.01, rel=0.05)


def test_a_session_is_told_what_changes_for_it():
    bench = Bench()
    first, second = bench.open(), bench.open()
    assert first.advice is None
    bench.plan(s1="256", s2="")
    assert bench.pushed == [
        ("s:1", SizeAdvice(256, "256", True)),
        ("s:2", SizeAdvice(128, "", False)),
    ]
    bench.plan(s1="256", s2="128")
    assert bench.pushed[2:] == [("s:2", SizeAdvice(128, "128", True))]
    bench.plan(s2="128")  # nothing is said of the first: it stays
    assert len(bench.pushed) == 3
    assert first.advice == SizeAdvice(256, "256", True)
    assert second.advice == SizeAdvice(128, "128", True)
    assert bench.sessions.sums()["client_sessions_mapped"] == 2


def test_many_sessions_are_told_over_several_turns():
    bench = Bench()
    for _ in range(250):
        bench.open()
    inputs = tuple(InputSize("street", f"s:{number}", "256") for number in range(1, 251))
    bench.sessions.planned(Plan(inputs=inputs))
    counts = []
    while bench.turns:
        assert len(bench.turns) == 1
        bench.turns.pop()()
        counts.append(len(bench.pushed))
    assert counts == [MOST_ADVISED, 2 * MOST_ADVISED, 250]


def test_a_session_that_ends_before_its_turn_is_not_told():
    bench = Bench()
    session = bench.open()
    bench.sessions.planned(Plan(inputs=(InputSize("street", "s:1", "256"),)))
    session.close()
    bench.turns.pop()()
    assert bench.pushed == []


@pytest.mark.parametrize("family", [None, Family(FAMILY.variants, planner="none")])
def test_a_model_without_planned_variants_is_streamed_to_as_it_is(family: Family | None):
    session = Bench(family).open()
    assert session.advice == SizeAdvice(0, "", True, 0.0)
    name, variants = session.welcome()
    assert name == "image"
    assert len(variants) == (0 if family is None else 3)


@pytest.mark.parametrize(
    ("image", "keeps_shape", "short_side"),
    [
        (None, False, 0),
        (StatedPreprocessing("image"), True, 0),
        (StatedPreprocessing("image", "ultralytics"), True, 0),
        (StatedPreprocessing("image", "imagenet"), True, 1 / 0.875),
        (StatedPreprocessing("image", "imagenet", crop=0.5), True, 2),
        (StatedPreprocessing("image", resize="cover"), True, 1),
        (StatedPreprocessing("image", resize="short_side"), True, 1),
        (StatedPreprocessing("image", "paddleocr"), True, 1),
        (StatedPreprocessing("image", "caffe"), False, 0),
        (StatedPreprocessing("image", "caffe", resize="letterbox"), True, 0),
        (StatedPreprocessing("image", "ultralytics", resize="squash"), False, 0),
    ],
)
def test_clients_are_told_what_shape_a_model_sees(
    image: StatedPreprocessing | None, keeps_shape: bool, short_side: float
):
    bench = Bench()
    bench.picture(image)
    session = bench.open()
    assert session.keeps_shape is keeps_shape
    assert session.short_side == pytest.approx(short_side)
    bench.version = None  # type: ignore[assignment]
    session = bench.open()
    assert (session.keeps_shape, session.short_side) == (False, 0.0)


def test_a_welcome_names_variants_with_size_and_accuracy():
    assert Bench().open().welcome() == (
        "image",
        [("128", 128, 0.128), ("256", 256, 0.256), ("512", 512, 0.512)],
    )


def test_a_model_that_has_gone_keeps_what_its_sessions_were_told():
    bench = Bench()
    session = bench.open()
    bench.plan(s1="256")
    bench.version = None  # type: ignore[assignment]
    bench.plan(s1="128")
    assert session.advice == SizeAdvice(128, "128", True)
    assert session.welcome()[0] == ""


def test_sessions_are_bounded_in_all_and_by_address():
    bench = Bench(most=6)
    kept = [bench.open("a") for _ in range(3)]
    with pytest.raises(WireError, match="too many open sessions"):
        bench.open("a")
    for address in "bcd":
        bench.open(address)
    with pytest.raises(WireError) as refused:
        bench.open("e")
    assert refused.value.reason is Reason.CLIENT_LIMIT
    kept[0].close()
    bench.open("e")
    assert bench.sessions.sums()["client_sessions"] == 6
    assert bench.sessions.counts["client_sessions_refused_total"] == 2


def test_joins_are_bounded_in_a_second():
    bench = Bench(most=100_000)
    opened = 0
    for number in range(5 * MOST_JOINS):
        try:
            bench.open("flood" if number % 2 else f"10.0.{number}").close()
            opened += 1
        except WireError:
            pass
    assert opened == 2 * MOST_JOINS
    bench.now += 1.0
    session = bench.open("flood")
    refused = 0
    for _ in range(2 * MOST_JOINS):
        try:
            session.change(TERMS)
        except WireError:
            refused += 1
    assert refused == MOST_JOINS + 1
    assert bench.open("another").id


def test_the_page_says_what_is_known_of_each():
    bench = Bench()
    session = bench.open()
    bench.plan(s1="256")
    for _ in range(10):
        bench.frame(session)
        session.answered(Outcome(Reason.ON_TIME, bench.now - 0.004), bench.now)
        bench.now += 0.1
    session.answered(None, bench.now)
    session.answered(Outcome(Reason.AFTER_DEADLINE, bench.now), bench.now)
    (page,) = json.loads(json.dumps(bench.sessions.describe()))
    assert page["rate_seen"] == pytest.approx(10.0, rel=0.01)
    assert page["bytes_per_s"] == pytest.approx(1e6, rel=0.05)
    del page["rate_seen"], page["bytes_per_s"]
    assert page == {
        "id": "s:1",
        "address": "10.0.0.1",
        "name": "gate 3",
        "model": "street",
        "rate": 10.0,
        "slo_ms": 150.0,
        "rtt_ms": 0.0,
        "variant": "256",
        "size": 256,
        "mapped": True,
        "frames": 10,
        "answered": 12,
        "missed": 2,
    }
    bench.frame(session, size=(640, 480))  # another than advised
    bench.now += 1.0
    bench.frame(session, size=(256, 192))
    sums = bench.sessions.sums()
    assert sums["frames_of_other_size_total"] == 1
    assert (sums["frames_on_time_total"], sums["frames_missed_total"]) == (10, 2)
    assert bench.measured()[-1].overhead == pytest.approx(0.004, rel=0.5)


def test_the_rate_that_is_seen_and_not_that_which_is_claimed_is_told():
    bench = Bench()
    session = bench.open(terms=SessionTerms("street", None, 1.0, 0.15))  # it says 1
    for _ in range(100):
        bench.frame(session)
        bench.now += 0.02
    assert bench.measured()[-1].rate == pytest.approx(50.0, rel=0.1)
