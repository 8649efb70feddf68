"""The gate: one rule for every port."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme

from slacktide.frontends.common.security import (
    Credentials,
    Gate,
    PortRules,
    SecurityError,
    TlsFiles,
    Verdict,
    read_token,
)
from slacktide.frontends.ports import EndpointGroup
from slacktide.server.settings import ServerSettings

TOKEN = "correct-horse-battery"


@pytest.mark.parametrize(
    "group", [group for group in EndpointGroup if group is not EndpointGroup.CONTROL]
)
def test_without_a_token_everything_but_control_passes(group):
    assert Gate(None).judge(group, {}) is Verdict.PASS


@pytest.mark.parametrize(
    "group",
    [group for group in EndpointGroup if group not in (EndpointGroup.HEALTH, EndpointGroup.PEERS)],
)
@pytest.mark.parametrize(
    ("header", "verdict"),
    [
        (None, Verdict.NO_TOKEN),
        ("", Verdict.NO_TOKEN),
        (TOKEN, Verdict.NO_TOKEN),
        (f"Basic {TOKEN}", Verdict.NO_TOKEN),
        ("Bearer wrong", Verdict.WRONG_TOKEN),
        (f"Bearer {TOKEN}x", Verdict.WRONG_TOKEN),
        (f"Bearer {TOKEN}", Verdict.PASS),
        (f"bearer  {TOKEN} ", Verdict.PASS),
    ],
)
def test_every_group_but_health_asks_for_the_token(group, header, verdict):
    headers = {} if header is None else {b"authorization": header.encode()}
    assert Gate(TOKEN).judge(group, headers, PortRules(control=True)) is verdict


def test_probes_carry_no_token_and_name_any_host():
    rules = PortRules(hosts=frozenset())
    assert (
        Gate(TOKEN).judge(EndpointGroup.HEALTH, {b"host": b"10.0.0.7:8000"}, rules) is Verdict.PASS
    )


@pytest.mark.parametrize(
    ("host", "passes"),
    [
        (b"localhost", True),
        (b"LocalHost.:8000", True),
        (b"127.0.0.1:8000", True),
        (b"127.8.9.1", True),
        (b"[::1]", True),
        (b"[::1]:8000", True),
        (b"[0:0:0:0:0:0:0:1]:8000", True),
        (b"[::ffff:127.0.0.1]:80", True),
        (b"Models.Example:8000", True),
        (b"models.example.", True),
        (b"evil.example", False),
        (b"localhost.evil.example", False),
        (b"localhost:8000@evil.example", False),
        (b"localhost:80:80", False),
        (b"127.0.0.1.evil.example", False),
        (b"10.0.0.1", False),
        (b"0.0.0.0:8000", False),
        (b"[::2]", False),
        (b"[::1", False),
        (b"[localhost]", False),
        (b"::1", False),
        (b"", False),
        (b"\xff\x00", False),
        (b"localhost, evil.example", False),
    ],
)
def test_a_host_is_compared_without_port_case_and_final_dot(host, passes):
    rules = PortRules(hosts=frozenset({"models.example"}))
    expected = Verdict.PASS if passes else Verdict.FOREIGN_HOST
    assert Gate(None).judge(EndpointGroup.METADATA, {b"host": host}, rules) is expected
    assert (
        Gate(None).judge(EndpointGroup.METADATA, {b"host": host}, PortRules(hosts=None))
        is Verdict.PASS
    )


@pytest.mark.parametrize("group", list(EndpointGroup))
@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({b"origin": b"https://evil.example"}, False),
        ({b"origin": b"null"}, False),
        ({b"origin": b""}, False),
        ({b"origin": b"https://app.example:8443"}, True),
        ({b"origin": b"https://APP.example:8443", b"sec-fetch-site": b"cross-site"}, True),
        ({b"origin": b"https://app.example:8443, https://evil.example"}, False),
        ({b"sec-fetch-site": b"cross-site"}, False),
        ({b"sec-fetch-site": b"Cross-Site, none"}, False),
        ({b"sec-fetch-site": b"same-origin"}, True),
        ({b"sec-fetch-site": b"none"}, True),
    ],
)
def test_pages_of_origins_that_are_not_listed_are_refused_everywhere(group, headers, passes):
    rules = PortRules(origins=frozenset({b"https://app.example:8443"}), control=True)
    expected = Verdict.PASS if passes else Verdict.FOREIGN_PAGE
    assert Gate(None).judge(group, headers, rules) is expected


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        (None, Verdict.PASS),
        (b"application/json", Verdict.PASS),
        (b"text/plain;charset=UTF-8", Verdict.PAGE_CONTENT),
        (b"TEXT/PLAIN", Verdict.PAGE_CONTENT),
        (b"multipart/form-data; boundary=x", Verdict.PAGE_CONTENT),
        (b"application/x-www-form-urlencoded", Verdict.PAGE_CONTENT),
    ],
)
def test_control_takes_no_content_that_a_page_may_send_unasked(kind, verdict):
    headers = {} if kind is None else {b"content-type": kind}
    gate, rules = Gate(None), PortRules(control=True)
    assert gate.judge(EndpointGroup.CONTROL, headers, rules) is verdict
    assert gate.judge(EndpointGroup.INFERENCE, headers, rules) is Verdict.PASS
    assert gate.judge(EndpointGroup.CONTROL, headers, PortRules()) is Verdict.CONTROL_OFF


def settings(**wanted):
    return ServerSettings(
        token_file=Path("token") if wanted.pop("token", False) else None, **wanted
    )


@pytest.mark.parametrize(
    ("wanted", "ports", "control_port"),
    [
        ({}, False, True),
        ({"control_port": 0}, False, True),
        ({"token": True}, False, True),
        ({"token": True, "allow_control": True}, True, True),
        ({"allow_control": True, "control_port": 0}, False, True),
    ],
)
def test_control_is_for_the_control_port_or_behind_a_token(wanted, ports, control_port):
    chosen = settings(**wanted)
    assert chosen.rules().control is ports
    assert chosen.rules(control_port=True).control is control_port


@pytest.mark.parametrize("wanted", [{"allow_control": True}, {"allow_uploads": True}])
def test_control_flags_without_a_token_say_what_is_missing(wanted):
    with pytest.raises(ValueError, match=r"^allow_\w+: needs .*token.*") as caught:
        settings(**wanted)
    assert "--control-port" in str(caught.value)


@pytest.mark.parametrize(
    ("host", "allowed", "hosts"),
    [
        ("127.0.0.1", (), frozenset()),
        ("::1", (), frozenset()),
        ("LOCALHOST", ("A.example.",), frozenset({"a.example"})),
        ("0.0.0.0", (), None),
        ("::", (), None),
        ("0.0.0.0", ("a.example",), frozenset({"a.example"})),
    ],
)
def test_hosts_are_checked_on_loopback_or_where_they_are_stated(host, allowed, hosts):
    assert settings(host=host, allowed_hosts=allowed).rules().hosts == hosts
    assert settings(host=host, allowed_hosts=allowed).rules(control_port=True).hosts is not None


@pytest.mark.parametrize(
    ("stated", "hosts"),
    [
        ({"advertise": "GPU-2.example"}, {"gpu-2.example"}),
        ({"host": "10.0.0.2", "allowed_hosts": ("a.example",)}, {"a.example", "10.0.0.2"}),
        ({"host": "0.0.0.0", "allowed_hosts": ("a.example",)}, {"a.example"}),
        ({"host": "fd00::2", "allowed_hosts": ("a.example",)}, {"a.example", "fd00::2"}),
        ({"host": "0.0.0.0", "advertise": "10.0.0.2"}, None),
    ],
)
def test_the_host_to_which_peers_send_clients_is_allowed(stated, hosts):
    assert settings(machine="m", **stated).rules().hosts == hosts
    assert "gpu-2.example" not in settings(machine="m", **stated).rules(control_port=True).hosts
    assert "gpu-2.example" not in (settings(**stated).rules().hosts or ())


@pytest.mark.parametrize(
    "wanted",
    [
        {"allowed_hosts": ("*",)},
        {"allowed_hosts": ("https://a.example",)},
        {"allowed_hosts": ("",)},
        {"allowed_origins": ("*",)},
        {"allowed_origins": ("null",)},
        {"allowed_origins": ("app.example",)},
        {"allowed_origins": ("https://app.example/path",)},
    ],
)
def test_hosts_and_origins_that_are_none_are_named(wanted):
    with pytest.raises(ValueError, match=f"^{next(iter(wanted))}: expected"):
        settings(**wanted)


def test_the_token_is_the_first_line_of_its_file(tmp_path):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\nsecond line\n")
    assert read_token(file) == TOKEN


@pytest.mark.parametrize(
    "content", ["", "short\n", "with some spaces inside\n", "ünïcödé-tökén-xyz\n"]
)
def test_a_bad_token_file_is_refused_without_telling_the_token(tmp_path, content):
    file = tmp_path / "token"
    file.write_text(content)
    with pytest.raises(SecurityError, match="token-file") as caught:
        read_token(file)
    assert not content.strip() or content.strip() not in str(caught.value)


def test_missing_files_are_named_by_setting(tmp_path):
    with pytest.raises(SecurityError, match=r"--token-file .*: cannot be read: No such file"):
        read_token(tmp_path / "nowhere")
    pem = tmp_path / "p"
    pem.write_bytes(b"x")
    for files, setting in (
        (TlsFiles(tmp_path / "c", pem), "--tls-cert .*/c"),
        (TlsFiles(pem, tmp_path / "k"), "--tls-key .*/k"),
        (TlsFiles(pem, pem, tmp_path / "a"), "--tls-client-ca .*/a"),
    ):
        with pytest.raises(SecurityError, match=f"{setting}: cannot be read: No such file"):
            files.read()
    with pytest.raises(SecurityError, match=r"--tls-cert .* and --tls-key .*: expected PEM"):
        TlsFiles(pem, pem).context()


# ── reloaded ─────────────────────────────────────────────────────────────────────────────────────


def written(path, text, mode=0o600):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path


def issued(folder, authority):
    """A certificate for localhost and its key, in files."""
    issued_certificate = authority.issue_cert("localhost")
    certificate = written(folder / "cert.pem", issued_certificate.cert_chain_pems[0].bytes())
    return TlsFiles(
        certificate, written(folder / "key.pem", issued_certificate.private_key_pem.bytes())
    )


def test_a_new_token_is_taken_and_a_bad_one_is_not(tmp_path, caplog):
    file = written(tmp_path / "token", TOKEN)
    held = Credentials(file, None)

    def verdict(token):
        return held.gate.judge(
            EndpointGroup.METADATA, {b"authorization": f"Bearer {token}".encode()}
        )

    assert verdict(TOKEN) is Verdict.PASS
    assert caplog.text == ""
    written(file, "another-horse-battery")
    held.reload()
    assert verdict(TOKEN) is Verdict.WRONG_TOKEN
    assert verdict("another-horse-battery") is Verdict.PASS
    for bad in ("short", ""):
        written(file, bad)
        held.reload()
        assert verdict("another-horse-battery") is Verdict.PASS
    file.unlink()
    held.reload()
    assert verdict("another-horse-battery") is Verdict.PASS
    assert caplog.text.count("keeping the previous token") == 3
    assert "another-horse" not in caplog.text


@pytest.mark.parametrize(("mode", "warned"), [(0o600, 0), (0o640, 0), (0o644, 1), (0o604, 1)])
def test_secrets_that_everybody_may_read_are_warned_about(tmp_path, caplog, mode, warned):
    tls = issued(tmp_path, trustme.CA())
    tls.key.chmod(mode)
    Credentials(written(tmp_path / "token", TOKEN, mode), tls)
    for setting in ("token-file", "tls-key"):
        assert caplog.text.count(f"{setting}: every user of this machine can read it") == warned


def test_peers_have_a_token_of_their_own_that_may_change(tmp_path, caplog):
    file = written(tmp_path / "peers", TOKEN)
    held = Credentials(written(tmp_path / "token", "clients-horse-battery"), None, file)

    def verdict(token, address="127.0.0.1"):
        return held.peers.judge({b"authorization": f"Bearer {token}".encode()}, address, None)

    assert verdict(TOKEN) is Verdict.PASS
    assert verdict("clients-horse-battery") is Verdict.WRONG_TOKEN
    assert held.gate.judge(EndpointGroup.PEERS, {}) is Verdict.PASS  # judged by `peers` alone
    written(file, "another-horse-battery")
    held.reload()
    assert verdict(TOKEN) is Verdict.WRONG_TOKEN
    assert verdict("another-horse-battery", "10.0.0.1") is Verdict.PASS
    written(file, "short")
    held.reload()
    assert "--peer-token-file" in caplog.text
    assert "keeping the previous token of peers" in caplog.text


@pytest.mark.parametrize(
    ("clients_have_token", "verdict"), [(0, Verdict.PASS), (1, Verdict.NO_PEER)]
)
def test_without_credentials_peers_are_local_where_clients_need_none(
    tmp_path, clients_have_token, verdict
):
    file = written(tmp_path / "token", TOKEN)
    held = Credentials(file if clients_have_token else None, None)
    assert held.peers.judge({}, "127.0.0.1", None) is verdict
    assert held.peers.judge({}, "10.0.0.1", None) is Verdict.NO_PEER
    assert not held.peers.is_remote


def test_a_certificate_and_a_key_that_do_not_belong_together_are_not_taken(tmp_path, caplog):
    authority = trustme.CA()
    tls = issued(tmp_path, authority)
    held = Credentials(None, tls)
    context, pem = held.context, held.pem
    written(tls.certificate, authority.issue_cert("localhost").cert_chain_pems[0].bytes())
    held.reload()
    assert held.pem == pem
    assert "cannot be used: they do not match" in caplog.text
    assert "keeping the previous certificate" in caplog.text
    issued(tmp_path, authority)
    held.reload()
    assert held.pem == (tls.certificate.read_bytes(), tls.key.read_bytes(), None, None) != pem
    assert held.context is context


def test_files_are_looked_at_and_taken_once_they_rest(tmp_path, monkeypatch):
    """A file that changes at every look is not taken before it rests."""
    file = written(tmp_path / "token", TOKEN)
    held = Credentials(file, None)
    steps = iter(["first-horse-battery", "second-horse-battery", None, None])
    tokens = []

    async def sleep(_):
        text = next(steps, "end")
        tokens.append(held.gate.token)
        if text == "end":
            raise asyncio.CancelledError
        if text is not None:
            written(file, text)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(held.watch())
    assert tokens == [TOKEN, TOKEN, TOKEN, "second-horse-battery", "second-horse-battery"]


async def to_thread(work):
    return work()


def greeted(server, client):
    """Whether a handshake between two contexts succeeds, both ways."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return False
    return ends[0].getpeercert() is not None


def test_a_new_authority_of_clients_is_taken(tmp_path):
    ours, first, second = trustme.CA(), trustme.CA(), trustme.CA()
    tls = issued(tmp_path, ours)
    authority = written(tmp_path / "ca.pem", first.cert_pem.bytes())
    held = Credentials(None, TlsFiles(tls.certificate, tls.key, authority))

    def known(signed):
        client = ssl.create_default_context()
        ours.configure_trust(client)
        signed.issue_cert("client.example").configure_cert(client)
        return greeted(held.context, client)

    assert (known(first), known(second)) == (True, False)
    written(authority, second.cert_pem.bytes())
    held.reload()
    assert (known(first), known(second)) == (False, True)
