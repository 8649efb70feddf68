"""Cores that follow a network, live: fewer violations than one core, fewer core-seconds than two.

The scene is that of `examples/live_resize.py`, which this runs: a link whose bandwidth falls every
few seconds, the residual classifier on one core, on two, and with `cores: {min: 1, max: 2}`, the
same load for each, through the server, the proxy and the load generator that users have. All of
them share the machine's cores, as they do there.

`--quick`: a round of the example's length instead of three longer ones.
"""

from __future__ import annotations

import json
import subprocess
import sys
from statistics import median
from typing import Any

from bench.machine import ROOT, cores, spread
from bench.measurement import Figure, Options, Result, Table, at_most

EXAMPLE = ROOT / "examples" / "live_resize.py"


def run(options: Options) -> Result:
    """Run the example, and set its three variants beside each other."""
    result = Result("shaped_link")
    if cores().shared:
        result.remarks.append("needs two cores to choose between: not measured")
        return result
    rounds, seconds = (1, 11.0) if options.quick else (3, 38.5)
    documents = [document for _ in range(rounds) if (document := _round(seconds))]
    if len(documents) < rounds:
        result.remarks.append("a second core made the model hardly faster: not measured")
        return result
    outcomes = _by_variant(documents)
    one_core, two, scaled = outcomes.values()
    result.figures += [
        _ratio("violations ÷ those of one core", "violations", scaled, one_core),
        _ratio("core-seconds ÷ those of two cores", "core_seconds", scaled, two),
    ]
    rows = tuple(
        (
            variant,
            f"{median(outcome['violations'] / outcome['requests'] for outcome in those):.1%}",
            f"{median(outcome['mean_cores'] for outcome in those):.2f}",
            f"{median(outcome['resizes'] for outcome in those):.0f}",
        )
        for variant, those in outcomes.items()
    )
    result.tables.append(
        Table("medians of the rounds", ("cores", "not in time", "mean cores", "resizes"), rows)
    )
    result.details["rounds"] = documents
    return result


def _round(seconds: float) -> dict[str, Any]:
    """The figures of one run; none where the example finds nothing to show."""
    command = [sys.executable, str(EXAMPLE), "--json", "--seconds", str(seconds)]
    # Its exit code says what the figures say.
    done = subprocess.run(spread(command), cwd=ROOT, stdout=subprocess.PIPE, check=False)
    document: dict[str, Any] = json.loads(done.stdout or "{}")
    return document


def _by_variant(rounds: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    outcomes: dict[str, list[dict[str, Any]]] = {}
    for document in rounds:
        for outcome in document["outcomes"]:
            outcomes.setdefault(outcome["variant"], []).append(outcome)
    return outcomes


def _ratio(name: str, key: str, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> Figure:
    """Formed within each round. A goal just below 1: fewer."""
    pairs = zip(ours, theirs, strict=True)
    ratios = [our[key] / their[key] if their[key] else float("inf") for our, their in pairs]
    return Figure(name, median(ratios), goal=at_most(0.99), samples=tuple(ratios))
