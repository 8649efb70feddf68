"""What the server says of the ports it listens on."""

from __future__ import annotations

import errno

import pytest

from slacktide.server.front_ends import address_of, bind_error
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


@pytest.mark.parametrize("host", ["[::1]:8000", "[::1", "::1]"])
def test_only_a_pair_of_brackets_is_taken_off(host: str) -> None:
    assert ServerSettings(host=host).host_of("http") == host


@pytest.mark.parametrize("number", [errno.EADDRNOTAVAIL, errno.EINVAL])
def test_an_address_that_cannot_be_bound_is_named_by_its_flag(number: int) -> None:
    error = bind_error(OSError(number, "no"), "http", "::ffff:127.0.0.1", 0)
    assert str(error.strerror).startswith("--host ::ffff:127.0.0.1: ")
