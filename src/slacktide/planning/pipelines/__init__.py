"""Where the stages of pipelines run, in which batches, and when. Pure."""

from slacktide.planning.pipelines.planner import PlacedPipeline as PlacedPipeline
from slacktide.planning.pipelines.policies import make_placement as make_placement
from slacktide.planning.pipelines.problem import DeviceView as DeviceView
from slacktide.planning.pipelines.problem import FormTimes as FormTimes
from slacktide.planning.pipelines.problem import Inflow as Inflow
from slacktide.planning.pipelines.problem import LinkView as LinkView
from slacktide.planning.pipelines.problem import PipelineView as PipelineView
from slacktide.planning.pipelines.problem import PlacedPortion as PlacedPortion
from slacktide.planning.pipelines.problem import PlacedStage as PlacedStage
from slacktide.planning.pipelines.problem import PlacementAnswer as PlacementAnswer
from slacktide.planning.pipelines.problem import PlacementError as PlacementError
from slacktide.planning.pipelines.problem import PlacementQuestion as PlacementQuestion
from slacktide.planning.pipelines.problem import StageForm as StageForm
from slacktide.planning.pipelines.problem import StageView as StageView
from slacktide.planning.pipelines.problem import burstiness as burstiness
from slacktide.planning.pipelines.server import PlacementStatus as PlacementStatus
from slacktide.planning.pipelines.server import ServerPipelinesPlanner as ServerPipelinesPlanner
