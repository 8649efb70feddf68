"""The Prometheus metrics: Triton's, by Triton's names, and our own.

Each scrape reads counters that the server keeps anyway. Nothing is counted here, so metrics cost
requests nothing. docs/metrics.md lists every family.
"""

from slacktide.observability.metrics.metrics import Metrics as Metrics
from slacktide.observability.metrics.metrics import metrics_routes as metrics_routes
from slacktide.observability.metrics.usage import Machine as Machine
