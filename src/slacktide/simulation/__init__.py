"""The server under virtual time: hours in seconds, with the same engine and the same report.

Not a model of the server: the engine, its schedulers and its profiles are the server's own objects.
Only the clock, the clients and the hardware are made up here.
"""

from slacktide.simulation.driver import Answered, Simulation, Watch
from slacktide.simulation.errors import SimulationError
from slacktide.simulation.execution import (
    ByLength,
    ByModel,
    ByProfile,
    Execution,
    Expected,
    length_of,
)
from slacktide.simulation.items import DrawnRequest, Failure, Happening, Item, Upload
from slacktide.simulation.order import KIND_OF, Kind
from slacktide.simulation.prediction import Prediction, predict
from slacktide.simulation.results import Scorer
from slacktide.simulation.streams import stream

__all__ = [
    "KIND_OF",
    "Answered",
    "ByLength",
    "ByModel",
    "ByProfile",
    "DrawnRequest",
    "Execution",
    "Expected",
    "Failure",
    "Happening",
    "Item",
    "Kind",
    "Prediction",
    "Scorer",
    "Simulation",
    "SimulationError",
    "Upload",
    "Watch",
    "length_of",
    "predict",
    "stream",
]
