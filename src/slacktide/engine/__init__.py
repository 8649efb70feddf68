"""The state machine of Slacktide: events in, commands out. Pure: drivers call it, it never waits.

It does not choose the requests to run (`scheduling` does) or predict their times (`profiles` does).
It keeps every request in exactly one place and ends it exactly once.
"""

from slacktide.engine.engine import Engine as Engine
from slacktide.engine.invariants import check_invariants as check_invariants
from slacktide.engine.next_start import NextStart as NextStart
from slacktide.engine.next_start import next_start as next_start
from slacktide.engine.ports import Idle as Idle
from slacktide.engine.ports import PoolParts as PoolParts
from slacktide.engine.ports import PoolView as PoolView
from slacktide.engine.ports import Proposal as Proposal
from slacktide.engine.ports import WaitUntil as WaitUntil
from slacktide.engine.settings import EngineSettings as EngineSettings
from slacktide.engine.snapshot import LaneSnapshot as LaneSnapshot
from slacktide.engine.snapshot import ServedBy as ServedBy
from slacktide.engine.snapshot import Snapshot as Snapshot
from slacktide.engine.time_share import SoloCounts as SoloCounts
