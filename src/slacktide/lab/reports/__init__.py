"""Shows reports to people: tables at a terminal, self-contained HTML pages, and comparisons.

The package `slacktide.lab.load.report` defines the document and its scoring. Pages need the extra
`[report]`.
"""

from slacktide.lab.load.report import Report as Report
from slacktide.lab.load.report import ReportError as ReportError
from slacktide.lab.load.report import StreamReport as StreamReport
from slacktide.lab.reports.comparison import Comparison as Comparison
from slacktide.lab.reports.html import comparison_page as comparison_page
from slacktide.lab.reports.html import html_document as html_document
from slacktide.lab.reports.html import html_list as html_list
from slacktide.lab.reports.html import html_table as html_table
from slacktide.lab.reports.html import page as page
from slacktide.lab.reports.plots import Curve as Curve
from slacktide.lab.reports.plots import curves as curves
from slacktide.lab.reports.profile_page import profile_page as profile_page
from slacktide.lab.reports.sweep import render_sweep as render_sweep
from slacktide.lab.reports.sweep import sweep_page as sweep_page
from slacktide.lab.reports.table import TextTable as TextTable
from slacktide.lab.reports.table import render as render
from slacktide.lab.reports.table import render_comparison as render_comparison
from slacktide.lab.reports.table import rich_table as rich_table
from slacktide.lab.reports.table import summary as summary
