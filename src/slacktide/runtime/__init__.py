"""The runtime that both drivers own: the engine with its planners. Events in, commands out."""

from slacktide.runtime.runtime import Runtime as Runtime
from slacktide.runtime.runtime import RuntimeCommand as RuntimeCommand
from slacktide.runtime.runtime import RuntimeEvent as RuntimeEvent
from slacktide.runtime.runtime import Watch as Watch
from slacktide.runtime.runtime import WatchFrames as WatchFrames
