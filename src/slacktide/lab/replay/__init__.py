"""Replays recordings in a new engine, and explains their decisions in sentences."""

from slacktide.lab.replay.replay import Difference as Difference
from slacktide.lab.replay.replay import RecordedPools as RecordedPools
from slacktide.lab.replay.replay import Watcher as Watcher
from slacktide.lab.replay.replay import replay as replay
