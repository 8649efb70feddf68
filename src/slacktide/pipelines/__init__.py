"""Calls of pipelines, above the engine: one call, many requests, one deadline.

It makes no scheduling decision: the requests of a call are like any others.
"""

from slacktide.domain.pipelines import BOX as BOX
from slacktide.domain.pipelines import Edge as Edge
from slacktide.domain.pipelines import Pipeline as Pipeline
from slacktide.domain.pipelines import PipelineStage as PipelineStage
from slacktide.pipelines.fan_out import FanOut as FanOut
from slacktide.pipelines.frames import Frames as Frames
from slacktide.pipelines.frames import of_children as of_children
from slacktide.pipelines.outcomes import HAS_RESULT as HAS_RESULT
