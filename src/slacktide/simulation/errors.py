"""The one error of simulations."""

from __future__ import annotations


class SimulationError(Exception):
    """A simulation that cannot be run, or has contradicted itself; the text says how."""
