"""The one report format, for people: tables at a terminal, one self-contained page, comparisons.

The document itself and its scoring are made in `slacktide.load.report` and handed on here, so that
users find all of it under one name. Pages need the extra `[report]`.
"""

from slacktide.load.report import (
    SCHEMA,
    Ending,
    Percentiles,
    Provenance,
    Records,
    Report,
    ReportError,
    StreamReport,
    Timeline,
    merge,
    percentiles,
    score,
    timeline,
)
from slacktide.reports.comparison import Comparison, Entry
from slacktide.reports.html import comparison_page, page
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
