"""The server under virtual time: hours in seconds, with the same engine and the same report.

Not a model of the server: the engine, its schedulers and its profiles are the server's own objects.
Only the clock, the clients and the hardware are made up here.
"""

from slacktide.lab.simulation.driver import Simulation as Simulation
from slacktide.lab.simulation.hardware import AsExpected as AsExpected
from slacktide.lab.simulation.hardware import ByLength as ByLength
from slacktide.lab.simulation.hardware import ByPool as ByPool
from slacktide.lab.simulation.hardware import ByProfile as ByProfile
from slacktide.lab.simulation.hardware import Execution as Execution
from slacktide.lab.simulation.items import DrawnRequest as DrawnRequest
from slacktide.lab.simulation.items import Item as Item
from slacktide.lab.simulation.items import SimulatedUpload as SimulatedUpload
from slacktide.lab.simulation.items import SimulationError as SimulationError
from slacktide.lab.simulation.items import stream as stream
from slacktide.lab.simulation.prediction import Prediction as Prediction
from slacktide.lab.simulation.prediction import predict as predict
