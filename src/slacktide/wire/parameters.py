"""Request parameters that affect scheduling, and the headers that may carry them.

Both front ends use this file, so a deadline means the same over HTTP and gRPC:

- `read_headers` turns HTTP headers or gRPC metadata into parameters and a transport budget;
- `parse_parameters` turns the merged parameters of a call into `CallOptions`.

A parameter in the message wins over a header of the same meaning. The transport's budget is a
separate limit; the smaller of the two counts. Unknown parameters, and those reserved by Triton, are
accepted and ignored. Those in `LOOK_ALIKES` are refused, because they are mistakes that would
silently cost a request its deadline.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from slacktide.domain import Outcome, OutcomeKind, Reason
from slacktide.wire.calls import Parameter
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.status import microseconds

DEFAULT_PRIORITY = 3
LOWEST_PRIORITY = 5
MAX_LABEL = 256
"""Maximum characters of an application's name, which becomes a metrics label."""

NEVER_S: Final = 365 * 86400.0
"""Longest timeout in seconds. Some clients send the largest possible number."""
MOST_NETWORK_US: Final = 86400e6
"""Maximum microseconds that a client may have spent before the first byte: a day."""
MOST_HINT: Final = 1e12
"""Largest `work_hint`: its square must not overflow."""

PARAMETER_HEADERS: Mapping[str, str] = {
    "slacktide-application": "application",
    "slacktide-work-hint": "work_hint",
    "slacktide-late": "late",
    "slacktide-report-timing": "report_timing",
    "slacktide-network-us": "network_us",
    "slacktide-variant": "variant",
    "slacktide-final": "final",
    "slacktide-session": "session",
}
"""Header or metadata name (lower case) → parameter name."""

TIMEOUT_HEADERS: Mapping[str, float] = {
    "x-envoy-expected-rq-timeout-ms": 1e-3,
    "x-request-timeout-seconds": 1.0,
}
"""Header with its sender's timeout → seconds per unit of its value."""

_TIMEOUT = "'timeout', in microseconds"
_TIMEOUT_HEADER = "'x-request-timeout-seconds', or the parameter 'timeout' in microseconds"
_RIGHT_NAMES: Mapping[str, str] = {
    _TIMEOUT: (
        "timeout_us timeout_ms timeout_s timeout_seconds timeout_milliseconds timeout_microseconds "
        "timeout_ns client_timeout request_timeout request_timeout_ms response_timeout "
        "time_out timeOut timeoutMs "
        "deadline deadline_us deadline_ms deadline_s deadline_seconds "
        "slo slo_us slo_ms slo_s slo_seconds "
        "latency_slo latency_slo_ms latency_budget latency_budget_ms budget_us budget_ms "
        "max_latency max_latency_ms"
    ),
    "'priority', 1 (highest) to 5": "priorty prioirty prio priority_level request_priority",
    "'application'": "aplication applicaton application_name application_id",
    "'work_hint'": "workhint work_hints work-hint",
    "'late', 'deliver' or 'discard'": "discard_late late_policy drop_late",
    "'report_timing', true or false": "report_timings report-timing timing_report",
    "'network_us', in microseconds": "network_ms network_s network_time network_time_us",
    _TIMEOUT_HEADER: (
        "slacktide-timeout slacktide-timeout-us slacktide-timeout-ms slacktide-timeout-seconds "
        "slacktide-deadline slacktide-deadline-us slacktide-deadline-ms "
        "slacktide-slo slacktide-slo-ms x-request-timeout x-request-timeout-ms "
        "x-timeout x-timeout-ms x-timeout-seconds x-deadline x-deadline-ms x-slo-ms"
    ),
    "the parameter 'priority', 1 (highest) to 5": "slacktide-priority slacktide-priorty",
    "'slacktide-application'": "slacktide-app slacktide-application-name",
    "'slacktide-network-us', in microseconds": "slacktide-network slacktide-network-ms",
}
LOOK_ALIKES: Mapping[str, str] = {
    name: right for right, names in _RIGHT_NAMES.items() for name in names.split()
}
"""Parameters and headers that resemble ours → the right name, with its unit or values.
docs/requests.md lists them."""
LOOK_ALIKE_HEADERS = frozenset(
    name for name in LOOK_ALIKES if name.startswith(("slacktide-", "x-"))
)

