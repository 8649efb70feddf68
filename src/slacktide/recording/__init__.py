"""Recordings of an engine's events and commands: writing and reading.

`slacktide.lab` replays recordings, and predicts from them how the requests would end.
"""

from slacktide.recording.layout import RecordingError as RecordingError
from slacktide.recording.reading import RecordedLine as RecordedLine
from slacktide.recording.reading import Recording as Recording
from slacktide.recording.recorder import Recorder as Recorder
from slacktide.recording.records import Call as Call
from slacktide.recording.records import FramesCall as FramesCall
from slacktide.recording.records import PoolOpened as PoolOpened
from slacktide.recording.records import Record as Record
from slacktide.recording.times import export_times as export_times
from slacktide.recording.times import load_times as load_times
