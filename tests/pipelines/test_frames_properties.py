"""Whatever happens, and in whatever order: each frame has one outcome, and its slot is freed once.

`Play` itself refuses two outcomes, a slot freed twice or too early, and a child or part that begins
after its frame has ended; `Frames.check` holds counts and children against each other after every
event.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pipelines.play import Play, part_answered

from slacktide.domain import Notice, OutcomeKind, Reason, StagePlace
from slacktide.domain.frames import Frame, FrameAnnounced, FrameArrived, FrameCancelled
from slacktide.domain.pipelines import Edge, Pipeline, PipelineStage

pytestmark = pytest.mark.replaces_parts  # the engine that `Frames` reads

LOST = (Reason.HOPELESS, Reason.EXPIRED, Reason.CRASHED, Reason.UNAVAILABLE, Reason.BEHIND_WORK)
RESULTS = (Reason.ON_TIME, Reason.EARLY_EXIT, Reason.AFTER_DEADLINE)


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    """Up to six stages, each behind one or two of those before it."""
    count = draw(st.integers(1, 6))
    names = [f"s{number}" for number in range(count)]
    edges = []
    for number in range(1, count):
        before = draw(st.sets(st.sampled_from(names[:number]), min_size=1, max_size=2))
        edges += [Edge(source, names[number]) for source in sorted(before)]
    return Pipeline("p", tuple(PipelineStage(name, name) for name in names), tuple(edges))


@st.composite
def plays(draw: st.DrawFn) -> Play:
    pipeline = draw(pipelines())
    far = draw(st.sets(st.sampled_from([stage.name for stage in pipeline.stages])))
    places = tuple(StagePlace("p", name, "far", p99=0.01) for name in sorted(far))
    return Play(pipeline, max_batch=draw(st.integers(1, 4)), places=places)


@given(plays(), st.data())
def test_each_frame_ends_once_and_is_freed_once(play: Play, data) -> None:
    frames = 0
    for _ in range(data.draw(st.integers(1, 40), "steps")):
        choices = ["arrive", "announce", "wait"]
        choices += ["answer"] * 4 * bool(play.open)
        choices += ["yield"] * 4 * bool(play.yields_due)
        choices += ["free"] * 2 * bool(play.named)
        choices += ["part"] * 2 * bool(play.parts)
        choices += ["upload"] * 2 * bool(play.announced)
        choices += ["cancel"] * bool(frames)
        match data.draw(st.sampled_from(choices), "what"):
            case "arrive":
                frames += 1
                stage = data.draw(st.sampled_from(["", *play.pipeline.by_name]))
                rows = data.draw(st.integers(1, 6))
                play.arrives(
                    frames, data.draw(st.sampled_from([0.05, 0.2])), stage=stage, rows=rows
                )
            case "announce":
                frames += 1
                play.tell(
                    FrameAnnounced(Notice(frames, "p", play.now, play.now + 0.1, 9, play.now))
                )
            case "upload":
                ids = [
                    id for id, live in play.frames._live.items() if isinstance(live.frame, Notice)
                ]
                ids = [id for id in ids if id not in play.outcomes]
                if ids:
                    id = data.draw(st.sampled_from(ids))
                    play.tell(FrameArrived(Frame(id, "p", play.now, play.now + 0.1)))
            case "wait":
                play.passes(data.draw(st.sampled_from([0.001, 0.03, 0.3])))
            case "answer":
                id = data.draw(st.sampled_from(sorted(play.open)))
                reason = data.draw(st.sampled_from(RESULTS + LOST[:2] + RESULTS))
                play.ends(id, reason, free=data.draw(st.booleans()))
            case "yield":
                id = data.draw(st.sampled_from(sorted(play.yields_due)))
                edges = play.pipeline.out_of[play.yields_due[id]]
                rows = [data.draw(st.integers(0, 5)) for _ in edges]
                play.yields(id, *rows)
            case "free":
                play.frees(data.draw(st.sampled_from(sorted(play.named))))
            case "part":
                id = data.draw(st.sampled_from(sorted(play.parts)))
                part, _ = play.parts.pop(id)
                branch = play.pipeline.branches[part.stage]
                lost = data.draw(st.sets(st.sampled_from(branch)))
                reason = data.draw(
                    st.sampled_from([Reason.ON_TIME, Reason.PARTIAL, Reason.EXPIRED])
                )
                play.tell(part_answered(id, reason, *sorted(lost)))
            case "cancel":
                play.tell(FrameCancelled(data.draw(st.integers(1, frames))))
        running = data.draw(st.sets(st.sampled_from(sorted(play.open)))) if play.open else ()
        play.obey(running=frozenset(running))
    play.passes(1.0)  # every deadline has come
    play.obey()
    for id in list(play.open):
        play.ends(id, data.draw(st.sampled_from(LOST)))
    for id in list(play.named):
        play.frees(id)
    assert play.quiet()
    assert sorted(play.outcomes) == list(range(1, frames + 1))
    assert sorted(play.freed) == list(range(1, frames + 1))
    assert play.frames.in_flight == 0


@given(plays(), st.data())
def test_rows_are_handed_on_once_and_a_frame_without_loss_is_whole(play: Play, data) -> None:
    """Without parts, drops and deadlines every row that is yielded reaches each stage behind it."""
    play.engine.plan = type(play.engine.plan)()
    play.arrives(1, 10.0, rows=data.draw(st.integers(1, 6)))
    yielded: dict[tuple[int, int], int] = {}
    taken: dict[tuple[int, int], set[int]] = {}
    while play.open:
        id = data.draw(st.sampled_from(sorted(play.open)))
        request, stage = play.open[id], play.stage_of[id]
        assert 1 <= request.rows <= max(play.engine.max_batch, 1)
        assert request.deadline <= 10.0
        by_edge: dict[int | None, int] = {}
        for feed in play.feeds[id]:
            rows = set(range(feed.first, feed.end))
            assert rows
            before = taken.setdefault((feed.request, feed.edge or 0), set())
            assert not before & rows or feed.edge is None
            before |= rows
            by_edge[feed.edge] = by_edge.get(feed.edge, 0) + len(rows)
        assert set(by_edge.values()) == {request.rows}
        play.ends(id, data.draw(st.sampled_from(RESULTS)))
        edges = play.pipeline.out_of[stage]
        if edges:
            rows = [data.draw(st.integers(0, 5)) for _ in edges]
            for edge, count in zip(edges, rows, strict=True):
                yielded[id, play.pipeline.edges.index(edge)] = count
            play.yields(id, *rows)
        play.passes(0.0)
    joins = [name for name, into in play.pipeline.into.items() if len(into) > 1]
    outcome = play.outcomes[1]
    assert outcome.reason.kind is OutcomeKind.SERVED
    if not joins:
        assert outcome.reason is Reason.ON_TIME
        assert not outcome.missing
        for (id, edge), count in yielded.items():
            assert taken.get((id, edge), set()) == set(range(count))
    assert {*outcome.missing} <= {
        member for name in joins for member in play.pipeline.branches[name]
    }
    assert play.quiet()
