"""What becomes of a frame, stage by stage; the exact requests and outcomes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.pipelines.play import Play, graph, part_answered

from slacktide.domain import Announced, Notice, Reason, StagePlace
from slacktide.domain.frames import (
    Feed,
    Frame,
    FrameAnnounced,
    FrameArrived,
    FrameCancelled,
    FrameRefused,
    PipelinesChanged,
    StageYielded,
    Yield,
    YieldPart,
)
from slacktide.pipelines.deadlines import MARGIN_S

pytestmark = pytest.mark.replaces_parts  # the engine that `Frames` reads

TRAFFIC = graph("detect>brand", "detect>plate")
JOINED = graph("a>b", "a>c", "b>d", "c>d")


def only(requests):
    (request,) = requests
    return request


def test_a_frame_is_done_when_all_of_its_stages_are():
    play = Play(TRAFFIC)
    play.arrives(client="cam", signature=((96, 96, 3),), penalty=2.0, size=96, application="app")
    source = only(play.stage("detect"))
    assert (source.model, source.parent, source.rows, source.signature, source.size) == (
        "DETECT", 1, 1, ((96, 96, 3),), 96,
    )  # fmt: skip
    assert play.feeds[source.id] == (Feed(None, 1, 0, 1),)
    # The longer branch takes 10 ms at its p99, for the one row that is likely.
    assert source.deadline == pytest.approx(0.2 - MARGIN_S - 0.01)
    assert source.reserve == pytest.approx(0.01)
    play.passes(0.05)
    play.ends(source.id)
    assert not play.open
    play.yields(source.id, 3, 2)
    brand, plate = only(play.stage("brand")), only(play.stage("plate"))
    assert (brand.rows, plate.rows) == (3, 2)
    assert play.feeds[brand.id] == (Feed(0, source.id, 0, 3),)
    assert play.feeds[plate.id] == (Feed(1, source.id, 0, 2),)
    assert (brand.deadline, brand.reserve) == (pytest.approx(0.2 - MARGIN_S), 0.0)
    assert (brand.arrival, brand.client, brand.penalty, brand.application) == (
        0.05, "cam", 2.0, "app",
    )  # fmt: skip
    play.ends(plate.id)
    assert not play.outcomes
    play.ends(brand.id)
    outcome = play.outcomes[1]
    assert (outcome.reason, outcome.missing, outcome.pipeline) == (Reason.ON_TIME, (), "p")
    assert (outcome.queue_s, outcome.compute_s) == (0.001, pytest.approx(0.049))
    assert outcome.budget_s == pytest.approx(0.15)
    assert play.freed == [1]
    assert play.quiet()


def test_nothing_found_is_a_whole_answer():
    play = Play(graph("detect>brand", "brand>owner"))
    play.arrives()
    source = only(play.stage("detect"))
    play.ends(source.id)
    play.yields(source.id, 0)
    assert play.outcomes[1].reason is Reason.ON_TIME
    assert play.outcomes[1].missing == ()


def test_a_thousand_rows_are_split_at_the_largest_batch():
    play = Play(TRAFFIC, max_batch=300)
    play.arrives()
    source = only(play.stage("detect"))
    play.ends(source.id)
    play.yields(source.id, 1000, 0)
    brands = play.stage("brand")
    assert [brand.rows for brand in brands] == [300, 300, 300, 100]
    assert [only(play.feeds[brand.id]) for brand in brands] == [
        Feed(0, source.id, first, min(first + 300, 1000)) for first in (0, 300, 600, 900)
    ]
    for brand in brands:
        play.ends(brand.id)
    assert play.outcomes[1].reason is Reason.ON_TIME


@pytest.mark.parametrize("lost", [Reason.HOPELESS, Reason.UNAVAILABLE, Reason.CRASHED])
def test_a_lost_stage_ends_its_branch_and_the_rest_is_answered(lost):
    play = Play(graph("detect>brand", "detect>plate", "plate>owner"))
    play.arrives()
    source = only(play.stage("detect"))
    play.ends(source.id)
    play.yields(source.id, 1, 1)
    play.ends(only(play.stage("plate")).id, lost)
    assert not play.outcomes
    play.ends(only(play.stage("brand")).id)
    outcome = play.outcomes[1]
    assert outcome.reason is Reason.PARTIAL
    assert outcome.missing == ("plate", "owner")
    assert outcome.detail == "not complete: plate, owner"


def test_a_frame_without_its_source_ends_as_that_did():
    play = Play(TRAFFIC)
    play.arrives()
    play.ends(only(play.stage("detect")).id, Reason.BEHIND_WORK)
    assert play.outcomes[1].reason is Reason.BEHIND_WORK
    assert play.outcomes[1].missing == ("detect", "brand", "plate")


def test_at_its_deadline_it_is_answered_with_what_is_complete_and_its_children_go():
    play = Play(TRAFFIC)
    play.arrives()
    source = only(play.stage("detect"))
    play.ends(source.id)
    play.yields(source.id, 2, 2)
    brand, plate = only(play.stage("brand")), only(play.stage("plate"))
    play.ends(brand.id)
    assert play.frames.next_deadline == pytest.approx(0.2 - MARGIN_S)
    play.passes(play.frames.next_deadline)
    outcome = play.outcomes[1]
    assert (outcome.reason, outcome.missing) == (Reason.PARTIAL, ("plate",))
    assert outcome.at <= 0.2
    assert play.cancelled == [plate.id]
    assert not play.freed
    play.obey(running=frozenset((plate.id,)))
    assert not play.freed, "a batch still names its crops"
    play.frees(plate.id)
    assert play.freed == [1]


def test_without_an_answer_of_the_source_it_has_expired():
    play = Play(TRAFFIC)
    play.arrives()
    play.passes(0.2)
    assert play.outcomes[1].reason is Reason.EXPIRED
    assert "'detect'" in play.outcomes[1].detail


def test_an_answer_that_is_late_for_its_stage_may_still_be_in_time_for_the_frame():
    play = Play(TRAFFIC)
    play.arrives()
    source = only(play.stage("detect"))
    play.passes(0.195)
    play.ends(source.id, Reason.AFTER_DEADLINE)
    play.yields(source.id, 1, 0)
    play.ends(only(play.stage("brand")).id)
    assert play.outcomes[1].reason is Reason.ON_TIME


def test_after_its_deadline_it_is_late_unless_it_has_none():
    play = Play(TRAFFIC)
    play.arrives(1)
    play.arrives(2, best_effort=True)
    play.now = 1.0
    for id in list(play.open):
        play.ends(id)
        play.yields(id, 0, 0)
    assert play.outcomes[1].reason is Reason.AFTER_DEADLINE
    assert play.outcomes[2].reason is Reason.ON_TIME
    assert play.outcomes[2].budget_s is None


def test_a_client_that_goes_takes_all_children_along():
    play = Play(TRAFFIC)
    play.arrives()
    source = only(play.stage("detect"))
    play.ends(source.id)
    play.yields(source.id, 1, 1)
    play.tell(FrameCancelled(1, Reason.DISCONNECTED))
    assert play.outcomes[1].reason is Reason.DISCONNECTED
    assert len(play.cancelled) == 2
    play.obey()
    assert play.freed == [1]
    play.tell(FrameCancelled(1), StageYielded(source.id, ()))
    assert play.quiet()


def test_a_join_takes_the_rows_of_all_that_feed_it_as_they_began():
    play = Play(JOINED, max_batch=2)
    play.arrives()
    source = only(play.stage("a"))
    play.ends(source.id)
    play.yields(source.id, 3, 3)
    b, c = play.stage("b"), play.stage("c")
    for request in (*reversed(b), *c):
        assert not play.stage("d")
        play.ends(request.id)
        play.yields(request.id, request.rows)
    first, second = play.stage("d")
    assert (first.rows, second.rows) == (2, 1)
    assert play.feeds[first.id] == (Feed(2, b[0].id, 0, 2), Feed(3, c[0].id, 0, 2))
    assert play.feeds[second.id] == (Feed(2, b[1].id, 0, 1), Feed(3, c[1].id, 0, 1))


def test_a_join_has_the_rows_of_one_place_together_whichever_was_answered_first():
    play = Play(graph("a>b", "b>c", "b>d", "c>d"), max_batch=2)
    play.arrives()
    source = only(play.stage("a"))
    play.ends(source.id)
    play.yields(source.id, 3)
    first, second = play.stage("b")
    for request in (second, first):
        play.ends(request.id)
        play.yields(request.id, request.rows, request.rows)
    late, early = play.stage("c")  # that of the last row began first
    assert (late.rows, early.rows) == (1, 2)
    for request in (late, early):
        play.ends(request.id)
        play.yields(request.id, request.rows)
    first_join, other = play.stage("d")
    assert play.feeds[first_join.id] == (Feed(2, first.id, 0, 2), Feed(3, early.id, 0, 2))
    assert play.feeds[other.id] == (Feed(2, second.id, 0, 1), Feed(3, late.id, 0, 1))


def test_a_join_that_lacks_a_part_does_not_begin():
    play = Play(JOINED, max_batch=2)
    play.arrives()
    source = only(play.stage("a"))
    play.ends(source.id)
    play.yields(source.id, 3, 3)
    for request in play.stage("b"):
        play.ends(request.id)
        play.yields(request.id, request.rows)
    first, second = play.stage("c")
    play.ends(first.id)
    play.yields(first.id, 2)
    play.ends(second.id, Reason.EXPIRED)
    assert not play.open
    assert play.outcomes[1].missing == ("c", "d")


def test_outputs_that_cannot_be_kept_end_their_branch():
    play = Play(TRAFFIC)
    play.arrives()
    source = only(play.stage("detect"))
    play.ends(source.id)
    play.yields(source.id, 1, 1, refused=Reason.MEMORY_LIMIT)
    assert play.outcomes[1].missing == ("brand", "plate")


def test_an_upload_is_announced_to_the_model_of_the_source():
    play = Play(TRAFFIC)
    notice = Notice(7, "p", 0.0, 0.2, 1000, 0.05, client="cam")
    events, commands = play.frames.handle([FrameAnnounced(notice)], now=0.0)
    announced = only(events)
    assert isinstance(announced, Announced)
    own = announced.notice
    assert (own.model, own.complete_at, own.client) == ("DETECT", 0.05, "cam")
    assert own.deadline == pytest.approx(0.2 - MARGIN_S - 0.01)
    assert not commands
    play.announced.add(own.id)
    play.tell(FrameArrived(Frame(7, "p", 0.0, 0.1)))
    assert only(play.stage("detect")).id == own.id
    assert play.frames.next_deadline == pytest.approx(0.1 - MARGIN_S)


def test_an_upload_that_never_comes_ends_at_its_deadline():
    play = Play(TRAFFIC)
    play.tell(FrameAnnounced(Notice(7, "p", 0.0, 0.2, 1000, 0.05)))
    play.passes(0.2)
    assert play.outcomes[7].reason is Reason.EXPIRED
    play.obey()
    assert play.freed == [7]


def test_refused_frames_are_counted():
    play = Play(TRAFFIC)
    play.tell(
        FrameRefused(1, "p", Reason.BAD_INPUT, "no"),
        FrameArrived(Frame(2, "q", 0.0, 1.0)),
        FrameArrived(Frame(3, "p", 0.0, 1.0, stage="z")),
        FrameArrived(Frame(4, "p", 0.0, 0.0)),
        FrameAnnounced(Notice(5, "p", 0.0, 0.2, 1000, 0.05)),
        FrameRefused(5, "p", Reason.TOO_LARGE),
    )
    assert [outcome.reason for outcome in play.outcomes.values()] == [
        Reason.BAD_INPUT,
        Reason.UNAVAILABLE,
        Reason.BAD_INPUT,
        Reason.EXPIRED,
        Reason.TOO_LARGE,
    ]
    play.obey()
    assert play.freed == [1, 2, 3, 4, 5]
    assert play.frames.counts["p"].requests == 4


def test_a_stage_that_sits_elsewhere_is_handed_over_with_all_behind_it():
    line = graph("detect>plate", "plate>owner", "detect>brand")
    far = StagePlace("p", "plate", "server", p99=0.02, transfer=0.03, back=0.005)
    play = Play(line, places=(far, StagePlace("p", "owner", "server", p99=0.01)))
    play.arrives(nbytes=1000)
    source = only(play.stage("detect"))
    assert source.reserve == pytest.approx(0.03 + 0.02 + 0.01)
    play.ends(source.id)
    play.yields(source.id, 2, 1)
    part, device = only(play.parts.values())
    assert (part.stage, part.rows, part.parent, device) == ("plate", 2, 1, "server")
    assert part.deadline == pytest.approx(0.2 - MARGIN_S - 0.005)
    play.ends(only(play.stage("brand")).id)
    del play.parts[part.id]
    play.tell(part_answered(part.id, Reason.PARTIAL, "owner"))
    assert play.outcomes[1].missing == ("owner",)
    assert play.freed == [1]


def test_a_part_runs_only_its_branch_here_whatever_the_plan_says():
    places = (StagePlace("p", "plate", "edge"),)
    play = Play(graph("detect>plate", "plate>owner", "detect>brand"), places=places, max_batch=2)
    play.arrives(stage="plate", rows=3)
    first, second = play.stage("plate")
    assert [play.feeds[request.id] for request in (first, second)] == [
        (Feed(None, 1, 0, 2),),
        (Feed(None, 1, 2, 3),),
    ]
    play.ends(first.id)
    play.yields(first.id, 2)
    play.ends(second.id, Reason.HOPELESS)
    play.ends(only(play.stage("owner")).id)
    assert play.outcomes[1].reason is Reason.PARTIAL
    assert play.outcomes[1].missing == ("plate", "owner")


def test_frames_stay_with_the_pipeline_that_they_came_to():
    play = Play(TRAFFIC)
    play.arrives()
    play.tell(PipelinesChanged(()))
    source = only(play.stage("detect"))
    play.ends(source.id)
    play.yields(source.id, 1, 0)
    play.ends(only(play.stage("brand")).id)
    assert play.outcomes[1].reason is Reason.ON_TIME
    play.arrives(2)
    assert play.outcomes[2].reason is Reason.UNAVAILABLE


def test_an_impossible_event_is_a_fault_of_the_driver():
    play = Play(TRAFFIC)
    play.arrives()
    with pytest.raises(ValueError, match="already in use"):
        play.arrives()
    with pytest.raises(ValueError, match="already in use"):
        play.tell(FrameRefused(1, "p", Reason.BAD_INPUT))
    source = only(play.stage("detect"))
    play.ends(source.id)
    with pytest.raises(ValueError, match="expected 2 yields, got 1"):
        play.yields(source.id, 1)


@pytest.mark.parametrize("whole_frame", [False, True])
def test_every_stage_that_decodes_the_picture_is_charged_for_it(whole_frame):
    whole = graph("detect>plate", "plate>text")
    crops = replace(whole.edges[0], each="box")
    stages = [replace(s, sees_frame=whole_frame and s.name == "plate") for s in whole.stages]
    first = whole.edges[0] if whole_frame else crops
    play = Play(replace(whole, stages=tuple(stages), edges=(first, whole.edges[1])))
    play.arrives(decoding=0.2)
    source = only(play.stage("detect"))
    play.ends(source.id)
    play.yields(source.id, 2)
    plate = only(play.stage("plate"))
    play.ends(plate.id)
    play.yields(plate.id, 1)
    text = only(play.stage("text"))
    assert (source.decoding, plate.decoding, text.decoding) == (0.2, 0.2, 0.0)


def test_rows_of_unlike_shape_become_requests_of_their_own():
    play = Play(TRAFFIC)
    play.arrives()
    source = only(play.stage("detect"))
    play.ends(source.id)
    parts = (YieldPart(3, ((48, 640, 3),), 2.0), YieldPart(8, ((48, 320, 3),), 1.0))
    play.tell(StageYielded(source.id, (Yield(11, parts=parts), Yield(2))))
    requests = play.stage("brand")
    assert [(r.rows, r.signature, r.work_hint) for r in requests] == [
        (3, ((48, 640, 3),), 2.0), (8, ((48, 320, 3),), 1.0),
    ]  # fmt: skip
    feeds = [feed for request in requests for feed in play.feeds[request.id]]
    assert feeds == [Feed(0, source.id, 0, 3), Feed(0, source.id, 3, 11)]
    for request in (*requests, *play.stage("plate")):
        play.ends(request.id)
    assert play.outcomes[1].reason is Reason.ON_TIME
