"""Plans for given instances: `reproduce jellyfish plan --instances FILE.json`, and Figure 18.

An instance is what a planner decides about: workers, a profile, and clients with rate, SLO and
bandwidth. A client's budget for a variant is the SLO − the link time of a frame of the variant's
size − `overhead_ms`. The budget is 0 if the link cannot carry such frames at the client's rate
(it must carry strictly more, as in the published code).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Annotated

import numpy as np
import orjson
from pydantic import Field, ValidationError

from slacktide.models.repository import (
    RepositoryError,
    Section,
    dotted,
    read_bounded,
    validation_problems,
)
from slacktide.planning.variants import Assignment, Client, Fleet, Variant, published, search
from slacktide_papers.bounds.exact import SolverMissingError, bound, optimum
from slacktide_papers.harness.show import Column
from slacktide_papers.harness.state import ReproduceError

MOST_BYTES = 16 << 20
EXACT_S = 60.0
"""Seconds that the solver may take. Above `EXACT_WORKERS` workers it only finds a bound."""
EXACT_WORKERS = 2
BOUND_S = 10.0

Positive = Annotated[float, Field(gt=0, le=1e9)]
Share = Annotated[float, Field(gt=0, le=1)]


class ProfiledVariant(Section):
    """One variant of the model; a file lists them smallest first."""

    name: Annotated[str, Field(max_length=100)]
    accuracy: Share
    frame_bytes: Positive
    batch_ms: Annotated[tuple[Positive, ...], Field(strict=False, min_length=1, max_length=256)]
    """Milliseconds of batches of 1, 2, … rows; not falling."""


class GivenClient(Section):
    """A client that sends `rate` frames per second over a link of `mbps` Mbit/s."""

    rate: Positive
    slo_ms: Positive
    mbps: Annotated[float, Field(ge=0, le=1e6)]
    weight: Positive = 1.0
    floor: Annotated[float, Field(ge=0, le=1)] = 0.0


class GivenInstance(Section):
    """A fleet: the number of workers, and the clients to map to them."""

    name: Annotated[str, Field(max_length=100)] = ""
    workers: Annotated[int, Field(ge=1, le=1024)]
    clients: Annotated[tuple[GivenClient, ...], Field(strict=False, min_length=1, max_length=5000)]


class InstanceFile(Section):
    """The content of an instance file."""

    profile: Annotated[
        tuple[ProfiledVariant, ...], Field(strict=False, min_length=1, max_length=64)
    ]
    overhead_ms: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    instances: Annotated[
        tuple[GivenInstance, ...], Field(strict=False, min_length=1, max_length=10_000)
    ]


@dataclass(frozen=True, slots=True)
class PlannedInstance:
    """Plan of one planner for one instance."""

    instance: str
    planner: str
    variants: tuple[str, ...]
    """Variant of each worker, largest first."""
    mapped: float
    """Total weight of the clients that are mapped."""
    objective: float
    """Eq. 2: sum of accuracy · rate · weight."""
    seconds: float
    """CPU time of the planner."""
    proven: bool = False
    """Whether the plan is proven to be optimal."""


def read_instances(path: Path) -> list[tuple[str, Fleet]]:
    """The named fleets of a file. Raises ReproduceError, naming the field."""
    try:
        document = orjson.loads(read_bounded(path, MOST_BYTES, where=str(path)))
        file = InstanceFile.model_validate(document)
    except RepositoryError as error:
        raise ReproduceError(f"--instances: {error}") from None
    except orjson.JSONDecodeError as error:
        raise ReproduceError(f"--instances: {path.name} is not JSON: {error}") from None
    except ValidationError as error:
        problems = validation_problems(error, InstanceFile)[:10]
        details = "; ".join(f"{dotted(problem.path)}: {problem.message}" for problem in problems)
        raise ReproduceError(f"--instances: {path.name}: {details}") from None
    try:
        variants = [
            Variant(row.name, row.accuracy, tuple(ms / 1e3 for ms in row.batch_ms))
            for row in file.profile
        ]
        return [
            (fleet.name or str(number), Fleet(variants, _clients(fleet, file), fleet.workers))
            for number, fleet in enumerate(file.instances)
        ]
    except ValueError as error:
        raise ReproduceError(f"--instances: {path.name}: profile: {error}") from None


def _clients(instance: GivenInstance, document: InstanceFile) -> list[Client]:
    sizes = [variant.frame_bytes for variant in document.profile]
    clients = []
    for number, client in enumerate(instance.clients):
        slo, overhead = client.slo_ms / 1e3, document.overhead_ms / 1e3
        budgets = budgets_of(client.rate, slo, 125e3 * client.mbps, sizes, overhead)
        name = f"clients[{number}]"
        clients.append(Client(name, client.rate, budgets, client.weight, client.floor))
    return clients


def budgets_of(
    rate: float, slo: float, bytes_per_s: float, sizes: Sequence[float], overhead: float = 0.0
) -> tuple[float, ...]:
    """By variant: seconds of the SLO left for the server after a frame of its size is sent."""
    return tuple(
        max(0.0, slo - size / bytes_per_s - overhead) if bytes_per_s > rate * size else 0.0
        for size in sizes
    )


def drawn(
    variants: Sequence[Variant], sizes: Sequence[float], replicas: int, clients: int, seed: int
) -> Fleet:
    """A random instance as in §7.6; no drawn instance is rejected."""
    random = np.random.default_rng((replicas, clients, seed))
    drawn_clients = []
    for number in range(clients):
        rate, slo = (
            float(random.choice((10.0, 15.0, 25.0))),
            float(random.choice((0.075, 0.1, 0.15))),
        )
        budgets = budgets_of(rate, slo, 125e3 * random.uniform(7.5, 50.0), sizes)
        drawn_clients.append(Client(f"client {number}", rate, budgets))
    return Fleet(variants, drawn_clients, replicas)


def planned(name: str, fleet: Fleet, *, exact_s: float = EXACT_S) -> Iterator[PlannedInstance]:
    """The plan of each planner, then the optimum or an upper bound on it, if one is found."""
    planners: Mapping[str, Callable[[Fleet], Assignment]] = {
        "search": search,
        "published": published,
    }
    most = 0.0
    for planner, plan in planners.items():
        begin = process_time()
        assignment = plan(fleet)
        seconds = process_time() - begin
        score = fleet.score(assignment)
        most = max(most, score.mapped)
        names = tuple(fleet.variants[variant].name for variant in assignment.variants)
        yield PlannedInstance(name, planner, names, score.mapped, score.accuracy, seconds)
    try:
        begin = process_time()
        if fleet.replicas <= EXACT_WORKERS and exact_s:
            best = optimum(fleet, seconds=exact_s)
            if best is not None:
                names = tuple(fleet.variants[variant].name for variant in best.assignment.variants)
                took = process_time() - begin
                yield PlannedInstance(
                    name, "exact", names, best.score.mapped, best.score.accuracy, took, best.proven
                )
                return
        top = bound(fleet, mapped=most, seconds=BOUND_S)
        if top is not None:
            yield PlannedInstance(name, "bound", (), most, top, process_time() - begin)
    except SolverMissingError:
        return


PLANS = "Plans; the objective is the sum of accuracy · rate · weight"
"""Title of the table of plans."""
COLUMNS = (
    Column("instance", "instance"),
    Column(lambda row: row.planner + (", proven" if row.proven else ""), "planner"),
    Column(
        lambda row: " ".join(row.variants) if len(row.variants) <= 16 else len(row.variants),
        "variants",
    ),
    Column("mapped", "mapped", "g"),
    Column("objective", "objective", ".3f"),
    Column(lambda row: 1e3 * row.seconds, "ms", ".1f"),
)
