"""Compiles the .proto files of `slacktide.wire.proto`: `python tests/wire/compile_protos.py`.

Needs grpcio-tools, which only developers have; the result is committed, and a test compiles again
and compares.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import slacktide

SOURCE_ROOT = Path(slacktide.__file__).parent.parent
FOLDER = Path(slacktide.__file__).parent / "wire" / "proto"
TARGET = FOLDER / "descriptors.binpb"


def compiled() -> bytes:
    """The descriptor set of the .proto files as they stand, imports left out.

    Raises RuntimeError if they do not compile.
    """
    from grpc_tools import protoc  # type: ignore[import-untyped]  # ships no types

    # A file stands after those that it imports: a pool takes them in this order.
    sources = sorted(
        FOLDER.glob("*.proto"), key=lambda path: (b"import " in path.read_bytes(), path)
    )
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.binpb")
        arguments = ["protoc", f"-I{SOURCE_ROOT}", f"--descriptor_set_out={out}"]
        if protoc.main([*arguments, *map(str, sources)]) != 0:
            raise RuntimeError("a .proto file does not compile: see above")
        return out.read_bytes()


if __name__ == "__main__":
    TARGET.write_bytes(compiled())
