"""The cases of h2spec in our own words and frames, and the page bench/results/http2.md.

h2spec (https://github.com/summerwind/h2spec, its last release of 2020) is the usual judge of HTTP/2
servers. The list of its cases is taken from it, their sections, and what each demands; nothing
else. `test_conformance.py` plays every case against a server, over a socket.

    python tests/frontends/http2/conformance.py > bench/results/http2.md
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from slacktide.frontends.http2 import frames as f
from slacktide.frontends.http2.frames import ErrorCode as E

Step = bytes | Literal["answer", "data", "pong"]
"""Bytes to send; or what to wait for: the end of an answer, some of its data, the answer to a PING
that is sent for it."""

ANSWER: Final = "answer"
NOTHING: Final = "no effect"
PONG: Final = "PING answered"
ACKNOWLEDGED: Final = "SETTINGS acknowledged"
OPENING: Final = "SETTINGS first"


@dataclass(frozen=True)
class Case:
    """`demand`: what h2spec accepts, as outcomes; an error of the connection will do for one of a
    stream. `result`: what the server does. `bare`: the steps begin with the client's preface."""

    section: str
    words: str
    demand: tuple[str, ...]
    result: str
    steps: tuple[Step, ...]
    bare: bool = False
    note: str = ""

    @property
    def meets(self) -> bool:
        _, _, code = self.result.partition(" ")
        by_connection = self.result.startswith("GOAWAY") and f"RST_STREAM {code}" in self.demand
        return self.result in self.demand or by_connection


def goaway(*codes: E) -> tuple[str, ...]:
    return tuple(f"GOAWAY {code.name}" for code in codes)


def reset(*codes: E) -> tuple[str, ...]:
    return tuple(f"RST_STREAM {code.name}" for code in codes)


PROTOCOL, CLOSED = E.PROTOCOL_ERROR, E.STREAM_CLOSED
BAD, CALM, WINDOW = E.FRAME_SIZE_ERROR, E.COMPRESSION_ERROR, E.FLOW_CONTROL_ERROR

BLOCK = f.header_block(
    None,
    (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/inference.GRPCInferenceService/ServerMetadata"),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    ),
)
MESSAGE = bytes(5)
"""An empty message of gRPC: what ServerMetadata takes."""
ENDS = f.END_HEADERS | f.END_STREAM


def fields(*changes: tuple[bytes, bytes], drop: bytes = b"", plain: bool = True) -> bytes:
    """The block of a GET, with fields more, or one less."""
    pairs = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"a")]
    kept = [pair for pair in pairs if pair[0] != drop]
    return f.header_block(None, (*kept, *changes) if plain else (*changes, *kept))


def head(id: int = 1, flags: int = ENDS, block: bytes = fields()) -> bytes:
    return f.frame(f.HEADERS, flags, id, block)


def opened(id: int = 1) -> bytes:
    """A call whose message is still to come."""
    return head(id, f.END_HEADERS, BLOCK)


def data(payload: bytes = MESSAGE, id: int = 1, flags: int = f.END_STREAM) -> bytes:
    return f.frame(f.DATA, flags, id, payload)


def priority(on: int, parent: int = 0, weight: int = 15, exclusive: bool = False) -> bytes:
    word = parent | (1 << 31 if exclusive else 0)
    return f.frame(f.PRIORITY, 0, on, f.LONG.pack(word) + bytes((weight,)))


def cut(count: int, id: int = 1) -> bytes:
    """A request's block in a HEADERS and `count` CONTINUATION frames."""
    block, size = fields(), 4
    pieces = [block[at : at + size] for at in range(size, size * count, size)]
    pieces.append(block[size * count :])
    frames = [head(id, f.END_STREAM, block[:size])]
    for number, piece in enumerate(pieces, 1):
        last = f.END_HEADERS if number == len(pieces) else 0
        frames.append(f.frame(f.CONTINUATION, last, id, piece))
    return b"".join(frames)


def window(size: int) -> bytes:
    return f.settings(((f.INITIAL_WINDOW, size),))


CALL = opened() + data()
HELD = window(0) + CALL
"""A call that has ended on the client's side, and whose answer waits for a window."""
LET_GO = f.window_update(1, 1000)
CONTINUED = f.frame(f.CONTINUATION, f.END_HEADERS, 1, fields())
PING = f.frame(f.PING, 0, 0, b"8 bytes!")
ODD = f.frame(0x16, 0, 0, b"?" * 8)
TINY = b"\0\x01a"
"""A literal field called `a`; its value follows."""


