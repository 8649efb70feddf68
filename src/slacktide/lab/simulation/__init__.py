"""The server in virtual time: simulates hours in seconds, with the same report as a live run.

The server is not modelled: engine, schedulers and profiles are the server's own objects. Only the
clock, the clients and the hardware are simulated.
"""

from slacktide.lab.simulation.acting import ANSWER_BYTES as ANSWER_BYTES
from slacktide.lab.simulation.acting import SimulatedClients as SimulatedClients
from slacktide.lab.simulation.clients import ClientLogic as ClientLogic
from slacktide.lab.simulation.clients import FrameRecord as FrameRecord
from slacktide.lab.simulation.clients import MeasuredLink as MeasuredLink
from slacktide.lab.simulation.clients import SimulatedClient as SimulatedClient
from slacktide.lab.simulation.exit_courses import ExitCourse as ExitCourse
from slacktide.lab.simulation.exit_tables import ExitTable as ExitTable
from slacktide.lab.simulation.exit_tables import TableExits as TableExits
from slacktide.lab.simulation.exit_tables import read_exit_table as read_exit_table
from slacktide.lab.simulation.frame_score import FrameScore as FrameScore
from slacktide.lab.simulation.items import DrawnRequest as DrawnRequest
from slacktide.lab.simulation.items import Item as Item
from slacktide.lab.simulation.items import SimulatedUpload as SimulatedUpload
from slacktide.lab.simulation.items import SimulationError as SimulationError
from slacktide.lab.simulation.items import rng_for as rng_for
from slacktide.lab.simulation.local_frames import LocalChild as LocalChild
from slacktide.lab.simulation.oracle_slack import KAPPAS as KAPPAS
from slacktide.lab.simulation.oracle_slack import OracleSlack as OracleSlack
from slacktide.lab.simulation.oracle_slack import OracleSlackOptions as OracleSlackOptions
from slacktide.lab.simulation.placing import SimulatedPlacing as SimulatedPlacing
from slacktide.lab.simulation.prediction import Prediction as Prediction
from slacktide.lab.simulation.prediction import predict as predict
from slacktide.lab.simulation.world.device_times import DeviceTimes as DeviceTimes
from slacktide.lab.simulation.world.device_times import ModelTimes as ModelTimes
from slacktide.lab.simulation.world.devices import SimulatedDevices as SimulatedDevices
from slacktide.lab.simulation.world.driver import Simulation as Simulation
from slacktide.lab.simulation.world.hardware import AsExpected as AsExpected
from slacktide.lab.simulation.world.hardware import ByLength as ByLength
from slacktide.lab.simulation.world.hardware import ByPool as ByPool
from slacktide.lab.simulation.world.hardware import ByProfile as ByProfile
from slacktide.lab.simulation.world.hardware import Execution as Execution
from slacktide.lab.simulation.world.stage_rows import EdgeRows as EdgeRows
from slacktide.lab.simulation.world.stage_rows import PipelineCamera as PipelineCamera
from slacktide.lab.simulation.world.stage_rows import StageRows as StageRows
