"""`FrameOutcomes`: answers each frame once, and counts the outcomes."""

from __future__ import annotations

from slacktide.domain import OutcomeKind, Reason
from slacktide.domain.frames import AnswerFrame, FreeFrame
from slacktide.engine.request_table import ModelCounts
from slacktide.pipelines.children import Children
from slacktide.pipelines.live_frames import LiveFrame

HAS_RESULT = frozenset((OutcomeKind.SERVED, OutcomeKind.LATE))


class FrameOutcomes:
    """The outcomes of the frames of one engine, including parts."""

    def __init__(self, children: Children) -> None:
        """`children` provides the time and collects the commands."""
        self.counts: dict[str, ModelCounts] = {}
        """Outcomes so far, by pipeline."""
        self._children = children

    def count_frame(self, pipeline: str) -> ModelCounts:
        """Count a new frame."""
        counts = self.counts.get(pipeline)
        if counts is None:
            counts = self.counts[pipeline] = ModelCounts()
        counts.requests += 1
        return counts

    def turn_away(self, id: int, pipeline: str, reason: Reason, detail: str = "") -> None:
        """End a new frame immediately."""
        self._count(pipeline, reason)
        children = self._children
        children.commands.append(
            AnswerFrame(reason, children.now, detail=detail, id=id, pipeline=pipeline)
        )
        children.commands.append(FreeFrame(id))

    def conclude(
        self, live: LiveFrame, reason: Reason, detail: str, missing: tuple[str, ...]
    ) -> None:
        """End a frame in flight. `missing`: stages that its answer lacks. Without a result, all
        stages are missing."""
        live.ended = True
        frame, now = live.frame, self._children.now
        pipeline = live.served.pipeline.name
        self._count(pipeline, reason).in_flight -= 1
        began, lost = live.started, live.lost
        waited = max(0.0, now - frame.arrival) if began is None else began.queue_s
        self._children.commands.append(
            AnswerFrame(
                reason,
                now,
                waited,
                0.0 if began is None else max(0.0, now - frame.arrival - waited),
                0 if began is None else began.batch_rows,
                None if frame.best_effort else frame.deadline - now,
                detail,
                None if lost is None else lost.needed_s,
                None if lost is None else lost.wait_s,
                None,
                frame.id,
                pipeline,
                missing or (() if reason.kind in HAS_RESULT else tuple(live.stages)),
            )
        )

    def _count(self, pipeline: str, reason: Reason) -> ModelCounts:
        counts = self.counts[pipeline]
        counts.by_reason[reason] = counts.by_reason.get(reason, 0) + 1
        return counts