def generic() -> Iterator[Case]:
    """How frames, requests and header fields usually come."""

    def ok(section: str, words: str, *steps: Step, result: str = ANSWER) -> Case:
        return Case(f"generic/{section}", words, (result,), result, steps)

    yield ok("1", "the client's preface", result=NOTHING)
    yield ok("2", "PRIORITY for a stream that is idle", priority(3), head(), result=ANSWER)
    yield ok("2", "WINDOW_UPDATE for a stream that its client has ended", HELD, LET_GO)
    yield ok("2", "PRIORITY for such a stream", HELD, priority(1), LET_GO)
    yield ok("2", "RST_STREAM for such a stream", HELD, f.reset(1, E.CANCEL), result=NOTHING)
    yield ok("2", "PRIORITY for a stream that is closed", CALL, "answer", priority(1),
             result=NOTHING)  # fmt: skip
    yield ok("3.1", "a body in one DATA frame", CALL)
    yield ok("3.1", "a body in several", opened(), data(b"\0\0", flags=0), data(b"\0\0\0"))
    yield ok("3.1", "a body with padding", opened(),
             data(b"\x03" + MESSAGE + bytes(3), flags=f.END_STREAM | f.PADDED))  # fmt: skip
    yield ok("3.2", "HEADERS", head())
    yield ok("3.2", "HEADERS with padding", head(1, ENDS | f.PADDED, b"\x03" + fields() + bytes(3)))
    yield ok("3.2", "HEADERS with a priority", head(1, ENDS | f.HAS_PRIORITY, bytes(5) + fields()))
    yield ok("3.3", "PRIORITY with the least weight", priority(1, weight=0), head())
    yield ok("3.3", "PRIORITY with the largest weight", priority(1, weight=255), head())
    yield ok("3.3", "PRIORITY below another stream", priority(3, 1), head())
    yield ok("3.3", "PRIORITY alone below another stream", priority(3, 1, exclusive=True), head())
    yield ok("3.3", "PRIORITY for a later stream, then a request on an earlier one",
             priority(5), head(3))  # fmt: skip
    yield ok("3.4", "RST_STREAM", opened(), f.reset(1, E.CANCEL), result=NOTHING)
    yield ok("3.5", "SETTINGS", f.settings(((f.MAX_STREAMS, 100),)), result=ACKNOWLEDGED)
    yield ok("3.7", "PING", PING, result=PONG)
    yield ok("3.8", "GOAWAY", f.goaway(0, E.NO_ERROR), result=NOTHING)
    yield ok("3.9", "WINDOW_UPDATE for the connection", f.window_update(0, 1), head())
    yield ok("3.9", "WINDOW_UPDATE for a stream", opened(), f.window_update(1, 1), data())
    yield ok("3.10", "a header block in two frames", cut(1))
    yield ok("3.10", "a header block in four frames", cut(3))
    yield ok("4", "a GET request", head())
    yield ok("4", "a HEAD request", head(block=fields((b":method", b"HEAD"), drop=b":method",
                                                      plain=False)))  # fmt: skip
    yield ok("4", "a POST request", CALL)
    yield ok("4", "a POST request with trailers", opened(), data(flags=0),
             head(block=f.header_block(None, ((b"x", b"y"),))))  # fmt: skip
    huffman, plain = b"\x81\x1f", b"\x01b"
    for kind, indexed, literal in (
        ("entered in the table", b"\x7a", b"\x40"),
        ("not entered in the table", b"\x0f\x2b", b"\0"),
        ("never to be entered", b"\x1f\x2b", b"\x10"),
    ):
        yield ok("5", f"a field {kind}, its name from the table",
                 head(block=fields() + indexed + plain))  # fmt: skip
        yield ok("5", f"the same in Huffman's code ({kind})",
                 head(block=fields() + indexed + huffman))  # fmt: skip
        yield ok("5", f"a field {kind}, with a name of its own",
                 head(block=fields() + literal + b"\x01x" + plain))  # fmt: skip
        yield ok("5", f"the same with a value in Huffman's code ({kind})",
                 head(block=fields() + literal + b"\x01x" + huffman))  # fmt: skip
    yield ok("5", "a field from the table", head(block=b"\x82\x86\x84\x41\x01a"))
    yield ok("5", "a table size update", head(block=b"\x20" + fields()))
    yield ok("5", "two table size updates", head(block=b"\x20\x3f\xe1\x1f" + fields()))


