"""`Arena`: shared memory into which the server writes payloads once, for workers to read.

Each model version has one memfd, which the server owns and passes to workers as a descriptor: no
name can leak, and no `/dev/shm` limit applies. The whole limit is mapped once as a sparse range, so
a memoryview stays valid for ever, and only touched pages use memory.

Theory of operation. Slots have one of a few sizes (four to each doubling, multiples of 64 bytes, so
at most a fifth is wasted). A freed slot goes to the free list of its size and is reused from there:
a pop and an append, no search. If that list is empty, the slot is taken from a gap, then from the
untouched end; as a last resort, free neighbours are merged into gaps. A buddy allocator was
rejected because it splits and merges on every call; free lists alone because a change of input size
would strand their memory.

Not thread-safe: it belongs to the server's loop.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from collections.abc import Hashable
from typing import ClassVar, Final

from slacktide.domain import Reason
from slacktide.domain.read_only import read_only

ALIGNMENT: Final = 64
"""Bytes: a cache line, and the best alignment for vector instructions."""
LEAST_RESERVED: Final = 64 << 20
"""Limits are never reduced below this many bytes, the default maximum size of a request."""


@read_only
class Slot:
    """A piece of an arena. `nbytes` is the requested size; more may be reserved."""

    offset: int
    nbytes: int


class Arena:
    """Slots in shared memory, at most `limit` bytes (rounded up to whole pages), or fewer if this
    process may not map so much. Raises OSError if it may not even map `LEAST_RESERVED`.

    Every slot is also charged to `budget`, which several arenas may share.
    """

    def __init__(
        self, limit: int, *, name: str = "slacktide-inputs", budget: MemoryBudget | None = None
    ) -> None:
        if limit < 1:
            raise ValueError(f"limit: expected more than 0 bytes, got {limit}")
        self._limit = -(-limit // mmap.PAGESIZE) * mmap.PAGESIZE
        self._budget = budget
        self._fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            self._map = self._reserve()
        except OSError as error:
            os.close(self._fd)
            of_files = error.errno == errno.EFBIG
            short, flag = ("file size", "-f") if of_files else ("address space", "-v")
            size = f"{self._limit >> 20} MiB of payloads"
            raise OSError(
                error.errno, f"no {short} left for {size}: raise the limit (ulimit {flag})"
            ) from None
        # A faulty worker must not be able to shrink it, which would kill the server by SIGBUS.
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, seals)
        self._view = memoryview(self._map)
        self._live: dict[int, tuple[int, Hashable]] = {}
        self._free: dict[int, list[int]] = {}
        self._gaps: list[tuple[int, int]] = []
        self._end = 0
        self._touched = 0
        self._in_use = 0

    def _reserve(self) -> mmap.mmap:
        """Map the limit, halved as often as the system requires (`ulimit -v`).

        Twice the limit must fit, since other things need memory, and workers also load a model.
        """
        while True:
            try:
                os.ftruncate(self._fd, self._limit)
                with contextlib.closing(mmap.mmap(self._fd, self._limit, prot=mmap.PROT_READ)):
                    return mmap.mmap(self._fd, self._limit)
            except OSError:
                if self._limit <= LEAST_RESERVED:
                    raise
                half = self._limit // 2 // mmap.PAGESIZE * mmap.PAGESIZE
                self._limit = max(LEAST_RESERVED, half)

    @property
    def fd(self) -> int:
        """The memfd, for workers."""
        return self._fd

    @property
    def limit(self) -> int:
        """Maximum bytes of all live slots."""
        return self._limit

    @property
    def bytes_in_use(self) -> int:
        """Bytes reserved for live slots."""
        return self._in_use

    def allocate(self, nbytes: int, owner: Hashable = None) -> Slot:
        """A slot of `nbytes` bytes at a multiple of 64, with undefined contents.

        The budget charges `owner` (a connection, a client). Raises MemoryLimitExceeded, or its
        subclass OwnerLimitExceeded, without charging anything.
        """
        size = size_class(nbytes)
        budget = self._budget
        if budget is not None:
            budget.charge(size, owner)
        free = self._free.get(size)
        offset = free.pop() if free else self._carve(size)
        if offset is None:
            if budget is not None:
                budget.release(size, owner)
            raise MemoryLimitExceeded(
                f"{nbytes} bytes do not fit: {self._in_use} of {self._limit} in use"
            )
        self._live[offset] = (size, owner)
        self._in_use += size
        return Slot(offset, nbytes)

    def free(self, slot: Slot) -> None:
        """Free a slot. Raises ValueError if it is not live (freed twice, or of another arena)."""
        try:
            size, owner = self._live.pop(slot.offset)
        except KeyError:
            raise ValueError(f"slot at {slot.offset} is not live") from None
        self._in_use -= size
        if self._budget is not None:
            self._budget.release(size, owner)
        self._free.setdefault(size, []).append(slot.offset)

    def view(self, slot: Slot) -> memoryview:
        """The slot's bytes, writable."""
        return self._view[slot.offset : slot.offset + slot.nbytes]

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write `data` inside a slot."""
        self._map[offset : offset + len(data)] = data

    def trim(self) -> int:
        """Give free slots' memory back to the system. Returns an upper bound of the bytes.

        For idle times: it costs a system call per gap, and reused pages are zeroed again.
        """
        if self._fd < 0:
            return 0
        self._merge()
        page = mmap.PAGESIZE
        freed = 0
        for offset, size in [*self._gaps, (self._end, self._touched - self._end)]:
            start = -(-offset // page) * page
            length = (offset + size) // page * page - start
            if length > 0:
                self._map.madvise(mmap.MADV_REMOVE, start, length)
                freed += length
        self._touched = self._end
        return freed

    def close(self) -> None:
        """Close the descriptor. Remaining views keep the memory alive."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        with contextlib.suppress(BufferError):
            self._view.release()
            self._map.close()

    def check_invariants(self) -> None:
        """Raise AssertionError if slots and counters disagree. For tests: slow with many slots."""
        pieces = [(offset, size) for offset, (size, _) in self._live.items()]
        assert sum(size for _, size in pieces) == self._in_use
        pieces += [(o, size) for size, offsets in self._free.items() for o in offsets]
        pieces += self._gaps
        position = 0
        for offset, size in sorted(pieces):
            assert offset == position, f"hole or overlap at {offset}, expected {position}"
            position += size
        assert position == self._end <= self._limit

    def _carve(self, size: int) -> int | None:
        """Offset of `size` bytes from a gap or the untouched end; None if neither has them."""
        offset = self._from_gap(size)
        if offset is not None:
            return offset
        if self._end + size > self._limit:
            self._merge()
            offset = self._from_gap(size)
            if offset is not None or self._end + size > self._limit:
                return offset
        offset = self._end
        self._end += size
        self._touched = max(self._touched, self._end)
        return offset

    def _from_gap(self, size: int) -> int | None:
        """Offset of `size` bytes in the first gap that is large enough; None if no gap is."""
        for index, (offset, length) in enumerate(self._gaps):
            if length == size:
                del self._gaps[index]
                return offset
            if length > size:
                self._gaps[index] = (offset + size, length - size)
                return offset
        return None

    def _merge(self) -> None:
        """Merge free slots into gaps, and a gap at the end into the untouched end."""
        pieces = self._gaps
        for size, offsets in self._free.items():
            pieces.extend([(offset, size) for offset in offsets])
        self._free.clear()
        pieces.sort()
        merged: list[tuple[int, int]] = []
        for offset, size in pieces:
            if merged and sum(merged[-1]) == offset:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((offset, size))
        if merged and sum(merged[-1]) == self._end:
            self._end = merged.pop()[0]
        self._gaps = merged


