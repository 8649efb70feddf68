"""What `make wheels` runs in an empty environment: the wheel is of the kind it says, and works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import slacktide
from slacktide._version import BUILD, COMPILED
from slacktide.domain import Plan, PlanChanged
from slacktide.engine import Engine, engine
from slacktide.lab.simulation import __name__ as simulated
from slacktide.testing import LinearTimes, VirtualWorld, make_request

kind = sys.argv[1]
suffix = Path(engine.__file__).suffix
compiled = kind == "compiled"
assert bool(COMPILED) is compiled, COMPILED
assert suffix == (".so" if compiled else ".py"), suffix
world = VirtualWorld(LinearTimes(0.0, 1.0)).run(make_request(1, arrival=0.5))
assert world.batches == [(0.5, (1,))], world.batches  # without anything that only tests need
made = Engine(lambda pool, max_batch, view: None)
assert made.handle(PlanChanged(Plan()), now=0.0) == []
program = Path(sys.executable).with_name("slacktide")
version_line = subprocess.run(
    [program, "--version"], check=True, capture_output=True, text=True
).stdout
assert version_line.strip() == f"slacktide {slacktide.__version__} ({BUILD})", version_line
print(f"{kind}: {version_line.strip()}, {simulated} imported")
