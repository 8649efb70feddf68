"""Planners that choose cores, replicas and batch sizes (see README.md)."""

from slacktide.planning.scaling.autoscaler import Autoscaler as Autoscaler
from slacktide.planning.scaling.autoscaler import AutoscalerSettings as AutoscalerSettings
from slacktide.planning.scaling.autoscaler import ScaledModel as ScaledModel
from slacktide.planning.scaling.autoscaler import Standing as Standing
from slacktide.planning.scaling.planners import PLANNERS as PLANNERS
from slacktide.planning.scaling.planners import make_planner as make_planner
from slacktide.planning.scaling.view import BatchSeconds as BatchSeconds
from slacktide.planning.scaling.view import ModelView as ModelView
from slacktide.planning.scaling.view import ReplicaView as ReplicaView
from slacktide.planning.scaling.view import ScalingLimits as ScalingLimits
from slacktide.planning.scaling.view import ScalingPlanner as ScalingPlanner
from slacktide.planning.scaling.view import VariantView as VariantView
from slacktide.planning.scaling.view import Waiting as Waiting
from slacktide.planning.scaling.view import Watchful as Watchful
from slacktide.planning.scaling.view import Wish as Wish
