"""Jellyfish's problem P1 as a mixed-integer program (HiGHS), to judge planners by. Needs scipy.

`optimum` is the program as printed, with variables for each replica. As replicas are alike, it adds
an order among them. `bound` has one variable for each (variant j, batch size b): the number of
replicas that run j in batches of b. It lets a client be split between replicas, so it is an upper
bound of the optimum; it takes a second where `optimum` takes minutes. Clients can be split among
configurations if, for every batch size m, the clients with a limit of at most m fit into the
replicas with batches of at most m (these sets are nested, so the conditions suffice).

Mapping clients comes before accuracy: `bound` and the second step of `optimum` maximise accuracy
while clients of a given total weight stay mapped.

Source: Jellyfish, §4.1, equations 2 to 7.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slacktide.planning.variants import UNMAPPED, Assignment, AssignmentScore, Fleet, ordered

_ROUNDING = 1e-6
_Runs: TypeAlias = list[tuple[int, int, int]]
"""(variant, batch, capacity in `Fleet.columns`) of each configuration."""
_Fractions: TypeAlias = dict[tuple[int, int], int]
"""Variables by (client, variant)."""


class SolverMissingError(RuntimeError):
    """scipy is not installed."""


@dataclass(frozen=True, slots=True)
class Optimum:
    """Best assignment that the solver has found within its time."""

    assignment: Assignment
    score: AssignmentScore
    proven: bool
    """Whether the solver proved that no assignment is better."""


def bound(
    fleet: Fleet,
    *,
    mapped: float = 0.0,
    whole: bool = True,
    undivided: bool = False,
    seconds: float = 10.0,
) -> float | None:
    """Upper bound of the accuracy (see `score`) of assignments that map clients of weight `mapped`.

    Without `whole`, replicas may be split, too: a linear program. With `undivided`, no client is
    split between variants, which gives a tighter bound but takes a few times as long. −∞ if no
    assignment maps that weight, None if the solver has no bound after `seconds`. Raises
    SolverMissingError."""
    runs = _configurations(fleet)
    program = LinearProgram()
    counts = program.add(len(runs), most=fleet.replicas, whole=whole)
    program.require(((at, 1.0) for at in counts), most=fleet.replicas)
    fractions = _fractions(fleet, program, runs, whole=undivided)
    for variant in range(len(fleet.variants)):
        places = [at for at, (kind, _, _) in enumerate(runs) if kind == variant]
        asking = [client for client, kind in fractions if kind == variant]
        for limit in sorted({int(fleet.limits[client, variant]) for client in asking}):
            loads = [
                (fractions[client, variant], float(fleet.rates[client]))
                for client in asking
                if fleet.limits[client, variant] <= limit
            ]
            capacities = [
                (counts[at], -float(runs[at][2])) for at in places if runs[at][1] <= limit
            ]
            program.require([*loads, *capacities], most=0.0)
    if mapped:
        program.require(
            ((at, fleet.weight[client]) for (client, _), at in fractions.items()),
            least=mapped - _ROUNDING,
        )
    for (client, variant), at in fractions.items():
        program.worth[at] = fleet.value[client] * fleet.accuracy[variant]
    return program.solved(seconds).most


def optimum(fleet: Fleet, *, seconds: float = 60.0) -> Optimum | None:
    """The best assignment with one queue for each replica; None if none is found in `seconds`.
    Raises SolverMissingError."""
    runs = _configurations(fleet)
    program = LinearProgram()
    chosen = [program.add(len(runs)) for _ in range(fleet.replicas)]
    parts = [_fractions(fleet, program, runs, whole=True) for _ in range(fleet.replicas)]
    for client in range(len(fleet.clients)):
        terms = [(at, 1.0) for part in parts for (c, _), at in part.items() if c == client]
        program.require(terms, most=1.0)
    for replica, (choice, part) in enumerate(zip(chosen, parts, strict=True)):
        _require_order(program, choice, chosen[replica - 1] if replica else ())
        _require_throughput(fleet, program, runs, choice, part)
        _require_limits(fleet, program, runs, choice, part)
    placed = [(at, client, variant) for part in parts for (client, variant), at in part.items()]
    for at, client, _ in placed:
        program.worth[at] = fleet.weight[client]
    first = program.solved(seconds)
    if first.values is None:
        return None
    mapped = sum(fleet.weight[client] for at, client, _ in placed if first.values[at] > 0.5)
    program.require(((at, fleet.weight[c]) for at, c, _ in placed), least=mapped - _ROUNDING)
    for at, client, variant in placed:
        program.worth[at] = fleet.value[client] * fleet.accuracy[variant]
    second = program.solved(seconds)
    values = first.values if second.values is None else second.values
    assignment = _assignment(fleet, runs, chosen, parts, values)
    return Optimum(assignment, fleet.score(assignment), first.proven and second.proven)


def _require_order(program: LinearProgram, choice: Sequence[int], before: Sequence[int]) -> None:
    """A replica runs at most one configuration, numbered no higher than that of `before`."""
    program.require(((at, 1.0) for at in choice), most=1.0)
    if before:
        earlier = [(at, number + 1.0) for number, at in enumerate(before)]
        program.require([*earlier, *((at, -n - 1.0) for n, at in enumerate(choice))], least=0.0)


def _require_throughput(
    fleet: Fleet, program: LinearProgram, runs: _Runs, choice: range, part: _Fractions
) -> None:
    """The clients of a replica send no more than it serves in the configuration it runs."""
    for variant in range(len(fleet.variants)):
        loads = [
            (at, float(fleet.rates[client]))
            for (client, kind), at in part.items()
            if kind == variant
        ]
        capacities = [
            (at, -float(columns))
            for at, (kind, _, columns) in zip(choice, runs, strict=True)
            if kind == variant
        ]
        program.require([*loads, *capacities], most=0.0)


def _require_limits(
    fleet: Fleet, program: LinearProgram, runs: _Runs, choice: range, part: _Fractions
) -> None:
    """The replica of a client runs batches no larger than the client's SLO allows."""
    for (client, variant), at in part.items():
        fitting = [
            (place, -1.0)
            for place, (kind, batch, _) in zip(choice, runs, strict=True)
            if kind == variant and batch <= fleet.limits[client, variant]
        ]
        program.require([(at, 1.0), *fitting], most=0.0)


