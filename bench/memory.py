"""Ten times what can be served, for a minute: memory stays bounded, and everybody is answered.

The residual classifier on one core, Poisson arrivals at ten times its batch-1 capacity, deadlines
ten times its batch-1 latency; over HTTP, then over gRPC, each to a server of its own that may hold
`--memory-limit` of payloads. Memory is that of all its processes and memfds (bench/processes.py),
the warm-up left out. The limit on top of what the idle server holds is that of payloads, and an
allowance for connections, messages on their way through gRPC and what the allocator keeps.

Growth compares medians of the second and the last quarter: a leak shows there long before it shows
in the maximum. Answered is whatever ended in an answer of the server, a refusal or a 504 included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median

from bench import models, servers
from bench.machine import cores, pin
from bench.measurement import Figure, Options, Result, at_least, at_most
from bench.offer import Offered, Run, offer
from bench.processes import MemorySampler, memory, tree
from slacktide.lab.load.request_log import ENDING_OF, ENDINGS
from slacktide.lab.load.request_log import Result as Ended
from slacktide.lab.load.spec import Transport
from slacktide.lab.workloads import Fixed, Poisson

MODEL = "residual"
FACTOR, DEADLINE_FACTOR = 10.0, 10.0
WARMUP = 2.0
INTERVAL = 0.25
"""Seconds between two looks: longer than any garbage lives, shorter than a queue takes to fill."""
MIB = 1 << 20
MEMORY_LIMIT_MIB, ALLOWANCE_MIB = 64, 96
SEED = 1

_UNANSWERED = tuple(
    ENDINGS[ENDING_OF[ended]].label for ended in (Ended.TRANSPORT_ERROR, Ended.GAVE_UP)
)
_REFUSED = ENDINGS[ENDING_OF[Ended.OVERLOADED]].label


def run(options: Options) -> Result:
    """A minute over each protocol (10 s when quick)."""
    duration = 10.0 if options.quick else 60.0
    result = Result("memory", seeds=(SEED,))
    repository = models.example_repository()
    pin(cores().client)
    bare = models.measure_bare(MODEL, [1], 1.0)
    load = Offered(MODEL, Poisson(FACTOR * bare.capacity), Fixed(DEADLINE_FACTOR * bare.alone))
    for transport in (Transport.HTTP, Transport.GRPC):
        if not options.wants(transport.value):
            continue
        limit = f"--memory-limit={MEMORY_LIMIT_MIB}MiB"
        with servers.slacktide(repository, limit) as serving:
            resting = memory(tree(serving.pid))
            with MemorySampler(serving.pid, INTERVAL) as sampler:
                done = offer(
                    serving, [load], duration=duration, warmup=WARMUP, seed=SEED,
                    transport=transport,
                )  # fmt: skip
        _tell(transport.value, resting, sampler.samples, done, result)
    result.details["capacity_rps"] = bare.capacity
    return result


def _tell(name: str, resting: int, samples: Sequence[int], done: Run, result: Result) -> None:
    """Figures of one protocol."""
    later = samples[round(WARMUP / INTERVAL) :]
    quarter = len(later) // 4
    growth = median(later[-quarter:]) / median(later[quarter : 2 * quarter])
    answered = done.models[MODEL]
    unanswered = sum(answered.endings.get(label, 0) for label in _UNANSWERED)
    limit = at_most(round(resting / MIB) + MEMORY_LIMIT_MIB + ALLOWANCE_MIB)
    endings = ", ".join(f"{n} {label}" for label, n in answered.endings.items())
    refused = answered.endings.get(_REFUSED, 0) / answered.submitted
    result.figures += [
        Figure(f"{name}: memory at rest", resting / MIB, "MiB"),
        Figure(f"{name}: most memory", max(later) / MIB, "MiB", limit),
        Figure(f"{name}: last quarter ÷ second quarter", growth, "×", at_most(1.1)),
        Figure(
            f"{name}: answered", 1.0 - unanswered / answered.submitted, "", at_least(1.0), endings
        ),
        Figure(f"{name}: refused", refused),
        Figure(f"{name}: refusals, p99", answered.refusal_p99_ms, "ms"),
    ]
    if done.lateness_p99_ms > 5.0:
        result.remarks.append(
            f"{name}: the client itself was late by {done.lateness_p99_ms:.1f} ms at p99"
        )
    for complaint, times in done.complaints.items():
        result.remarks.append(f"{name}: {times} × {complaint}")
    result.details[name] = {"memory_bytes": list(samples), "resting_bytes": resting, **asdict(done)}
