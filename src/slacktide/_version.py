"""States the version, the build, and how to install the other distributions of this version."""

from pathlib import Path

__version__ = "0.1.0"

PAPERS = "pip install ./papers"
"""The command that installs published evaluations, and the policies that they compare with."""


COMPILED: tuple[str, ...] = ()
"""The modules that are compiled, as files beside their sources: empty but in a compiled wheel,
whose build writes it (hatch_build.py)."""

BUILD = "compiled" if COMPILED else "interpreted"

# Every command, worker and program imports this first. A group cannot do without a module of it.
for _name in COMPILED:
    if not Path(__file__).parents[1].joinpath(_name).is_file():
        raise ImportError(f"{_name} is missing from this compiled build; install slacktide again")
