"""The gate: decides which calls are allowed, on every port (HTTP, gRPC, metrics, control)."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import re
import ssl
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from slacktide._files import open_file
from slacktide.frontends.ports import EndpointGroup

log = logging.getLogger("slacktide.server")

LOOK_S = 2.0
"""Seconds between checks of the files of `Credentials`."""
MIN_TOKEN_CHARACTERS = 16
OPEN_GROUPS = frozenset({EndpointGroup.HEALTH})
"""Groups that need no token and accept any Host. Probes learn only whether the server is live and
ready, and whether a named model is ready."""
GATE_HEADERS = (b"authorization", b"content-type", b"host", b"origin", b"sec-fetch-site")
"""Headers that the gate reads."""
_PAGE_CONTENT = frozenset(
    {b"text/plain", b"multipart/form-data", b"application/x-www-form-urlencoded"}
)
"""Content types that browsers let any page send anywhere without asking the receiver first."""
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]*))(?::[0-9]{0,5})?")
_MOST_HOST = 300
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@*\s,]+")


class SecurityError(ValueError):
    """A token or certificate file that cannot be used. The message names the setting."""


class Verdict(Enum):
    """The gate's decision. For refused calls, `value` is the message."""

    PASS = "pass"
    NO_TOKEN = "a bearer token is required"
    WRONG_TOKEN = "the bearer token is not valid"
    FOREIGN_PAGE = "the request comes from a web page whose origin is not in --allowed-origins"
    FOREIGN_HOST = (
        "the host in the Host header or request target is neither this machine nor in "
        "--allowed-hosts"
    )
    CONTROL_OFF = (
        "models cannot be loaded or unloaded here; start the server with --allow-control and "
        "--token-file, or with --control-port and use that port"
    )
    NO_PEER = (
        "links from other machines need --peer-token-file or a certificate that names a peer; with "
        "--token-file, so do those from this machine"
    )
    PAGE_CONTENT = "a load or unload call has a JSON body: expected Content-Type: application/json"

    @property
    def status(self) -> int:
        """HTTP status of the refusal."""
        if self in (Verdict.NO_TOKEN, Verdict.WRONG_TOKEN):
            return 401
        return 415 if self is Verdict.PAGE_CONTENT else 403


_PASS = Verdict.PASS
_CONTROL = EndpointGroup.CONTROL
_PEERS = EndpointGroup.PEERS
# Bound to names because every request uses them, and looking them up on the class is slower.


@dataclass(frozen=True, slots=True)
class PortRules:
    """The rules of one port."""

    hosts: frozenset[str] | None = None
    """Names allowed in a Host header besides those of the loopback interface; None: any."""
    origins: frozenset[bytes] = frozenset()
    """Origins whose pages may use the port. Requests without Origin are judged by
    Sec-Fetch-Site."""
    control: bool = False
    """Whether models may be loaded and unloaded."""


Authorize = Callable[[EndpointGroup, Mapping[bytes, bytes]], Verdict]
"""The gate of a port. It gets the group and headers of every call (lower-case names, at least those
of `GATE_HEADERS`) before anything else is read."""


class Gate:
    """Judges calls by their headers, before anything else is read.

    A web page can make its visitor's browser send requests to this machine; the browser then sets
    Origin or Sec-Fetch-Site. If the page's name was rebound to this machine's address, the browser
    treats the request as same-origin, but the Host header has the page's name.
    """

    def __init__(self, token: str | None) -> None:
        """`token`: required of all calls; None: no token. It may be replaced at any time."""
        self.token = token

    def on(self, rules: PortRules) -> Authorize:
        """The gate of a port with these rules."""
        return lambda group, headers: self.judge(group, headers, rules)

    def judge(
        self, group: EndpointGroup, headers: Mapping[bytes, bytes], rules: PortRules = PortRules()
    ) -> Verdict:
        """Judge a call. `headers`: by lower-case name, at least those of `GATE_HEADERS`."""
        if b"origin" in headers:
            if headers[b"origin"].lower() not in rules.origins:
                return Verdict.FOREIGN_PAGE
        elif b"sec-fetch-site" in headers and b"cross-site" in headers[b"sec-fetch-site"].lower():
            return Verdict.FOREIGN_PAGE
        if group in OPEN_GROUPS:
            return _PASS
        host, hosts = headers.get(b"host"), rules.hosts
        # Browsers always send Host, so a request without one (HTTP/1.0, gRPC) is not from a page.
        if not (hosts is None or host is None or _names_us(host, hosts)):
            return Verdict.FOREIGN_HOST
        if group is _PEERS:  # judged later, by the credentials of peers
            return _PASS
        verdict = _PASS if self.token is None else judge_token(headers, self.token)
        if group is _CONTROL and verdict is _PASS:
            if not rules.control:
                return Verdict.CONTROL_OFF
            kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
            if kind in _PAGE_CONTENT:
                return Verdict.PAGE_CONTENT
        return verdict


