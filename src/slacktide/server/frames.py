"""`ServedFrames`: the driver's half of pipelines: calls, requests of their stages, and answers.

The state machine in `pipelines` knows frames and rows but no bytes: it commands what to prepare,
answer and free, and gets events about rows handed on. `frame_payloads` makes the inputs of stages;
`stage_outputs` reads their outputs.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from slacktide.domain import (
    BatchTiming,
    Cancelled,
    MemoryShort,
    Notice,
    Outcome,
    Reason,
    Refused,
    Request,
)
from slacktide.domain.frames import (
    AnswerFrame,
    Frame,
    FrameAnnounced,
    FrameArrived,
    FrameCancelled,
    FrameEvent,
    FrameRefused,
    PreparePayload,
    StageYielded,
    Yield,
)
from slacktide.domain.pipelines import Edge
from slacktide.executors.hand_over.arena import MemoryLimitExceeded
from slacktide.executors.ports import OutputTensor
from slacktide.models.pipeline_version import PipelineVersion
from slacktide.pipelines import HAS_RESULT
from slacktide.server.calls.pending import PendingRequest, PendingRequests
from slacktide.server.frame_payloads import FramePayloads, no_payload, row_count
from slacktide.server.stage_outputs import joined, origins, parents_of
from slacktide.wire.errors import WireError

log = logging.getLogger("slacktide.driver")

QUIET_S = 10.0
"""Seconds between warnings about one stage: a camera would repeat them with each frame."""


class StageChild(PendingRequest):
    """The request of one stage of a frame. Clients do not see it."""

    __slots__ = ("_frames", "feeds", "outcome", "parent", "rows", "stage")

    def __init__(self, frames: ServedFrames, command: PreparePayload) -> None:
        super().__init__(command.request.id)
        self._frames = frames
        self.parent = command.request.parent
        self.rows = command.request.rows
        self.stage = command.stage
        self.feeds = command.feeds

    outcome: Outcome
    """Set when it is answered."""

    def answered(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._frames.child_answered(self, outcome)

    def released(self) -> None:
        """Do nothing: its payload is freed with the frame."""


class OpenFrame:
    """A frame whose payload is still in use."""

    __slots__ = ("answered", "call", "children", "ended", "loop_s", "payloads", "version")

    def __init__(self, call: PendingRequest, version: PipelineVersion) -> None:
        self.call = call
        self.version = version
        self.payloads = FramePayloads(version)
        self.children: dict[str, list[StageChild]] = {}
        """Requests with a result, by stage."""
        self.answered: list[StageChild] = []
        """Requests with an outcome. They are counted when the frame has ended, because nothing
        waits then, and counting earlier would evict the models from the caches."""
        self.ended = False
        self.loop_s = 0.0


class ServedFrames:
    """All frames of one driver."""

    def __init__(
        self,
        requests: PendingRequests,
        post: Callable[[FrameEvent | Cancelled | MemoryShort], None],
        arrived: Callable[[float], None],
    ) -> None:
        """`arrived` is called with the time of each frame that arrives."""
        self._requests = requests
        self.post = post
        self.arrived = arrived
        self._records: dict[int, OpenFrame] = {}
        self._warned_at: dict[tuple[str, str], float] = {}
        """Time of the last warning, by pipeline and stage."""

    @property
    def open_frames(self) -> int:
        """Number of frames whose payload is still in use."""
        return len(self._records)

    def add(self, call: PendingRequest, version: PipelineVersion | None = None) -> None:
        """Keep a call, and open its frame in `version`. A refused call has no frame; its `version`
        is None."""
        self._requests.add(call)
        if version is not None and call.id not in self._records:
            version.hold()
            self._records[call.id] = OpenFrame(call, version)

    # ── commands ────────────────────────────────────────────────────────────────────

    def prepare(self, command: PreparePayload) -> None:
        """Make the payload of a stage's request that is about to be submitted."""
        begin = time.perf_counter()
        assert command.request.parent is not None
        record = self._records[command.request.parent]
        child = StageChild(self, command)
        try:
            child.payload = record.payloads.payload(command, record.call.payload)
        except Exception as error:
            reason = Reason.RUNTIME_ERROR
            if isinstance(error, MemoryLimitExceeded):
                reason = error.reason
                self.post(MemoryShort())
            else:
                log.exception("could not make the input of stage %r", command.stage)
            child.payload = no_payload(record.version.stages[command.stage], command.request.rows)
            self.post(Cancelled(child.id, reason, f"stage {command.stage!r}: {error}"))
        self._requests.add(child)
        record.loop_s += time.perf_counter() - begin

    def answer(self, command: AnswerFrame) -> None:
        """Answer a frame with the outputs of its stages."""
        record = self._records.get(command.id)
        if record is not None:
            begin = time.perf_counter()
            record.ended = True
            if command.reason.kind in HAS_RESULT and record.call.waits:
                record.version.counters.last_at_ms = int(time.time() * 1000)
                record.call.missing_stages = command.missing
                _describe(record)
                record.call.outputs = _outputs(record, command.missing)
            record.children = {}
            record.loop_s += time.perf_counter() - begin
        self._requests.answer(command)

    def free(self, id: int) -> None:
        """Release a frame whose payload is no longer in use, and count its stages' requests."""
        self._requests.free((id,))
        record = self._records.pop(id, None)
        if record is not None:
            begin = time.perf_counter()
            record.payloads.free()
            version, counters = record.version, record.version.counters
            for child in record.answered:
                counters.stage_answered(child.stage, child.outcome)
                model_counters = version.stages[child.stage].counters
                model_counters.answered(child.outcome, child.rows, child.timing)
            version.let_go()
            counters.loop_s += record.loop_s + time.perf_counter() - begin

    # ── stages ───────────────────────────────────────────────────────────────────────────────

    def child_answered(self, child: StageChild, outcome: Outcome) -> None:
        """Keep the outputs of a stage's request, and report the rows that they hand on."""
        record = None if child.parent is None else self._records.get(child.parent)
        if record is None:
            return
        begin = time.perf_counter()
        record.answered.append(child)
        if outcome.reason.kind not in HAS_RESULT:
            self._failed(record, child, outcome)
        elif not record.ended:
            record.children.setdefault(child.stage, []).append(child)
            edges = record.version.pipeline.out_of[child.stage]
            if edges:
                yields = tuple([self._hand_on(record, child, edge) for edge in edges])
                self.post(StageYielded(child.id, yields))
        record.loop_s += time.perf_counter() - begin

    def _failed(self, record: OpenFrame, child: StageChild, outcome: Outcome) -> None:
        if outcome.reason is Reason.CRASHED:
            record.call.crashed = child.stage
        if outcome.reason is Reason.RUNTIME_ERROR and outcome.detail:
            self._warn(record.version.name, child.stage, outcome.detail)

    def _hand_on(self, record: OpenFrame, child: StageChild, edge: Edge) -> Yield:
        outputs, frame_payload = child.outputs, record.call.payload
        try:
            if outputs is None:
                raise ValueError("the stage returned no outputs")
            return record.payloads.hand_on(edge, child, outputs, frame_payload)
        except MemoryLimitExceeded as error:
            self.post(MemoryShort())  # makes room for the next frame if memory is reclaimable
            return Yield(0, refused=error.reason)
        except WireError as error:
            why, reason = str(error), error.reason
        except Exception as error:  # outputs of models may be anything
            why, reason = str(error), Reason.RUNTIME_ERROR
        stage = edge.downstream
        self._warn(record.version.name, stage, f"outputs of {edge.upstream}: {why}")
        return Yield(0, refused=reason)

    def _warn(self, pipeline: str, stage: str, why: str) -> None:
        now = time.perf_counter()
        if now - self._warned_at.get((pipeline, stage), -math.inf) >= QUIET_S:
            self._warned_at[pipeline, stage] = now
            log.warning("%s: stage %r has no result: %s", pipeline, stage, why)


