"""The document a run ends in, and the scoring that fills it. Showing it is the package `reports`.

It lies here because every maker of reports must be able to name them. Nothing in this folder knows
of servers or of how requests are sent: any world may fill a `StreamScore` and get numbers.
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
