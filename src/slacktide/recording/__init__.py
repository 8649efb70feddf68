"""An engine's events and commands: recorded, read back, replayed.

It decides nothing and predicts nothing: how long batches take in a world that was not recorded is
for `simulation`.
"""

from slacktide.recording.layout import RecordingError as RecordingError
from slacktide.recording.reading import Recording as Recording
from slacktide.recording.recorder import Recorder as Recorder
from slacktide.recording.records import Call as Call
from slacktide.recording.records import PoolOpened as PoolOpened
from slacktide.recording.records import Record as Record
from slacktide.recording.replay import Difference as Difference
from slacktide.recording.replay import RecordedPools as RecordedPools
from slacktide.recording.replay import Watcher as Watcher
from slacktide.recording.replay import export_times as export_times
from slacktide.recording.replay import replay as replay
