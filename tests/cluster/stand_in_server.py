"""A stand-in for `slacktide serve`: it locks its state folder and answers health probes.

`python stand_in_server.py BEHAVIOUR … --state-dir FOLDER [--peers ADDRESSES]`. Behaviours: `fails`
(ends at once with an error), `unready`, `lingers` (ignores SIGTERM), `--take-over` (ends the server
that holds the folder).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from slacktide.cluster import FolderLock
from slacktide.cluster.folder_lock import holder_of


class Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(503 if "unready" in sys.argv else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Silent."""


def main() -> None:
    if "fails" in sys.argv:
        sys.exit("error: --grpc-port 8001: Address already in use")
    path = Path(sys.argv[sys.argv.index("--state-dir") + 1]) / "lock"
    while "--take-over" in sys.argv and (holder := holder_of(path)) is not None:
        if holder.pid:
            os.kill(holder.pid, signal.SIGTERM)
        time.sleep(0.01)
    lock = FolderLock(path)
    lock.acquire(release="1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Health)
    port = server.server_address[1]
    lock.write(release="1", host="127.0.0.1", ports={"http": port}, drain_s=0.0)
    handler = signal.SIG_IGN if "lingers" in sys.argv else lambda *_: sys.exit(0)
    signal.signal(signal.SIGTERM, handler)
    server.serve_forever(0.01)


main()
