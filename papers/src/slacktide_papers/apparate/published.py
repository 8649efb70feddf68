"""Figures that the paper prints: median savings over serving without exits, and accuracy.

`video` has the paper's vision models, `text` its language models; for Figure 17 and Tables 3 and 4
only ResNet-50 and GPT-2. Table 4 prints milliseconds, from which the savings here are computed.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

VIDEO, TEXT = "video", "text"


def _read() -> dict[tuple[str, str, str], str]:
    with Path(__file__).with_name("printed.csv").open(newline="", encoding="utf-8") as file:
        return {
            (row["experiment"], row["kind"], row["case"]): row["printed"]
            for row in csv.DictReader(file)
        }


PRINTED: Mapping[tuple[str, str, str], str] = _read()
"""Printed text by (experiment, kind of stream, contender or case)."""
