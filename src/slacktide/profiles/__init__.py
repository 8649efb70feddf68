"""Profiles: how long batches of a model take, as measured and as learnt from running batches.

Pure. It measures nothing and opens no file: executors/measuring.py runs the model, and the
repository stores the result.
"""

from slacktide.profiles.amdahl import AmdahlFit as AmdahlFit
from slacktide.profiles.amdahl import AmdahlModel as AmdahlModel
from slacktide.profiles.amdahl import Timed as Timed
from slacktide.profiles.amdahl import fit_amdahl as fit_amdahl
from slacktide.profiles.batch_times import BatchTimes as BatchTimes
from slacktide.profiles.classed_times import ClassedTimes as ClassedTimes
from slacktide.profiles.corrected_times import CorrectedTimes as CorrectedTimes
from slacktide.profiles.cpu_share import CpuShare as CpuShare
from slacktide.profiles.cpu_share import busy_note as busy_note
from slacktide.profiles.cpu_share import is_quiet as is_quiet
from slacktide.profiles.exit_times import ExitTimes as ExitTimes
from slacktide.profiles.fixed_times import FixedTimes as FixedTimes
from slacktide.profiles.latency_fit import SizeTime as SizeTime
from slacktide.profiles.latency_fit import fit_latency as fit_latency
from slacktide.profiles.latency_table import ENOUGH_SAMPLES as ENOUGH_SAMPLES
from slacktide.profiles.latency_table import LatencyTable as LatencyTable
from slacktide.profiles.length_classes import MOST_CLASSES as MOST_CLASSES
from slacktide.profiles.length_classes import classes_of_samples as classes_of_samples
from slacktide.profiles.reading import ProfileError as ProfileError
from slacktide.profiles.record import ProfileRecord as ProfileRecord
from slacktide.profiles.record import covering as covering
from slacktide.profiles.record import session_sizes as session_sizes
from slacktide.profiles.run_classes import BatchLatency as BatchLatency
from slacktide.profiles.run_classes import RunClasses as RunClasses
from slacktide.profiles.shape_classes import Classes as Classes
from slacktide.profiles.shape_classes import ShapeClasses as ShapeClasses
from slacktide.profiles.shape_classes import sorted_alike as sorted_alike
from slacktide.profiles.shaped_times import ShapedTimes as ShapedTimes
from slacktide.profiles.surface import batch_sizes as batch_sizes
from slacktide.profiles.time_distribution import PointTime as PointTime
from slacktide.profiles.time_distribution import TimeDistribution as TimeDistribution