def _assignment(
    fleet: Fleet,
    runs: _Runs,
    chosen: Sequence[range],
    parts: Sequence[_Fractions],
    values: NDArray[np.float64],
) -> Assignment:
    """Assignment of replicas and clients in a solution."""
    variants = [
        next((runs[number][0] for number, at in enumerate(choice) if values[at] > 0.5), 0)
        for choice in chosen
    ]
    clients = [UNMAPPED] * len(fleet.clients)
    for replica, part in enumerate(parts):
        for (client, _), at in part.items():
            if values[at] > 0.5:
                clients[client] = replica
    return ordered(variants, clients)


def _configurations(fleet: Fleet) -> _Runs:
    """Every (variant, batch, capacity) whose batch size serves more than the next smaller size."""
    columns = fleet.columns
    return [
        (variant, batch, int(columns[variant, batch]))
        for variant in range(len(fleet.variants))
        for batch in range(1, fleet.batches + 1)
        if columns[variant, batch] > columns[variant, batch - 1]
    ]


def _fractions(
    fleet: Fleet, program: LinearProgram, runs: _Runs, *, whole: bool = False
) -> _Fractions:
    """A variable for each (client, variant) that can be served; each client's sum is at most 1."""
    parts: _Fractions = {}
    for client, rate in enumerate(fleet.rates):
        fitting = {
            variant
            for variant, batch, columns in runs
            if batch <= fleet.limits[client, variant] and columns >= rate
        }
        terms = program.add(len(fitting), whole=whole)
        parts |= {(client, variant): at for variant, at in zip(sorted(fitting), terms, strict=True)}
        program.require(((at, 1.0) for at in terms), most=1.0)
    return parts


@dataclass(frozen=True, slots=True)
class Solution:
    """Result of the solver when its time ends."""

    values: NDArray[np.float64] | None
    most: float | None
    """Upper bound of the worth of any solution; None: not known."""
    proven: bool


class LinearProgram:
    """Variables, each with a worth and a range from 0, and rows that bound their weighted sums."""

    def __init__(self) -> None:
        self.worth: list[float] = []
        self._most: list[float] = []
        self._whole: list[bool] = []
        self._places: list[tuple[int, int]] = []
        self._factors: list[float] = []
        self._rows: list[tuple[float, float]] = []

    def add(self, count: int, *, most: float = 1.0, whole: bool = True) -> range:
        """Add `count` variables between 0 and `most`, and return their numbers."""
        first = len(self.worth)
        self.worth += [0.0] * count
        self._most += [most] * count
        self._whole += [whole] * count
        return range(first, first + count)

    def require(
        self, terms: Iterable[tuple[int, float]], *, least: float = -np.inf, most: float = np.inf
    ) -> None:
        """Require `least` ≤ sum of factor · variable ≤ `most`, over (variable, factor) `terms`."""
        for at, factor in terms:
            self._places.append((len(self._rows), at))
            self._factors.append(float(factor))
        self._rows.append((least, most))

    def solved(self, seconds: float, *, gap: float = _ROUNDING) -> Solution:
        """Return the most valuable solution that is found within `seconds`. The search ends when
        the solution and the bound differ by at most the share `gap`."""
        optimize, sparse = _scipy()
        matrix = sparse.coo_matrix(
            (self._factors, tuple(zip(*self._places, strict=True))),
            shape=(len(self._rows), len(self.worth)),
        ).tocsr()
        least, most = zip(*self._rows, strict=True)
        answer = optimize.milp(
            -np.array(self.worth),
            integrality=np.array(self._whole, int),
            bounds=optimize.Bounds(0.0, np.array(self._most)),
            constraints=optimize.LinearConstraint(matrix, least, most),
            options={"time_limit": seconds, "mip_rel_gap": gap},
        )
        bounds = answer.get("mip_dual_bound")
        if answer.status == 2:  # infeasible
            bounds = np.inf
        elif bounds is None and answer.status == 0:
            bounds = answer.fun
        return Solution(answer.x, None if bounds is None else -float(bounds), answer.status == 0)


def _scipy() -> tuple[Any, Any]:
    try:
        from scipy import optimize, sparse  # type: ignore[import-untyped]
    except ImportError as error:
        raise SolverMissingError("the exact planner needs scipy: pip install scipy") from error
    return optimize, sparse
