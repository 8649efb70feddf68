"""Planners that choose cores, replicas and batch sizes (see README.md)."""

from slacktide.scaling.autoscaler import Autoscaler as Autoscaler
from slacktide.scaling.autoscaler import AutoscalerSettings as AutoscalerSettings
from slacktide.scaling.autoscaler import ScaledModel as ScaledModel
from slacktide.scaling.autoscaler import Standing as Standing
from slacktide.scaling.planners import PLANNERS as PLANNERS
from slacktide.scaling.planners import PlannerError as PlannerError
from slacktide.scaling.planners import PlannerKind as PlannerKind
from slacktide.scaling.planners import make_planner as make_planner
from slacktide.scaling.planners import planner_defaults as planner_defaults
from slacktide.scaling.planners import planner_options as planner_options
from slacktide.scaling.view import BatchSeconds as BatchSeconds
from slacktide.scaling.view import ModelView as ModelView
from slacktide.scaling.view import ReplicaView as ReplicaView
from slacktide.scaling.view import ScalingLimits as ScalingLimits
from slacktide.scaling.view import ScalingPlanner as ScalingPlanner
from slacktide.scaling.view import VariantView as VariantView
from slacktide.scaling.view import Waiting as Waiting
from slacktide.scaling.view import Watchful as Watchful
from slacktide.scaling.view import Wish as Wish
