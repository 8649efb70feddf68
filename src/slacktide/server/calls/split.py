"""`SplitRoute`: a call with more rows than its model takes in one batch, as several requests.

All parts have the deadline of the call. The call is answered with their joined outputs, or as soon
as one part is refused; the other parts are then withdrawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from slacktide.domain import BatchTiming, Notice, Outcome, OutcomeKind, Reason, Refused, Request
from slacktide.models.versions import LoadedVersion
from slacktide.pipelines import HAS_RESULT
from slacktide.server.calls.pending import PendingRequest
from slacktide.server.calls.route import CallRoute
from slacktide.server.frame_payloads import rows_of_payload
from slacktide.server.stage_outputs import joined, parents_of


class PartRequest(PendingRequest):
    """The request of some rows of a call."""

    __slots__ = ("_route", "outcome")

    outcome: Outcome
    """Set when it is answered."""

    def __init__(self, route: SplitRoute, id: int) -> None:
        super().__init__(id)
        self._route = route

    def answered(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._route.part_answered(outcome)

    def released(self) -> None:
        self._route.part_released()


class SplitRoute:
    """The `CallRoute` of one call that is split."""

    __slots__ = ("_call", "_new_id", "_parts", "_route", "_unreleased", "_version")

    def __init__(self, route: CallRoute, version: LoadedVersion, new_id: Callable[[], int]) -> None:
        """`route`: the route that the parts take; `new_id` returns their ids."""
        self._route = route
        self._version = version
        self._new_id = new_id
        self._parts: list[PartRequest] = []
        self._unreleased = 0

    def announce(self, notice: Notice, call: PendingRequest) -> None:
        self._route.announce(notice, call)

    def submit(self, request: Request, call: PendingRequest) -> None:
        assert call.payload is not None
        self._call = call
        call.waits = True
        version, most = self._version, self._version.interface.max_batch
        specs, arena = version.interface.inputs, version.arena
        counts_rows = (hint := version.definition.settings.work_hint) is not None and hint.of
        for first in range(0, request.rows, most):
            end = min(request.rows, first + most)
            share = (end - first) / request.rows
            # The first part replaces the announced request, if there is one.
            part = PartRequest(self, self._new_id() if first else request.id)
            part.payload = rows_of_payload(specs, arena, call.payload, first, end)
            self._parts.append(part)
            hint_of_part = request.work_hint
            if hint_of_part is not None and counts_rows:
                hint_of_part *= share
            part_request = replace(
                request,
                id=part.id,
                rows=end - first,
                work_hint=hint_of_part,
                decoding=request.decoding * share,
            )
            self._unreleased += 1
            self._route.submit(part_request, part)

    def refuse(self, event: Refused, call: PendingRequest) -> None:
        self._route.refuse(event, call)

    def cancel(self, id: int, reason: Reason) -> None:
        for part in self._parts:
            if part.waits:
                part.waits = False
                self._route.cancel(part.id, reason)

    def part_answered(self, outcome: Outcome) -> None:
        """Answer the call if this was its last part, or if the part has no result."""
        call, parts = self._call, self._parts
        if outcome.kind not in HAS_RESULT:
            self.cancel(call.id, outcome.reason)
        elif any(part.waits for part in parts):
            return
        else:
            outcome = max((part.outcome for part in parts), key=_lateness)
            results = [part.outputs for part in parts if part.outputs is not None]
            call.outputs = [
                joined(spec, [tensor for tensor in column if tensor is not None])
                for spec, column in zip(
                    self._version.interface.outputs, zip(*results, strict=True), strict=True
                )
            ]
            if self._version.definition.settings.expands:
                counts = [part.payload.rows for part in parts if part.payload is not None]
                columns = [outputs[-1] for outputs in results]
                parents = parents_of([*zip(columns, counts, strict=True)])
                call.outputs[-1] = parents.shape, parents.tobytes()
            timings = [part.timing for part in parts if part.timing is not None]
            call.timing = BatchTiming(
                sum(timing.input_s for timing in timings),
                sum(timing.infer_s for timing in timings),
                sum(timing.output_s for timing in timings),
            )
            call.variant = parts[-1].variant
        if call.waits:
            call.waits = False
            call.answered(outcome)

    def part_released(self) -> None:
        """Release the call's payload once its last part is released."""
        self._unreleased -= 1
        if not self._unreleased:
            self._parts = []
            self._call.released()


def _lateness(outcome: Outcome) -> tuple[bool, float]:
    return outcome.kind is OutcomeKind.LATE, outcome.at