def connection() -> Iterator[Case]:
    """Sections 3 to 5: prefaces, frames, streams."""

    def bad(section: str, words: str, code: E, *steps: Step) -> Case:
        return Case(f"http2/{section}", words, goaway(code), goaway(code)[0], steps)

    def fine(section: str, words: str, result: str, *steps: Step) -> Case:
        return Case(f"http2/{section}", words, (result,), result, steps)

    preface = f.PREFACE + f.settings(())
    yield Case("http2/3.5", "the preface: what comes first from the server", (OPENING,), OPENING,
               (preface,), bare=True)  # fmt: skip
    yield Case("http2/3.5", "a preface that is none", goaway(PROTOCOL), goaway(PROTOCOL)[0],
               (b"INVALID CONNECTION PREFACE\r\n\r\n",), bare=True)  # fmt: skip
    yield fine("4.1", "a frame of an unknown type", NOTHING, ODD)
    yield fine("4.1", "flags that are not defined", PONG, f.frame(f.PING, 0x16, 0, b"8 bytes!"))
    yield fine("4.1", "the reserved bit before a stream's number", PONG,
               f.frame(f.PING, 0, 1 << 31, b"8 bytes!"))  # fmt: skip
    yield fine("4.2", "DATA of 16,384 bytes", ANSWER, opened(), data(bytes(16_384)))
    yield bad("4.2", "DATA of one byte more", BAD, opened(), data(bytes(16_385)))
    yield bad("4.2", "HEADERS of one byte more", BAD, head(block=bytes(16_385)))
    yield bad("4.3", "a block that cannot be decoded", CALM, head(block=b"\x40\x8f\xff\xff"))
    yield bad("4.3", "PRIORITY within a header block", PROTOCOL, head(flags=f.END_STREAM),
              priority(1), CONTINUED)  # fmt: skip
    yield bad("4.3", "HEADERS of another stream within a header block", PROTOCOL,
              head(flags=f.END_STREAM), head(3))  # fmt: skip
    idle = (("DATA", data()), ("RST_STREAM", f.reset(1, E.CANCEL)),
            ("WINDOW_UPDATE", f.window_update(1, 9)), ("CONTINUATION", CONTINUED))  # fmt: skip
    for name, raw in idle:
        yield bad("5.1", f"{name} on a stream that is idle", PROTOCOL, raw)
    later = (("DATA", data()), ("HEADERS", head()), ("CONTINUATION", CONTINUED))
    for name, raw in later:
        code, accepted = (PROTOCOL, (CLOSED, PROTOCOL)) if raw is CONTINUED else (CLOSED, (CLOSED,))
        by = goaway if raw is CONTINUED else reset
        demand = reset(*accepted)
        yield Case("http2/5.1", f"{name} on a stream that its client has ended", demand,
                   by(code)[0], (HELD, "pong", raw))  # fmt: skip
    for name, raw in later:
        code, accepted = (PROTOCOL, (CLOSED, PROTOCOL)) if raw is CONTINUED else (CLOSED, (CLOSED,))
        yield Case("http2/5.1", f"{name} on a stream that its client has reset", reset(*accepted),
                   goaway(code)[0], (opened(), f.reset(1, E.CANCEL), raw))  # fmt: skip
    for name, raw in later:
        code, accepted = (PROTOCOL, (CLOSED, PROTOCOL)) if raw is CONTINUED else (CLOSED, (CLOSED,))
        demand = reset(*accepted) if name == "DATA" else goaway(*accepted)
        yield Case("http2/5.1", f"{name} on a stream that is closed", demand,
                   goaway(code)[0], (CALL, "answer", raw))  # fmt: skip
    yield bad("5.1.1", "a stream with an even number", PROTOCOL, head(2))
    yield bad("5.1.1", "a stream with a lower number than the last", PROTOCOL, head(5), head(3))
    yield Case("http2/5.1.2", "one stream more than the server allows",
               reset(PROTOCOL, E.REFUSED_STREAM), reset(E.REFUSED_STREAM)[0],
               tuple(opened(id) for id in range(1, 2 * 257, 2)))  # fmt: skip
    withdrawn = "RFC 9113 has withdrawn priorities: they are read over"
    yield Case("http2/5.3.1", "HEADERS that depend on their own stream", reset(PROTOCOL), ANSWER,
               (head(1, ENDS | f.HAS_PRIORITY, f.LONG.pack(1) + b"\x0f" + fields()),),
               note=withdrawn)  # fmt: skip
    yield Case("http2/5.3.1", "PRIORITY that depends on its own stream", reset(PROTOCOL), NOTHING,
               (priority(1, 1),), note=withdrawn)  # fmt: skip
    yield bad("5.4.1", "a faulty PING: the connection is closed", BAD, f.frame(f.PING, 0, 0, b"x"))
    yield bad("5.4.1", "a faulty PING: GOAWAY comes before", PROTOCOL,
              f.frame(f.PING, 0, 1, bytes(8)))  # fmt: skip
    yield fine("5.5", "a frame of an extension", NOTHING, ODD)
    yield bad("5.5", "such a frame within a header block", PROTOCOL, head(flags=f.END_STREAM), ODD)


