"""Settings of peers that are refused, by the flag to change."""

from pathlib import Path

import pytest

from slacktide.domain.options import OptionError
from slacktide.frontends.common.security import TlsFiles
from slacktide.server.settings import ServerSettings

REMOTE = ("10.0.0.2:8001",)
TLS = TlsFiles(Path("a.pem"), Path("a.key"))


@pytest.mark.parametrize(
    ("settings", "field", "sentence"),
    [
        ({"machine": "a b"}, "machine", "expected at most 128 letters"),
        ({"machine": "a", "grpc_port": None}, "grpc_port", "peers need it"),
        ({"machine": "a", "advertise": "h:8000"}, "advertise", "without port, got 'h:8000'"),
        ({"machine": "a", "advertise": "10.0.0.1:80"}, "advertise", "a host or an address"),
        ({"machine": "a", "advertise": "*"}, "advertise", "a host or an address"),
        ({"peers": ("10.0.0.2:0",)}, "peers", "expected an address such as 10.0.0.2:8001"),
        ({"peers": REMOTE}, "peers", "10.0.0.2:8001 may be another machine: needs a token"),
        ({"peers": ("dns:peers",)}, "peers", "dns:peers may be another machine"),
        ({"peers": REMOTE, "peer_names": ("a/b",)}, "peer_names", "expected names such as"),
    ],
)
def test_peers_that_cannot_be_used_are_refused(settings, field, sentence):
    with pytest.raises(OptionError) as caught:
        ServerSettings(**settings).check()
    assert caught.value.problems[0][0] == field
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "field", "sentence"),
    [
        ({"peer_names": ("peers.lan",)}, "peer_names", "needs --tls-cert and --tls-key"),
        ({"peer_ca": Path("ca.pem")}, "peer_ca", "needs --tls-cert and --tls-key"),
        (
            {
                "peer_ca": Path("ca.pem"),
                "peer_names": ("peers.lan",),
                "tls": TlsFiles(TLS.certificate, TLS.key, client_ca=Path("clients.pem")),
            },
            "peer_ca",
            "with --tls-client-ca it needs --peer-token-file",
        ),
    ],
)
def test_certificates_that_cannot_be_told_apart_are_refused(settings, field, sentence):
    with pytest.raises(OptionError) as caught:
        _ = ServerSettings(**settings).tls_files
    assert caught.value.problems[0][0] == field
    assert sentence in str(caught.value)


def test_a_token_tells_peers_from_clients():
    files = TlsFiles(TLS.certificate, TLS.key, client_ca=Path("clients.pem"))
    settings = ServerSettings(
        tls=files, peer_ca=Path("ca.pem"), peer_token_file=Path("token")
    ).tls_files
    assert settings is not None
    assert settings.peer_ca == Path("ca.pem")
