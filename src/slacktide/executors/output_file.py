"""The file in which a worker leaves its results: a memfd that only ever grows.

The server makes it empty; the worker enlarges it to the largest batch it has had; the server
follows by what each message says. Results are overwritten by the next batch, so the server copies
them while it handles the report.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from slacktide.domain.tensors import Datatype, ModelInterface
from slacktide.executors.arena import ALIGNMENT, map_read_only
from slacktide.executors.ports import OutputTensor, TensorRef
from slacktide.executors.protocol import ProtocolError
from slacktide.executors.tensor_io import MemberLengths, as_bytes, split_padded


def make_output_file() -> int:
    """Descriptor of an empty memfd that cannot shrink."""
    fd = os.memfd_create("slacktide-outputs", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd


class OutputReader:
    """The server's end. Owns the descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._view = memoryview(b"")

    def view(self, file_bytes: int) -> memoryview:
        """At least the first `file_bytes` bytes. Raises ProtocolError if there are not so many."""
        if file_bytes > len(self._view):
            if os.fstat(self._fd).st_size < file_bytes:
                raise ProtocolError(f"the output file has no {file_bytes} bytes")
            self._view = map_read_only(self._fd)
        return self._view

    def close(self) -> None:
        os.close(self._fd)
        self._view = memoryview(b"")


class OutputWriter:
    """The worker's end."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._map: mmap.mmap | None = None
        self._view = memoryview(b"")

    def write(
        self,
        arrays: Sequence[NDArray[Any]],
        rows: Sequence[int],
        interface: ModelInterface,
        lengths: MemberLengths | None = None,
    ) -> list[list[TensorRef]]:
        """Put a batch's outputs down; the place of each, by member and then by output."""
        whole: list[tuple[int, list[OutputTensor]]] = []
        size = 0
        for array, spec in zip(arrays, interface.outputs, strict=True):
            pieces = split_padded(array, spec, rows, interface.batches, lengths)
            whole.append((size, pieces))
            nbytes = sum([len(data) for _, data in pieces])
            size += -(-nbytes // ALIGNMENT) * ALIGNMENT
        self._grow(size)
        columns = []
        for index, (offset, pieces) in enumerate(whole):
            column = []
            at = offset
            for shape, data in pieces:
                column.append(TensorRef(at, len(data), shape))
                at += len(data)
            columns.append(column)
            if lengths is not None or interface.outputs[index].datatype is Datatype.BYTES:
                self._view[offset:at] = b"".join([data for _, data in pieces])
            else:
                self._view[offset:at] = as_bytes(arrays[index])
        return [list(member) for member in zip(*columns, strict=True)]

    @property
    def file_bytes(self) -> int:
        return len(self._view)

    def _grow(self, size: int) -> None:
        """Room for `size` bytes, at least doubled, so that it is seldom done."""
        if size <= len(self._view):
            return
        size = max(size, 2 * len(self._view))
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        os.ftruncate(self._fd, size)
        if self._map is not None:
            with contextlib.suppress(BufferError):
                self._view.release()
                self._map.close()
        self._map = mmap.mmap(self._fd, size)
        self._view = memoryview(self._map)
