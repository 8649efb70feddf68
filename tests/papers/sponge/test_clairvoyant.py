"""The clairvoyant's cores: never more than needed, against all choices tried one by one."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide_papers.sponge.clairvoyant import clairvoyant, servable

CORES, BATCH, SECONDS = 3, 3, 2


def seconds(rows: int, cores: int) -> float:
    return (0.1 + 0.25 * rows) / cores + 0.05 * rows


def fewest(ready: list[float], deadlines: list[float], least: int) -> int | None:
    """Core seconds of the best choice, by trying all of them; None if there is none."""

    def end_of(start: float, rows: int, cores: tuple[int, ...]) -> float:
        at, remaining = start, 1.0
        while True:
            size = cores[int(at)] if at < SECONDS else CORES
            end, boundary = at + remaining * seconds(rows, size), int(at) + 1
            if end <= boundary:
                return end
            remaining -= (boundary - at) / seconds(rows, size)
            at = float(boundary)

    def works(done: int, free: float, cores: tuple[int, ...]) -> bool:
        if done == len(ready):
            return True
        for rows in range(1, min(BATCH, len(ready) - done) + 1):
            end = end_of(max(free, ready[done + rows - 1]), rows, cores)
            if end <= deadlines[done] and works(done + rows, end, cores):
                return True
        return False

    sizes = product(range(least, CORES + 1), repeat=SECONDS)
    return min((sum(cores) for cores in sizes if works(0, 0.0, cores)), default=None)


requests = st.lists(st.tuples(st.floats(0.0, 1.6), st.floats(0.2, 1.0)), min_size=1, max_size=6)


@given(requests=requests, least=st.integers(1, 2))
def test_no_choice_is_cheaper(requests: list[tuple[float, float]], least: int) -> None:
    ready = sorted(at for at, _ in requests)
    deadlines: list[float] = []
    for at, (_, budget) in zip(ready, requests, strict=True):
        deadlines.append(max(deadlines[-1] if deadlines else 0.0, at + budget))
    alone = [seconds(rows, CORES) for rows in range(1, BATCH + 1)]
    served = servable(ready, deadlines, alone)
    choice = clairvoyant(
        ready,
        deadlines,
        seconds,
        cores_min=least,
        cores_max=CORES,
        batch_max=BATCH,
        duration=SECONDS,
    )
    assert choice.served == len(served)
    assert sum(choice.cores) == fewest(
        [ready[i] for i in served], [deadlines[i] for i in served], least
    )


def test_nothing_to_do_takes_the_least():
    choice = clairvoyant([], [], seconds, cores_max=3, batch_max=2, duration=4)
    assert choice.cores == (1, 1, 1, 1)
    assert (choice.mean_cores, choice.served) == (1.0, 0)


def test_requests_that_all_cores_cannot_save_are_left_out():
    # A batch of one takes a second; two come at once and are due when the first is done.
    assert servable([0.0, 0.0, 2.0], [1.0, 1.0, 3.0], [1.0, 2.0]) == [0, 2]


def test_more_are_kept_if_the_first_is_given_up():
    # Serving the first alone makes the other two late; together those take a second.
    assert servable([0.0, 0.1, 0.1], [1.0, 1.15, 1.15], [0.9, 1.0]) == [1, 2]


@pytest.mark.parametrize("column", [([1.0, 0.0], [2.0, 2.0]), ([0.0, 1.0], [2.0, 1.5])])
def test_other_orders_are_refused(column: tuple[list[float], list[float]]) -> None:
    with pytest.raises(ValueError, match="expected both to ascend"):
        clairvoyant(*column, seconds, cores_max=2, batch_max=2, duration=2)
