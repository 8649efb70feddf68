"""`non_negative`: exact least squares under bounds, for the few coefficients of a law of times.

It does not use LAPACK, whose kernels depend on the processor: fits would differ in their last bits
between machines, and a recording of one would not replay on another. Columns are orthogonalised one
after the other (modified Gram-Schmidt on the system with its target, which is as stable as
Householder reflections: Björck 1967).
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float64]
_TIE = 1e-12
_DEPENDENT = 1e-14
"""Remaining length below which a column of length 1 depends on those before it."""
_SETS = [
    list(columns) for size in (1, 2, 3, 4) for columns in itertools.combinations((2, 0, 3, 1), size)
]
"""Which coefficients of an `AmdahlModel` (columns γ, ε, δ, η) may be above zero, in order of
preference: the first of equally good sets wins. Small sets come first. If only one core count was
measured, the sets in which more cores do not help come first; if only one batch size was measured,
those in which every row costs the same."""
_SETS_OF_THREE = [
    list(columns) for size in (1, 2, 3) for columns in itertools.combinations((1, 2, 0), size)
]
"""The same for the terms 1, s and s² (size_law.py): with too few points, time is proportional to
size."""


def non_negative(rows: _Floats, target: _Floats) -> _Floats:
    """x ≥ 0 with the least |rows @ x − target|², exactly. `rows` (n, 4) or (n, 3), `target` (n,).
    Solves each set of coefficients without bounds, and returns the best solution that is ≥ 0. That
    is the optimum, because one set has exactly the coefficients that are positive there."""
    count = rows.shape[1]
    scale = np.sqrt(np.add.reduce(rows * rows, axis=0))
    columns, projected = _triangle(rows / scale, target)
    best, least = [0.0] * count, math.fsum(component * component for component in projected)
    tie = _TIE * float(np.add.reduce(target * target))
    solution = _solved(columns, projected)
    if solution is not None and min(solution[0]) >= 0.0:
        return np.asarray(solution[0] / scale)
    for chosen in _SETS if count == 4 else _SETS_OF_THREE:
        solution = _solved([columns[column] for column in chosen], projected)
        if solution is None or min(solution[0]) < 0.0:
            continue
        x, cost = solution
        if cost < least - tie:
            best, least = [0.0] * count, cost
            for column, value in zip(chosen, x, strict=True):
                best[column] = value
    return np.asarray(best / scale)


def _triangle(rows: _Floats, target: _Floats) -> tuple[list[list[float]], list[float]]:
    """Reduce a system to one row per column, with the same solution for each set of columns. The
    part of the target that no solution reaches is dropped."""
    count = rows.shape[1]
    parts = [rows[:, column] for column in range(count)]
    columns = [[0.0] * count for _ in range(count)]
    projected = [0.0] * count
    for at in range(count):
        length = math.sqrt(float(np.add.reduce(parts[at] * parts[at])))
        columns[at][at] = length
        if length <= _DEPENDENT:
            continue
        direction = parts[at] / length
        for later in range(at + 1, count):
            columns[later][at] = along = float(np.add.reduce(direction * parts[later]))
            parts[later] = parts[later] - along * direction
        projected[at] = along = float(np.add.reduce(direction * target))
        target = target - along * direction
    return columns, projected


def _solved(columns: list[list[float]], target: list[float]) -> tuple[list[float], float] | None:
    """The x nearest to the target, and its squared distance; None for dependent columns, for which
    a smaller set is as good."""
    count = len(columns)
    parts = [[*column] for column in columns]
    upper: list[list[float]] = []
    reached = []
    for at in range(count):
        length = math.sqrt(math.fsum([component * component for component in parts[at]]))
        if length <= _DEPENDENT:
            return None
        direction = [component / length for component in parts[at]]
        row = [0.0] * at + [length]
        for later in range(at + 1, count):
            along = math.fsum([a * b for a, b in zip(direction, parts[later], strict=True)])
            row.append(along)
            parts[later] = [b - along * a for a, b in zip(direction, parts[later], strict=True)]
        along = math.fsum([a * b for a, b in zip(direction, target, strict=True)])
        target = [b - along * a for a, b in zip(direction, target, strict=True)]
        upper.append(row)
        reached.append(along)
    x = [0.0] * count
    for at in reversed(range(count)):
        solved = math.fsum([upper[at][column] * x[column] for column in range(at + 1, count)])
        x[at] = (reached[at] - solved) / upper[at][at]
    return x, math.fsum([component * component for component in target])