STEERING_HEADERS = frozenset((*PARAMETER_HEADERS, *TIMEOUT_HEADERS, *LOOK_ALIKE_HEADERS))
"""Headers that `read_headers` processes."""

BYTES_HEADER = "slacktide-bytes"
"""gRPC metadata with the length of the message (HTTP has Content-Length)."""
MODEL_KEY = "slacktide-model"
VERSION_KEY = "slacktide-model-version"
"""gRPC metadata with the model and version that a message is for (HTTP has the path)."""


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The options of a call. The defaults hold for a call without parameters."""

    timeout_s: float | None = None
    """Seconds from the first byte; None if the client gave no timeout."""
    penalty: float | None = None
    """Cost of a missed deadline: 2^(3 − priority); None if the client gave no priority."""
    application: str = ""
    work_hint: float | None = None
    discard_late: bool = False
    """Whether to discard a late result."""
    report_timing: bool = False
    """Whether to put timing into the answer's parameters."""
    network_s: float = 0.0
    """Seconds that the client spent before the first byte arrived."""
    variant: str = ""
    """Variant of the model that must answer; empty: the server chooses."""
    final: bool = False
    """Whether the whole model must answer, never an early exit."""
    session: str = ""
    """The client's stream of inputs that the request continues, for remembered answers."""


@dataclass(slots=True)
class HeaderFields:
    """The parameters and timeout in the headers of a call."""

    parameters: dict[str, Parameter] = field(default_factory=dict)
    budget_s: float | None = None
    """The smallest timeout in any header, in seconds from the first byte."""


PLAIN_OPTIONS = CallOptions()
"""The options of a call without parameters."""
_NAMES = frozenset(
    (
        "timeout", "priority", "application", "work_hint", "late", "report_timing", "network_us",
        "variant", "final", "session",
    )
).union(LOOK_ALIKES)  # fmt: skip


def parse_parameters(
    parameters: Mapping[str, Parameter], look_alikes: Mapping[str, str] = LOOK_ALIKES
) -> CallOptions:
    """Parse a call's merged parameters. Raises WireError naming `parameters.<name>`. Names in
    `look_alikes` are errors too."""
    if _NAMES.isdisjoint(parameters):
        return PLAIN_OPTIONS
    for name in parameters:
        if name in look_alikes:
            where = name if name in LOOK_ALIKE_HEADERS else f"parameters.{name}"
            raise WireError(Reason.BAD_INPUT, f"{where}: unknown; use {look_alikes[name]}")
    get = parameters.get
    timeout_s = min(_number("parameters.timeout", get("timeout", 0)) * 1e-6, NEVER_S)
    hint = get("work_hint")
    return CallOptions(
        timeout_s=timeout_s or None,
        penalty=_penalty(get("priority", 0)),
        application=_label("parameters.application", get("application", "")),
        work_hint=None if hint is None else _number("parameters.work_hint", hint, MOST_HINT),
        discard_late=_late("parameters.late", get("late", "deliver")),
        report_timing=_flag("parameters.report_timing", get("report_timing", False)),
        network_s=1e-6 * _number("parameters.network_us", get("network_us", 0), MOST_NETWORK_US),
        variant=_label("parameters.variant", get("variant", "")),
        final=_flag("parameters.final", get("final", False)),
        session=_label("parameters.session", get("session", "")),
    )


def read_headers(pairs: Iterable[tuple[str, str]]) -> HeaderFields:
    """Parse pairs of lower-case name and value; other names are skipped. A look-alike becomes a
    parameter of its own name, which `parse_parameters` refuses.

    Raises BadField naming the header. A timeout of zero in a header is an error, unlike in Triton's
    parameter `timeout`, where it means "not sent". If a header is repeated, the last parameter and
    the smallest timeout count.
    """
    fields = HeaderFields()
    for name, value in pairs:
        if (parameter := PARAMETER_HEADERS.get(name)) is not None:
            fields.parameters[parameter] = _typed(name, parameter, value)
        elif (unit := TIMEOUT_HEADERS.get(name)) is not None:
            budget = min(_number(name, _parse_number(name, value)) * unit, NEVER_S)
            if budget == 0:
                raise BadField(name, "more than 0", value)
            if fields.budget_s is None or budget < fields.budget_s:
                fields.budget_s = budget
        elif name in LOOK_ALIKE_HEADERS:
            fields.parameters[name] = value
    return fields


