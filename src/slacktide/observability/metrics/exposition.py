"""Writes families of samples as Prometheus text 0.0.4, numbers as plain decimal digits.

Some consumers read the page with patterns rather than a parser: counters keep the
names they are given, and 150754811904 never becomes 1.50754811904e+11. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Sample(NamedTuple):
    """One line. `suffix` comes after the family's name (`_bucket`, `_sum`, `_count` or nothing)."""

    labels: Mapping[str, str]
    value: float
    suffix: str = ""


@dataclass(slots=True)
class Family:
    """Everything of one name. `kind` is `counter`, `gauge` or `histogram`."""

    name: str
    kind: str
    help: str
    samples: list[Sample] = field(default_factory=list)

    @classmethod
    def single(cls, name: str, kind: str, help: str, value: float) -> Family:
        """A family of one sample without labels."""
        return cls(name, kind, help, [Sample({}, value)])

    def add(self, value: float, **labels: str) -> None:
        """One more sample."""
        self.samples.append(Sample(labels, value))

    def add_histogram(
        self, bounds: Sequence[float], counts: Sequence[int], total: float, **labels: str
    ) -> None:
        """`counts` has one entry for each upper bound and one for what is above them all.

        With a negative bound there is no `_sum`, which could fall, and therefore no `_count`
        (OpenMetrics, on histograms); the last bucket is the count.
        """
        below = 0
        for bound, count in zip((*map(plain, bounds), "+Inf"), counts, strict=True):
            below += count
            self.samples.append(Sample({**labels, "le": bound}, below, "_bucket"))
        if bounds[0] >= 0:
            self.samples.append(Sample(labels, total, "_sum"))
            self.samples.append(Sample(labels, below, "_count"))


def write(families: Iterable[Family]) -> bytes:
    """The text of these families, each with its help and type before its samples."""
    lines = []
    for family in families:
        lines.append(f"# HELP {family.name} {_escaped_help(family.help)}\n")
        lines.append(f"# TYPE {family.name} {family.kind}\n")
        for labels, value, suffix in family.samples:
            pairs = ",".join([f'{key}="{escaped(text)}"' for key, text in labels.items()])
            braces = f"{{{pairs}}}" if pairs else ""
            lines.append(f"{family.name}{suffix}{braces} {plain(value)}\n")
    return "".join(lines).encode()


def plain(value: float) -> str:
    """Decimal digits without an exponent; at most nine of them after the point."""
    if isinstance(value, int):
        return str(value)
    return f"{value:.9f}".rstrip("0").rstrip(".")


def escaped(text: str) -> str:
    """A label's value between its quotes."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _escaped_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")
