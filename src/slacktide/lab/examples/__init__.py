"""Example models and inputs, made locally without a download and without torch.

Contains the models that `slacktide models make`, the demo, tests and benchmarks serve, and seeded
generators of realistic requests with exact labels. Training is in `examples/models/` of the source
tree.
"""

from slacktide.lab.examples.catalog import MODELS as MODELS
from slacktide.lab.examples.catalog import ExamplesError as ExamplesError
from slacktide.lab.examples.catalog import Samples as Samples
from slacktide.lab.examples.catalog import example as example
from slacktide.lab.examples.catalog import make_inputs as make_inputs
from slacktide.lab.examples.catalog import make_stream as make_stream
from slacktide.lab.examples.frames import FRAME_RATE as FRAME_RATE
from slacktide.lab.examples.making import make_repository as make_repository
from slacktide.lab.examples.pipelines import PIPELINES as PIPELINES
from slacktide.lab.examples.pipelines import pipeline_frames as pipeline_frames
