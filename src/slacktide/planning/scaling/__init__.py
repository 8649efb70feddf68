"""The planner of cores, replicas and batch sizes, and its policies (see README.md)."""

from slacktide.planning.lanes.lane_sizes import groups_of as groups_of
from slacktide.planning.scaling.planner import ScalingPlanner as ScalingPlanner
from slacktide.planning.scaling.planner import ScalingStatus as ScalingStatus
from slacktide.planning.scaling.policies import make_scaling_policy as make_scaling_policy
from slacktide.planning.scaling.scaled_state import ScaledModel as ScaledModel
from slacktide.planning.scaling.view import ModelView as ModelView
from slacktide.planning.scaling.view import ReplicaView as ReplicaView
from slacktide.planning.scaling.view import ScalingLimits as ScalingLimits
from slacktide.planning.scaling.view import ScalingPolicy as ScalingPolicy
from slacktide.planning.scaling.view import ScalingTarget as ScalingTarget
