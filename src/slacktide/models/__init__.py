"""Reads, checks, profiles and loads models, and assigns them to cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slacktide._faces import lazy_names

if TYPE_CHECKING:
    from slacktide.models.core_layout import LaneError as LaneError
    from slacktide.models.core_layout import assign_lanes as assign_lanes
    from slacktide.models.exit_files import save_ramps as save_ramps
    from slacktide.models.plugins import admit_all as admit_all
    from slacktide.models.plugins import admit_name as admit_name
    from slacktide.models.plugins import offer_entry_points as offer_entry_points
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "core_layout": "LaneError assign_lanes",
            "exit_files": "save_ramps",
            "plugins": "admit_all admit_name offer_entry_points",
        },
    )
