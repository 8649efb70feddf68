"""Models of servers that are linked in memory."""

from __future__ import annotations

import pytest

from slacktide.server.peers import host


@pytest.fixture(autouse=True)
def equal_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every server has the same files under a name."""
    monkeypatch.setattr(host, "digest_of", lambda version: "same")
