"""Example models and inputs: made on the spot, with no download and no torch.

What `slacktide models make`, the demo, tests and benchmarks serve, and the seeded generators that
draw realistic requests with exact labels. Not the training: that is `examples/models/` in the
source tree.
"""

from slacktide.examples.catalog import MODELS, ExampleModel, ExamplesError, example, make_inputs
from slacktide.examples.making import Progress, make_repository
from slacktide.examples.samples import Samples

__all__ = [
    "MODELS",
    "ExampleModel",
    "ExamplesError",
    "Progress",
    "Samples",
    "example",
    "make_inputs",
    "make_repository",
]
