"""Results on disk: what is kept, what counts again, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from slacktide_papers.harness.state import ReproduceError, Results, fingerprint

ONE, TWO = {"case": "one", "seed": 1}, {"case": "two", "seed": 1}


def kept(path: Path, code: str, cell: dict[str, object], result: dict[str, object]) -> None:
    Results(path, code).add(cell, result)


def test_a_result_is_there_the_next_time_in_whatever_order_its_keys_are(tmp_path):
    path = tmp_path / "new" / "state.jsonl"
    kept(path, "a", ONE, {"finish": 0.5})
    kept(path, "a", TWO, {"finish": 0.25})
    again = Results(path, "a")
    assert len(again) == 2
    assert again.get({"seed": 1, "case": "one"}) == {"finish": 0.5}
    assert again.get(TWO) == {"finish": 0.25}
    assert again.get({"case": "one", "seed": 2}) is None


def test_results_of_other_code_do_not_count_and_stay(tmp_path):
    path = tmp_path / "state.jsonl"
    kept(path, "old", ONE, {"finish": 0.5})
    results = Results(path, "new")
    assert (len(results), results.get(ONE)) == (0, None)
    kept(path, "new", ONE, {"finish": 0.6})
    assert Results(path, "old").get(ONE) == {"finish": 0.5}
    assert Results(path, "new").get(ONE) == {"finish": 0.6}


def test_fresh_forgets_all(tmp_path):
    path = tmp_path / "state.jsonl"
    kept(path, "a", ONE, {"finish": 0.5})
    assert len(Results(path, "a", fresh=True)) == 0
    assert len(Results(path, "a")) == 0


def test_a_line_cut_off_by_a_crash_is_passed_over_and_the_next_is_whole(tmp_path):
    path = tmp_path / "state.jsonl"
    kept(path, "a", ONE, {"finish": 0.5})
    path.write_bytes(path.read_bytes() + b'{"code": "a", "cell": {"ca')
    kept(path, "a", TWO, {"finish": 0.25})
    again = Results(path, "a")
    assert (again.get(ONE), again.get(TWO)) == ({"finish": 0.5}, {"finish": 0.25})
    path.write_bytes(b'{"code"')
    assert len(Results(path, "a")) == 0


def test_a_file_of_something_else_is_refused_by_its_line(tmp_path):
    path = tmp_path / "notes.txt"
    kept(path, "a", ONE, {"finish": 0.5})
    path.write_bytes(path.read_bytes() + b"shopping\n")
    with pytest.raises(ReproduceError, match=r"notes\.txt, line 2: not a result"):
        Results(path, "a")
    assert path.read_bytes().endswith(b"shopping\n")


def test_a_file_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ReproduceError, match="state file"):
        Results(tmp_path / "file" / "state.jsonl", "a")


def test_the_fingerprint_follows_the_code():
    assert fingerprint(("domain",)) == fingerprint(("domain",))
    assert fingerprint(("domain",)) != fingerprint(("domain", "lab/workloads"))
    assert len(fingerprint(("papers/orloj/cases.py",))) == 16
