"""Compiles model_config.proto into model_config.binpb.

    python -m slacktide.repository.triton.compile

Needs grpcio-tools, which only developers have; the result is committed, and a test compiles again
and compares.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import slacktide
from slacktide.repository.triton.private_pool import MODEL_CONFIG_PROTO

SOURCE_ROOT = Path(slacktide.__file__).parent.parent
TARGET = Path(__file__).with_name("model_config.binpb")


def compiled(sources: Sequence[Path] = (SOURCE_ROOT / MODEL_CONFIG_PROTO,)) -> bytes:
    """The descriptor set of these .proto files as they stand, imports left out.

    Raises RuntimeError if they do not compile.
    """
    from grpc_tools import protoc  # type: ignore[import-untyped]  # ships no types

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.binpb")
        arguments = ["protoc", f"-I{SOURCE_ROOT}", f"--descriptor_set_out={out}"]
        if protoc.main([*arguments, *map(str, sources)]) != 0:
            raise RuntimeError(f"{', '.join(path.name for path in sources)}: does not compile")
        return out.read_bytes()


if __name__ == "__main__":
    TARGET.write_bytes(compiled())
