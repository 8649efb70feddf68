"""`Children`: turns rows into requests for a stage's model, or into a part for another device."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slacktide.domain import Event, Request, Signature, StagePlace, Submitted
from slacktide.domain.frames import (
    Feed,
    Frame,
    FrameCommand,
    PreparePayload,
    SendPart,
    Yield,
    YieldPart,
)
from slacktide.domain.pipelines import Edge
from slacktide.pipelines.hand_overs import HandOvers
from slacktide.pipelines.live_frames import Child, LiveFrame, Place, StageProgress


class Children:
    """The children of all frames by id, with pending events and commands."""

    def __init__(self) -> None:
        self.by_id: dict[int, Child] = {}
        """Children and parts by id."""
        self.events: list[Event] = []
        """For the engine."""
        self.commands: list[FrameCommand] = []
        """For the driver."""
        self.now = -math.inf
        self.hand_overs = HandOvers()
        self._next_id = 0

    def begin(
        self,
        live: LiveFrame,
        stage: StageProgress,
        rows: int,
        inputs: Sequence[tuple[Edge | None, Feed, Yield | YieldPart]],
        place: Place = (),
    ) -> None:
        """Pass `rows` rows from each edge into a stage to the stage's model, in requests of at most
        its largest batch, or to another device. `place`: the place of the yielding child."""
        reserves = live.served.reserves
        elsewhere = reserves.place(stage.of.name, now=self.now)
        # A part that was handed over to this device runs here, whatever the present plan says.
        frame = live.frame
        if live.announced is not None or (
            isinstance(frame, Frame) and frame.stage == stage.of.name
        ):
            elsewhere = None
        elif not frame.best_effort:
            elsewhere = self._elsewhere(live, stage, elsewhere)
        most = reserves.most_rows[stage.of.name] or rows
        if len(inputs) == 1 and rows <= most and elsewhere is None:
            _, feed, yield_ = inputs[0]
            self._submit(
                live, stage, rows, yield_.signature, yield_.work_hint, (feed,), (*place, 0)
            )
            return
        by_edge: list[list[tuple[Feed, Yield | YieldPart]]] = []
        before: Edge | None = None
        for edge, feed, yield_ in inputs:  # rows of one edge are adjacent
            if not by_edge or edge is not before:
                by_edge.append([])
                before = edge
            by_edge[-1].append((feed, yield_))
        signature = by_edge[0][0][1].signature
        for group in by_edge[1:]:
            signature += group[0][1].signature
        hint = by_edge[0][0][1].work_hint
        if elsewhere is not None:
            feeds = tuple(feed for members in by_edge for feed, _ in members)
            nbytes = sum(stage_yield.nbytes for _, _, stage_yield in inputs)
            self._send(live, stage, elsewhere, rows, signature, hint, feeds, nbytes)
            return
        for first in range(0, rows, most):
            end = min(rows, first + most)
            feeds = tuple(
                feed
                for members in by_edge
                for feed in _cut([feed for feed, _ in members], first, end)
            )
            self._submit(live, stage, end - first, signature, hint, feeds, (*place, first))

    def _elsewhere(
        self, live: LiveFrame, stage: StageProgress, usual: StagePlace | None
    ) -> StagePlace | None:
        """The other device, or None for this one: the `usual` one, unless rows would be late there
        and not on the other of the two."""
        reserves, name, now = live.served.reserves, stage.of.name, self.now
        shared = reserves.shared(name, now=now)
        if shared is None:
            return usual
        left = live.answer_by - now
        is_timely = reserves.seconds(name, now=now) <= left
        if usual is None and is_timely:
            return None
        seconds = self.hand_overs.seconds(shared, reserves.elsewhere[name], now=now)
        if usual is None:
            return shared if seconds <= left else None
        return None if is_timely and seconds > left else shared

    def _submit(
        self,
        live: LiveFrame,
        stage: StageProgress,
        rows: int,
        signature: Signature,
        hint: float | None,
        feeds: tuple[Feed, ...],
        place: Place,
    ) -> None:
        frame, now = live.frame, self.now
        assert isinstance(frame, Frame)
        of = stage.of
        source = not frame.stage and of.name == live.begin
        child_deadline = frame.deadline if frame.best_effort else live.answer_by
        reserve = live.served.reserves.reserve(of.name, child_deadline - now, now=now)
        if live.announced is None:
            child = self.add(live, stage, rows)
        else:
            child, live.announced = self.by_id[live.announced], None
            child.rows = rows
        child.place = place
        request = Request(
            child.id,
            of.model,
            frame.arrival if source else now,
            child_deadline if frame.best_effort else child_deadline - reserve,
            rows,
            frame.penalty,
            signature,
            frame.best_effort,
            of.version,
            frame.application,
            frame.client,
            hint,
            reserve,
            frame.network_time if source else 0.0,
            frame.id,
            frame.size if source else 0,
            frame.final,
            decoding=frame.decoding if source or of.decodes else 0.0,
        )
        self.commands.append(PreparePayload(request, of.name, feeds))
        self.events.append(Submitted(request))

    def _send(
        self,
        live: LiveFrame,
        stage: StageProgress,
        place: StagePlace,
        rows: int,
        signature: Signature,
        hint: float | None,
        feeds: tuple[Feed, ...],
        nbytes: int,
    ) -> None:
        frame = live.frame
        assert isinstance(frame, Frame)
        part = Frame(
            self.add(live, stage, rows, device=place.device).id,
            frame.pipeline,
            frame.arrival,
            frame.deadline if frame.best_effort else live.answer_by - place.back,
            rows,
            frame.penalty,
            signature,
            frame.best_effort,
            frame.application,
            frame.client,
            hint,
            frame.network_time,
            frame.size,
            frame.final,
            stage.of.name,
            frame.id,
            nbytes,
        )
        behind = live.served.reserves.elsewhere[stage.of.name]
        self.hand_overs.sent(part.id, place, behind, now=self.now)
        self.commands.append(SendPart(part, place.device, feeds))

    def add(self, live: LiveFrame, stage: StageProgress, rows: int, *, device: str = "") -> Child:
        """Make a child or, if `device` is given, a part that is handed over to it."""
        self._next_id = id = self._next_id - 1
        child = self.by_id[id] = Child(id, live, stage, rows, is_part=bool(device))
        live.open[id] = device
        live.named += not device
        stage.open += 1
        stage.unanswered += 1
        return child


def _cut(feeds: Sequence[Feed], first: int, end: int) -> list[Feed]:
    """Rows `first` to `end` of the concatenation of all `feeds`."""
    part, at = [], 0
    for feed in feeds:
        rows = feed.end - feed.first
        low, high = max(first - at, 0), min(end - at, rows)
        if low < high:
            part.append(Feed(feed.edge, feed.request, feed.first + low, feed.first + high))
        at += rows
    return part
