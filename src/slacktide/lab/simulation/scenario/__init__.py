"""Scenario files: models, hardware and traffic to simulate, with a grid of variations.

Reads YAML, profiles and traces; makes the engine, the hardware and the requests that a
`Simulation` runs. All decisions about serving are the engine's.
"""

from slacktide.lab.simulation.scenario.building import build as build
from slacktide.lab.simulation.scenario.reading import Cell as Cell
from slacktide.lab.simulation.scenario.reading import ScenarioError as ScenarioError
from slacktide.lab.simulation.scenario.reading import read_scenario as read_scenario
from slacktide.lab.simulation.scenario.running import check_cell as check_cell
from slacktide.lab.simulation.scenario.running import done_in_processes as done_in_processes
from slacktide.lab.simulation.scenario.running import run_cell as run_cell
from slacktide.lab.simulation.scenario.running import run_task as run_task
from slacktide.lab.simulation.scenario.running import task_of as task_of
from slacktide.lab.simulation.scenario.sweep import Sweep as Sweep
from slacktide.lab.simulation.scenario.sweep import collected as collected
from slacktide.lab.simulation.scenario.traffic import ClientLink as ClientLink
