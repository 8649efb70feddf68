"""Scenario files: worlds written down, with the grid of variations to try.

Reads YAML, profiles and traces; makes the engine, the hardware and the requests that a
`Simulation` runs. It has no rule of serving.
"""

from slacktide.simulation.scenario.building import build
from slacktide.simulation.scenario.errors import ScenarioError
from slacktide.simulation.scenario.reading import Cell, parse_scenario, read_scenario
from slacktide.simulation.scenario.running import run_cell, run_task, task_of
from slacktide.simulation.scenario.sections import Scenario
from slacktide.simulation.scenario.sweep import FIGURES, Mean, Row, Sweep, collected, lines
from slacktide.simulation.scenario.workers import done_in_processes
from slacktide.simulation.scenario.world import World

__all__ = [
    "FIGURES",
    "Cell",
    "Mean",
    "Row",
    "Scenario",
    "ScenarioError",
    "Sweep",
    "World",
    "build",
    "collected",
    "done_in_processes",
    "lines",
    "parse_scenario",
    "read_scenario",
    "run_cell",
    "run_task",
    "task_of",
]
