"""The one report format: what a run asked for and what came of it; scored, read, written, shown.

It knows no server and no clock: whoever runs something (the load generator, the simulator)
fills `Records` and gets numbers. Tables need `rich`, pages need the extra `[report]`.
"""

from slacktide.reports.comparison import Comparison, Entry
from slacktide.reports.errors import ReportError
from slacktide.reports.html import comparison_page, page
from slacktide.reports.report import (
    SCHEMA,
    Percentiles,
    Provenance,
    Report,
    StreamReport,
    Timeline,
)
from slacktide.reports.scoring import Ending, Records, merge, percentiles, score, timeline
from slacktide.reports.table import render, render_comparison, summary

__all__ = [
    "SCHEMA",
    "Comparison",
    "Ending",
    "Entry",
    "Percentiles",
    "Provenance",
    "Records",
    "Report",
    "ReportError",
    "StreamReport",
    "Timeline",
    "comparison_page",
    "merge",
    "page",
    "percentiles",
    "render",
    "render_comparison",
    "score",
    "summary",
    "timeline",
]
