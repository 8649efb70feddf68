"""`Frames`: the calls of pipelines, as a state machine above the engine.

Theory of operation. A frame begins at its source with one request, a *child*, and the rows that a
child yields begin the children of the next stages. Rows that go to one stage together are one
child, split only at the model's largest batch. A stage is *finished* when all stages that feed it
are finished and it has no open child; it is *missing* if one of its children, or a stage that feeds
it, was lost. The frame has its outcome when all its stages are finished, or shortly before its
deadline with the stages that are complete; its other children are cancelled, and no more begin.

The engine sees children as ordinary requests and does not know frames. So this machine turns events
of frames into events for the engine (`Submitted`, `Announced`, `Cancelled`) and handles the
engine's answers to children. Children refer to the inputs of their frame, so these are released
after the last child. A stage that the plan places on another device is handed over with all stages
behind it, as a *part*, which ends like a child.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from slacktide.domain import (
    Announced,
    Answer,
    Cancelled,
    Command,
    Event,
    FreeSlots,
    Notice,
    Reason,
)
from slacktide.domain.frames import (
    CancelPart,
    Feed,
    Frame,
    FrameAnnounced,
    FrameArrived,
    FrameCancelled,
    FrameCommand,
    FrameEvent,
    FrameRefused,
    FreeFrame,
    PartAnswered,
    PipelinesChanged,
    StageYielded,
    Yield,
)
from slacktide.domain.pipelines import Edge, Pipeline
from slacktide.engine import Engine
from slacktide.pipelines.children import Children
from slacktide.pipelines.deadlines import FrameDeadlines
from slacktide.pipelines.fan_out import FanOut
from slacktide.pipelines.live_frames import (
    Child,
    LiveFrame,
    ServedPipeline,
    StageProgress,
    check_live,
)
from slacktide.pipelines.outcomes import HAS_RESULT, FrameOutcomes

Steps: TypeAlias = tuple[list[Event], list[FrameCommand]]
"""Events for the engine, and commands for the driver."""


def of_children(commands: Iterable[Command]) -> list[Answer | FreeSlots]:
    """The engine's commands that concern children, whose ids are negative."""
    child_commands: list[Answer | FreeSlots] = []
    for command in commands:
        if type(command) is Answer:
            if command.id < 0:
                child_commands.append(command)
        elif type(command) is FreeSlots and min(command.ids) < 0:
            child_commands.append(command)
    return child_commands


