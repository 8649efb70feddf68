"""`python -m bench compare BEFORE AFTER NAME … [--rounds 5] [--quick] [--rows TEXT]`.

Runs benchmarks of two commits in turn, on the same cores and in one environment (this one), and
says of each figure whether it got worse by more than noise: the ratio of the medians is beyond 1.05
*and* the two ranges do not overlap. Both are printed. A commit is anything that git knows by name;
`.` is the working tree as it is. Each commit runs its own benchmarks; figures are matched by name.

Exit codes: 0 nothing got worse, 1 some figure did or a benchmark failed, 2 bad usage.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from statistics import median

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from bench.machine import ROOT, Theft, cpu_model, load_average
from bench.measurement import format_number
from slacktide.cli.output import console

NOISE = 1.05
"""Ratio of medians that counts as worse, where the ranges do not overlap either."""
_RATES = ("requests/s", "rows/s", "/s")
_COSTS = ("s", "ms", "µs", "µs/request", "MiB", "MB", "bytes", "bytes/request", "%")


class Verdict(Enum):
    """What two sets of rounds say of a figure."""

    WORSE = "worse"
    BETTER = "better"
    NOISE = "within noise"
    DIFFERS = "differs"
    """Beyond noise, and nothing says which direction is good."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One figure's rounds on both sides; `good` is +1 where more is better, -1 where less is."""

    name: str
    unit: str
    good: int
    before: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Median after ÷ median before; NaN where that cannot be said."""
        base = median(self.before)
        return median(self.after) / base if base else float("nan")

    @property
    def verdict(self) -> Verdict:
        """Raises nothing: what cannot be compared is noise."""
        apart = max(self.before) < min(self.after) or max(self.after) < min(self.before)
        low, high = sorted((abs(median(self.before)), abs(median(self.after))))
        if not apart or high <= NOISE * low:
            return Verdict.NOISE
        if not self.good:
            return Verdict.DIFFERS
        rose = median(self.after) > median(self.before)
        return Verdict.BETTER if rose == (self.good > 0) else Verdict.WORSE


def main(arguments: Sequence[str]) -> int:
    """Run it; see the module docstring."""
    parser = argparse.ArgumentParser(prog="python -m bench compare", description=__doc__)
    parser.add_argument("before", metavar="BEFORE", help="commit, or . for the working tree")
    parser.add_argument("after", metavar="AFTER", help="commit, or . for the working tree")
    parser.add_argument("names", nargs="+", metavar="NAME", help="benchmarks, as listed by --list")
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds of each commit, alternating (5)"
    )
    parser.add_argument("--quick", action="store_true", help="run short rounds")
    parser.add_argument(
        "--rows", default="", metavar="TEXT", help="measure only rows that contain TEXT"
    )
    parser.add_argument("--peers", action="store_true", help="also measure other servers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round as JSON")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds: at least 1")
    out = console()
    out.print(f"{cpu_model()}; load average {load_average():.2f}")
    flags = ["--fresh", *(["--quick"] if options.quick else []), "--rows", options.rows]
    flags += [] if options.peers else ["--no-peers"]
    theft = Theft()
    with ExitStack() as stack:
        try:
            trees = [
                stack.enter_context(_checkout(name)) for name in (options.before, options.after)
            ]
        except subprocess.CalledProcessError as error:
            parser.error(f"git: {error.stderr.strip()}")
        rounds: list[list[dict[str, dict[str, object]]]] = [[], []]
        for turn in range(options.rounds):
            for side in (0, 1) if turn % 2 == 0 else (1, 0):
                out.print(f"round {turn + 1} of {options.rounds}, {('before', 'after')[side]}")
                rounds[side].append(_run(trees[side], options.names, flags))
    figures = list(_matched(rounds[0], rounds[1]))
    _show(out, figures)
    if (stolen := theft.share()) >= 0.01:
        out.print(f"the host withheld {stolen:.0%} of the requested CPU time", style="yellow")
    if options.json is not None:
        options.json.write_text(json.dumps(rounds, indent=2, ensure_ascii=False) + "\n")
    lost = any(not result for side in rounds for result in side)
    return 1 if lost or any(figure.verdict is Verdict.WORSE for figure in figures) else 0


@contextmanager
def _checkout(name: str) -> Iterator[Path]:
    """A folder with that commit's files; peers that were installed once serve both."""
    if name == ".":
        yield ROOT
        return
    git = ["git", "-C", str(ROOT)]
    with tempfile.TemporaryDirectory(prefix="slacktide-compare-") as folder:
        tree = Path(folder) / "tree"
        command = [*git, "worktree", "add", "--quiet", "--detach", str(tree), name]
        subprocess.run(command, check=True, capture_output=True, text=True)
        try:
            for shared in (Path("bench/.peers"), Path(".cache")):
                if (ROOT / shared).exists():
                    (tree / shared).symlink_to(ROOT / shared)
            yield tree
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(tree)], check=True)


def _run(tree: Path, names: list[str], flags: list[str]) -> dict[str, dict[str, object]]:
    """Figures of one round by `benchmark: name`."""
    records: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory(prefix="slacktide-compare-") as folder:
        file = Path(folder) / "figures.json"
        environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}"}
        command = [sys.executable, "-m", "bench", *names, *flags, "--json", str(file)]
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
        if not file.exists():
            print(done.stdout[-2000:], done.stderr[-4000:], file=sys.stderr)
            return records
        for result in json.loads(file.read_text()):
            for figure in result["figures"]:
                records[f"{result['benchmark']}: {figure['name']}"] = figure
    return records


def _matched(
    before: Sequence[dict[str, dict[str, object]]], after: Sequence[dict[str, dict[str, object]]]
) -> Iterator[Measured]:
    """Figures that every round of both sides has."""
    for name, figure in (before[0] if before else {}).items():
        if all(name in result for result in (*before, *after)):
            values = [tuple(float(str(r[name]["value"])) for r in side) for side in (before, after)]
            good = _direction(str(figure["unit"]), figure["goal"])
            yield Measured(name, str(figure["unit"]), good, values[0], values[1])


def _direction(unit: str, goal: object) -> int:
    """+1 if more is better, -1 if less is, 0 if neither the goal nor the unit says."""
    if goal is not None:
        return 1 if str(goal).startswith("≥") else -1
    return 1 if unit in _RATES else -1 if unit in _COSTS else 0


def _show(out: Console, figures: Sequence[Measured]) -> None:
    shown = Table(box=SIMPLE)
    for column in ("figure", "unit", "before", "after", "ratio", ""):
        shown.add_column(column, justify="left" if column in ("figure", "unit", "") else "right")
    for figure in figures:
        shown.add_row(
            figure.name,
            figure.unit,
            *(
                f"{format_number(median(side))} "
                f"({format_number(min(side))} to {format_number(max(side))})"
                for side in (figure.before, figure.after)
            ),
            f"{figure.ratio:.3f}",
            figure.verdict.value,
            style="red" if figure.verdict is Verdict.WORSE else None,
        )
    out.print(shown)