class PeerAccess:
    """Judges the servers that open links. The tokens of clients do not let them in, and a peer's
    credentials open nothing else."""

    def __init__(
        self, token: str | None = None, names: frozenset[str] = frozenset(), *, local: bool = True
    ) -> None:
        """`token`: required of every peer; it may be replaced at any time. `names`: without a
        token, a peer's verified certificate must contain one of them. `local`: if there is neither,
        whether programs on this machine may open links."""
        self.token, self.names, self.local = token, names, local

    @property
    def is_remote(self) -> bool:
        """Whether other machines can be peers."""
        return self.token is not None or bool(self.names)

    def judge(
        self, headers: Mapping[bytes, bytes], address: str, certificate: Mapping[str, Any] | None
    ) -> Verdict:
        """Judge a link from `address`. `certificate`: as `SSLSocket.getpeercert` returns it."""
        if self.token is not None:
            return judge_token(headers, self.token)
        if self.names:
            passes = not self.names.isdisjoint(_names_in(certificate or {}))
        else:
            passes = self.local and is_loopback(address)
        return _PASS if passes else Verdict.NO_PEER


def _names_in(certificate: Mapping[str, Any]) -> list[str]:
    """The names and addresses of a certificate, in lower case."""
    names = [name for kind, name in certificate.get("subjectAltName", ()) if kind != "URI"]
    for fields in certificate.get("subject", ()):
        names += [name for kind, name in fields if kind == "commonName"]
    return [name.lower() for name in names]


def judge_token(headers: Mapping[bytes, bytes], expected: str) -> Verdict:
    """Whether the headers hold the `expected` bearer token."""
    scheme, _, token = headers.get(b"authorization", b"").strip().partition(b" ")
    if scheme.lower() != b"bearer":
        return Verdict.NO_TOKEN
    # Constant time, however much of the token is right.
    right = hmac.compare_digest(token.strip(), expected.encode())
    return _PASS if right else Verdict.WRONG_TOKEN


@lru_cache(maxsize=64)
def _names_us(host: bytes, hosts: frozenset[str]) -> bool:
    name = host_name(host.decode("latin-1"))
    return name in hosts or is_loopback(name)


def host_name(text: str) -> str:
    """The name or address in a Host header, in lower case, without port and final dot. Empty if
    malformed."""
    match = _HOST.fullmatch(text.strip().lower())
    if match is None or len(text) > _MOST_HOST:
        return ""
    name = match[1] or match[2].removesuffix(".")
    with contextlib.suppress(ValueError):
        return str(ip_address(name))
    return "" if match[1] else name


def is_loopback(name: str) -> bool:
    """Whether a name (as `host_name` returns it) can only mean this machine."""
    if name == "localhost":
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def checked_origin(text: str) -> bytes:
    """An origin as browsers write it, in lower case. Raises ValueError if malformed."""
    origin = text.strip().lower().removesuffix("/")
    if not _ORIGIN.fullmatch(origin):
        raise ValueError(f"expected origins such as https://app.example:8080, got {text!r}")
    return origin.encode()


def read_token(path: Path, setting: str = "token-file") -> str:
    """The token in a file's first line. Raises SecurityError."""
    try:
        lines = _content(setting, path).decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise SecurityError(f"--{setting} {path}: expected ASCII") from None
    token = lines[0].strip() if lines else ""
    if len(token) < MIN_TOKEN_CHARACTERS or not token.isprintable() or " " in token:
        raise SecurityError(
            f"--{setting} {path}: expected one line of at least {MIN_TOKEN_CHARACTERS} printable "
            f"characters without spaces"
        )
    return token


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of the server's certificate."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    """If set, clients must present a certificate signed by it."""
    peer_ca: Path | None = None
    """Signs the certificates of peers; None: `client_ca`, or the system's authorities."""

    def context(self, *protocols: str) -> ssl.SSLContext:
        """An SSL context for servers that offers `protocols` (ALPN). Raises SecurityError."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        if protocols:
            context.set_alpn_protocols(protocols)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            mismatch = "they do not match" if "MISMATCH" in str(error) else "expected PEM"
            reason = mismatch if isinstance(error, ssl.SSLError) else error.strerror
            files = f"--tls-cert {self.certificate} and --tls-key {self.key}"
            raise SecurityError(f"{files}: cannot be used: {reason}") from None
        if self.client_ca is not None:
            _trust(context, "tls-client-ca", self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        if self.peer_ca is not None and "h2" in protocols:  # peers link on the gRPC port alone
            _trust(context, "peer-ca", self.peer_ca)
            context.verify_mode = max(context.verify_mode, ssl.CERT_OPTIONAL)
        return context

    def dialling_context(self) -> ssl.SSLContext:
        """A context for a link to a peer, which shows it the certificate. Raises SecurityError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_alpn_protocols(("h2",))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        authority = self.peer_ca or self.client_ca
        if authority is None:
            context.load_default_certs()
        else:
            _trust(context, "peer-ca", authority)
        try:
            context.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            raise SecurityError(f"--tls-cert {self.certificate}: cannot be used: {error}") from None
        return context

    def read(self) -> tuple[bytes | None, ...]:
        """Contents of the files: certificate chain, key, CAs. Raises SecurityError."""
        chain, key = _content("tls-cert", self.certificate), _content("tls-key", self.key)
        ca = None if self.client_ca is None else _content("tls-client-ca", self.client_ca)
        return chain, key, ca, None if self.peer_ca is None else _content("peer-ca", self.peer_ca)


