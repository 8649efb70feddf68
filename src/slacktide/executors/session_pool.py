"""`SessionPool`: the sessions of one replica, and which of them its batches run in.

A session computes with the number of threads it was opened with. On fewer cores its threads take
turns and wait for each other, at the tail most of all; so a replica that will be resized is opened
several times, with 1, 2, 4, … threads, and a batch runs in the smallest session that has a thread
for each of its cores.

**The memory rule.** The largest session is opened first and always: without it the replica could
not use its cores. The others are opened from the smallest up, since a replica sits on few cores
most of the time, as long as all of them together take at most a quarter of the memory that was free
after the first. The second is expected to take as much as the first, the third and those after it
as much as the largest of the others so far. What each took is measured, and reported when the
replica is ready.

Only one session runs at a time, so they share one arena for what they compute, as do the stages of
a model that can be left early: a further session costs its weights, in the layout that ONNX Runtime
has made for it, and little else.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache

from slacktide.executors.cgroups import memory, own_memory
from slacktide.executors.onnx_runtime import client_detail, load_onnxruntime
from slacktide.executors.ports import ModelSource, OpenedModel, SessionSize
from slacktide.executors.session import ModelSession
from slacktide.profiles import covering

PART_OF_FREE = 0.25
"""Of the memory that is free: what the sessions beside the first may take."""


class SessionPool:
    """Make it with `SessionPool.open`."""

    def __init__(self, session: ModelSession, sizes: tuple[SessionSize, ...], note: str) -> None:
        self.session = session
        """The model; batches run in the session that `use` has chosen."""
        self.sizes = sizes
        """In the order they were opened."""
        self.note = note
        """Which wanted sessions were left out, and why."""
        self._threads = [size.threads for size in sizes]

    @classmethod
    def open(
        cls,
        source: ModelSource,
        *,
        cores: int,
        device: str,
        free: int | None = None,
        first_run: AbstractContextManager[object] | None = None,
    ) -> SessionPool:
        """Open and warm up the sessions that `source.threads` names; those for `cores` are in use.

        Without any named, or on an accelerator, it is one. `free` is the memory to go by, in bytes,
        for tests; `first_run` as of `warm_up`. Raises as ModelSession for the first session; the
        others are left out if they fail.
        """
        thread_counts = source.threads if device == "cpu" and source.threads else (max(1, cores),)
        most, smaller = thread_counts[-1], thread_counts[:-1]
        shared = bool(smaller) or source.exits is not None
        if shared:
            _share_arena()
        before = own_memory()
        session = ModelSession.open(source, threads=most, device=device, shared_arena=shared)
        session.warm_up(first_run)
        sizes = [SessionSize(most, max(0, own_memory() - before))]
        room = int(PART_OF_FREE * (memory().free if free is None else free))
        note = ""
        for at, threads in enumerate(smaller):
            used = sum(size.nbytes for size in sizes[1:])
            expected = max((size.nbytes for size in sizes[1:]), default=sizes[0].nbytes)
            if used + expected > room:
                note = _left_out(smaller[at:], f"{used + expected >> 20} of {room >> 20} MiB")
                break
            before = own_memory()
            try:
                session.add(threads)
            except Exception as error:  # out of memory most likely; the first serves without it
                note = _left_out(smaller[at:], client_detail(error, source.path, source.root))
                break
            sizes.append(SessionSize(threads, max(0, own_memory() - before)))
        pool = cls(session, tuple(sizes), note)
        pool.use(cores)
        return pool

    def opened(self) -> OpenedModel:
        """What to report of it."""
        model = self.session
        return replace(model.opened(), sessions=self.sizes, note=self.note)

    def use(self, cores: int) -> None:
        """Have the batches that follow run in the session for so many cores."""
        self.session.use(covering(self._threads, cores))


def _left_out(threads: tuple[int, ...], why: str) -> str:
    names = ", ".join(map(str, threads))
    return f"no session with {names} threads: {why}"


@cache
def _share_arena() -> None:
    """Make the arena that sessions opened with `shared_arena` use. Once in a process."""
    onnxruntime = load_onnxruntime()
    kind = onnxruntime.OrtMemoryInfo(
        "Cpu",
        onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR,
        0,
        onnxruntime.OrtMemType.DEFAULT,
    )
    onnxruntime.create_and_register_allocator(kind, None)
