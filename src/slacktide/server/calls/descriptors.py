"""Requests, notices and payloads of calls, as the engine and workers see them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slacktide.domain import Notice, Request
from slacktide.executors.hand_over.arena import Arena, Slot
from slacktide.executors.ports import Payload, TensorRef
from slacktide.models.calls.input_check import CheckedInputs
from slacktide.models.repository.settings import ModelSettings
from slacktide.models.versions import LoadedVersion
from slacktide.wire.calls import Buffer, CallContext
from slacktide.wire.errors import BadField
from slacktide.wire.parameters import CallOptions


def due(
    context: CallContext, options: CallOptions, settings: ModelSettings, default_slo: float | None
) -> float | None:
    """Return the deadline: first byte + SLO − network time already spent; None for best effort. The
    SLO is the smallest that the client sent (parameter, transport, headers), else `default_slo`,
    and never above the model's `max_slo`. All in seconds."""
    slo, budget = options.timeout_s, context.transport_budget_s
    if budget is not None and (slo is None or budget < slo):
        slo = budget
    if slo is None:
        slo = default_slo
    if settings.max_slo is not None and (slo is None or slo > settings.max_slo):
        slo = settings.max_slo
    return None if slo is None else context.first_byte + slo - options.network_s


def best_effort_due(context: CallContext, p99_alone: float) -> float:
    """Return the deadline by which a best-effort request is ordered:
    first byte + max(1 s, 10 × p99 alone)."""
    return context.first_byte + max(1.0, 10.0 * p99_alone)


def size_asked(version: LoadedVersion, options: CallOptions, image_size: int = 0) -> int:
    """Return the size (`LoadedPool.size`) of the variant that a call asks for: the variant that it
    names, or, if variants are image sizes, the one with its image's size. 0: the planner decides,
    as in pipelines, where the sizes depend on crops. Raises BadField."""
    front = version.front
    if not options.variant:
        return image_size if front is version and front.pools[0].definition.image_size else 0
    for pool in front.pools:
        if pool.variant == options.variant:
            return pool.size
    names = ", ".join(repr(pool.variant) for pool in front.pools if pool.variant)
    expected = f"one of {names}" if names else f"none: {front.name!r} has no variants"
    raise BadField("parameters.variant", expected, options.variant)


def request_of(
    id: int,
    context: CallContext,
    version: LoadedVersion,
    checked: CheckedInputs,
    options: CallOptions,
    output_indices: Sequence[int] = (),
) -> Request:
    """Return the request of a call whose tensors have arrived. `output_indices`: requested
    outputs."""
    settings, front = version.definition.settings, version.front
    exits = front.exits
    deadline = due(context, options, settings, settings.slo)
    session, frame = 0, 0
    if exits is not None and checked.rows == 1:
        session, frame = exits.frame(
            context.session or context.client, options.session or context.session
        )
    return Request(
        id,
        version.name,
        context.first_byte,
        best_effort_due(context, version.p99_alone) if deadline is None else deadline,
        rows=checked.rows,
        penalty=version.penalty if options.penalty is None else options.penalty,
        signature=checked.signature,
        best_effort=deadline is None,
        version=version.pin,
        application=options.application,
        client=context.session or context.client,
        work_hint=options.work_hint if checked.work_hint is None else checked.work_hint,
        network_time=options.network_s,
        size=0
        if front.family is None and not options.variant
        else size_asked(version, options, checked.image_size),
        names_variant=bool(options.variant),
        final=exits is not None and (options.final or not exits.makes(output_indices)),
        decoding=checked.decoding,
        session=session,
        frame=frame,
    )


def notice_of(
    id: int,
    context: CallContext,
    version: LoadedVersion,
    length: int,
    complete_at: float,
    options: CallOptions,
) -> Notice:
    """Return the notice of a call whose body of `length` bytes should arrive by `complete_at`. Its
    deadline ignores the model's `slo`: the body may state a longer timeout, and a notice must not
    refuse a call that could still be on time."""
    settings = version.definition.settings
    deadline = due(context, options, settings, None)
    return Notice(
        id,
        version.name,
        context.first_byte,
        best_effort_due(context, version.p99_alone) if deadline is None else deadline,
        payload_bytes=length,
        complete_at=complete_at,
        penalty=version.penalty if options.penalty is None else options.penalty,
        best_effort=deadline is None,
        version=version.pin,
        application=options.application,
        client=context.session or context.client,
        likely_due=due(context, options, settings, settings.slo) if deadline is None else None,
        size=size_asked(version, options) if options.variant else 0,
        names_variant=bool(options.variant),
    )


def write_payload(arena: Arena, slot: Slot, checked: CheckedInputs) -> Payload:
    """Copy the tensors into `slot`, one after another."""
    at = slot.offset
    refs = []
    for tensor in checked.tensors:
        size = len(tensor.data)
        arena.write(at, tensor.data)
        refs.append(TensorRef(at, size, tensor.shape))
        at += size
    return Payload(checked.rows, tuple(refs))


def refer_payload(slot: Slot, body: memoryview, checked: CheckedInputs) -> Payload | None:
    """Return the tensors as parts of the body received into `slot`; None if any is elsewhere."""
    start = _address(body)
    refs = []
    for tensor in checked.tensors:
        size = len(tensor.data)
        offset = _address(tensor.data) - start if size else 0
        if not 0 <= offset <= len(body) - size:
            return None
        refs.append(TensorRef(slot.offset + offset, size, tensor.shape))
    return Payload(checked.rows, tuple(refs))


def _address(data: Buffer) -> int:
    """Return the memory address of `data`."""
    return np.frombuffer(data, np.uint8).ctypes.data if len(data) else 0
