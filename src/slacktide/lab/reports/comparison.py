"""`Comparison`: reports of several policies under several loads.

Only runs with the same arrivals may be compared; the caller must ensure this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slacktide.lab.load.report.document import SCHEMA, Report, ReportError

FEWEST = 10
"""Smallest number of requests to divide by; smaller counts depend too much on chance."""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """The report of one policy under one load."""

    policy: str
    load: str
    report: Report


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compared runs in the order given; at most one for each (policy, load)."""

    title: str
    entries: tuple[ComparedRun, ...]

    def __post_init__(self) -> None:
        keys = set()
        for entry in self.entries:
            key = (entry.policy, entry.load)
            if key in keys:
                raise ReportError(f"expected one report of {key[0]!r} at load {key[1]!r}, got two")
            keys.add(key)

    @classmethod
    def of(cls, title: str, entries: Iterable[tuple[str, str, Report]]) -> Comparison:
        """Return a comparison of (policy, load, report) triples."""
        return cls(title, tuple(ComparedRun(*entry) for entry in entries))

    @property
    def policies(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(entry.policy for entry in self.entries))

    @property
    def loads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(entry.load for entry in self.entries))

    def get(self, policy: str, load: str) -> Report | None:
        key = (policy, load)
        reports = (entry.report for entry in self.entries if (entry.policy, entry.load) == key)
        return next(reports, None)

    def goodput(self, policy: str, load: str) -> float | None:
        report = self.get(policy, load)
        return None if report is None else report.goodput

    def best(self, load: str) -> str:
        """Return the policy with the highest goodput at `load`; the first one in a tie."""
        entries = [entry for entry in self.entries if entry.load == load]
        if not entries:
            raise ReportError(f"no report at load {load!r}")
        return max(entries, key=lambda entry: entry.report.goodput).policy

    def times_as_many(self, policy: str, rival: str) -> str | None:
        """Return the ratio of requests answered on time, `policy` to `rival`, over all loads, such
        as `2.5 to 10 times as many`.

        If `rival` answered fewer than `FEWEST` at a load, `FEWEST` is used instead and the text
        says `at least` or `or more`. A load counts only if both policies ran at it and at least one
        of them answered `FEWEST` requests on time. None if no load counts.
        """
        on_time = {(entry.policy, entry.load): entry.report.total.on_time for entry in self.entries}
        loads = [load for load in self.loads if {(policy, load), (rival, load)} <= on_time.keys()]
        pairs = [(on_time[policy, load], on_time[rival, load]) for load in loads]
        times = [(a / max(b, FEWEST), b < FEWEST) for a, b in pairs if max(a, b) >= FEWEST]
        if not times:
            return None
        least, most = (f"{end:.{0 if end >= 9.95 else 1}f}" for end, _ in (min(times), max(times)))
        if min(times)[1]:
            return f"at least {least} times as many"
        more = " or more" if any(bounded for _, bounded in times) else ""
        return f"{least}{f' to {most}' if least != most else ''}{more} times as many"

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Comparison:
        """Read a document that `to_dict` made. Raises ReportError."""
        entries = document["entries"]
        return cls.of(
            document["title"],
            [
                (entry["policy"], entry["load"], Report.from_dict(entry["report"]))
                for entry in entries
            ],
        )

    def __iter__(self) -> Iterator[ComparedRun]:
        return iter(self.entries)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values with every report in full."""
        return {
            "schema": SCHEMA,
            "kind": "comparison",
            "title": self.title,
            "entries": [
                {
                    "policy": entry.policy,
                    "load": entry.load,
                    "goodput": entry.report.goodput,
                    "report": entry.report.to_dict(),
                }
                for entry in self.entries
            ],
        }
