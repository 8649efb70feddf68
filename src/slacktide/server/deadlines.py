"""When a request is due. Pure."""

from __future__ import annotations

from typing import NamedTuple

from slacktide.models.repository.settings import ModelSettings
from slacktide.wire.parameters import CallOptions


class Due(NamedTuple):
    """An absolute deadline, or the moment by which a best-effort request is ordered."""

    at: float
    best_effort: bool


def due(
    first_byte: float,
    options: CallOptions,
    transport_budget_s: float | None,
    settings: ModelSettings,
    *,
    p99_alone: float,
) -> Due:
    """deadline = first byte + SLO − network time already spent.

    The SLO is the smallest of what the client sent (parameter, transport, headers); without any,
    the model's `slo`; never above its `max_slo`. With neither the request is best effort, ordered
    as if due at first byte + max(1 s, 10 × p99 alone). `p99_alone` in seconds.
    """
    return _due(first_byte, options, transport_budget_s, settings, settings.slo, p99_alone)


def due_at_the_latest(
    first_byte: float,
    options: CallOptions,
    transport_budget_s: float | None,
    settings: ModelSettings,
    *,
    p99_alone: float,
) -> Due:
    """The same while only the headers are here: the body may name a timeout longer than the
    model's `slo`, so that one is left out. Nothing that could still be met is refused by it."""
    return _due(first_byte, options, transport_budget_s, settings, None, p99_alone)


def _due(
    first_byte: float,
    options: CallOptions,
    transport_budget_s: float | None,
    settings: ModelSettings,
    default_slo: float | None,
    p99_alone: float,
) -> Due:
    slo = options.timeout_s
    if transport_budget_s is not None and (slo is None or transport_budget_s < slo):
        slo = transport_budget_s
    if slo is None:
        slo = default_slo
    if settings.max_slo is not None and (slo is None or slo > settings.max_slo):
        slo = settings.max_slo
    if slo is None:
        return Due(first_byte + max(1.0, 10.0 * p99_alone), best_effort=True)
    return Due(first_byte + slo - options.network_s, best_effort=False)
