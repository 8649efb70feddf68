"""A function that takes its time without a processor, for `cluster_faults`."""

from __future__ import annotations

import time
from typing import Any


def rest(x: Any) -> Any:
    time.sleep(0.1)
    return x