class PipelineRoute:
    """The `CallRoute` of one pipeline: calls go to the state machine of pipelines as frames."""

    __slots__ = ("_frames", "_version")

    def __init__(self, frames: ServedFrames, version: PipelineVersion) -> None:
        self._frames = frames
        self._version = version

    def announce(self, notice: Notice, call: PendingRequest) -> None:
        self._frames.add(call, self._version)
        self._frames.post(FrameAnnounced(notice))

    def submit(self, request: Request, call: PendingRequest) -> None:
        self._frames.add(call, self._version)
        self._frames.arrived(request.arrival)
        frame = Frame(
            request.id,
            request.model,
            request.arrival,
            request.deadline,
            request.rows,
            request.penalty,
            request.signature,
            request.best_effort,
            request.application,
            request.client,
            request.work_hint,
            request.network_time,
            request.size,
            request.final,
            decoding=request.decoding,
        )
        self._frames.post(FrameArrived(frame))

    def refuse(self, event: Refused, call: PendingRequest) -> None:
        self._frames.add(call)
        self._frames.post(FrameRefused(event.id, event.model, event.reason, event.detail))

    def cancel(self, id: int, reason: Reason) -> None:
        self._frames.post(FrameCancelled(id, reason))


def _outputs(record: OpenFrame, missing: Sequence[str]) -> list[OutputTensor | None]:
    """Return a frame's outputs in its pipeline's order; None for outputs of missing stages."""
    version, by_stage = record.version, record.children
    before: dict[int, int] = {}
    """Number of rows of the same stage before a child's rows, by the child's id."""
    if sum(map(len, by_stage.values())) > len(by_stage):
        _sort(record)
    for children in by_stage.values():
        rows = 0
        for child in children:
            before[child.id] = rows
            rows += row_count(version.stages[child.stage], child.outputs, child.rows)
    frame_outputs: list[OutputTensor | None] = []
    for stage, indices in version.layout:
        if stage in missing:
            frame_outputs += [None] * len(indices)
            continue
        children = by_stage.get(stage, [])
        child_outputs = [child.outputs for child in children if child.outputs is not None]
        for index in indices:
            if index < 0:
                frame_outputs.append(_origins(record, stage, children, before))
            elif len(child_outputs) == 1 and (only := child_outputs[0][index]) is not None:
                frame_outputs.append(only)
            else:
                spec = version.stages[stage].interface.outputs[index]
                parts = [outputs[index] for outputs in child_outputs]
                frame_outputs.append(joined(spec, [part for part in parts if part is not None]))
    return frame_outputs


