"""The options of a session, and its replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.client.messages import ClientError, FrameOutcome

Fallback = Callable[[NDArray[np.uint8]], Mapping[str, NDArray[Any]]]
"""Runs a frame as captured and returns outputs by name. Called on its own thread."""


@dataclass(frozen=True, slots=True)
class FrameReply:
    """A frame's outcome, with its outputs if it has any."""

    id: int
    outcome: FrameOutcome
    outputs: Mapping[str, NDArray[Any]] = field(default_factory=dict, repr=False)
    """Outputs by name, with a batch axis of one row first; empty for frames without a result."""
    tag: object = field(default=None, repr=False)
    """The tag given to `submit`."""

    @property
    def on_time(self) -> bool:
        """Whether there are outputs, by the deadline."""
        return self.outcome.on_time


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """The options of a session. Raises ClientError naming the field."""

    model: str
    slo: float
    """Seconds from capture to reply."""
    rate: float
    """Usual frames per second."""
    version: str = ""
    floor: float = 0.0
    """Lowest useful accuracy, 0 to 1."""
    weight: float = 1.0
    """Weight of this client relative to other clients."""
    name: str = ""
    """Name shown to people who look at the server."""
    sizes: tuple[int, ...] = ()
    """Sides in pixels to choose from if the server advises none."""
    quality: int = 90
    """JPEG quality, 1 to 100."""
    rgb: bool = False
    """Whether frames have red first. OpenCV's have blue first."""
    fallback: Fallback | None = None
    bytes_per_s: float = 0.0
    """Known rate of the link; 0: unknown."""
    on_reply: Callable[[FrameReply], None] | None = None
    """Called with each reply, on the loop."""
    connect_s: float = 5.0
    """Seconds that `open` waits for a server. With a fallback it then continues without one."""
    follow: bool = True
    """Whether the session moves to another server when its own advises it, with the TLS settings
    and the token of the connection."""

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise ClientError(f"model: expected a name, got {self.model!r}")
        for name, least, most in (
            ("slo", 1e-3, 3600.0), ("rate", 1e-3, 1e4), ("floor", 0.0, 1.0), ("weight", 1e-6, 1e6),
            ("quality", 1, 100), ("connect_s", 0.0, 3600.0), ("bytes_per_s", 0.0, 1e12),
        ):  # fmt: skip
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not least <= value <= most:
                raise ClientError(f"{name}: expected {least:g} to {most:g}, got {value!r}")
        if any(not isinstance(size, int) or size < 1 for size in self.sizes):
            raise ClientError(f"sizes: expected sides in pixels, got {self.sizes!r}")
