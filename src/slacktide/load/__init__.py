"""The open-loop load generator: sends on time, whatever comes back, and judges by its own clock.

It is a client of any Open Inference Protocol server, HTTP or gRPC; it knows nothing of Slacktide's
server but the wire. What it measures becomes a `Report`, which `slacktide.reports` shows.
"""

from slacktide.load.build import build_spec as build_spec
from slacktide.load.build import parse_target as parse_target
from slacktide.load.discover import discover as discover
from slacktide.load.generate import run_load as run_load
from slacktide.load.generate import run_load_sync as run_load_sync
from slacktide.load.run import Progress as Progress
from slacktide.load.spec import FilePayload as FilePayload
from slacktide.load.spec import LoadError as LoadError
from slacktide.load.spec import LoadSpec as LoadSpec
from slacktide.load.spec import LoadSpecError as LoadSpecError
from slacktide.load.spec import RandomPayload as RandomPayload
from slacktide.load.spec import RawPayload as RawPayload
from slacktide.load.spec import Stream as Stream
from slacktide.load.spec import Target as Target
from slacktide.load.spec import TargetError as TargetError
from slacktide.load.spec import Transport as Transport
