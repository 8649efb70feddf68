"""Example models and inputs: made on the spot, with no download and no torch.

What `slacktide models make`, the demo, tests and benchmarks serve, and the seeded generators that
draw realistic requests with exact labels. Not the training: that is `examples/models/` in the
source tree.
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
