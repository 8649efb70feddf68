"""The version, the build, and the command to install our other distributions."""

from pathlib import Path

__version__ = "0.1.0"

PAPERS = "pip install ./papers"
"""The command that installs the published evaluations and the policies they compare with."""


COMPILED: tuple[str, ...] = ()
"""Files of compiled modules, next to their sources. Only the build of a compiled wheel fills it
(hatch_build.py)."""

BUILD = "compiled" if COMPILED else "interpreted"

# Everything imports this module first. A compiled group does not work if a module is missing.
for _name in COMPILED:
    if not Path(__file__).parents[1].joinpath(_name).is_file():
        raise ImportError(f"{_name} is missing from this compiled build; install slacktide again")
