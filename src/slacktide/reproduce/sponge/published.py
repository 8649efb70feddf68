"""What the Sponge paper prints: Table 1, and what it says of its figures.

Source: Razavi, Ghafouri, Mühlhäuser, Jamshidi and Wang, "Sponge: Inference Serving with Dynamic
SLOs Using In-Place Vertical Scaling" (EuroMLSys 2024). Facts only, as printed. Figure 4 is a plot
without numbers; the text beside it gives those below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

TABLE_1_RATE = 100.0
"""Requests per second of Table 1, whose SLO is that of all: 1 s."""


@dataclass(frozen=True, slots=True)
class Printed:
    """A line of Table 1: one instance, and how many of them carry the load."""

    cores: int
    batch: int
    latency_ms: float
    throughput: float
    instances: int


TABLE_1 = (
    Printed(1, 1, 55.0, 18.0, 6),
    Printed(1, 2, 97.0, 20.0, 5),
    Printed(2, 4, 94.0, 40.0, 3),
    Printed(4, 8, 92.0, 80.0, 2),
    Printed(8, 4, 37.0, 108.0, 1),
    Printed(8, 8, 62.0, 128.0, 1),
)

FIGURE_4: Mapping[str, str] = MappingProxyType(
    {
        "fa2": "≈ 5 %",
        "static-8": "some",
        "static-16": "≈ 0",
        "vertical": "< 0.3 %",
    }
)
"""Violations, by our names."""

FIGURE_4_CORES: Mapping[str, str] = MappingProxyType({"static-16": "16", "vertical": "< 12.8"})
"""Mean cores: over a fifth less than 16 for Sponge, whose place our `vertical` takes."""
