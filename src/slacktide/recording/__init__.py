"""What an engine was told and what it commanded: recorded, read back, replayed.

It decides nothing and predicts nothing: how long batches take in a world that was not recorded is
for `simulation`.
"""

from slacktide.recording.errors import LayoutError, RecordingError
from slacktide.recording.predictions import export_times, load_times
from slacktide.recording.reading import Line, Recording
from slacktide.recording.recorder import Recorder
from slacktide.recording.records import Call, Header, PoolOpened, Record
from slacktide.recording.replay import Difference, Pools, Replayed, Watcher, replay

__all__ = [
    "Call",
    "Difference",
    "Header",
    "LayoutError",
    "Line",
    "PoolOpened",
    "Pools",
    "Record",
    "Recorder",
    "Recording",
    "RecordingError",
    "Replayed",
    "Watcher",
    "export_times",
    "load_times",
    "replay",
]
