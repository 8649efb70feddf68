"""`SessionMemory`: for each session, the whole model's answer to its last frame that ran to the
end.

The next frame of the session may get the same answer, by `reuse_uncertainty`. Answers of ramps are
never remembered. Reusing answers between frames is known from NoScope (VLDB 2017), Glimpse (SenSys
2015) and Reducto (SIGCOMM 2020). Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

MOST_SESSIONS, MOST_BYTES = 4096, 64 << 20
"""Sessions to remember, and the sum of their bytes; beyond either, the oldest is forgotten."""
LEAST_DOUBT = 0.01
"""Smallest doubt that counts. Networks that are surer than that say little by it, and a frame that
looks different must not get the answer again however sure the network was."""
MEMORY = "memory"
"""Name of the ramp that gives remembered answers."""

ContentT = TypeVar("ContentT")


class SessionMemory(Generic[ContentT]):
    """The remembered content of each session, by the session's number."""

    def __init__(self, frames: int, seconds: float) -> None:
        """An answer may be given to the next `frames` frames, for at most `seconds`."""
        self.frames, self.seconds = frames, seconds
        self.nbytes = 0
        self._entries: OrderedDict[int, tuple[int, float, ContentT, int]] = OrderedDict()
        """(frame, time, content, bytes) by session; the oldest comes first."""

    def __len__(self) -> int:
        return len(self._entries)

    def recall(self, session: int, frame: int, *, now: float) -> ContentT | None:
        """Return the content remembered for a frame; None if there is none, or if it is too old or
        newer."""
        record = self._entries.get(session)
        if record is None:
            return None
        kept_frame, at, content, _ = record
        is_valid = 0 < frame - kept_frame <= self.frames and now - at <= self.seconds
        return content if is_valid else None

    def keep(self, session: int, frame: int, at: float, content: ContentT, nbytes: int = 0) -> None:
        """Remember a frame whose batch started at `at`, unless a later frame is remembered."""
        record = self._entries.get(session)
        if not session or (record is not None and record[0] >= frame):
            return
        self.forget(session)
        self._entries[session] = frame, at, content, nbytes
        self.nbytes += nbytes
        while self._entries:
            oldest, (_, kept_at, _, _) = next(iter(self._entries.items()))
            full = len(self._entries) > MOST_SESSIONS or self.nbytes > MOST_BYTES
            if not (full or at - kept_at > self.seconds):
                break
            self.forget(oldest)

    def forget(self, session: int) -> None:
        """Forget a session; unknown sessions are ignored."""
        record = self._entries.pop(session, None)
        if record is not None:
            self.nbytes -= record[3]


class SessionNumbers:
    """Numbers of sessions by name, and of their frames, in order of arrival."""

    def __init__(self) -> None:
        self._last_number = 0
        self._sessions: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """(number, last frame) by name; the session without a frame for longest comes first."""

    def next_frame(self, name: str) -> tuple[int, int]:
        """Return the session's number and that of its next frame, both from 1. Numbers of sessions
        are not used again."""
        number, frame = self._sessions.pop(name, (0, 0))
        if not number:
            number = self._last_number = self._last_number + 1
            if len(self._sessions) >= MOST_SESSIONS:
                self._sessions.popitem(last=False)
        self._sessions[name] = number, frame + 1
        return number, frame + 1


def distance(features: NDArray[Any], remembered: NDArray[Any]) -> NDArray[Any]:
    """Return the distance of features [..., f], 0 to 1: Σ|a − b| ÷ Σ(|a| + |b|)."""
    size = (np.abs(features) + np.abs(remembered)).sum(-1)
    apart = np.abs(features - remembered).sum(-1)
    distances: NDArray[Any] = np.divide(apart, size, out=np.zeros_like(size), where=size != 0)
    return distances


def reuse_uncertainty(
    features: NDArray[Any], remembered: NDArray[Any], doubt: NDArray[Any] | float
) -> NDArray[Any]:
    """Return the uncertainty, 0 to 1, about giving an answer again: the distance of early features
    [..., f] × the doubt [...], 1 − the model's probability of that answer. An answer changes where
    the model was in doubt, so the product tells more than the distance alone."""
    uncertainty: NDArray[Any] = distance(features, remembered) * np.maximum(doubt, LEAST_DOUBT)
    return uncertainty
