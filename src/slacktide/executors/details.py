"""What a client may read of an error: one line, bounded, without paths or traces."""

from __future__ import annotations

import re
from pathlib import Path

_LIMIT = 300
_PATH = re.compile(r"(?<!Name:')(?<![\w.:/])/(?:[\w.+@~-]+/)+[\w.+@~-]*")
"""An absolute path of two parts or more. Torch names nodes like paths (`Name:'/layer1/Conv'`);
they are the model's own words and stay."""


def client_detail(error: BaseException | str, *private: Path) -> str:
    """The first line of `error` without paths, at most 300 characters.

    `private` are paths to be taken out wherever they stand, also those with unusual characters.
    """
    if isinstance(error, MemoryError):
        return "out of memory"
    text = str(error).strip()
    if "bad_alloc" in text or "Failed to allocate memory" in text:
        return "out of memory"
    text = text.splitlines()[0] if text else ""
    for path in sorted({str(path) for path in private}, key=len, reverse=True):
        if path not in ("/", ".", ""):
            text = text.replace(path, "…")
    text = _PATH.sub("…", text).strip()
    if not text:
        text = type(error).__name__ if isinstance(error, BaseException) else "unknown error"
    return text if len(text) <= _LIMIT else text[: _LIMIT - 1] + "…"
