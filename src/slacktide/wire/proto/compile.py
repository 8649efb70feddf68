"""Compiles the .proto files beside it: `python -m slacktide.wire.proto.compile`.

Needs grpcio-tools, which only developers have; the result is committed, and a test compiles again
and compares.
"""

from __future__ import annotations

from pathlib import Path

from slacktide.repository.triton.compile import compiled as compiled

FOLDER = Path(__file__).parent
SOURCES = sorted(FOLDER.glob("*.proto"))
TARGET = FOLDER / "services.binpb"

if __name__ == "__main__":
    TARGET.write_bytes(compiled(SOURCES))
