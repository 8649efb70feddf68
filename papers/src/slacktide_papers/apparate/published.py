"""What the paper prints of medians saved over serving without exits, and of accuracy.

Videos are its vision models, texts its language models; of Figure 17 and Tables 3 and 4 ResNet-50
and GPT-2. Table 4 prints milliseconds, of which these are the savings.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

VIDEO, TEXT = "video", "text"

PRINTED: Final[Mapping[tuple[str, str, str], str]] = MappingProxyType(
    {
        ("figure-13", VIDEO, "release"): "40.5-91.5 %, p25 70.2-94.2 %",
        ("figure-16", TEXT, "release"): "10.0-24.2 %, p25 16.0-37.3 %",
        ("table-2", VIDEO, "release"): "40.9-88.6 %, right 99.0-99.2 %",
        ("table-2", VIDEO, "tuned once"): "-11.0-88.3 %, right 85.8-99.8 %",
        ("table-2", VIDEO, "tuned once +"): "-11.0-88.3 %, right 76.1-99.9 %",
        ("table-2", VIDEO, "tuned once, oracle"): "-11.0-74.5 %, right 99.0-99.7 %",
        ("table-2", VIDEO, "tuned once, at first"): "74.3 %, right 84.5 % (Table 1)",
        ("table-2", VIDEO, "release, no adjustment"): "20.8-33.4 % less saved",
        ("table-2", TEXT, "release"): "9.1-24.1 %, right 99.1-99.3 %",
        ("table-2", TEXT, "tuned once"): "13.2-36.1 %, right 91.7-97.1 %",
        ("table-2", TEXT, "tuned once +"): "31.7-36.1 %, right 82.2-90.3 %",
        ("table-2", TEXT, "tuned once, oracle"): "9.8-36.1 %, right 99.0 %",
        ("table-2", TEXT, "tuned once, at first"): "73.6 %, right 86.8 % (Table 1)",
        ("table-2", TEXT, "release, no adjustment"): "20.8-33.4 % less saved",
        ("figure-17", TEXT, "SLO × 2"): "16.3 %",
        ("figure-17", TEXT, "SLO × 8"): "6.8 %",
        ("table-3", VIDEO, "release, budget 2 %"): "48.9 %",
        ("table-3", VIDEO, "release, budget 5 %"): "49.6 %",
        ("table-3", VIDEO, "release, budget 10 %"): "50.4 %",
        ("table-3", TEXT, "release, budget 2 %"): "18.5 %",
        ("table-3", TEXT, "release, budget 5 %"): "22.2 %",
        ("table-3", TEXT, "release, budget 10 %"): "24.9 %",
        ("table-4", VIDEO, "clockwork"): "46.6 %",
        ("table-4", VIDEO, "fifo"): "35.2 %",
        ("table-4", TEXT, "clockwork"): "11.6 %",
        ("table-4", TEXT, "fifo"): "10.6 %",
    }
)
"""By experiment, kind of stream, and contender or case."""
