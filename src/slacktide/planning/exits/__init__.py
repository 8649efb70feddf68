"""Early exits: where rows may leave a model, and how sure a ramp must be (Apparate). Pure."""

from slacktide.planning.exits.events import ExitEvent as ExitEvent
from slacktide.planning.exits.events import ExitsArranged as ExitsArranged
from slacktide.planning.exits.events import RampFacts as RampFacts
from slacktide.planning.exits.events import RampsJudged as RampsJudged
from slacktide.planning.exits.events import RampsLearnt as RampsLearnt
from slacktide.planning.exits.events import RampsRefused as RampsRefused
from slacktide.planning.exits.events import StatedExits as StatedExits
from slacktide.planning.exits.exits_status import ApplicationStatus as ApplicationStatus
from slacktide.planning.exits.exits_status import ChangesStatus as ChangesStatus
from slacktide.planning.exits.exits_status import ClassStatus as ClassStatus
from slacktide.planning.exits.exits_status import ExitsStatus as ExitsStatus
from slacktide.planning.exits.planner import ExitsPlanner as ExitsPlanner
from slacktide.planning.exits.pool_exits import FEATURE_SHARE as FEATURE_SHARE
from slacktide.planning.exits.thresholds import ThresholdSearch as ThresholdSearch
