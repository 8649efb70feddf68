"""The document a run ends in, and the scoring that fills it. Showing it is the room `reports`.

It lies here because whoever makes reports must be able to name them. Nothing in this folder
knows of servers or of how requests are sent: any world may fill `Records` and get numbers.
"""

from slacktide.load.report.document import (
    SCHEMA,
    Percentiles,
    Provenance,
    Report,
    StreamReport,
    Timeline,
)
from slacktide.load.report.errors import ReportError
from slacktide.load.report.scoring import Ending, Records, merge, percentiles, score, timeline

__all__ = [
    "SCHEMA",
    "Ending",
    "Percentiles",
    "Provenance",
    "Records",
    "Report",
    "ReportError",
    "StreamReport",
    "Timeline",
    "merge",
    "percentiles",
    "score",
    "timeline",
]
