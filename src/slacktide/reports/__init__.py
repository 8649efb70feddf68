"""The one report format, for people: tables at a terminal, one self-contained page, comparisons.

The document itself and its scoring are made in `slacktide.load.report`. Pages need the extra
`[report]`.
"""

from slacktide.load.report import Report as Report
from slacktide.load.report import ReportError as ReportError
from slacktide.load.report import StreamReport as StreamReport
from slacktide.reports.comparison import Comparison as Comparison
from slacktide.reports.html import comparison_page as comparison_page
from slacktide.reports.html import html_document as html_document
from slacktide.reports.html import html_list as html_list
from slacktide.reports.html import html_table as html_table
from slacktide.reports.html import page as page
from slacktide.reports.plots import Curve as Curve
from slacktide.reports.plots import curves as curves
from slacktide.reports.profile_page import profile_page as profile_page
from slacktide.reports.sweep import render_sweep as render_sweep
from slacktide.reports.sweep import sweep_page as sweep_page
from slacktide.reports.table import TextTable as TextTable
from slacktide.reports.table import render as render
from slacktide.reports.table import render_comparison as render_comparison
from slacktide.reports.table import rich_table as rich_table
from slacktide.reports.table import summary as summary
