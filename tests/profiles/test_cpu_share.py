"""CpuShare tells times of a quiet machine from those of a busy one."""

from __future__ import annotations

import pytest

from slacktide.domain import BatchTiming
from slacktide.profiles import CpuShare, busy_note, is_quiet


def test_the_share_is_cpu_time_by_wall_time_of_all_batches() -> None:
    share = CpuShare()
    assert share.value is None
    share.add(BatchTiming(0.1, 0.7, 0.2, cpu_s=1.8, thread_s=1.0))
    assert share.value == pytest.approx(1.0)
    share.add(BatchTiming(infer_s=3.0, thread_s=0.6))
    assert share.value == pytest.approx(0.4)
    share.add(BatchTiming(infer_s=100.0))  # an executor that does not say
    assert share.value == pytest.approx(0.4)


def test_clocks_that_disagree_give_one_at_most() -> None:
    share = CpuShare()
    share.add(BatchTiming(infer_s=1.0, thread_s=1.01))
    assert share.value == 1.0


@pytest.mark.parametrize(
    ("share", "note"),
    [
        (None, ""),
        (1.0, ""),
        (0.7, ""),
        (0.4, "measured while other programs used 60 % of these cores"),
        (0.0, "measured while other programs used 100 % of these cores"),
    ],
)
def test_a_busy_machine_is_named(share: float | None, note: str) -> None:
    assert busy_note(share) == note
    assert is_quiet(share) is not bool(note)
