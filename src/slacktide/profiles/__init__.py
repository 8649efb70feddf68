"""How long things take: profiles of models, and what running batches teach about them.

Pure. Measures nothing and opens no file: executors/measuring.py runs the model, the repository
keeps the result.
"""

from slacktide.profiles.batch_times import CorrectedTimes
from slacktide.profiles.errors import ProfileError
from slacktide.profiles.latency_table import ENOUGH_SAMPLES, LatencyTable, Peak
from slacktide.profiles.record import ProfileRecord
from slacktide.profiles.surface import batch_sizes
from slacktide.profiles.time_distribution import TimeDistribution

__all__ = [
    "ENOUGH_SAMPLES",
    "CorrectedTimes",
    "LatencyTable",
    "Peak",
    "ProfileError",
    "ProfileRecord",
    "TimeDistribution",
    "batch_sizes",
]