def size_class(nbytes: int) -> int:
    """Bytes reserved for a slot of `nbytes`: a multiple of 64, four sizes to each doubling."""
    if nbytes < 0:
        raise ValueError(f"a slot cannot have {nbytes} bytes")
    units = (nbytes + ALIGNMENT - 1) // ALIGNMENT or 1
    if units > 8:
        shift = (units - 1).bit_length() - 3
        units = (((units - 1) >> shift) + 1) << shift
    return units * ALIGNMENT


def map_read_only(fd: int) -> memoryview:
    """A view of a whole shared memory file. It stays valid when the file grows, but does not cover
    the new part."""
    size = os.fstat(fd).st_size
    if size == 0:
        return memoryview(b"")
    return memoryview(mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ))


class MemoryLimitExceeded(Exception):  # noqa: N818  (the name says what happened)
    """The bytes do not fit under a limit. This is load, not a mistake of the client."""

    reason: ClassVar[Reason] = Reason.MEMORY_LIMIT


class OwnerLimitExceeded(MemoryLimitExceeded):
    """The owner (a connection, a client) has used up its part of a limit."""

    reason: ClassVar[Reason] = Reason.CLIENT_LIMIT


class MemoryBudget:
    """Counts reserved bytes against `limit`, and against `per_owner` for each owner but None.

    Not thread-safe.
    """

    def __init__(self, limit: int, per_owner: int | None = None) -> None:
        if limit < 1 or (per_owner is not None and per_owner < 1):
            raise ValueError(f"limits must be positive, got {limit} and {per_owner} per owner")
        self.limit = limit
        self.per_owner = per_owner
        self._in_use = 0
        self._owners: dict[Hashable, int] = {}

    @property
    def bytes_in_use(self) -> int:
        return self._in_use

    def owned(self, owner: Hashable) -> int:
        """Bytes that `owner` has charged."""
        return self._owners.get(owner, 0)

    def charge(self, nbytes: int, owner: Hashable = None) -> None:
        """Count `nbytes`. Raises MemoryLimitExceeded or OwnerLimitExceeded without counting."""
        total = self._in_use + nbytes
        if total > self.limit:
            raise MemoryLimitExceeded(
                f"{nbytes} bytes do not fit: {self._in_use} of {self.limit} in use"
            )
        if owner is not None:
            owned = self._owners.get(owner, 0) + nbytes
            if self.per_owner is not None and owned > self.per_owner:
                raise OwnerLimitExceeded(
                    f"{nbytes} bytes do not fit: a client may hold at most {self.per_owner}"
                )
            self._owners[owner] = owned
        self._in_use = total

    def release(self, nbytes: int, owner: Hashable = None) -> None:
        """Undo a `charge`. Raises ValueError if the bytes were never charged."""
        remaining = self._owners.get(owner, 0) - nbytes if owner is not None else 0
        if nbytes > self._in_use or remaining < 0:
            raise ValueError(f"{nbytes} bytes were never charged")
        self._in_use -= nbytes
        if owner is not None:
            if remaining:
                self._owners[owner] = remaining
            else:
                del self._owners[owner]
