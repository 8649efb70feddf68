"""The file in which a worker leaves its results: a memfd that only grows.

The server creates it empty, the worker enlarges it for its largest batch, and each message tells
the server the size. The next batch overwrites the results, so the server copies them before it
reports the batch. It copies long results in steps, with other work of the loop in between.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Generator, Sequence
from typing import Any, Final

from numpy.typing import NDArray

from slacktide.domain.tensors import ModelInterface
from slacktide.executors.exit_frames import ReleasedMessage
from slacktide.executors.hand_over.arena import ALIGNMENT
from slacktide.executors.hand_over.protocol import FinishedMessage, ProtocolError
from slacktide.executors.hand_over.tensor_io import (
    MemberLengths,
    copy_outputs,
    cut_outputs,
    lay_out,
)
from slacktide.executors.ports import OutputRun, Outputs

COPY_BYTES: Final = 1 << 20
"""Maximum bytes of outputs copied in one turn of the loop. This takes under a millisecond, most of
it for fresh memory."""
COPY_TURNS: Final = 128
"""Maximum turns of one copy. Longer outputs are copied in larger steps, so that a busy loop reports
them before their worker seems to hang."""


def make_output_file() -> int:
    """Create an empty memfd that cannot shrink. Returns its descriptor."""
    fd = os.memfd_create("slacktide-outputs", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd


class OutputReader:
    """The server's end. Owns the descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._map: mmap.mmap | bytes = b""

    def is_long(self, message: FinishedMessage | ReleasedMessage) -> bool:
        """Whether the members' outputs take more than one turn of the loop to copy."""
        return message.file_bytes > COPY_BYTES and _total_bytes(message) > COPY_BYTES

    def take(self, message: FinishedMessage | ReleasedMessage) -> list[Outputs]:
        """A copy of the members' outputs. Raises ProtocolError if the file lacks them."""
        data = self._mapped(message)
        return cut_outputs([(data, runs) for runs in message.outputs])

    def take_in_steps(
        self, message: FinishedMessage | ReleasedMessage
    ) -> Generator[None, None, list[Outputs]]:
        """Like `take`, but yields after each step and returns the outputs at the end. The next
        batch must not begin before that."""
        step = max(COPY_BYTES, -(-_total_bytes(message) // COPY_TURNS))
        return copy_outputs(self._mapped(message), message.outputs, step)

    def _mapped(self, message: FinishedMessage | ReleasedMessage) -> mmap.mmap | bytes:
        """Map the file up to all parts that the message names. Raises ProtocolError."""
        end = message.file_bytes
        if end > len(self._map):
            if os.fstat(self._fd).st_size < end:
                raise ProtocolError(f"the output file is shorter than {end} bytes")
            self._map = mmap.mmap(self._fd, 0, prot=mmap.PROT_READ)
        end = len(self._map)
        for runs in message.outputs:
            for run in runs:
                if run.offset + run.members * run.nbytes > end:
                    extent = f"{run.members} times {run.nbytes} bytes of output"
                    raise ProtocolError(f"{extent} at {run.offset} of {end}")
        return self._map

    def close(self) -> None:
        os.close(self._fd)
        self._map = b""


def _total_bytes(message: FinishedMessage | ReleasedMessage) -> int:
    runs = [run for runs in message.outputs for run in runs]
    return sum([run.members * run.nbytes for run in runs])


class OutputWriter:
    """The worker's end."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._map: mmap.mmap | None = None
        self._view = memoryview(bytearray())  # writable, for answers without elements
        self.end = 0
        """Offset after the last outputs written."""

    def write(
        self,
        arrays: Sequence[NDArray[Any] | None],
        rows: Sequence[int],
        interface: ModelInterface,
        lengths: MemberLengths | None = None,
        at: int = 0,
    ) -> list[list[OutputRun]]:
        """Write outputs of a batch from offset `at` on. Returns the place of each output's parts;
        an output that is None has empty parts."""
        whole, runs = [], []
        size = at
        for array, spec in zip(arrays, interface.outputs, strict=True):
            if array is None:
                runs.append([OutputRun(len(rows), 0, 0, ())])
                continue
            data, places = lay_out(array, spec, rows, interface.batches, lengths, size)
            whole.append((size, data))
            runs.append(places)
            size += -(-len(data) // ALIGNMENT) * ALIGNMENT
        self._grow(size)
        for offset, data in whole:
            self._view[offset : offset + len(data)] = data
        self.end = size
        return runs

    @property
    def file_bytes(self) -> int:
        return len(self._view)

    def _grow(self, size: int) -> None:
        """Enlarge the file to `size` bytes, and at least to twice its size so that this is rare."""
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
