"""Early exits of a model: positions where rows can leave, the ramps that answer there, and the
files that ramps are stored in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slacktide._faces import lazy_names

if TYPE_CHECKING:
    from slacktide.exits.errors import ExitError as ExitError
    from slacktide.exits.learning import RampLearning as RampLearning
    from slacktide.exits.manifest import ExitManifest as ExitManifest
    from slacktide.exits.manifest import Ramp as Ramp
    from slacktide.exits.positions import ExitGraph as ExitGraph
    from slacktide.exits.positions import find_positions as find_positions
    from slacktide.exits.ramp_graph import with_features as with_features
    from slacktide.exits.ramp_graph import with_ramps as with_ramps
    from slacktide.exits.session_memory import MEMORY as MEMORY
    from slacktide.exits.session_memory import SessionMemory as SessionMemory
    from slacktide.exits.session_memory import SessionNumbers as SessionNumbers
    from slacktide.exits.session_memory import reuse_uncertainty as reuse_uncertainty
    from slacktide.exits.splitting import split as split
    from slacktide.exits.training import RampTrainer as RampTrainer
    from slacktide.exits.training import judged_rows as judged_rows
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "errors": "ExitError",
            "learning": "RampLearning",
            "manifest": "ExitManifest Ramp",
            "positions": "ExitGraph find_positions",
            "ramp_graph": "with_features with_ramps",
            "session_memory": "MEMORY SessionMemory SessionNumbers reuse_uncertainty",
            "splitting": "split",
            "training": "RampTrainer judged_rows",
        },
    )
