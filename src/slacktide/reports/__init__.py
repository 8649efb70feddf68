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
from slacktide.reports.html import comparison_page, html_document, html_list, html_table, page
from slacktide.reports.plots import Bar, Curve, bars, curves
from slacktide.reports.profile_page import profile_page
from slacktide.reports.sweep import render_sweep, sweep_page
from slacktide.reports.table import render, render_comparison, summary

__all__ = [
    "SCHEMA",
    "Bar",
    "Comparison",
    "Curve",
    "Ending",
    "Entry",
    "Percentiles",
    "Provenance",
    "Records",
    "Report",
    "ReportError",
    "StreamReport",
    "Timeline",
    "bars",
    "comparison_page",
    "curves",
    "html_document",
    "html_list",
    "html_table",
    "merge",
    "page",
    "percentiles",
    "profile_page",
    "render",
    "render_comparison",
    "render_sweep",
    "score",
    "summary",
    "sweep_page",
    "timeline",
]
