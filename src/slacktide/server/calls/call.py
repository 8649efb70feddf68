"""`ServerCall`: an inference call as a state machine, from its headers to its one reply.

A front end opens a call when it has read the headers. A call whose body is still arriving is
*announced*: it gets a slot of shared memory for the body, and the scheduler may refuse it before
the body is read. A complete call is *submitted*: it is checked and gets its deadline; its tensors
are written into a slot (or found in the slot that received the body); and it goes to the engine by
its version's route. `call_states.py` has the table of states and steps; a step releases what the
next state does not hold.

The engine knows a call by the id of its request, under which the driver keeps the call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Final

from slacktide.domain import Notice, Outcome, OutcomeKind, Reason, Refused, Request
from slacktide.executors.hand_over.arena import Slot
from slacktide.executors.ports import Payload
from slacktide.models.calls.input_blocklist import BLOCK_S
from slacktide.models.calls.input_check import CheckedInputs
from slacktide.models.text_inputs import TextInput
from slacktide.models.versions import LoadedVersion
from slacktide.observability.observers import AnsweredRequest
from slacktide.server.calls.call_states import HOLDS, STEPS, CallError, CallState, CallStep, Held
from slacktide.server.calls.classification import check_classification, classified
from slacktide.server.calls.descriptors import (
    due,
    notice_of,
    refer_payload,
    request_of,
    write_payload,
)
from slacktide.server.calls.pending import PendingRequest
from slacktide.server.calls.route import CallRoute
from slacktide.server.calls.split import SplitRoute
from slacktide.wire.calls import (
    CallContext,
    InferCall,
    InferReply,
    InputTensor,
    OutputValue,
    Parameter,
)
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.parameters import (
    PLAIN_OPTIONS,
    parse_parameters,
    stage_parameters,
    timing_parameters,
)
from slacktide.wire.status import message_for

if TYPE_CHECKING:
    from slacktide.server.calls.data_plane import ServerDataPlane

log = logging.getLogger("slacktide.models")

Reply = Callable[[InferReply], None]

_HEADER_ALLOWANCE: Final = 64 * 1024
"""Bytes of JSON allowed on top of a request's tensors."""
_RETRYABLE = frozenset((Reason.BEHIND_WORK, Reason.QUEUE_FULL, Reason.MEMORY_LIMIT))
"""Reasons of refusals whose reply suggests a retry after the time of one request."""

_SERVED, _LATE = OutcomeKind.SERVED, OutcomeKind.LATE
_OPEN, _ANNOUNCED, _RECEIVING, _DROPPED, _SUBMITTED, _REFUSED, _ANSWERED, _CANCELLED = CallState
_ANNOUNCE, _ACCEPT, _SUBMIT, _REFUSE, _ANSWER, _CANCEL = CallStep


def _entry(before: CallState, after: CallState) -> tuple[CallState, bool, bool, bool]:
    """Return the state after a step, and whether the step releases body, client and version."""
    released = HOLDS[before] - HOLDS[after]
    return after, Held.BODY in released, Held.CLIENT in released, Held.VERSION in released


_TABLE = {
    before: {step: _entry(before, after) for step, after in steps.items()}
    for before, steps in STEPS.items()
}
_IN_ENGINE = frozenset((_ANNOUNCED, _RECEIVING, _SUBMITTED))
"""States in which the engine owes the call an outcome."""
_LEFT = frozenset((Reason.CLIENT_CANCELLED, Reason.DISCONNECTED))


