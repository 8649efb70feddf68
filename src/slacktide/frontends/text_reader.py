"""A process that reads long requests: `python -m slacktide.frontends.text_reader FD NICENESS`.

It returns each request with its tensors in binary, or the reason why the request is unreadable,
until the server's end of its socket closes. It is light, and the first process that the kernel
kills when memory runs short. Its priority is low unless requests with a deadline wait for it.
`unpacking.py` is the other end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import struct
import sys
from pathlib import Path

import orjson

from slacktide.domain import Reason
from slacktide.wire.errors import WireError
from slacktide.wire.oip_json import binary_form

NICENESS = 10
GRPC, ALL_JSON = -2, -1
"""Kinds of request; any other kind is the length of the JSON before its binary tensors."""
REQUEST, ANSWER = struct.Struct("<qQ"), struct.Struct("<?qQ")
"""Heads of a request (kind, body length) and of an answer (success, length of the JSON, answer
length)."""


def receive(connection: socket.socket, size: int) -> bytes:
    """Receive exactly `size` bytes. Raises ConnectionError at the end of the stream."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise ConnectionResetError("its socket is closed")
        view = view[count:]
    return bytes(data)


def _serve(server: socket.socket) -> None:
    """Read and answer requests until the server's end closes."""
    while True:
        kind, size = REQUEST.unpack(receive(server, REQUEST.size))
        body = receive(server, size)
        length = 0
        try:
            if kind == GRPC:
                from slacktide.wire.grpc_messages import encode_call, read_request

                answer = encode_call(read_request(body).call({}))
            else:
                answer, length = binary_form(body, None if kind == ALL_JSON else kind)
            good = True
        except WireError as error:
            good, answer = False, orjson.dumps((error.reason.name, error.message))
        except MemoryError:
            message = "there is not enough memory to read it"
            good, answer = False, orjson.dumps((Reason.MEMORY_LIMIT.name, message))
        server.sendall(ANSWER.pack(good, length, len(answer)))
        server.sendall(answer)
        del body, answer
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).malloc_trim(0)  # give the memory of a long text back immediately


def main(arguments: list[str]) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):  # the server handles them and closes our socket
        signal.signal(number, signal.SIG_IGN)
    os.nice(int(arguments[1]))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")
    with contextlib.suppress(ConnectionError):
        _serve(socket.socket(fileno=int(arguments[0])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
