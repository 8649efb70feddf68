"""What Prometheus scrapes: Triton's metrics by Triton's names, and our own.

Reads what the server counts anyway, when it is asked; counts nothing itself, so that the path of a
request pays nothing for it. docs/metrics.md names every family.
"""

from slacktide.observability.metrics.metrics import Metrics as Metrics
from slacktide.observability.metrics.metrics import metrics_routes as metrics_routes
from slacktide.observability.metrics.usage import Machine as Machine
