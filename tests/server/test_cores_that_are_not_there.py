"""`--cores` above what this process may use."""

from __future__ import annotations

import logging
import os

import pytest

from slacktide.server import app
from slacktide.server.app import open_cores
from slacktide.server.settings import ServerSettings


@pytest.mark.replaces_parts
@pytest.mark.parametrize(("cores", "warned"), [(None, False), (1, False), (2, False), (64, True)])
def test_more_cores_than_there_are_earn_a_warning(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    cores: int | None,
    warned: bool,
) -> None:
    monkeypatch.setattr(app, "available_cores", lambda: (0, 1))
    with caplog.at_level(logging.WARNING):
        opened = open_cores(ServerSettings(cores=cores))
    assert len(opened.numbers) == min(cores or 2, 2)
    assert ("--cores 64: affinity and quota limit this process to 2" in caplog.text) is warned


def test_the_cores_of_this_process_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        open_cores(ServerSettings(cores=len(os.sched_getaffinity(0)) + 1))
    assert "limit this process to" in caplog.text
