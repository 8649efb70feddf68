"""`FILE:only=…:column=…`: which part of a file is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from slacktide.lab.load.traces import read_lengths, read_trace
from slacktide.lab.workloads import Replay, WorkloadError


def test_a_part_of_a_file_is_chosen_by_name_and_column(tmp_path: Path) -> None:
    path = tmp_path / "day:one.csv"
    path.write_text("time_s,length,application\n0,3,a\n1,4,b\n")
    arrivals = read_trace(f"{path}:only=b")
    assert isinstance(arrivals, Replay)
    assert arrivals.instants.tolist() == [1.0]
    assert read_lengths(str(path)).values.tolist() == [3.0, 4.0]
    assert read_lengths(f"{path}:only=b:column=length").values.tolist() == [4.0]


def test_lengths_need_a_column_and_only_one(tmp_path: Path) -> None:
    path = tmp_path / "llm.csv"
    path.write_text("time_s,context_tokens,generated_tokens\n0,5,6\n")
    with pytest.raises(WorkloadError, match="several columns of lengths; choose one: column="):
        read_lengths(str(path))
    with pytest.raises(WorkloadError, match="did you mean 'context_tokens'"):
        read_lengths(f"{path}:column=context")
    assert read_lengths(f"{path}:column=generated_tokens").values.tolist() == [6.0]
    times = tmp_path / "times.csv"
    times.write_text("time_s\n0\n")
    with pytest.raises(WorkloadError, match=r"times.csv: expected a column of lengths"):
        read_lengths(str(times))
