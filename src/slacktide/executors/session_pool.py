"""`SessionPool`: the sessions of one replica, and the choice of one for its batches.

A session computes with the number of threads it was opened with. On fewer cores its threads wait
for each other, which shows most at the tail. So a replica that will be resized opens several
sessions, with 1, 2, 4, … threads, and a batch runs in the smallest session that has a thread for
each core.

**Memory.** The largest session always opens, and opens first: without it the replica could not use
all its cores. A replica usually has few cores, so the others open from the smallest up. Together
they may use a quarter of the memory that was free after the first; opening stops before a session
that is expected to exceed this. The second session is expected to use as much as the first, and
each later session as much as the largest session opened after the first. Measured sizes are
reported when the replica is ready.

Only one session runs at a time, so all share one arena for their computations. A further session
therefore costs its weights, in ONNX Runtime's layout, and little else. The stages of a model with
early exits share an arena too.
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
"""Share of the free memory that the sessions after the first may take."""


class SessionPool:
    """The sessions of one replica. Create it with `SessionPool.open`."""

    def __init__(self, session: ModelSession, sizes: tuple[SessionSize, ...], note: str) -> None:
        self.session = session
        """The model, opened once per number of threads; batches run in the session set by `use`."""
        self.sizes = sizes
        """Sessions in the order they were opened."""
        self.note = note
        """Requested sessions that were not opened, and why."""
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
        """Open and warm up sessions with the numbers of threads in `source.threads`, and use the
        one for `cores`.

        Without such numbers, or on an accelerator, one session is opened. `free`: bytes of free
        memory, for tests. `first_run`: see `ModelSession.warm_up`. Raises the errors of
        `ModelSession.open` for the first session. After another fails, no more are opened.
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
                note = _left_out(
                    smaller[at:], f"need {used + expected >> 20} MiB, may use {room >> 20}"
                )
                break
            before = own_memory()
            try:
                session.add(threads)
            except (
                Exception
            ) as error:  # most likely out of memory; the first session serves without it
                note = _left_out(smaller[at:], client_detail(error, source.path, source.root))
                break
            sizes.append(SessionSize(threads, max(0, own_memory() - before)))
        pool = cls(session, tuple(sizes), note)
        pool.use(cores)
        return pool

    def opened(self) -> OpenedModel:
        """The model as reported when it is up."""
        model = self.session
        notes = "; ".join(filter(None, (model.note, self.note)))
        return replace(model.opened(), sessions=self.sizes, note=notes)

    def use(self, cores: int) -> None:
        """Select the session for this many cores, in which later batches run."""
        self.session.use(covering(self._threads, cores))


def _left_out(threads: tuple[int, ...], why: str) -> str:
    names = ", ".join(map(str, threads))
    return f"no session with {names} threads: {why}"


@cache
def _share_arena() -> None:
    """Create the arena for sessions opened with `shared_arena`, once in a process."""
    onnxruntime = load_onnxruntime()
    kind = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    onnxruntime.create_and_register_allocator(kind, None)
