"""What happens when, in a chaos run: drawn from a seed before anything starts. Pure.

Processes race, so two runs of one plan need not end alike; but what was done to the server, and
when, is the same, and that is what a failure is sought with.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

ROUND_S = 15.0
"""In each round of a long run every disturbance comes once, at a time of its own."""
RATE = 60.0
"""Requests per second, on average."""


class Manner(Enum):
    """How a request's client behaves."""

    PLAIN = "waits for its answer"
    VANISH = "sends all, then closes"
    RESET = "sends all, then resets the connection"
    HALF = "closes in the middle of the body"
    STALL = "pauses in the middle of the body"
    CHUNKED = "sends its body in chunks"
    GRPC = "waits for its answer, gRPC"
    GRPC_DEADLINE = "has a deadline of gRPC's own"
    GRPC_CANCEL = "cancels, gRPC"


WAITS_FOR_AN_ANSWER = frozenset((Manner.PLAIN, Manner.STALL, Manner.CHUNKED, Manner.GRPC))
_MANNERS = (40, 10, 5, 8, 7, 5, 15, 5, 5)
"""Percent of requests, in the order of `Manner`."""

MODELS = ("quick", "spin", "own", "picky", "coming", "hanging", "chain")
_MODELS = (25, 20, 20, 10, 14, 1, 10)
"""Percent of requests."""
STAGES = ("link", "tail")
"""Models that only `chain`, a pipeline, asks."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A request; times in seconds."""

    at: float
    id: str
    value: int
    """What its input holds, so that an answer to another request is found out."""
    model: str
    manner: Manner
    timeout: float | None
    turns: int
    """Work, where the model can be told how much."""
    wait: float
    """From the last byte sent to the client's leaving, or the pause in the body."""
    padding: int
    """Further bytes in the body: long ones are announced at their headers."""


class Trouble(Enum):
    """What is done to the server."""

    KILL_WORKER = "a worker is killed"
    FREEZE_WORKER = "a worker stands still"
    FREEZE_SERVER = "the server stands still"
    FREEZE_FORKING = "the process that starts workers stands still"
    KILL_FORKING = "the process that starts workers is killed"
    RELOAD = "a model is loaded again"
    UNLOAD = "a model is unloaded, then loaded"
    CONNECTIONS = "a flood of connections that say nothing"
    BAD_HTTP = "a flood of bad HTTP"
    BAD_GRPC = "a flood of bad bytes on the gRPC port"
    SIGHUP = "the token is read again"
    DISK = "the disk is full"


@dataclass(frozen=True, slots=True)
class PlannedTrouble:
    """At `at`, for `seconds`; `draw` in [0, 1) chooses which of those that there are."""

    at: float
    kind: Trouble
    seconds: float
    draw: float


@dataclass(frozen=True, slots=True)
class Plan:
    """All of a run."""

    seed: int
    seconds: float
    calls: tuple[PlannedCall, ...]
    troubles: tuple[PlannedTrouble, ...]


def draw(seed: int, seconds: float) -> Plan:
    """The plan of `seed`: the same for ever."""
    calls = _calls(random.Random(f"calls {seed}"), seconds)
    return Plan(seed, seconds, calls, _troubles(random.Random(f"troubles {seed}"), seconds))


def _calls(rng: random.Random, seconds: float) -> tuple[PlannedCall, ...]:
    calls: list[PlannedCall] = []
    at = 0.0
    while (at := at + rng.expovariate(RATE * rng.choice((0.5, 1.0, 4.0)))) < seconds:
        (manner,) = rng.choices(tuple(Manner), _MANNERS)
        (model,) = rng.choices(MODELS, _MODELS)
        calls.append(
            PlannedCall(
                at,
                f"chaos-{len(calls)}",
                len(calls) + 1,
                model,
                manner,
                rng.choice((None, None, 0.005, 0.05, 0.2, 1.0, 5.0)),
                rng.choice((1, 500, 5_000, 20_000)),
                rng.choice((0.0, 0.001, 0.02, 0.3)),
                rng.choice((0, 0, 0, 5_000, 100_000)),
            )
        )
    return tuple(calls)


def _troubles(rng: random.Random, seconds: float) -> tuple[PlannedTrouble, ...]:
    """In each round all kinds but the full disk, which comes once: recording ends with it."""
    troubles: list[PlannedTrouble] = []
    rounds = max(1, round(seconds / ROUND_S))
    length = seconds / rounds
    for i in range(rounds):
        for kind in Trouble:
            begin = (i + rng.uniform(0.05, 0.75)) * length
            troubles.append(PlannedTrouble(begin, kind, _length(rng, kind, length), rng.random()))
    disk = PlannedTrouble(seconds * rng.uniform(0.6, 0.7), Trouble.DISK, seconds * 0.2, 0.0)
    kept = [trouble for trouble in troubles if trouble.kind is not Trouble.DISK]
    return tuple(sorted([*kept, disk], key=lambda trouble: trouble.at))


def _length(rng: random.Random, kind: Trouble, round_s: float) -> float:
    """Seconds that it lasts. A batch is taken to hang after one, the process that starts workers
    to be lost after ten."""
    if kind is Trouble.FREEZE_SERVER:
        return rng.uniform(0.1, 0.5)
    if kind is Trouble.FREEZE_WORKER:
        return rng.choice((0.2, 0.5, 1.5))
    longest = 12.0 if kind is Trouble.FREEZE_FORKING and round_s >= ROUND_S / 2 else 1.0
    return rng.uniform(0.2, longest)


def describe(troubles: Sequence[PlannedTrouble]) -> list[str]:
    return [
        f"{trouble.at:7.2f} s  {trouble.kind.value}, {trouble.seconds:.1f} s"
        for trouble in troubles
    ]
