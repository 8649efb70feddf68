"""Messages between servers: what one writes the other reads, whoever serialized it."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain import Outcome, Reason
from slacktide.domain.tensors import Datatype
from slacktide.peers import LoadReport, ModelLoad, PeerHello
from slacktide.wire import peer_messages as pm
from slacktide.wire.calls import CallContext, InferCall, InferReply, InputTensor, OutputValue
from slacktide.wire.errors import WireError
from slacktide.wire.grpc_codec import GrpcCodec
from slacktide.wire.proto import messages as m

CODEC = GrpcCodec()
"""Its caches are used by all tests, as by all links."""

NAMES = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=20)
SECONDS = st.floats(0.0, 1e9)
MAYBE_SECONDS = st.none() | st.floats(allow_nan=False)
PARAMETERS = st.dictionaries(
    NAMES, st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | NAMES
)
LOADS = st.builds(ModelLoad, NAMES, SECONDS | st.just(math.inf), SECONDS, SECONDS)
REPORTS = st.builds(LoadReport, st.lists(LOADS, max_size=4).map(tuple), st.integers(0, 2**64 - 1))


def tensor(kind: type, name: str, data: bytes):
    return kind(name, Datatype.UINT8, (1, len(data)), data)


CALLS = st.builds(
    InferCall,
    NAMES,
    st.none() | NAMES,
    NAMES,
    st.lists(st.tuples(NAMES, st.binary(max_size=300)), max_size=3, unique_by=lambda x: x[0]).map(
        lambda pairs: [tensor(InputTensor, *pair) for pair in pairs]
    ),
    st.lists(NAMES, max_size=3, unique=True),
    PARAMETERS,
)
OUTCOMES = st.builds(
    Outcome,
    st.sampled_from(list(Reason)),
    st.just(7.0),
    SECONDS,
    SECONDS,
    st.integers(0, 2**32 - 1),
    MAYBE_SECONDS,
    NAMES,
    MAYBE_SECONDS,
    MAYBE_SECONDS,
    st.none() | st.integers(0, 99),
)
REPLIES = st.builds(
    InferReply,
    OUTCOMES,
    NAMES,
    NAMES,
    NAMES,
    st.none()
    | st.lists(st.tuples(NAMES, st.binary(max_size=300)), max_size=3).map(
        lambda pairs: [tensor(OutputValue, *pair) for pair in pairs]
    ),
    NAMES,
    PARAMETERS,
    MAYBE_SECONDS,
    NAMES,
)


@given(NAMES, NAMES, st.dictionaries(NAMES, NAMES), st.integers(0, 2**64 - 1))
def test_a_hello_is_read_as_it_was_written(machine, release, models, most):
    hello = PeerHello(1, release, machine, models, "abc", "10.0.0.2:8000", "[::1]:8001", tls=True)
    message = pm.read_peer_message(pm.hello_message(hello, most))
    assert pm.hello_of(message.hello) == (hello, most)


@given(REPORTS)
def test_a_report_is_read_as_it_was_written(report):
    message = m.LoadsOfPeer.FromString(pm.loads_message(report).SerializeToString())
    assert pm.report_of(message) == report


@given(CALLS, st.integers(0, 2**64 - 1), st.none() | st.floats(0.0, 1e6), NAMES, st.booleans())
def test_a_call_is_read_as_it_was_written_by_us_and_by_the_runtime(call, id, budget, name, classes):
    if classes and call.outputs:
        call.classification = {call.outputs[0]: 3}
    context = CallContext(0.0, "", "grpc", request_id=name, traceparent=name)
    message = b"".join(pm.forwarded_pieces(id, CODEC.call_pieces(call), context, budget))
    reserialized = m.PeerMessage.FromString(message).SerializeToString()
    for raw in (message, reserialized):
        head, start = pm.forwarded_head(raw, len(raw))
        assert (head.id, head.request_id, head.traceparent) == (id, name, name)
        assert head.HasField("budget_us") == (budget is not None)
        assert head.budget_us * 1e-6 == pytest.approx(budget or 0.0, abs=1e-6)
        assert pm.forwarded_head(raw[:start], len(raw)) == (head, start)
        assert GrpcCodec().read(raw[start:]).call({}) == call


@given(CALLS, st.data())
def test_a_piece_of_a_call_or_other_bytes_are_no_call(call, data):
    context = CallContext(0.0, "", "grpc")
    message = b"".join(pm.forwarded_pieces(3, CODEC.call_pieces(call), context, 1.0))
    _, start = pm.forwarded_head(message, len(message))
    cut = data.draw(st.integers(0, start - 1))
    assert pm.forwarded_head(message[:cut], len(message)) is None
    assert pm.forwarded_head(message, len(message) + 1) is None


@given(st.binary(max_size=200))
def test_bytes_of_anything_raise_nothing_but_wire_errors(raw):
    pm.forwarded_head(raw, len(raw))
    pm.forwarded_head(b"\x2a" + raw, len(raw) + 1)
    for read in (pm.read_peer_message, lambda raw: pm.read_answer(raw, now=0.0)):
        for message in (raw, b"\x32" + bytes((len(raw) % 128,)) + raw):
            with contextlib.suppress(WireError):
                read(message)


@given(REPLIES, st.integers(0, 2**64 - 1), st.none() | REPORTS)
def test_an_answer_is_read_as_it_was_written_by_us_and_by_the_runtime(reply, id, report):
    pieces = pm.reply_pieces(id, reply, GrpcCodec().reply_pieces(reply), report)
    message = b"".join(pieces)
    reserialized = m.PeerMessage.FromString(message).SerializeToString()
    for raw in (message, reserialized):
        assert pm.is_answer(raw)
        assert pm.read_answer(raw, now=7.0) == (id, reply, report)


def hello(**fields) -> m.HelloPeer:
    return m.HelloPeer(**{"protocol": 1, "release": "1", "machine": "a", **fields})


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (hello(machine=""), "machine"),
        (hello(machine="a" * 129), "machine"),
        (hello(machine="a\nb"), "machine"),
        (hello(release="\x1b[2J"), "release"),
        (hello(models={str(i): "d" for i in range(10_000)}), "models: expected at most 1024"),
        (hello(models={"m" * 513: "d"}), "models"),
        (hello(models={"m:1": "d" * 129}), "models"),
        (hello(http_address="10.0.0.2"), "http_address: expected an address"),
        (hello(http_address="evil/path:80"), "http_address"),
        (hello(http_address="a:80\r\nx: y"), "http_address"),
        (hello(grpc_address="unix:/run/x:80"), "grpc_address"),
        (hello(grpc_address="h:0"), "grpc_address"),
        (hello(grpc_address="h" * 300 + ":80"), "grpc_address"),
    ],
)
def test_a_hello_out_of_bounds_is_refused(message, field):
    with pytest.raises(WireError, match=f"^{field}"):
        pm.hello_of(message)


def test_a_hello_without_addresses_names_none():
    greeting, _ = pm.hello_of(hello())
    assert (greeting.http_address, greeting.grpc_address, greeting.tls) == ("", "", False)


@pytest.mark.parametrize("times", [(-1.0, 0, 0), (math.nan, 0, 0), (0, math.inf, 0), (0, 0, -1)])
def test_a_report_of_impossible_times_is_refused(times):
    wait, alone, row = times
    load = m.LoadOfModel(model="m", wait_s=wait, alone_s=alone, row_s=row)
    with pytest.raises(WireError, match="loads of 'm'"):
        pm.report_of(m.LoadsOfPeer(loads=[load]))


REPLY = InferReply(
    Outcome(Reason.ON_TIME, 7.0), "m", "1", "", [OutputValue("y", Datatype.FP32, (2,), bytes(8))]
)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"reason": "splendid"}, "reason"),
        ({"queue_s": math.nan}, "queue_s"),
        ({"budget_s": math.nan}, "budget_s"),
    ],
)
def test_an_answer_out_of_bounds_is_refused(changes, field):
    raw = b"".join(pm.reply_pieces(1, REPLY, GrpcCodec().reply_pieces(REPLY)))
    message = m.PeerMessage.FromString(raw)
    for name, number in changes.items():
        setattr(message.answer, name, number)
    with pytest.raises(WireError, match=f"^{field}"):
        pm.read_answer(message.SerializeToString(), now=0.0)


def test_outputs_that_do_not_fit_their_shape_are_refused():
    short = replace(REPLY, outputs=[OutputValue("y", Datatype.FP32, (3,), bytes(8))])
    raw = b"".join(pm.reply_pieces(1, short, GrpcCodec().reply_pieces(short)))
    with pytest.raises(WireError, match="raw_output_contents"):
        pm.read_answer(raw, now=0.0)