class ServerCall(PendingRequest):
    """The `InferenceCall` of a server, and at the same time its `PendingRequest`."""

    __slots__ = (
        "_answer",
        "_call_id",
        "_classification",
        "_early_until",
        "_length",
        "_options",
        "_output_indices",
        "_payload_released",
        "_plane",
        "_reply",
        "_route",
        "_rows",
        "_slots",
        "_version",
        "_version_name",
        "context",
        "model",
        "state",
    )  # fmt: skip

    def __init__(
        self, plane: ServerDataPlane, id: int, model: str, version: str | None, context: CallContext
    ) -> None:
        super().__init__(id)
        self._plane = plane
        self.model = model
        self._version_name = version
        """Version as the client stated it."""
        self.context = context
        self.state = _OPEN
        self._call_id = ""
        """The client's id of the call."""
        self._reply: Reply | None = None
        """Called with the answer; None while no answer may be sent, and after the call's end."""
        self._answer: InferReply | None = None
        self._version: LoadedVersion | None = None
        self._route: CallRoute
        """Set together with the version."""
        self._options = PLAIN_OPTIONS
        self._classification: Mapping[str, int] | None = None
        """Number of classes requested, by output; None if no classes are requested."""
        self._output_indices: Sequence[int] = ()
        """Indices of the requested outputs."""
        self._rows = 1
        self._early_until = -inf
        """If the client leaves before this time, it counts as cancelling early."""
        self._length = 0
        """Bytes of the announced body."""
        self._slots: tuple[Slot, ...] = ()
        self._payload_released = False
        """Whether the engine has released the payload while the body still arrives in its slot."""

    # ── for front ends ───────────────────────────────────────────────────────────────────────

    def elsewhere(self, length: int, parameters: Mapping[str, Parameter]) -> str:
        return ""

    def announce(
        self, length: int, parameters: Mapping[str, Parameter], given_up: Reply | None = None
    ) -> memoryview | InferReply:
        plane, context = self._plane, self.context
        client = context.client
        try:
            version = self._find()
            options = self._options = parse_parameters(parameters, plane.look_alikes)
            if version.blocklist.inputs:
                self._check_blocklist(version, None)
            limit = version.definition.settings.limits.payload
            if limit is not None and length > limit + _HEADER_ALLOWANCE:
                message = f"body: expected at most {limit} bytes, got {length}"
                raise WireError(Reason.TOO_LARGE, message)
            plane.limits.admit_body(client, length)
            version.enter()
            self._length = length
            self._step(_ANNOUNCE)
            slot = plane.allocate(version, length, client)
            self._slots = (slot,)
            complete_at = context.complete_at
            if complete_at is None:
                now = plane.driver.clock()
                complete_at = context.first_byte + plane.links.transfer_time(
                    client, length, now=now
                )
            notice = notice_of(self.id, context, version, length, complete_at, options)
            self._expect(version, notice)
        except WireError as error:
            self._refuse(error.reason, error.message)
        plane.driver.flush()
        if self._answer is not None:
            return self._answer
        self._step(_ACCEPT)
        self._reply = given_up
        return version.arena.view(slot)

    def submit(self, call: InferCall, reply: Reply) -> None:
        plane, context, before = self._plane, self.context, self.state
        self._call_id = call.id
        if before is not _OPEN and not context.session:  # the call was announced
            now = plane.driver.clock()
            plane.links.observe(context.client, self._length, now - context.first_byte, now=now)
        self._reply = reply
        if before is _DROPPED:
            self._step(_SUBMIT)
            assert self._answer is not None
            self._answer.id = call.id
            plane.loop.call_soon(self._deliver)
            return
        version = self._version
        try:
            version = version or self._find()
            if version.text is not None and version.text.takes(call.inputs):
                self._encode(version, version.text, call)
            else:
                self._check(version, call)
        except WireError as error:
            self._refuse(error.reason, error.message)
        except BaseException:
            self.cancel(Reason.RUNTIME_ERROR)
            raise

    def _encode(self, version: LoadedVersion, text: TextInput, call: InferCall) -> None:
        """Submit a call once its texts are tokenized. The time for tokenizing counts as part of the
        body's arrival. Raises WireError."""
        plane, context, opened = self._plane, self.context, self.state is _OPEN
        limits, client, settings = plane.limits, context.client, version.definition.settings
        if call.parameters:
            self._options = parse_parameters(call.parameters, plane.look_alikes)
        deadline = due(context, self._options, settings, settings.slo)

        def is_wanted() -> bool:
            waits = self.state is _OPEN or self.state is _RECEIVING
            return waits and (deadline is None or plane.driver.clock() < deadline)

        def encoded(result: Sequence[InputTensor] | WireError) -> None:
            try:
                if opened:
                    limits.release(client)
                if self.state is _DROPPED:  # and answered
                    self._step(_SUBMIT)
                elif self.state is _OPEN or self.state is _RECEIVING:
                    if isinstance(result, WireError):
                        raise result
                    self._check(version, replace(call, inputs=list(result)))
            except WireError as error:
                self._refuse(error.reason, error.message)
            except Exception:
                log.exception("submitting a request to %s", version.name)
                self._refuse(Reason.RUNTIME_ERROR, "")
            finally:
                version.leave()

        if opened:
            limits.admit(client)
        version.enter()  # so that it is not unloaded meanwhile
        try:
            text.encode(call.inputs, client, version.check.most_rows, encoded, is_wanted)
        except WireError:
            version.leave()
            if opened:
                limits.release(client)
            raise

    def _check(self, version: LoadedVersion, call: InferCall) -> None:
        """Check a call and submit it to the engine. Raises WireError."""
        plane, context, before = self._plane, self.context, self.state
        options = PLAIN_OPTIONS
        if call.parameters:
            options = parse_parameters(call.parameters, plane.look_alikes)
        self._options = options
        checked = version.check.check(call.inputs)
        self._output_indices = version.check.check_outputs(call.outputs)
        self._rows = checked.rows
        if call.classification is not None:
            check_classification(call.classification, version, checked.rows)
            self._classification = call.classification
        if version.blocklist.inputs:
            self._check_blocklist(version, checked)
        if checked.rows > version.interface.max_batch > 0 and not version.stages:
            self._split(version, checked)
        if before is _OPEN:
            plane.limits.admit(context.client)
            version.enter()
        self._step(_SUBMIT)
        self.payload = self._store(version, checked)
        request = request_of(self.id, context, version, checked, options, self._output_indices)
        self._early_until = (
            inf if request.best_effort else (request.arrival + request.deadline) / 2.0
        )
        self._start(version, call, request)

    def refuse(self, reason: Reason, message: str) -> None:
        self._reply = None
        if self.state is _DROPPED:
            self._step(_REFUSE)
            return
        if self._version is None:
            self._find_version()
        self._refuse(reason, message)

    def cancel(self, reason: Reason) -> None:
        if self.state in _IN_ENGINE:
            version = self._version
            assert version is not None
            if self.waits:
                self.waits = False
                self._route.cancel(self.id, reason)
                self._cancelled(version, reason)
            else:  # an error came before the engine knew the call
                self._free()
        self._reply = None
        self._step(_CANCEL)

    # ── for the driver ───────────────────────────────────────────────────────────────────────

    def answered(self, outcome: Outcome) -> None:
        version = self._version
        assert version is not None
        self._count(version, outcome)
        self._step(_ANSWER)
        kind = outcome.kind
        if kind is _SERVED:
            self._plane.limits.served(self.context.client)
        if kind is not _SERVED and kind is not _LATE:
            self.outputs = None  # cancelled in the turn of the loop in which its result came
        if (outcome.reason is Reason.CRASHED or self.crashed) and self.payload is not None:
            self._block_inputs(version)
        elif version.blocklist.inputs and self.outputs is not None:
            version.blocklist.forgive(self.context.connection)
        answer = self._answer = self._make_reply(version, outcome)
        self._observe(version, outcome, has_result=answer.outputs is not None)
        self._deliver()

    def released(self) -> None:
        if Held.BODY in HOLDS[self.state]:
            self._payload_released = True
        else:
            self._free()

    # ── its steps ────────────────────────────────────────────────────────────────────────────

    def _step(self, step: CallStep) -> None:
        """Go to the next state and release what it does not hold. Raises CallError."""
        transition = _TABLE[self.state].get(step)
        if transition is None:
            raise CallError(f"a call in state {self.state} cannot {step}")
        self.state, body, client, version = transition
        if body:  # the front end no longer writes into the slot
            self._plane.limits.arrived(self.context.client, self._length)
            if self._payload_released:
                self._free()
        if client:
            self._plane.limits.release(self.context.client)
        if version:  # last: the payload memory may go with the version
            assert self._version is not None
            self._version.leave()

    def _expect(self, version: LoadedVersion, notice: Notice) -> None:
        """Tell the engine of a request whose body is arriving."""
        self._route.announce(notice, self)

    def _start(self, version: LoadedVersion, call: InferCall, request: Request) -> None:
        """Submit the request of a checked call, whose payload is stored."""
        self._route.submit(request, self)

    def _cancelled(self, version: LoadedVersion, reason: Reason) -> None:
        """Count the call as cancelled."""
        now = self._plane.driver.clock()
        if reason in _LEFT and now < self._early_until:
            self._plane.limits.cancelled(self.context.client)
        outcome = Outcome(reason, now)
        self._count(version, outcome)
        self._observe(version, outcome, has_result=False)

    def _count(self, version: LoadedVersion, outcome: Outcome) -> None:
        """Count the call's one outcome."""
        version.counters.answered(outcome, self._rows, self.timing)

    def _find(self) -> LoadedVersion:
        """Return the version that answers. Raises WireError if there is none."""
        version, plane = self._find_version(), self._plane
        if version is None or plane.draining:
            raise plane.absence(self.model, self._version_name)
        return version

    def _find_version(self) -> LoadedVersion | None:
        version = self._version = self._plane.catalog.find(self.model, self._version_name)
        if version is not None:
            self._route = version.route(self._plane.driver)
        return version

    def _check_blocklist(self, version: LoadedVersion, checked: CheckedInputs | None) -> None:
        """Raise WireError if the input (`checked`; None before it is read) crashed `version`
        recently, or if several inputs of this connection did."""
        blocklist = version.blocklist
        now = self._plane.driver.clock()
        if not blocklist.is_active(now=now):
            return
        if checked is not None and blocklist.contains([(t.shape, t.data) for t in checked.tensors]):
            raise WireError(Reason.CRASHED_BEFORE, "")
        if blocklist.blocked_for(self.context.connection, now=now):
            raise WireError(Reason.CONNECTION_BLOCKED, "")

    def _split(self, version: LoadedVersion, checked: CheckedInputs) -> None:
        """Run the call's rows in several batches. Raises BadField if the rows depend on each
        other."""
        if version.dependence:
            most = version.interface.max_batch
            field = f"input {checked.tensors[0].name!r} shape[0]"
            raise BadField(field, f"1 to {most} rows", checked.rows)
        self._route = SplitRoute(self._route, version, self._plane.driver.new_id)

    def _store(self, version: LoadedVersion, checked: CheckedInputs) -> Payload:
        """Return the payload: parts of the received body, or a copy in a new slot."""
        arena = version.arena
        for slot in self._slots:
            payload = refer_payload(slot, arena.view(slot), checked)
            if payload is not None:  # else a tensor came as JSON: its bytes are elsewhere
                return payload
        slot = self._plane.allocate(version, checked.nbytes, self.context.client)
        self._slots += (slot,)
        return write_payload(arena, slot, checked)

    def _refuse(self, reason: Reason, message: str) -> None:
        """Have the engine count a refusal; `answered` then replies as usual."""
        self._step(_REFUSE)
        version, plane = self._version, self._plane
        if version is not None:
            refused = Refused(self.id, version.name, reason, version.pin, message)
            self._route.refuse(refused, self)
            return
        # Without a version, the engine cannot count the refusal.
        plane.overload.count(reason)
        outcome = Outcome(reason, plane.driver.clock(), detail=message)
        named = self._version_name or ""
        self._answer = InferReply(outcome, self.model, named, self._call_id, None, message)
        self._step(_ANSWER)
        plane.loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        reply, answer = self._reply, self._answer
        if reply is not None:
            assert answer is not None
            # The reply refers back to this call, which owns slots and may outlive the reply.
            self._reply = self._answer = None
            reply(answer)

    def _free(self) -> None:
        slots, self._slots = self._slots, ()
        for slot in slots:
            assert self._version is not None
            self._version.arena.free(slot)

    # ── the end ──────────────────────────────────────────────────────────────────────────────

    def _block_inputs(self, version: LoadedVersion) -> None:
        """For a while, refuse the inputs that crashed `version`. Waiting requests with the same
        inputs are cancelled."""
        driver, context = self._plane.driver, self.context
        blocklist = version.blocklist
        blocklist.add(self._tensors(version), context.connection, now=driver.clock())
        log.warning(
            "%s:%s crashed or hung on a request from %s: refusing its input for %g s",
            version.name if not self.crashed else f"stage {self.crashed!r} of {version.name}",
            version.version,
            context.client,
            BLOCK_S,
        )
        for waiting_call in driver.waiting():
            if (
                isinstance(waiting_call, ServerCall)
                and waiting_call._version is version
                and blocklist.contains(waiting_call._tensors(version))
            ):
                self._route.cancel(waiting_call.id, Reason.CRASHED_BEFORE)

    def _tensors(self, version: LoadedVersion) -> list[tuple[tuple[int, ...], memoryview]]:
        """Return shapes and bytes of the inputs, as views of shared memory."""
        assert self.payload is not None
        view = version.arena.view
        return [(ref.shape, view(Slot(ref.offset, ref.nbytes))) for ref in self.payload.tensors]

    def _observe(self, version: LoadedVersion, outcome: Outcome, *, has_result: bool) -> None:
        observers = self._plane.observers
        if not observers:
            return
        observers.notify(
            AnsweredRequest(
                self.context,
                version.name,
                version.version,
                self._version_name is not None,
                self._call_id,
                self._rows,
                outcome,
                has_result,
                self.stages,
            )
        )

    def _make_reply(self, version: LoadedVersion, outcome: Outcome) -> InferReply:
        options, outputs = self._options, self.outputs
        reply = InferReply(outcome, version.name, version.version, self._call_id, None)
        reply.variant = self.variant
        if options.report_timing:
            exits = version.exits
            exit_name = None if exits is None else exits.name(outcome.ramp)
            variant = None if version.stages else self.variant
            reply.parameters = timing_parameters(outcome, variant, exit_name)
            reply.parameters |= {**stage_parameters(self.stages), **self.details}
        elif self.variant:
            reply.parameters = {"variant": self.variant}
        if self.missing_stages and outputs is not None:
            reply.parameters["partial"] = ",".join(self.missing_stages)
        if outputs is None or (options.discard_late and outcome.kind is _LATE):
            self._plane.overload.count(outcome.reason)
            self._plane.overload.count_unrun(version, outcome.reason)
            reply.message = message_for(outcome, version.name)
            if outcome.reason in _RETRYABLE:
                reply.retry_after_s = version.expected_alone
            elif outcome.reason is Reason.CONNECTION_BLOCKED:
                at, connection = outcome.at, self.context.connection
                reply.retry_after_s = version.blocklist.blocked_for(connection, now=at)
            return reply
        specs = version.interface.outputs
        reply.outputs = [
            OutputValue(specs[i].name, specs[i].datatype, *tensor)
            for i in self._output_indices
            if (tensor := outputs[i]) is not None
        ]
        if (requested := self._classification) is not None:
            reply.outputs = [
                classified(output, requested[output.name], version, outputs)
                if output.name in requested
                else output
                for output in reply.outputs
            ]
        return reply
