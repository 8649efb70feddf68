"""The report of a run, and the scoring that fills it. The package `reports` shows reports.

Everything that makes reports imports the document from here. Nothing in this folder depends on a
server or a transport: any kind of run may fill a `StreamScore`.
"""

from slacktide.lab.load.report.document import SCHEMA as SCHEMA
from slacktide.lab.load.report.document import Percentiles as Percentiles
from slacktide.lab.load.report.document import Provenance as Provenance
from slacktide.lab.load.report.document import Report as Report
from slacktide.lab.load.report.document import ReportError as ReportError
from slacktide.lab.load.report.document import StreamReport as StreamReport
from slacktide.lab.load.report.latencies import percentiles as percentiles
from slacktide.lab.load.report.provenance import gather as gather
from slacktide.lab.load.report.scoring import Ending as Ending
from slacktide.lab.load.report.scoring import StreamScore as StreamScore
from slacktide.lab.load.report.scoring import Window as Window
