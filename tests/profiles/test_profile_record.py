"""ProfileRecord survives a file, and says when it does not apply."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest

from slacktide.profiles import LatencyTable, ProfileError, ProfileRecord
from slacktide.profiles.latency_fit import SizeTime

SIZE = {"rows": 1, "cores": 1, "size": 2.0, "p50_s": 1.0, "signature": []}


@pytest.fixture
def record(resnet: LatencyTable) -> ProfileRecord:
    return ProfileRecord(
        table=resnet,
        shapes={"x": (3, 224, 224), "n": ()},
        hardware={"cpu": "Some CPU", "flags": "avx2 avx512f"},
    )


@pytest.mark.parametrize("hardware", [None, {"cpu": "Some CPU"}])
def test_survives_a_file(record: ProfileRecord, hardware: dict[str, str] | None) -> None:
    sizes = (SizeTime(8, 2, 0.25, 1e-3, ((3, 8), ())), SizeTime(1, 1, 4.0, 0.5))
    record = dataclasses.replace(
        record, hardware=hardware, skipped=(64,), device="cuda:1", sizes=sizes, threads=(1, 2)
    )
    record = dataclasses.replace(record, cpu_share=0.4)
    assert ProfileRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


def test_lengths_of_the_schema_before_are_read(record: ProfileRecord) -> None:
    data = record.to_dict() | {"schema": 3}
    del data["sizes"], data["cpu_share"]
    data["lengths"] = [{"rows": 8, "cores": 2, "length": 0.25, "p50_s": 1e-3}]
    assert ProfileRecord.from_dict(data).sizes == (SizeTime(8, 2, 0.25, 1e-3),)
    data["lengths"] = [{"rows": 8, "cores": 2, "length": 0.25, "seconds": 1e-3}]
    with pytest.raises(ProfileError, match=re.escape("lengths[0]: missing p50_s")):
        ProfileRecord.from_dict(data)


def test_the_schema_before_has_no_cpu_share(record: ProfileRecord) -> None:
    data = record.to_dict() | {"schema": 4}
    with pytest.raises(ProfileError, match="unknown cpu_share"):
        ProfileRecord.from_dict(data)
    del data["cpu_share"]
    assert ProfileRecord.from_dict(data) == record


@pytest.mark.parametrize(
    ("deployment", "reason"),
    [
        ({"cores": (1, 2), "max_batch": 32}, None),
        ({"cores": (2,), "max_batch": 0}, None),
        ({"cores": (1,), "max_batch": 8, "shapes": {"x": (3, 224, 224)}}, None),
        ({"cores": (1, 3, 4), "max_batch": 8}, "was not measured on 3, 4 cores"),
        ({"cores": (1,), "max_batch": 64}, "was measured up to batch 32, not 64"),
        (
            {"cores": (1,), "max_batch": 8, "device": "cuda:0"},
            "was measured on cpu, not on cuda:0",
        ),
        (
            {"cores": (1,), "max_batch": 8, "shapes": {"x": (3, 96, 96)}},
            "was measured with a different shape of input 'x'",
        ),
    ],
)
def test_says_why_it_does_not_apply(
    record: ProfileRecord, deployment: dict[str, Any], reason: str | None
) -> None:
    assert record.mismatch(**deployment) == reason


@pytest.mark.parametrize(
    ("threads", "cores", "reason"),
    [
        ((1, 2), (1, 2), None),
        ((2,), (2,), None),
        ((), (1, 2), None),
        ((2,), (1, 2), "was measured with 1 threads on 1 cores, not with 2"),
        ((1, 4), (1, 2), "was measured with 2 threads on 2 cores, not with 4"),
    ],
)
def test_other_sessions_are_another_profile(
    record: ProfileRecord, threads: tuple[int, ...], cores: tuple[int, ...], reason: str | None
) -> None:
    measured = dataclasses.replace(record, threads=(1, 2, 4))
    assert measured.mismatch(cores=cores, max_batch=8, threads=threads) == reason
    assert record.mismatch(cores=cores, max_batch=8, threads=threads) is None


def test_sizes_that_were_given_up_are_not_asked_for_again(record: ProfileRecord) -> None:
    tried = dataclasses.replace(record, skipped=(64,))
    assert tried.mismatch(cores=(1,), max_batch=64) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 9}, "schema: this version reads 5"),
        ({"cpu_share": 1.5}, "cpu_share: expected a number from 0 to 1, got 1.5"),
        ({"device": 3}, "device: expected a string"),
        ({"hardware": {"cpu": 1}}, "hardware.cpu: expected a string"),
        ({"hardware": []}, "hardware: expected an object"),
        ({"shapes": []}, "shapes: expected an object"),
        ({"shapes": {"x": [1.5]}}, "shapes.x[0]: expected a whole number"),
        ({"skipped": "no"}, "skipped: expected a list"),
        (
            {"sizes": [SIZE | {"size": 10**400}]},
            "sizes[0].size: expected a finite number",
        ),
        ({"sizes": [{"rows": 1}]}, "sizes[0]: missing cores, size, p50_s, signature"),
        (
            {"sizes": [SIZE | {"size": 0.0}]},
            "sizes[0]: expected numbers above 0",
        ),
        ({"sizes": [SIZE | {"signature": [[-1]]}]}, "sizes[0].signature: expected lists of whole"),
        (
            {"sizes": [SIZE | {"signature": [[1] * 64]}]},
            "sizes[0].signature: expected at most 64 axes",
        ),
        (
            {"sizes": [SIZE | {"signature": [[10**400]]}]},
            "sizes[0].signature: expected at most 9007199",
        ),
        ({"sizes": [SIZE | {"size": 1e200}]}, "sizes[0].size: expected 1/1e+09 to 1e+09"),
        ({"table": {}}, "table: missing schema"),
        ({"extra": 1}, "profile: unknown extra"),
    ],
)
def test_a_wrong_field_is_named(
    record: ProfileRecord, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ProfileError, match=re.escape(message)):
        ProfileRecord.from_dict(record.to_dict() | change)
