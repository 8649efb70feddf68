"""Compiles the .proto files beside it: `python -m slacktide.wire.proto.compile`.

Needs grpcio-tools, which only developers have; the result is committed, and a test compiles again
and compares.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import slacktide

SOURCE_ROOT = Path(slacktide.__file__).parent.parent
FOLDER = Path(__file__).parent
TARGET = FOLDER / "services.binpb"


def compiled() -> bytes:
    """The descriptor set of our .proto files, imports left out. Raises RuntimeError."""
    from grpc_tools import protoc  # type: ignore[import-untyped]  # ships no types

    sources = [str(path) for path in sorted(FOLDER.glob("*.proto"))]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.binpb")
        arguments = ["protoc", f"-I{SOURCE_ROOT}", f"--descriptor_set_out={out}", *sources]
        if protoc.main(arguments) != 0:
            raise RuntimeError("the .proto files do not compile")
        return out.read_bytes()


if __name__ == "__main__":
    TARGET.write_bytes(compiled())