def _sort(record: OpenFrame) -> None:
    """Sort the requests of each stage in the order of their rows in the upstream outputs."""
    ranks = {record.call.id: 0}
    for stage in record.version.pipeline.order:
        children = record.children.get(stage, [])
        children.sort(key=lambda child: (ranks[child.feeds[0].request], child.feeds[0].first))
        ranks |= {child.id: at for at, child in enumerate(children)}


def _origins(
    record: OpenFrame, stage: str, children: Sequence[StageChild], before: Mapping[int, int]
) -> OutputTensor:
    """Return, for each row of a stage, the index of the upstream's row or box that it is from."""
    handed_rows, edges = [], record.version.pipeline.edges
    for child in children:
        fed = [feed.edge for feed in child.feeds if feed.edge is not None]
        edge = next((edge for edge in fed if edges[edge].each), fed[0] if fed else None)
        for feed in child.feeds:
            if feed.edge is not None and feed.edge == edge:
                chosen = record.payloads.handed[edge, feed.request].chosen
                of = feed.request if chosen.request is None else chosen.request
                start = before[of]
                handed_rows.append((chosen, feed.first, feed.end, start))
    rows = origins(handed_rows)
    if not record.version.stages[stage].definition.settings.expands:
        return rows
    parents = parents_of(
        [(child.outputs[-1], child.rows) for child in children if child.outputs is not None]
    )
    if handed_rows:  # without any, the rows are the client's
        parents = np.frombuffer(rows[1], np.int64)[parents]
    return parents.shape, parents.tobytes()


def _describe(record: OpenFrame) -> None:
    """Write into a frame's call the outcomes of its stages, their variants and early exits, and the
    time in all their batches. Of a stage's requests, the request answered last counts."""
    ended, details = {}, {}
    input_s = infer_s = output_s = 0.0
    for stage, children in record.children.items():
        last = children[0]
        for child in children:
            if child.outcome.at > last.outcome.at:
                last = child
            if (timing := child.timing) is not None:
                input_s += timing.input_s
                infer_s += timing.infer_s
                output_s += timing.output_s
        ended[stage] = last.outcome
        if last.variant:
            details[f"{stage}.variant"] = last.variant
        exits = record.version.stages[stage].exits
        if exits is not None:
            details[f"{stage}.exit"] = exits.name(last.outcome.ramp)
    call = record.call
    call.stages, call.details, call.timing = ended, details, BatchTiming(input_s, infer_s, output_s)