def frames() -> Iterator[Case]:
    """Section 6 and 7: each type of frame, and codes of errors."""

    def bad(section: str, words: str, code: E, *steps: Step) -> Case:
        return Case(f"http2/{section}", words, goaway(code), goaway(code)[0], steps)

    def fine(section: str, words: str, result: str, *steps: Step) -> Case:
        return Case(f"http2/{section}", words, (result,), result, steps)

    def broken(section: str, words: str, code: E, *steps: Step, by: str = "RST_STREAM") -> Case:
        return Case(f"http2/{section}", words, reset(code), f"{by} {code.name}", steps)

    yield bad("6.1", "DATA on stream 0", PROTOCOL, data(id=0))
    yield broken("6.1", "DATA on a stream that takes none", CLOSED, HELD, "pong", data())
    yield bad("6.1", "DATA with more padding than frame", PROTOCOL, opened(),
              data(b"\x06" + MESSAGE, flags=f.END_STREAM | f.PADDED))  # fmt: skip
    yield bad("6.2", "HEADERS that go on, then PRIORITY", PROTOCOL, head(flags=f.END_STREAM),
              priority(1))  # fmt: skip
    yield bad("6.2", "HEADERS that go on, then HEADERS of another stream", PROTOCOL,
              head(flags=f.END_STREAM), head(3))  # fmt: skip
    yield bad("6.2", "HEADERS on stream 0", PROTOCOL, head(0))
    yield broken("6.2", "HEADERS with more padding than frame", PROTOCOL,
                 head(1, ENDS | f.PADDED, b"\xff" + fields()), by="GOAWAY")  # fmt: skip
    yield bad("6.3", "PRIORITY on stream 0", PROTOCOL, priority(0))
    yield broken("6.3", "PRIORITY that is too short", BAD, f.frame(f.PRIORITY, 0, 1, bytes(4)),
                 by="GOAWAY")  # fmt: skip
    yield bad("6.4", "RST_STREAM on stream 0", PROTOCOL, f.reset(0, E.CANCEL))
    yield bad("6.4", "RST_STREAM on an idle stream", PROTOCOL, f.reset(1, E.CANCEL))
    yield broken("6.4", "RST_STREAM that is too short", BAD, opened(),
                 f.frame(f.RST_STREAM, 0, 1, bytes(3)), by="GOAWAY")  # fmt: skip
    yield bad("6.5", "an acknowledgement of SETTINGS with values", BAD,
              f.frame(f.SETTINGS, f.ACK, 0, bytes(6)))  # fmt: skip
    yield bad("6.5", "SETTINGS on a stream", PROTOCOL, f.frame(f.SETTINGS, 0, 1, bytes(6)))
    yield Case("http2/6.5", "SETTINGS of seven bytes", reset(PROTOCOL, BAD), goaway(BAD)[0],
               (f.frame(f.SETTINGS, 0, 0, bytes(7)),))  # fmt: skip
    yield bad("6.5.2", "push neither on nor off", PROTOCOL, f.settings(((f.ENABLE_PUSH, 2),)))
    yield bad("6.5.2", "an initial window of 2^31", WINDOW, window(1 << 31))
    yield bad("6.5.2", "frames of less than 16,384 bytes", PROTOCOL,
              f.settings(((f.MAX_FRAME, 16_383),)))  # fmt: skip
    yield bad("6.5.2", "frames of 2^24 bytes", PROTOCOL, f.settings(((f.MAX_FRAME, 1 << 24),)))
    yield fine("6.5.2", "a setting that is not defined", ACKNOWLEDGED, f.settings(((0xFF, 1),)))
    yield fine("6.5.3", "two initial windows in one SETTINGS: the last holds", "DATA of 1 byte",
               f.settings(((f.INITIAL_WINDOW, 100), (f.INITIAL_WINDOW, 1))), CALL,
               "data")  # fmt: skip
    yield fine("6.5.3", "SETTINGS", ACKNOWLEDGED, f.settings(()))
    yield fine("6.7", "PING", PONG, PING)
    yield fine("6.7", "an answer to a PING that nobody sent", NOTHING,
               f.frame(f.PING, f.ACK, 0, b"8 bytes!"))  # fmt: skip
    yield bad("6.7", "PING on a stream", PROTOCOL, f.frame(f.PING, 0, 1, bytes(8)))
    yield bad("6.7", "PING of six bytes", BAD, f.frame(f.PING, 0, 0, bytes(6)))
    yield bad("6.8", "GOAWAY on a stream", PROTOCOL, f.frame(f.GOAWAY, 0, 1, bytes(8)))
    yield bad("6.9", "WINDOW_UPDATE of 0 for the connection", PROTOCOL, f.window_update(0, 0))
    yield broken("6.9", "WINDOW_UPDATE of 0 for a stream", PROTOCOL, opened(),
                 f.window_update(1, 0))  # fmt: skip
    yield bad("6.9", "WINDOW_UPDATE of three bytes", BAD, f.frame(f.WINDOW_UPDATE, 0, 0, bytes(3)))
    yield fine("6.9.1", "a window of one byte", "DATA of 1 byte", window(1) + CALL, "data")
    yield bad("6.9.1", "the connection's window beyond 2^31 - 1", WINDOW,
              f.window_update(0, (1 << 31) - 1) * 2)  # fmt: skip
    yield broken("6.9.1", "a stream's window beyond 2^31 - 1", WINDOW, opened(),
                 f.window_update(1, (1 << 31) - 1) * 2)  # fmt: skip
    yield fine("6.9.2", "the initial window changes while an answer waits", "DATA of 1 byte",
               HELD, "pong", window(1), "data")  # fmt: skip
    yield fine("6.9.2", "a stream's window becomes negative", "DATA of 3, 1 bytes",
               window(3) + CALL, "data", window(2), f.window_update(1, 2), "data")  # fmt: skip
    yield bad("6.9.2", "an initial window beyond 2^31 - 1", WINDOW, window((1 << 32) - 1))
    yield fine("6.10", "several CONTINUATION frames", ANSWER, cut(3))
    yield bad("6.10", "CONTINUATION, then a frame of another type", PROTOCOL,
              head(flags=f.END_STREAM), f.frame(f.CONTINUATION, 0, 1), data())  # fmt: skip
    yield bad("6.10", "CONTINUATION on stream 0", PROTOCOL, head(flags=f.END_STREAM),
              f.frame(f.CONTINUATION, f.END_HEADERS, 0, b""))  # fmt: skip
    yield bad("6.10", "CONTINUATION behind HEADERS that are complete", PROTOCOL, opened(),
              CONTINUED)  # fmt: skip
    yield bad("6.10", "CONTINUATION behind a block that is complete", PROTOCOL,
              head(1, 0, fields()), f.frame(f.CONTINUATION, f.END_HEADERS, 1, b""),
              CONTINUED)  # fmt: skip
    yield bad("6.10", "CONTINUATION behind DATA", PROTOCOL, opened(), data(flags=0), CONTINUED)
    yield fine("7", "GOAWAY with an unknown code", NOTHING,
               f.frame(f.GOAWAY, 0, 0, f.LONG.pack(0) + f.LONG.pack(0xFF)))  # fmt: skip
    yield fine("7", "RST_STREAM with an unknown code", NOTHING, opened(),
               f.frame(f.RST_STREAM, 0, 1, f.LONG.pack(0xFF)))  # fmt: skip


