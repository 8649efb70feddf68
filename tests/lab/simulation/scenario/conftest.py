"""Scenarios as texts: a small one that runs in no time, changed key by key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slacktide.lab.simulation.scenario import Cell
from slacktide.lab.simulation.scenario.reading import parse_scenario

SMALL = """\
duration: 2s
models:
  m:
    padded: {c0: 5ms, c1: 0.5ms, sizes: [1, 2, 4]}
applications:
  web:
    model: m
    arrivals: poisson:100
    lengths: modes:short=3,long=17
    slo: 40ms
"""

Read = Callable[..., tuple[Cell, ...]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """`read("scheduler=edf", …)`: the cells of the small scenario with these keys replaced, in a
    folder of its own; `text=` stands in for the small one."""

    def call(*settings: str, text: str = SMALL) -> tuple[Cell, ...]:
        return parse_scenario(text, "s.yaml", tmp_path, settings)

    return call
