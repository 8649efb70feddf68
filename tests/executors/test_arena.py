from __future__ import annotations

import mmap
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.executors.hand_over.arena import (
    Arena,
    MemoryBudget,
    MemoryLimitExceeded,
    OwnerLimitExceeded,
    Slot,
    map_read_only,
    size_class,
)

STEPS = st.lists(
    st.one_of(st.integers(0, 40_000), st.integers(0, 400), st.integers(-60, -1), st.just("trim")),
    max_size=150,
)


@given(STEPS)
def test_live_slots_never_overlap_and_freeing_all_returns_to_zero(
    steps: list[int | str],
) -> None:
    budget = MemoryBudget(1 << 20)
    arena = Arena(300_000, budget=budget)
    live: list[tuple[Slot, bytes]] = []
    for number, step in enumerate(steps):
        if step == "trim":
            arena.trim()
        elif isinstance(step, int) and step >= 0:
            try:
                slot = arena.allocate(step, owner=step % 3)
            except MemoryLimitExceeded:
                continue
            content = bytes([number % 256]) * step
            arena.view(slot)[:] = content
            live.append((slot, content))
        elif live and isinstance(step, int):
            slot, content = live.pop(step % len(live))
            assert arena.view(slot) == content
            arena.free(slot)
        arena.check_invariants()
    assert all(arena.view(slot) == content for slot, content in live)
    for slot, _ in live:
        arena.free(slot)
    assert arena.bytes_in_use == budget.bytes_in_use == 0
    assert budget.owned(0) == 0
    arena.trim()
    assert arena.allocate(arena.limit * 3 // 4).offset == 0
    arena.close()


@given(st.integers(0, 1 << 34))
def test_size_class_is_aligned_sufficient_and_wastes_at_most_a_fifth(nbytes: int) -> None:
    size = size_class(nbytes)
    assert size % 64 == 0
    assert size >= max(1, nbytes)
    assert size - nbytes <= max(64, size // 5)
    assert size_class(size) == size


def test_over_the_limit_is_refused_and_changes_nothing() -> None:
    budget = MemoryBudget(1 << 30)
    arena = Arena(8192, budget=budget)
    kept = arena.allocate(4096)
    with pytest.raises(MemoryLimitExceeded):
        arena.allocate(8192)
    assert arena.bytes_in_use == budget.bytes_in_use == 4096
    arena.free(kept)
    arena.close()


def test_memory_freed_in_one_size_serves_another() -> None:
    arena = Arena(1 << 20)
    small = [arena.allocate(64) for _ in range((1 << 20) // 64)]
    with pytest.raises(MemoryLimitExceeded):
        arena.allocate(64)
    for slot in small:
        arena.free(slot)
    assert arena.allocate(1 << 20).offset == 0
    arena.close()


def test_double_and_foreign_frees_are_errors() -> None:
    arena = Arena(1 << 16)
    slot = arena.allocate(100)
    arena.free(slot)
    with pytest.raises(ValueError, match="not live"):
        arena.free(slot)
    with pytest.raises(ValueError, match="not live"):
        arena.free(Slot(640, 10))
    with pytest.raises(ValueError, match="cannot have -1"):
        arena.allocate(-1)
    arena.close()


def test_trim_gives_memory_back_and_the_arena_works_on() -> None:
    arena = Arena(1 << 24)
    kept, big = arena.allocate(5000), arena.allocate(8 << 20)
    arena.view(kept)[:] = b"k" * 5000
    arena.view(big)[:] = b"b" * (8 << 20)
    used = os.fstat(arena.fd).st_blocks * 512
    arena.free(big)
    assert arena.trim() >= (8 << 20) - 2 * mmap.PAGESIZE
    assert os.fstat(arena.fd).st_blocks * 512 <= used - (8 << 20) + 2 * mmap.PAGESIZE
    assert arena.view(kept) == b"k" * 5000
    again = arena.allocate(8 << 20)
    assert bytes(arena.view(again)[1 << 20 : 2 << 20]) == bytes(1 << 20)
    arena.close()


def test_a_second_mapping_sees_the_bytes_and_nobody_can_cut_the_file() -> None:
    arena = Arena(1 << 16)
    slot = arena.allocate(5)
    arena.view(slot)[:] = b"hello"
    other = map_read_only(arena.fd)
    assert bytes(other[slot.offset : slot.offset + 5]) == b"hello"
    assert other.readonly
    with pytest.raises(PermissionError):
        os.ftruncate(arena.fd, 0)
    arena.close()
    arena.close()


def test_budget_caps_all_arenas_together_and_each_owner() -> None:
    budget = MemoryBudget(1000, per_owner=600)
    first, second = Arena(1 << 16, budget=budget), Arena(1 << 16, budget=budget)
    a = first.allocate(500, "ann")
    with pytest.raises(OwnerLimitExceeded):
        second.allocate(200, "ann")
    b = second.allocate(400, "bob")
    with pytest.raises(MemoryLimitExceeded) as failure:
        first.allocate(200, "cid")
    assert not isinstance(failure.value, OwnerLimitExceeded)
    assert (budget.owned("ann"), budget.owned("bob"), budget.owned("cid")) == (512, 448, 0)
    first.free(a)
    second.free(b)
    assert budget.bytes_in_use == budget.owned("ann") == budget.owned("bob") == 0
    with pytest.raises(ValueError, match="never charged"):
        budget.release(1, "ann")
    first.close()
    second.close()


def test_limits_must_be_positive() -> None:
    with pytest.raises(ValueError, match="more than 0"):
        Arena(0)
    with pytest.raises(ValueError, match="positive"):
        MemoryBudget(1, per_owner=0)


def test_where_the_size_of_files_is_limited_the_error_says_so() -> None:
    text = """
import resource
from slacktide.executors.hand_over.arena import Arena
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    Arena(1 << 34)
except OSError as error:
    print(error.strerror)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    expected = "no file size left for 64 MiB of payloads: raise the limit (ulimit -f)"
    assert done.stdout.strip() == expected


@pytest.mark.parametrize(
    ("spare", "expected"),
    [
        (3 << 30, "1024 MiB"),  # and as much again for everything else
        (200 << 20, "64 MiB"),
        (100 << 20, "no address space left for 64 MiB of payloads: raise the limit (ulimit -v)"),
    ],
)
def test_where_address_space_is_limited_an_arena_reserves_less(spare: int, expected: str) -> None:
    text = f"""
import resource
from slacktide.executors.hand_over.arena import Arena
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + {spare}, used + {spare}))
try:
    arena = Arena(1 << 34)
    arena.view(arena.allocate(arena.limit // 2))[-1:] = b"x"
    print(arena.limit >> 20, "MiB")
except OSError as error:
    print(error.strerror)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
