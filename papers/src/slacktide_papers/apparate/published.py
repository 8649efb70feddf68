"""Figures that the paper prints: medians saved over serving without exits, and of accuracy.

Videos are its vision models, texts its language models; of Figure 17 and Tables 3 and 4 ResNet-50
and GPT-2. Table 4 prints milliseconds, of which these are the savings.
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
"""By experiment, kind of stream, and contender or case."""
