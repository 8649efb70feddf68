"""Which sessions a replica opens, and which of them it uses."""

from __future__ import annotations

import numpy as np
import pytest

from slacktide.executors.cgroups import memory, own_memory
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.ports import SessionSize
from slacktide.executors.session import ModelSession
from slacktide.executors.session_pool import PART_OF_FREE, SessionPool

GIB = 1 << 30


class Scale:
    """Says what each session took, instead of /proc: sessions of the given sizes."""

    def __init__(self, *sizes: int) -> None:
        self.readings = [0]
        for size in sizes:
            self.readings += [self.readings[-1] + size] * 2

    def __call__(self) -> int:
        return self.readings.pop(0)


def open_weighed(
    monkeypatch: pytest.MonkeyPatch, source, *sizes: int, room: int, cores: int = 1
) -> SessionPool:
    monkeypatch.setattr("slacktide.executors.session_pool.own_memory", Scale(*sizes))
    return SessionPool.open(source, cores=cores, device="cpu", free=round(room / PART_OF_FREE))


def threads_of(pool: SessionPool) -> list[int]:
    return [size.threads for size in pool.sizes]


def test_without_sessions_named_there_is_one_for_its_cores(models, kit) -> None:
    pool = SessionPool.open(kit.source(models.matmul()), cores=3, device="cpu")
    assert threads_of(pool) == [3]
    assert pool.note == ""


def test_the_largest_comes_first_and_the_others_from_the_smallest(models, kit, monkeypatch) -> None:
    source = kit.source(models.matmul(), threads=(1, 2, 4, 8))
    pool = open_weighed(monkeypatch, source, 100, 60, 70, 65, room=1000)
    assert pool.sizes == (
        SessionSize(8, 100), SessionSize(1, 60), SessionSize(2, 70), SessionSize(4, 65)
    )  # fmt: skip
    assert pool.note == ""


@pytest.mark.parametrize(
    ("room", "opened"),
    [
        (99, [8]),  # the second is expected to take what the first took
        (100, [8, 1]),
        (119, [8, 1]),  # 60, and 60 expected
        (120, [8, 1, 2]),
        (199, [8, 1, 2]),  # 60 + 70, and 70 expected
        (200, [8, 1, 2, 4]),
    ],
)
def test_sessions_are_opened_as_far_as_memory_goes(
    models, kit, monkeypatch, room: int, opened: list[int]
) -> None:
    source = kit.source(models.matmul(), threads=(1, 2, 4, 8))
    pool = open_weighed(monkeypatch, source, 100, 60, 70, 65, room=room)
    assert threads_of(pool) == opened
    left = [str(n) for n in (1, 2, 4) if n not in opened]
    note = f"no session with {', '.join(left)} threads: need 0 MiB, may use 0"
    assert pool.note == (note if left else "")


def test_an_accelerator_has_one_session(models, kit) -> None:
    source = kit.source(models.matmul(), threads=(1, 2), providers=("cpu",))
    assert threads_of(SessionPool.open(source, cores=0, device="cuda:0")) == [1]


def test_a_session_that_fails_is_left_out(models, kit, monkeypatch) -> None:
    source = kit.source(models.matmul(), threads=(1, 2, 4))
    add = ModelSession.add

    def fail(session: ModelSession, threads: int) -> None:
        if threads == 2:
            raise MemoryError
        add(session, threads)

    monkeypatch.setattr(ModelSession, "add", fail)
    pool = SessionPool.open(source, cores=4, device="cpu")
    assert threads_of(pool) == [4, 1]
    assert pool.note == "no session with 2 threads: out of memory"
    with pytest.raises(ModelError):
        SessionPool.open(kit.source(models.path("none"), threads=(1, 2)), cores=1, device="cpu")


def test_a_batch_runs_in_the_smallest_session_with_a_thread_for_each_core(
    models, kit, arena, monkeypatch
) -> None:
    pool = SessionPool.open(
        kit.source(models.matmul(), threads=(1, 2, 4)), cores=2, device="cpu", free=64 * GIB
    )
    used: list[int] = []
    use = pool.session.use
    monkeypatch.setattr(pool.session, "use", lambda threads: (used.append(threads), use(threads)))
    x = np.ones((2, 4), np.float32)
    for cores in (1, 2, 3, 4, 9):
        pool.use(cores)
        result = pool.session.run([kit.put(arena, x)], arena.view(arena.allocate(0)).obj)
        assert np.allclose(result.arrays[0], x @ kit.WEIGHT, rtol=1e-5)
    assert used == [1, 2, 4, 4, 4]


def test_the_sessions_are_the_threads_they_are_said_to_be(models, kit) -> None:
    session = ModelSession.open(kit.source(models.matmul()), threads=4)
    session.add(1)
    threads = {
        count: opened.get_session_options().intra_op_num_threads
        for count, opened in session._sessions.items()
    }
    assert threads == {4: 4, 1: 1}
    with pytest.raises(KeyError):
        session.use(2)


def test_memory_is_told() -> None:
    usage = memory()
    assert 0 < usage.free < usage.total
    block = np.ones(16 << 20, np.uint8)
    assert own_memory() > block.nbytes
