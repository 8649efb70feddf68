"""The frames of early exits come back as they went, and nonsense is refused as nonsense."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain import ExitMode, ExitPolicy, PoolId
from slacktide.executors import exit_frames as x
from slacktide.executors.hand_over import protocol as p
from slacktide.executors.ports import Arranged, FeaturesSeen, OutputRun

WORD = st.integers(0, 2**63 - 1)
SHARE = st.floats(0, 1)
RAMPS = st.sets(st.integers(0, 200), max_size=5).map(lambda places: tuple(sorted(places)))


def body(data: bytes, kind: p.FrameKind) -> bytes:
    ((frame_kind, content),) = p.FrameReader().feed(data)
    assert frame_kind is kind
    return content


@st.composite
def policies(draw: st.DrawFn) -> ExitPolicy:
    ramps = draw(RAMPS)
    return ExitPolicy(
        PoolId(draw(st.text()), "1", draw(st.text()), draw(st.integers(0, 9))),
        ramps,
        tuple(draw(SHARE) for _ in ramps),
        draw(st.sampled_from(ExitMode)),
        draw(SHARE),
        draw(WORD),
        draw(st.booleans()),
        draw(SHARE),
    )


@given(policies())
def test_policies_come_back(policy: ExitPolicy) -> None:
    assert x.decode_exits(body(x.encode_exits(policy), p.FrameKind.EXITS)) == policy


TIMES = st.lists(st.floats(0, 10), max_size=3).map(tuple)


@given(
    st.builds(
        Arranged,
        WORD,
        RAMPS,
        st.text(),
        RAMPS,
        TIMES,
        st.lists(TIMES, max_size=3).map(tuple),
        st.text(),
    )
)
def test_stages_come_back(arranged: Arranged) -> None:
    decoded = x.decode_arranged(body(x.encode_arranged(arranged), p.FrameKind.ARRANGED))
    assert decoded == arranged


@st.composite
def seen(draw: st.DrawFn) -> FeaturesSeen:
    rows = draw(st.integers(1, 4))
    names = tuple(draw(st.lists(st.text(), max_size=3)))
    widths = [draw(st.integers(0, 4)) for _ in (*names, "logits")]
    parts = [draw(st.binary(min_size=n * rows * 4, max_size=n * rows * 4)) for n in widths]
    costs = tuple(draw(SHARE) for _ in names)
    outputs = tuple(draw(st.lists(st.text(), max_size=2)))
    return FeaturesSeen(rows, names, costs, tuple(parts[:-1]), parts[-1], outputs)


@given(seen())
def test_features_come_back(features: FeaturesSeen) -> None:
    decoded = x.decode_features(body(x.encode_features(features), p.FrameKind.FEATURES))
    assert decoded == features


@given(st.sets(st.integers(0, 7), min_size=1), WORD, WORD, st.lists(WORD, max_size=2))
def test_released_members_come_back(
    places: set[int], batch: int, ramp: int, offsets: list[int]
) -> None:
    runs = [[OutputRun(len(places), offset, 12, (1, 3))] for offset in offsets]
    message = x.ReleasedMessage(batch, ramp, 4096, sorted(places), runs)
    content = body(x.encode_released(message), p.FrameKind.RELEASED)
    assert x.decode_released(content, 8) == message
    with pytest.raises(p.ProtocolError, match="members released of"):
        x.decode_released(content, max(places))


@pytest.mark.parametrize("places", [[0, 0], [-1], [9]])
def test_released_members_are_members_once(places: list[int]) -> None:
    message = x.ReleasedMessage(1, 0, 0, places, [])
    with pytest.raises(p.ProtocolError, match="members released of 2"):
        x.decode_released(body(x.encode_released(message), p.FrameKind.RELEASED), 2)


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
)
FIELDS = st.sampled_from(
    ["pool", "ramps", "thresholds", "mode", "feedback", "revision", "features", "feature_share"]
)


@given(
    st.sampled_from([x.decode_exits, x.decode_arranged, x.decode_features, x.decode_released]),
    st.one_of(
        st.binary(max_size=200),
        st.lists(st.integers(-3, 9) | WORD, max_size=30).map(p.to_bytes),
        JSON.map(lambda document: json.dumps(document).encode()),
    ),
)
def test_nonsense_is_refused_as_nonsense(decode: Any, content: bytes) -> None:
    more = (8,) if decode is x.decode_released else ()
    with contextlib.suppress(p.ProtocolError):
        assert decode(content, *more) is not None


@given(policies(), FIELDS, JSON)
def test_a_policy_with_one_false_field_is_refused_or_read(
    policy: ExitPolicy, field: str, value: Any
) -> None:
    document = json.loads(body(x.encode_exits(policy), p.FrameKind.EXITS))
    content = json.dumps({**document, field: value}).encode()
    with contextlib.suppress(p.ProtocolError):
        assert isinstance(x.decode_exits(content), ExitPolicy)