def parse_length(name: str, value: str | bytes) -> int:
    """Parse a length in bytes, which must be decimal digits. Raises BadField."""
    if not (value.isdigit() and value.isascii() and len(value) <= 18):
        raise BadField(name, "a number of bytes", value)
    return int(value)


def unload_dependents(parameters: Mapping[str, object]) -> bool:
    """The `unload_dependents` parameter of an unload call, which stock clients always send. Raises
    BadField."""
    return _flag("parameters.unload_dependents", parameters.get("unload_dependents", False))


def timing_parameters(
    outcome: Outcome, variant: str | None, exit: str | None = None
) -> dict[str, Parameter]:
    """The answer's parameters for `report_timing`, in microseconds. `variant`: None for a pipeline.
    `exit`: the exit that answered, empty if the whole network did; None: the model has no early
    exits."""
    parameters: dict[str, Parameter] = {
        "queue_us": microseconds(outcome.queue_s),
        "compute_us": microseconds(outcome.compute_s),
        "batch_size": outcome.batch_rows,
        **({} if variant is None else {"variant": variant}),
        "late": outcome.kind is OutcomeKind.LATE,
    }
    if outcome.budget_s is not None:
        parameters["budget_us"] = microseconds(outcome.budget_s)
    if exit is not None:
        parameters["exit"] = exit
    return parameters


def stage_parameters(stages: Mapping[str, Outcome]) -> dict[str, Parameter]:
    """Timing parameters for each stage of a pipeline, from the last request of the stage.
    `budget_us` is the rest of the stage's share of the deadline."""
    parameters: dict[str, Parameter] = {}
    for stage, outcome in stages.items():
        parameters[f"{stage}.queue_us"] = microseconds(outcome.queue_s)
        parameters[f"{stage}.compute_us"] = microseconds(outcome.compute_s)
        parameters[f"{stage}.batch_size"] = outcome.batch_rows
        if outcome.budget_s is not None:
            parameters[f"{stage}.budget_us"] = microseconds(outcome.budget_s)
    return parameters


def _typed(header: str, parameter: str, value: str) -> Parameter:
    """Convert a header's text to the parameter's type. Errors name the header."""
    if parameter in ("application", "variant", "session"):
        return _label(header, value)
    if parameter == "late":
        _late(header, value)
        return value
    if parameter in ("report_timing", "final"):
        lowered = value.lower()
        if lowered not in ("true", "false", "1", "0"):
            raise BadField(header, "true or false", value)
        return lowered in ("true", "1")
    most = MOST_HINT if parameter == "work_hint" else MOST_NETWORK_US
    return _number(header, _parse_number(header, value), most)


def _parse_number(name: str, text: str) -> float:
    # float() also accepts "1_000", " 1 " and "nan"; `_number` catches the last.
    try:
        return float("" if "_" in text else text)
    except ValueError:
        raise BadField(name, "a number", text) from None


def _number(name: str, value: object, most: float = math.inf) -> float:
    """A finite number from 0 to `most`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadField(name, "a number", value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not 0.0 <= number < math.inf:
        raise BadField(name, "a finite number, 0 or more", value)
    if number > most:
        raise BadField(name, f"a number from 0 to {most:.0f}", value)
    return number


def _penalty(priority: object) -> float | None:
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise BadField("parameters.priority", "an integer", priority)
    if not 0 <= priority <= LOWEST_PRIORITY:
        raise BadField("parameters.priority", f"0 to {LOWEST_PRIORITY}", priority)
    # In Triton, zero means the model's default.
    return float(2.0 ** (DEFAULT_PRIORITY - priority)) if priority else None


def _label(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise BadField(name, "a string", value)
    if len(value) > MAX_LABEL or not (value.isprintable() or not value):
        raise BadField(name, f"at most {MAX_LABEL} printable characters", value)
    return value


def _late(name: str, value: object) -> bool:
    if value not in ("deliver", "discard"):
        raise BadField(name, "'deliver' or 'discard'", value)
    return value == "discard"


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise BadField(name, "true or false", value)
    return value
