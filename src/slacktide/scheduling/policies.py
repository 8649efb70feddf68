"""Policies by name: `make_scheduler("slack", {"kappa": 0.8}, ...)`.

A policy's options are the fields of its options class; their types and ranges are checked here, so
that configuration, command line and tests get the same sentence for the same mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from types import UnionType
from typing import Any, Literal, Protocol, get_args, get_origin, get_type_hints

from slacktide.engine.ports import BatchTimes, PoolView, Scheduler
from slacktide.scheduling.clipper import Clipper, ClipperOptions
from slacktide.scheduling.clockwork import Clockwork, ClockworkOptions
from slacktide.scheduling.edf import Edf, EdfOptions
from slacktide.scheduling.fifo import Fifo, FifoOptions
from slacktide.scheduling.nexus import Nexus, NexusOptions
from slacktide.scheduling.orloj import Orloj, OrlojOptions, OrlojText
from slacktide.scheduling.slack import Slack, SlackOptions

DEFAULT_POLICY = "slack"


class PolicyError(ValueError):
    """An unknown policy or option, or a bad value. The caller's mistake; the text says which."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy that can be named: its options class and how it is made from options."""

    name: str
    options: type[Any]
    make: Callable[[Any, int, BatchTimes, PoolView], Scheduler]
    """(options, max_batch, times, view) -> scheduler."""


class _Planning(Protocol):
    """A scheduler's class, if it goes by predictions and lanes, as most do."""

    def __call__(
        self, options: Any, /, *, max_batch: int, times: BatchTimes, view: PoolView
    ) -> Scheduler: ...


def _planning(name: str, options: type[Any], scheduler: _Planning) -> Policy:
    return Policy(
        name,
        options,
        lambda options, max_batch, times, view: scheduler(
            options, max_batch=max_batch, times=times, view=view
        ),
    )


POLICIES: Mapping[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy(
            "fifo",
            FifoOptions,
            lambda options, max_batch, times, view: Fifo(options, max_batch=max_batch),
        ),
        _planning("edf", EdfOptions, Edf),
        Policy(
            "clipper",
            ClipperOptions,
            lambda options, max_batch, times, view: Clipper(options, max_batch=max_batch),
        ),
        Policy(
            "nexus",
            NexusOptions,
            lambda options, max_batch, times, view: Nexus(
                options, max_batch=max_batch, times=times
            ),
        ),
        _planning("clockwork", ClockworkOptions, Clockwork),
        _planning("orloj", OrlojOptions, Orloj),
        _planning("orloj_text", OrlojOptions, OrlojText),
        _planning("slack", SlackOptions, Slack),
    )
}
"""Every policy, by name."""


def make_scheduler(
    name: str,
    options: Mapping[str, object],
    *,
    max_batch: int,
    times: BatchTimes,
    view: PoolView,
) -> Scheduler:
    """A fresh scheduler for one pool.

    Raises PolicyError if the policy or an option is unknown (with the nearest one that exists) or
    a value is of the wrong type or out of range.
    """
    if max_batch < 1:
        raise PolicyError(f"max_batch must be at least 1, got {max_batch}")
    checked = policy_options(name, options)
    return POLICIES[name].make(checked, max_batch, times, view)


def policy_options(name: str, options: Mapping[str, object]) -> Any:
    """The options object of policy `name`, defaults filled in. Raises as `make_scheduler` does."""
    policy = POLICIES.get(name)
    if policy is None:
        raise PolicyError(f"unknown scheduler {name!r}; {_nearest(name, POLICIES)}")
    types = get_type_hints(policy.options)
    values: dict[str, object] = {}
    for key, value in options.items():
        if key not in types:
            raise PolicyError(f"scheduler {name!r} has no option {key!r}; {_nearest(key, types)}")
        values[key] = _typed(f"option {key!r} of scheduler {name!r}", value, types[key])
    try:
        return policy.options(**values)
    except ValueError as error:
        raise PolicyError(f"scheduler {name!r}: {error}") from error


def option_defaults(name: str) -> dict[str, object]:
    """Every option of policy `name` with its default. Raises PolicyError if there is none."""
    options = policy_options(name, {})
    return {field.name: getattr(options, field.name) for field in fields(options)}


def _nearest(name: str, known: Iterable[str]) -> str:
    """What to type instead of `name`."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1)
    listed = ", ".join(names)
    return f"did you mean {close[0]!r}? (there are: {listed})" if close else f"there are: {listed}"


def _typed(what: str, value: object, hint: Any) -> object:
    """`value` as the annotation `hint` asks for. Raises PolicyError if it cannot be that."""
    if isinstance(hint, UnionType):
        if value is None:
            return None
        (hint,) = [part for part in get_args(hint) if part is not type(None)]
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        if value not in choices:
            raise PolicyError(f"{what} must be one of {', '.join(choices)}; got {value!r}")
        return value
    if get_origin(hint) is tuple:
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise PolicyError(f"{what} must be a list, got {value!r}")
        return tuple(_typed(what, item, get_args(hint)[0]) for item in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise PolicyError(f"{what} must be of type {hint.__name__}, got {value!r}")
    return value