class Credentials:
    """The token and certificate, reloaded while the server runs. If a file cannot be used, an error
    is logged and the previous content stays in force. Connections keep the certificate that they
    began with."""

    def __init__(
        self,
        token_file: Path | None,
        tls: TlsFiles | None,
        peer_token_file: Path | None = None,
        peer_names: frozenset[str] = frozenset(),
    ) -> None:
        """Load the files. `peer_names`: see `PeerAccess`. Raises SecurityError."""
        self.gate = Gate(None)
        self.peers = PeerAccess(names=peer_names, local=token_file is None)
        self.pem: tuple[bytes | None, ...] | None = None
        """Contents of the TLS files; None: no TLS."""
        self.context: ssl.SSLContext | None = None
        """Context for asyncio's servers: the object stays the same and serves the latest
        certificate."""
        self.http2_context: ssl.SSLContext | None = None
        """Context for servers that speak HTTP/2."""
        self._token_file, self._tls, self._peer_token_file = token_file, tls, peer_token_file
        paths = (
            *(token_file, peer_token_file),
            *((tls.certificate, tls.key, tls.client_ca, tls.peer_ca) if tls else ()),
        )
        self.files = tuple(path for path in paths if path is not None)
        self._loaded_stamps = self._latest_stamps = self._stamps()
        self._load_token()
        self._load_peer_token()
        self._load_certificate()

    def reload(self) -> None:
        """Load the files again, except those that cannot be used."""
        for secret, take, current in (
            ("token", self._load_token, self.gate.token),
            ("token of peers", self._load_peer_token, self.peers.token),
            ("certificate", self._load_certificate, self.pem),
        ):
            try:
                if take() != current:
                    log.info("reloaded the %s", secret)
            except SecurityError as error:
                log.error("%s; keeping the previous %s", error, secret)

    async def watch(self) -> None:
        """Reload whenever the files have changed and then stayed unchanged for one check: a pair of
        files is written one after the other."""
        while self.files:
            await asyncio.sleep(LOOK_S)
            now = await asyncio.to_thread(self._stamps)
            if now == self._latest_stamps != self._loaded_stamps:
                self._loaded_stamps = now
                await asyncio.to_thread(self.reload)
            self._latest_stamps = now

    def dialling_context(self) -> ssl.SSLContext | None:
        """A context with the files as they are now; None: no TLS. Raises SecurityError."""
        return None if self._tls is None else self._tls.dialling_context()

    def _stamps(self) -> list[tuple[float, ...]]:
        """Inode, size and time of each file, which differ once it changes; empty if missing."""
        file_stats = [path.stat() if path.exists() else None for path in self.files]
        return [(s.st_ino, s.st_size, s.st_mtime_ns) if s else () for s in file_stats]

    def _load_token(self) -> object:
        if self._token_file is not None:
            self.gate.token = read_token(self._token_file)
            _warn_if_open("token-file", self._token_file)
        return self.gate.token

    def _load_peer_token(self) -> object:
        if self._peer_token_file is not None:
            self.peers.token = read_token(self._peer_token_file, "peer-token-file")
            _warn_if_open("peer-token-file", self._peer_token_file)
        return self.peers.token

    def _load_certificate(self) -> object:
        if self._tls is not None:
            pem, context = self._tls.read(), self._tls.context()
            http2_context = self._tls.context("h2")
            if self._tls.read() != pem:
                raise SecurityError("--tls-cert, --tls-key: the files changed while they were read")
            self.pem, self.context = pem, self.context or context
            self.http2_context = self.http2_context or http2_context
            # OpenSSL calls this at each handshake, even if the client names no server.
            for current, latest in ((self.context, context), (self.http2_context, http2_context)):
                current.sni_callback = lambda connection, *_, latest=latest: setattr(
                    connection, "context", latest
                )
            _warn_if_open("tls-key", self._tls.key)
        return self.pem


def _trust(context: ssl.SSLContext, setting: str, path: Path) -> None:
    """Verify certificates by the authorities in a file. Raises SecurityError."""
    try:
        context.load_verify_locations(path)
    except OSError:
        raise SecurityError(f"--{setting} {path}: cannot be used: expected PEM") from None


def _warn_if_open(setting: str, path: Path) -> None:
    if path.stat().st_mode & stat.S_IROTH:
        log.warning("%s: every user of this machine can read it (use chmod 600)", setting)


def _content(setting: str, path: Path) -> bytes:
    """Read a file. Raises SecurityError."""
    try:
        with open_file(path) as file:
            return file.read()
    except OSError as error:
        raise SecurityError(f"--{setting} {path}: cannot be read: {error.strerror}") from None