class Frames:
    """The frames of one engine, which this class reads but never changes. Pure, not thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self.pipelines: dict[str, ServedPipeline] = {}
        self._engine = engine
        self._live: dict[int, LiveFrame] = {}
        self._deadlines = FrameDeadlines(self._live)
        self._children = Children()
        self._outcomes = FrameOutcomes(self._children)
        self.counts = self._outcomes.counts
        """Outcomes of frames so far, by pipeline, including parts."""
        self._awaited: dict[int, Child] = {}
        """Children with a result whose yields are due."""

    @property
    def next_deadline(self) -> float:
        """Earliest time at which `expire` has something to do; infinite: never."""
        return self._deadlines.next

    def check(self) -> None:
        """Raise AssertionError unless the state is consistent. For tests."""
        check_live(self._live.values(), self._children.by_id.values(), self._awaited)
        going = Counter(e.served.pipeline.name for e in self._live.values() if not e.ended)
        for name, counts in self.counts.items():
            assert counts.in_flight == going.pop(name, 0), name
            assert counts.requests == counts.ended + counts.in_flight, name
        assert not going
        assert self.take_steps() == ([], [])

    @property
    def in_flight(self) -> int:
        """Number of frames in flight, including those whose inputs are not released yet."""
        return len(self._live)

    def stage_of(self, child: int) -> tuple[str, str] | None:
        """(pipeline, stage) of a request; None if it is not a child."""
        owner = self._children.by_id.get(child)
        return None if owner is None else (owner.live.served.pipeline.name, owner.stage.of.name)

    def handle(
        self, events: Iterable[FrameEvent], ended: Iterable[Answer | FreeSlots] = (), *, now: float
    ) -> Steps:
        """Handle events of frames, and `ended`: the engine's commands that concern children
        (`of_children`). Raises ValueError for impossible events: a fault of the driver, not of a
        client."""
        self._children.now = now
        for event in events:
            match event:
                case StageYielded():
                    self._yielded(event)
                case FrameArrived():
                    self._arrived(event.frame)
                case FrameAnnounced():
                    self._announced(event.notice)
                case FrameCancelled():
                    live = self._live.get(event.id)
                    if live is not None and not live.ended:
                        self._end(live, event.reason, event.detail)
                case FrameRefused():
                    self._refused(event)
                case PartAnswered():
                    self._part_answered(event)
                case PipelinesChanged():
                    self._changed(event.pipelines)
        for command in ended:
            if isinstance(command, Answer):
                self._answered(command)
            else:
                for id in command.ids:
                    self._freed(id)
        return self.take_steps()

    def expire(self, *, now: float) -> Steps:
        """Answer the frames whose time is up with their complete stages."""
        self._children.now = now
        while (live := self._deadlines.pop(now=now)) is not None:
            if live.stages[live.begin].answered:
                self._end_with_result(live)
            else:
                self._end(live, Reason.EXPIRED, f"stage {live.begin!r} was not done in time")
        return self.take_steps()

    def take_steps(self) -> Steps:
        """Take the pending events and commands. Allowed even after `handle` has raised."""
        children = self._children
        steps = children.events, children.commands
        children.events, children.commands = [], []
        return steps

    # ── arrivals ─────────────────────────────────────────────────────────────────────────────

    def _changed(self, pipelines: Sequence[Pipeline]) -> None:
        before, self.pipelines = self.pipelines, {}
        for pipeline in pipelines:
            fan_outs: dict[Edge, FanOut] = {}
            if (previous := before.get(pipeline.name)) is not None:
                fan_outs = dict(zip(previous.pipeline.edges, previous.fan_outs, strict=True))
            learnt = [fan_outs.get(edge) or FanOut() for edge in pipeline.edges]
            served = ServedPipeline(pipeline, learnt, self._engine)
            served.frames = 0 if previous is None else previous.frames
            self.pipelines[pipeline.name] = served

    def _announced(self, notice: Notice) -> None:
        live = self._opened(notice.id, notice.model, notice, "")
        if live is None:
            return
        stage = live.stages[live.begin]
        reserves = live.served.reserves
        of, now = stage.of, self._children.now
        if reserves.place(of.name, now=now) is not None:
            return  # it runs on another device
        reserve = reserves.reserve(of.name, notice.deadline - now, now=now)
        likely = notice.likely_due
        child_notice = Notice(
            self._children.add(live, stage, 1).id,
            of.model,
            notice.arrival,
            notice.deadline if notice.best_effort else live.answer_by - reserve,
            notice.payload_bytes,
            notice.complete_at,
            notice.penalty,
            notice.best_effort,
            of.version,
            notice.application,
            notice.client,
            None if likely is None else likely - reserve,
            notice.size,
            notice.names_variant,
        )
        live.announced = child_notice.id
        self._children.events.append(Announced(child_notice))

    def _arrived(self, frame: Frame) -> None:
        live = self._live.get(frame.id)
        if live is None:
            live = self._opened(frame.id, frame.pipeline, frame, frame.stage)
            if live is None:
                return
        elif live.ended or not isinstance(live.frame, Notice):
            raise ValueError(f"frame id {frame.id} is already in use")
        else:
            live.frame = frame
            self._deadlines.set(live, now=self._children.now)
        stage = live.stages[live.begin]
        whole = Feed(None, frame.id, 0, frame.rows)
        input_yield = Yield(frame.rows, frame.signature, frame.work_hint, frame.nbytes)
        self._children.begin(live, stage, frame.rows, [(None, whole, input_yield)])

    def _opened(
        self, id: int, pipeline: str, frame: Frame | Notice, stage: str
    ) -> LiveFrame | None:
        """Open a frame; None if it ends immediately. Raises ValueError if its id is in use."""
        if id in self._live:
            raise ValueError(f"frame id {id} is already in use")
        counts = self._outcomes.count_frame(pipeline)
        served = self.pipelines.get(pipeline)
        if served is None:
            self._outcomes.turn_away(id, pipeline, Reason.UNAVAILABLE)
            return None
        if stage and stage not in served.pipeline.by_name:
            detail = f"the pipeline has no stage {stage!r}"
            self._outcomes.turn_away(id, pipeline, Reason.BAD_INPUT, detail)
            return None
        if frame.deadline <= self._children.now and not frame.best_effort:
            self._outcomes.turn_away(id, pipeline, Reason.EXPIRED)
            return None
        counts.in_flight += 1
        served.frames += not stage
        live = self._live[id] = LiveFrame(frame, served, stage or served.pipeline.source)
        self._deadlines.set(live, now=self._children.now)
        return live

    def _refused(self, event: FrameRefused) -> None:
        live = self._live.get(event.id)
        if live is None:
            self._outcomes.count_frame(event.pipeline)
            self._outcomes.turn_away(event.id, event.pipeline, event.reason, event.detail)
        elif not isinstance(live.frame, Notice):
            raise ValueError(f"frame id {event.id} is already in use")
        elif not live.ended:
            self._end(live, event.reason, event.detail)

    # ── answers to children ──────────────────────────────────────────────────────────────────

    def _answered(self, answer: Answer) -> None:
        child = self._children.by_id.get(answer.id)
        if child is None:
            return
        live, stage = child.live, child.stage
        if live.ended:
            return
        del live.open[answer.id]
        stage.unanswered -= 1
        if answer.reason.kind not in HAS_RESULT:
            stage.missing = True
            if stage.of.name == live.begin:
                live.lost = live.lost or answer
        else:
            stage.answered += 1
            if stage.of.name == live.begin:
                live.started = live.started or answer
            if stage.of.edges:
                self._awaited[answer.id] = child
                live.awaited.append(answer.id)
                return
        stage.open -= 1
        self._settle(live, stage)

    def _yielded(self, event: StageYielded) -> None:
        child = self._awaited.pop(event.request, None)
        if child is None:
            return  # its frame has already ended
        live, stage = child.live, child.stage
        live.awaited.remove(event.request)
        edges = stage.of.edges
        if len(event.yields) != len(edges):
            name = stage.of.name
            raise ValueError(f"{name}: expected {len(edges)} yields, got {len(event.yields)}")
        stage.open -= 1
        for (number, edge, fan_out), yield_ in zip(edges, event.yields, strict=True):
            after = live.stages[edge.downstream]
            if yield_.refused is not None:
                after.missing = True
                continue
            fan_out.observe(child.rows, yield_.rows)
            if not yield_.rows:
                continue
            feed = Feed(number, event.request, 0, yield_.rows)
            if after.of.is_join:
                fed = live.fed.setdefault(edge.downstream, [])
                fed.append((edge, feed, yield_, child.place))
                continue
            first = 0
            for part in yield_.parts or (yield_,):
                feed = Feed(number, event.request, first, first + part.rows)
                place = (*child.place, first) if yield_.parts else child.place
                self._children.begin(live, after, part.rows, [(edge, feed, part)], place)
                first += part.rows
        self._settle(live, stage)

    def _part_answered(self, event: PartAnswered) -> None:
        child = self._children.by_id.pop(event.id, None)
        if child is None:
            return  # its frame has already ended
        self._children.hand_overs.ended(event.id, now=self._children.now)
        live, stage = child.live, child.stage
        del live.open[event.id]
        stage.unanswered -= 1
        served = event.reason.kind in HAS_RESULT
        for name in live.served.pipeline.branches[stage.of.name]:
            if not served or name in event.missing:
                live.stages[name].missing = True
        if served:
            stage.answered += 1
        elif stage.of.name == live.begin and live.lost is None:
            live.lost = Answer(event.reason, self._children.now, detail=event.detail, id=event.id)
        stage.open -= 1
        self._settle(live, stage)

    def _freed(self, id: int) -> None:
        child = self._children.by_id.pop(id, None)
        if child is not None:
            child.live.named -= 1
            self._maybe_free(child.live)

    # ── ends of stages and frames ────────────────────────────────────────────────────────────

    def _settle(self, live: LiveFrame, stage: StageProgress) -> None:
        """Finish a stage if nothing of it is open, and its frame if no stage is left."""
        if stage.open or stage.waits_for or live.ended:
            return
        live.unfinished -= 1
        for name in stage.of.after:
            after = live.stages[name]
            after.waits_for -= 1
            after.missing = after.missing or stage.missing
            if not after.waits_for:
                if name in live.fed and not after.missing:
                    self._begin_join(live, after)
                self._settle(live, after)
        if not live.unfinished and not live.ended:
            if live.lost is not None and not live.stages[live.begin].answered:
                self._end(live, live.lost.reason, live.lost.detail)
            else:
                self._end_with_result(live)

    def _begin_join(self, live: LiveFrame, stage: StageProgress) -> None:
        name = stage.of.name
        edges = live.served.pipeline.into[name]
        # The rows of all edges in one order, whichever child was answered first.
        fed = [part[:3] for part in sorted(live.fed[name], key=lambda part: part[3])]
        rows = {
            sum(yield_.rows for edge, _, yield_ in fed if edge is incoming) for incoming in edges
        }
        if len(rows) == 1:
            inputs = [part for edge in edges for part in fed if part[0] is edge]
            self._children.begin(live, stage, rows.pop(), inputs)
        else:
            stage.missing = True

    def _end_with_result(self, live: LiveFrame) -> None:
        """End a frame with its complete stages: its time is up, or nothing is left to do."""
        missing = live.missing()
        frame = live.frame
        reason = Reason.PARTIAL if missing else Reason.ON_TIME
        if self._children.now > frame.deadline and not frame.best_effort:
            reason = Reason.AFTER_DEADLINE
        detail = f"not complete: {', '.join(missing)}" if missing else ""
        self._end(live, reason, detail, missing)

    def _end(
        self, live: LiveFrame, reason: Reason, detail: str = "", missing: tuple[str, ...] = ()
    ) -> None:
        """Give a frame its outcome and cancel its open children."""
        self._outcomes.conclude(live, reason, detail, missing)
        if live.open:
            child_reason = Reason.EXPIRED if reason.kind in HAS_RESULT else reason
            for id, device in live.open.items():
                if device:
                    del self._children.by_id[id]
                    self._children.hand_overs.ended(id, now=self._children.now)
                    self._children.commands.append(CancelPart(id, device, child_reason))
                else:
                    self._children.events.append(Cancelled(id, child_reason))
            live.open.clear()
        for id in live.awaited:
            del self._awaited[id]
        self._maybe_free(live)

    def _maybe_free(self, live: LiveFrame) -> None:
        if live.ended and not live.named:
            del self._live[live.frame.id]
            self._children.commands.append(FreeFrame(live.frame.id))
