"""Planners. Each sees what the engine sees, and writes the fields of the plan that it owns."""

from slacktide.planning.composer import Composer as Composer
from slacktide.planning.draft import Draft as Draft
from slacktide.planning.draft import ModelBounds as ModelBounds
from slacktide.planning.exits.events import ExitEvent as ExitEvent
from slacktide.planning.planner import Job as Job
from slacktide.planning.planner import JobDone as JobDone
from slacktide.planning.planner import Owned as Owned
from slacktide.planning.planner import PlanField as PlanField
from slacktide.planning.planner import Planner as Planner
from slacktide.planning.planner import PlannerError as PlannerError
from slacktide.planning.planner import Stated as Stated
from slacktide.planning.sessions import SessionClosed as SessionClosed
from slacktide.planning.sessions import SessionEvent as SessionEvent
from slacktide.planning.sessions import SessionMeasured as SessionMeasured
from slacktide.planning.sessions import SessionOpened as SessionOpened
