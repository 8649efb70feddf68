"""The gate: who may call what, the same on every port (HTTP, gRPC, metrics)."""

from __future__ import annotations

import hmac
import ssl
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from slacktide.server.groups import Group

MIN_TOKEN_CHARACTERS = 16
OPEN_GROUPS = frozenset({Group.HEALTH})
"""Probes carry no token. They learn whether the server lives and is ready, and of a model whose
name they know, whether it is."""


class SecurityError(ValueError):
    """A token or certificate file that cannot be used. The message names the setting."""


class Verdict(Enum):
    """What the gate says."""

    PASS = "pass"
    NO_TOKEN = "a bearer token is required"
    WRONG_TOKEN = "the bearer token is not valid"


class Gate:
    """Lets a call pass if it carries the token; without a token to ask for, every call."""

    def __init__(self, token: str | None) -> None:
        self._token = None if token is None else token.encode()

    @property
    def guarded(self) -> bool:
        return self._token is not None

    def judge(self, group: Group, authorization: str | bytes | None) -> Verdict:
        """`authorization` is the value of the header or metadata of that name."""
        if self._token is None or group in OPEN_GROUPS:
            return Verdict.PASS
        if authorization is None:
            return Verdict.NO_TOKEN
        value = authorization.encode() if isinstance(authorization, str) else authorization
        scheme, _, token = value.strip().partition(b" ")
        if scheme.lower() != b"bearer":
            return Verdict.NO_TOKEN
        # Takes the same time however much of the token is right.
        return (
            Verdict.PASS
            if hmac.compare_digest(token.strip(), self._token)
            else (Verdict.WRONG_TOKEN)
        )


def read_token(path: Path) -> str:
    """The token in a file: its first line. Raises SecurityError."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SecurityError(f"token-file: cannot be read: {_why(error)}") from None
    token = lines[0].strip() if lines else ""
    if len(token) < MIN_TOKEN_CHARACTERS or not token.isprintable() or " " in token:
        raise SecurityError(
            f"token-file: expected one line of at least {MIN_TOKEN_CHARACTERS} printable "
            f"characters without spaces"
        )
    return token


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of this server's certificate."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    """If given, clients must show a certificate signed by it."""

    def context(self) -> ssl.SSLContext:
        """For asyncio's servers. Raises SecurityError."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as error:
            raise SecurityError(f"tls-cert, tls-key: cannot be used: {_why(error)}") from None
        return context

    def read(self) -> tuple[bytes, bytes, bytes | None]:
        """Contents: certificate chain, key, client CA. Raises SecurityError."""
        try:
            ca = None if self.client_ca is None else self.client_ca.read_bytes()
            return self.certificate.read_bytes(), self.key.read_bytes(), ca
        except OSError as error:
            raise SecurityError(f"tls-cert, tls-key: cannot be read: {_why(error)}") from None


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)
