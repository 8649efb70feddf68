"""How long things take: profiles of models, and what running batches teach about them.

Pure. Measures nothing and opens no file: executors/measuring.py runs the model, the repository
keeps the result.
"""

from slacktide.profiles.alike import Alike
from slacktide.profiles.batch_latency import BatchLatency
from slacktide.profiles.batch_times import CorrectedTimes
from slacktide.profiles.classed_times import ClassedTimes
from slacktide.profiles.classing import MOST_CLASSES, classes_of_samples
from slacktide.profiles.distribution import POINTS
from slacktide.profiles.errors import ProfileError
from slacktide.profiles.fixed_times import FixedTimes
from slacktide.profiles.latency_fit import fit_latency
from slacktide.profiles.latency_table import ENOUGH_SAMPLES, LatencyTable, Peak
from slacktide.profiles.record import ProfileRecord
from slacktide.profiles.run_classes import NO_HINT, RunClasses
from slacktide.profiles.rungs import covering, rungs
from slacktide.profiles.surface import batch_sizes
from slacktide.profiles.time_distribution import TimeDistribution

__all__ = [
    "ENOUGH_SAMPLES",
    "MOST_CLASSES",
    "NO_HINT",
    "POINTS",
    "Alike",
    "BatchLatency",
    "ClassedTimes",
    "CorrectedTimes",
    "FixedTimes",
    "LatencyTable",
    "Peak",
    "ProfileError",
    "ProfileRecord",
    "RunClasses",
    "TimeDistribution",
    "batch_sizes",
    "classes_of_samples",
    "covering",
    "fit_latency",
    "rungs",
]
