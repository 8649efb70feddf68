"""ProfileRecord survives a file, and its key changes with what batch times depend on."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest

from slacktide.profiles import LatencyTable, ProfileError, ProfileRecord, profile_key

HARDWARE = {"cpu": "Some CPU", "flags": "avx2 avx512f"}


@pytest.fixture
def record(resnet: LatencyTable) -> ProfileRecord:
    return ProfileRecord(
        model="m",
        model_sha256="ab" * 32,
        fingerprint="0123456789abcdef",
        hardware=HARDWARE,
        shapes={"x": (3, 224, 224), "n": ()},
        table=resnet,
        skipped=(64,),
    )


def test_survives_a_file(record: ProfileRecord) -> None:
    assert ProfileRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


def test_the_key_names_model_hardware_and_device(record: ProfileRecord) -> None:
    others = (
        dataclasses.replace(record, model_sha256="cd" * 32),
        dataclasses.replace(record, fingerprint="fedcba9876543210"),
        dataclasses.replace(record, device="cuda:0"),
    )
    assert len({record.key, *(other.key for other in others)}) == 4
    assert record.key == profile_key(record.model_sha256, record.fingerprint)
    assert re.fullmatch("[0-9a-f]{16}", record.key)


def test_covers_measured_cores_and_sizes(record: ProfileRecord) -> None:
    assert record.covers(2, 32)
    assert not record.covers(3, 32)
    assert record.covers(1, 64)  # larger sizes were tried and given up
    assert not dataclasses.replace(record, skipped=()).covers(1, 64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 9}, "schema: this version reads 1"),
        ({"model": 3}, "model: expected a string"),
        ({"model_sha256": "xyz"}, "model_sha256: expected 64"),
        ({"hardware": {"cpu": 1}}, "hardware.cpu: expected a string"),
        ({"fingerprint": None}, "fingerprint: expected a string"),
        ({"shapes": []}, "shapes: expected an object"),
        ({"shapes": {"x": [1.5]}}, "shapes.x[0]: expected a whole number"),
        ({"skipped": "no"}, "skipped: expected a list"),
        ({"table": {}}, "table: missing schema"),
        ({"extra": 1}, "profile: unknown extra"),
    ],
)
def test_a_wrong_field_is_named(
    record: ProfileRecord, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ProfileError, match=re.escape(message)):
        ProfileRecord.from_dict(record.to_dict() | change)
