"""The vocabulary of Slacktide: requests, batches, plans, events, commands, outcomes.

Immutable data. A value may derive facts from its own fields, but does nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slacktide._faces import lazy_names
from slacktide.domain.commands import AbortBatch as AbortBatch
from slacktide.domain.commands import Circuit as Circuit
from slacktide.domain.commands import Command as Command
from slacktide.domain.commands import FreeSlots as FreeSlots
from slacktide.domain.commands import PublishExits as PublishExits
from slacktide.domain.commands import ResizeLane as ResizeLane
from slacktide.domain.commands import RunBatch as RunBatch
from slacktide.domain.commands import StartReplica as StartReplica
from slacktide.domain.commands import StopReplica as StopReplica
from slacktide.domain.commands import TellCircuit as TellCircuit
from slacktide.domain.events import NEVER as NEVER
from slacktide.domain.events import Announced as Announced
from slacktide.domain.events import BatchAborted as BatchAborted
from slacktide.domain.events import BatchFailed as BatchFailed
from slacktide.domain.events import BatchFinished as BatchFinished
from slacktide.domain.events import Cancelled as Cancelled
from slacktide.domain.events import DriverStalled as DriverStalled
from slacktide.domain.events import Event as Event
from slacktide.domain.events import ExitReport as ExitReport
from slacktide.domain.events import LaneResized as LaneResized
from slacktide.domain.events import MemoryShort as MemoryShort
from slacktide.domain.events import PlanChanged as PlanChanged
from slacktide.domain.events import Refused as Refused
from slacktide.domain.events import ReplicaLost as ReplicaLost
from slacktide.domain.events import ReplicaUp as ReplicaUp
from slacktide.domain.events import RowsReleased as RowsReleased
from slacktide.domain.events import Submitted as Submitted
from slacktide.domain.events import TimerFired as TimerFired
from slacktide.domain.options import OptionError as OptionError
from slacktide.domain.options import Options as Options
from slacktide.domain.options import option as option
from slacktide.domain.options import options_of as options_of
from slacktide.domain.options import read_options as read_options
from slacktide.domain.outcomes import Answer as Answer
from slacktide.domain.outcomes import Outcome as Outcome
from slacktide.domain.outcomes import OutcomeKind as OutcomeKind
from slacktide.domain.outcomes import Reason as Reason
from slacktide.domain.plan import Deployment as Deployment
from slacktide.domain.plan import ExitMode as ExitMode
from slacktide.domain.plan import ExitPolicy as ExitPolicy
from slacktide.domain.plan import InputSize as InputSize
from slacktide.domain.plan import LaneSpec as LaneSpec
from slacktide.domain.plan import Plan as Plan
from slacktide.domain.plan import PoolId as PoolId
from slacktide.domain.plan import Route as Route
from slacktide.domain.plan import StagePlace as StagePlace
from slacktide.domain.plan import going_on as going_on
from slacktide.domain.plan import is_in_run as is_in_run
from slacktide.domain.plan import is_judged as is_judged
from slacktide.domain.registry import Registry as Registry
from slacktide.domain.request import Batch as Batch
from slacktide.domain.request import BatchTiming as BatchTiming
from slacktide.domain.request import Leaving as Leaving
from slacktide.domain.request import Notice as Notice
from slacktide.domain.request import Replica as Replica
from slacktide.domain.request import Request as Request
from slacktide.domain.request import Signature as Signature
from slacktide.domain.request import decoding_time as decoding_time
from slacktide.domain.suggestions import did_you_mean as did_you_mean
from slacktide.domain.suggestions import nearest as nearest
from slacktide.domain.suggestions import shown as shown
from slacktide.domain.suggestions import suggestion as suggestion
from slacktide.domain.timetable import ModelWindow as ModelWindow
from slacktide.domain.timetable import Timetable as Timetable
from slacktide.domain.units import SECONDS as SECONDS
from slacktide.domain.units import Unit as Unit
from slacktide.domain.units import format_seconds as format_seconds
from slacktide.domain.units import parse_percent as parse_percent
from slacktide.domain.units import percent as percent

if TYPE_CHECKING:
    from slacktide.domain.crops import Glue as Glue
    from slacktide.domain.tensors import Datatype as Datatype
    from slacktide.domain.tensors import ModelInterface as ModelInterface
    from slacktide.domain.tensors import TensorSpec as TensorSpec
else:  # they load NumPy
    __getattr__ = lazy_names(
        __name__, {"crops": "Glue", "tensors": "Datatype ModelInterface TensorSpec"}
    )
