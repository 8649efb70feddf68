"""P1 as a mixed-integer program, by HiGHS: what planners are measured against. Needs scipy.

`optimum` names every replica and is the program as printed, with an order among the replicas, which
are alike. `bound` counts them instead: how many run variant j in batches of b. There a client may
be split between replicas, so it bounds the optimum from above, and it takes a second where the
program takes minutes. A set of clients can be split among configurations if, for every batch m,
those that take no more than m rows fit into the replicas that run no more (their limits are nested,
so these conditions suffice).

Clients come first: `bound` and the second step of `optimum` ask for the most accuracy while clients
of a given weight are mapped.

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
"""(variant, batch, columns) of each configuration."""
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
    """Whether nothing is better."""


def bound(
    fleet: Fleet,
    *,
    mapped: float = 0.0,
    whole: bool = True,
    undivided: bool = False,
    seconds: float = 10.0,
) -> float | None:
    """No assignment that maps clients of weight `mapped` has more accuracy (as in `score`).

    Without `whole`, replicas may be split, too, which makes it a linear program. `undivided` splits
    no client between variants, which is closer and takes a few times as long. −∞ if none maps so
    many, None if nothing is known after `seconds`. Raises SolverMissingError."""
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
            rooms = [(counts[at], -float(runs[at][2])) for at in places if runs[at][1] <= limit]
            program.require([*loads, *rooms], most=0.0)
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
    """A replica runs one configuration at most, and none before that of the replica `before` it."""
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
        rooms = [
            (at, -float(columns))
            for at, (kind, _, columns) in zip(choice, runs, strict=True)
            if kind == variant
        ]
        program.require([*loads, *rooms], most=0.0)


def _require_limits(
    fleet: Fleet, program: LinearProgram, runs: _Runs, choice: range, part: _Fractions
) -> None:
    """A client has a replica whose batch is no larger than its SLO allows."""
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
    """(variant, batch, columns): every batch in which more can be served than in a smaller one."""
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
    """A variable for each (client, variant) that can be served; of one client 1 in all, at most."""
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
    """State of a program after its time."""

    values: NDArray[np.float64] | None
    most: float | None
    """No solution is worth more."""
    proven: bool


class LinearProgram:
    """Variables from 0 to a bound, rows that bound sums of them, and what each is worth."""

    def __init__(self) -> None:
        self.worth: list[float] = []
        self._most: list[float] = []
        self._whole: list[bool] = []
        self._places: list[tuple[int, int]] = []
        self._factors: list[float] = []
        self._rows: list[tuple[float, float]] = []

    def add(self, count: int, *, most: float = 1.0, whole: bool = True) -> range:
        """New variables."""
        first = len(self.worth)
        self.worth += [0.0] * count
        self._most += [most] * count
        self._whole += [whole] * count
        return range(first, first + count)

    def require(
        self, terms: Iterable[tuple[int, float]], *, least: float = -np.inf, most: float = np.inf
    ) -> None:
        """A row over (variable, factor)."""
        for at, factor in terms:
            self._places.append((len(self._rows), at))
            self._factors.append(float(factor))
        self._rows.append((least, most))

    def solved(self, seconds: float) -> Solution:
        """The solution that is worth the most, as far as it is found in that time."""
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
            options={"time_limit": seconds, "mip_rel_gap": _ROUNDING},
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
