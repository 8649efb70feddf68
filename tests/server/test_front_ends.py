"""What the server says of the ports it listens on."""

from __future__ import annotations

import pytest

from slacktide.server.front_ends import address_of
from slacktide.server.settings import ServerSettings


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1:8000"),
        ("::1", "[::1]:8000"),
        ("[::1]", "[::1]:8000"),
        ("::", "localhost:8000 (all addresses)"),
        ("[::]", "localhost:8000 (all addresses)"),
        ("*", "localhost:8000 (all addresses)"),
        ("", "localhost:8000 (all addresses)"),
        ("0.0.0.0", "127.0.0.1:8000 (all addresses)"),
        ("host.example", "host.example:8000"),
    ],
)
def test_addresses_can_be_copied(host: str, address: str) -> None:
    settings = ServerSettings(host=host, control_host=host)
    for name in ("http", "control"):
        assert address_of(settings.host_of(name), 8000) == address


@pytest.mark.parametrize(("host", "loopback"), [("[::1]", True), ("::1", True), ("[::]", False)])
def test_brackets_change_nothing_about_who_can_connect(host: str, loopback: bool) -> None:
    settings = ServerSettings(host=host, control_host=host, control_port=8003)
    assert settings.loopback is loopback
    assert settings.control_exposed is not loopback
    assert (settings.rules().hosts is not None) is loopback
