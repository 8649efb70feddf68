"""Example models and inputs: made on the spot, with no download and no torch.

What `slacktide models make`, the demo, tests and benchmarks serve, and the seeded generators that
draw realistic requests with exact labels. Not the training: that is `examples/models/` in the
source tree.
"""

from slacktide.examples.catalog import MODELS as MODELS
from slacktide.examples.catalog import ExamplesError as ExamplesError
from slacktide.examples.catalog import Samples as Samples
from slacktide.examples.catalog import example as example
from slacktide.examples.catalog import make_inputs as make_inputs
from slacktide.examples.catalog import make_stream as make_stream
from slacktide.examples.making import make_repository as make_repository
from slacktide.examples.pipelines import PIPELINES as PIPELINES
from slacktide.examples.pipelines import pipeline_frames as pipeline_frames
