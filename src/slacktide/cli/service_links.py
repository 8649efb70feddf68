"""Environment variables that Kubernetes invents for Services, and that read like settings of ours.

For a Service called `slacktide-metrics` each pod beside it gets
`SLACKTIDE_METRICS_PORT=tcp://10.0.0.7:8002` (Docker's links do the same).
"""

from __future__ import annotations

import os
import re

_LINK = re.compile(r"(?:tcp|udp|sctp)://")


def take_service_links() -> list[str]:
    """Remove the addresses of Services from the environment, where they stand in variables of ours
    that name a port or a host. Returns the removed variables, as NAME=VALUE."""
    links = [
        name
        for name, value in os.environ.items()
        if name.startswith("SLACKTIDE_")
        and name.endswith(("_PORT", "_HOST"))
        and _LINK.match(value)
    ]
    return [f"{name}={os.environ.pop(name)}" for name in sorted(links)]