def messages() -> Iterator[Case]:
    """Section 8: requests; and HPACK."""

    def broken(section: str, words: str, *steps: Step) -> Case:
        return Case(f"http2/{section}", words, reset(PROTOCOL), reset(PROTOCOL)[0], steps)

    def undecodable(section: str, words: str, block: bytes) -> Case:
        demand = goaway(CALM)
        return Case(f"hpack/{section}", words, demand, demand[0], (head(block=block),))

    yield broken("8.1", "second HEADERS that do not end the stream", opened(),
                 head(flags=f.END_HEADERS))  # fmt: skip
    yield broken("8.1.2", "capitals in the name of a field", head(block=fields((b"X-A", b"b"))))
    yield broken("8.1.2.1", "an unknown pseudo-header",
                 head(block=fields((b":test", b"ok"))))  # fmt: skip
    yield broken("8.1.2.1", "a pseudo-header of answers", head(block=fields((b":status", b"200"))))
    yield broken("8.1.2.1", "a pseudo-header in trailers", opened(), data(b"\0\0", flags=0),
                 head(block=f.header_block(None, ((b":method", b"POST"),))))  # fmt: skip
    yield broken("8.1.2.1", "a pseudo-header behind another field",
                 head(block=fields((b"x", b"y"), plain=False)))  # fmt: skip
    yield broken("8.1.2.2", "a field that belongs to a connection",
                 head(block=fields((b"connection", b"keep-alive"))))  # fmt: skip
    yield broken("8.1.2.2", "TE with another value than trailers",
                 head(block=fields((b"te", b"trailers, deflate"))))  # fmt: skip
    yield broken("8.1.2.3", "an empty :path",
                 head(block=fields((b":path", b""), drop=b":path", plain=False)))  # fmt: skip
    for name in (b":method", b":scheme", b":path"):
        yield broken("8.1.2.3", f"no {name.decode()}", head(block=fields(drop=name)))
    for name, value in ((b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/")):
        yield broken("8.1.2.3", f"{name.decode()} twice", head(block=fields((name, value))))
    length = BLOCK + f.header_block(None, ((b"content-length", b"9"),))
    yield broken("8.1.2.6", "another content-length than the body's, in one frame",
                 head(flags=f.END_HEADERS, block=length), data())  # fmt: skip
    yield broken("8.1.2.6", "another content-length than the body's, in several frames",
                 head(flags=f.END_HEADERS, block=length), data(b"\0\0", flags=0),
                 data(b"\0\0"))  # fmt: skip
    yield Case("http2/8.2", "PUSH_PROMISE from a client", goaway(PROTOCOL), goaway(PROTOCOL)[0],
               (f.frame(f.PUSH_PROMISE, f.END_HEADERS, 1, f.LONG.pack(2) + fields()),))  # fmt: skip
    yield undecodable("2.3.3", "an index beyond both tables", fields() + b"\xc6")
    yield undecodable("2.3.3", "a field whose name has such an index", fields() + b"\x7f\x07\x01a")
    yield undecodable("4.2", "a table size update behind the fields", fields() + b"\x20")
    yield undecodable("5.2", "Huffman's code with more than 7 bits of padding",
                      fields() + TINY + b"\x82\x1f\xff")  # fmt: skip
    yield undecodable("5.2", "Huffman's code padded with zeros", fields() + TINY + b"\x81\x18")
    yield undecodable("5.2", "Huffman's code with the end-of-string symbol",
                      fields() + TINY + b"\x84\xff\xff\xff\xff")  # fmt: skip
    yield undecodable("6.1", "index 0", fields() + b"\x80")
    yield undecodable("6.3", "a table larger than the server allows", b"\x3f\xe2\x1f" + fields())


CASES: Final = (*generic(), *connection(), *frames(), *messages())


def table() -> str:
    """The cases as a table of Markdown."""
    rows = [
        "| section | what is sent | h2spec accepts | the server | |",
        "| --- | --- | --- | --- | --- |",
    ]
    for case in CASES:
        accepted = " or ".join(case.demand)
        verdict = "meets" if case.meets else f"differs: {case.note}"
        rows.append(f"| {case.section} | {case.words} | {accepted} | {case.result} | {verdict} |")
    return "\n".join(rows)


PAGE: Final = """# HTTP/2, case by case

The gRPC port speaks HTTP/2 by code of its own
([why](../../docs/decisions/0004-grpc-stack.md)). This page is the evidence. The cases and sections
are those of [h2spec](https://github.com/summerwind/h2spec) (of RFC 7540 and 7541; `generic` is its
own). Words and frames are ours. `tests/frontends/http2/test_conformance.py` plays every case over a
socket, compares the answer with the column "the server", and checks this page.

A GOAWAY ends the connection, an RST_STREAM one stream. Where h2spec asks for the latter, it accepts
the former. "No effect" means that the connection still answers a PING. What the server does about
floods is in [SECURITY.md](../../SECURITY.md).

{counts}

{table}
"""


def page() -> str:
    """bench/results/http2.md, whole."""
    met = sum(case.meets for case in CASES)
    counts = f"{len(CASES)} cases: {met} as h2spec wants them, {len(CASES) - met} that differ."
    return PAGE.format(counts=counts, table=table())


if __name__ == "__main__":
    print(page(), end="")
