"""Parameters and headers mean the same over both front ends."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain import Outcome, Reason
from slacktide.wire.errors import BadField, WireError, quote
from slacktide.wire.parameters import (
    LOOK_ALIKE_HEADERS,
    LOOK_ALIKES,
    NEVER_S,
    PARAMETER_HEADERS,
    TIMEOUT_HEADERS,
    CallOptions,
    parse_length,
    parse_parameters,
    read_headers,
    stage_parameters,
    timing_parameters,
)
from slacktide.wire.status import MOST_MICROSECONDS


def test_a_call_that_says_nothing_gets_the_defaults():
    assert parse_parameters({}) == CallOptions()
    assert parse_parameters({"timeout": 0, "priority": 0}) == CallOptions()


def test_every_option_is_read_in_its_unit():
    options = parse_parameters(
        {
            "timeout": 150_000,
            "priority": 1,
            "application": "camera",
            "work_hint": 128,
            "late": "discard",
            "report_timing": True,
            "network_us": 2_500,
            "variant": "320",
            "final": True,
        }
    )
    assert options.timeout_s == pytest.approx(0.15)
    assert options.network_s == pytest.approx(0.0025)
    assert options == CallOptions(
        timeout_s=options.timeout_s,
        penalty=4.0,
        application="camera",
        work_hint=128.0,
        discard_late=True,
        report_timing=True,
        network_s=options.network_s,
        variant="320",
        final=True,
    )


@pytest.mark.parametrize(
    ("priority", "penalty"), [(0, None), (1, 4.0), (2, 2.0), (3, 1.0), (4, 0.5), (5, 0.25)]
)
def test_priority_sets_the_penalty(priority: int, penalty: float):
    assert parse_parameters({"priority": priority}).penalty == penalty


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timeout", -1),
        ("timeout", math.nan),
        ("timeout", math.inf),
        ("timeout", "5000"),
        ("timeout", True),
        ("timeout", 10**400),
        ("priority", 6),
        ("priority", -1),
        ("priority", 1.5),
        ("priority", True),
        ("application", 7),
        ("application", "a" * 257),
        ("application", "two\nlines"),
        ("variant", 320),
        ("variant", "v" * 257),
        ("work_hint", "long"),
        ("work_hint", -3.0),
        ("late", "maybe"),
        ("late", True),
        ("report_timing", "yes"),
        ("report_timing", 1),
        ("final", "true"),
        ("network_us", -1),
        ("network_us", math.nan),
        ("network_us", 1_700_000_000_000_000),  # microseconds since 1970
        ("network_us", 2**63),
        ("network_us", 2**64),
        ("work_hint", 1e13),
        ("work_hint", 2**63),
    ],
)
def test_bad_values_name_the_parameter(name: str, value: object):
    with pytest.raises(BadField) as caught:
        parse_parameters({name: value})  # type: ignore[dict-item]  # wrong on purpose
    assert caught.value.field == f"parameters.{name}"
    assert caught.value.reason is Reason.BAD_INPUT
    assert caught.value.message.startswith(f"parameters.{name}: expected ")


@pytest.mark.parametrize("never", [2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 1e300])
def test_a_timeout_is_a_year_at_most(never: float):
    assert parse_parameters({"timeout": never}).timeout_s == NEVER_S
    for name in TIMEOUT_HEADERS:
        assert read_headers([(name, str(never))]).budget_s == NEVER_S


@pytest.mark.parametrize("name", ["slacktide-network-us", "slacktide-work-hint"])
def test_a_number_in_a_header_is_bounded_as_in_a_parameter(name: str):
    with pytest.raises(BadField, match=f"^{name}: expected a number from 0 to"):
        read_headers([(name, "1e15")])


def test_numbers_of_an_answer_fit_every_reader_of_json():
    def timed(seconds: float) -> dict[str, object]:
        outcome = Outcome(
            Reason.ON_TIME, 0.0, queue_s=seconds, compute_s=-seconds, budget_s=seconds
        )
        parameters = timing_parameters(outcome, None)
        return parameters | stage_parameters({"detector": outcome})

    for seconds in (1e12, 1e300, math.inf, -math.inf, math.nan):
        numbers = [n for n in timed(seconds).values() if type(n) is int]
        assert len(numbers) == 8
        assert max(map(abs, numbers)) <= MOST_MICROSECONDS
    assert timed(1.5)["queue_us"] == 1_500_000


def test_reserved_and_unknown_parameters_are_left_alone():
    reserved = {
        "sequence_id": 3,
        "sequence_start": True,
        "triton_enable_empty_final_response": True,
        "binary_data_output": True,
        "mine": "x",
    }
    assert parse_parameters(reserved) == CallOptions()


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("deadline", "'timeout', in microseconds"),
        ("slo_ms", "'timeout', in microseconds"),
        ("priorty", "'priority', 1 (highest) to 5"),
    ],
)
def test_a_parameter_that_is_taken_for_one_of_ours_is_refused_with_the_right_name(name, right):
    with pytest.raises(WireError) as caught:
        parse_parameters({"timeout": 5, name: 20})
    assert caught.value.reason is Reason.BAD_INPUT
    assert caught.value.message == f"parameters.{name}: unknown; use {right}"
    assert parse_parameters({"timeout": 5, name: 20}, {}).timeout_s == pytest.approx(5e-6)


def test_a_header_that_is_taken_for_one_of_ours_is_refused_with_the_right_name():
    fields = read_headers([("x-deadline-ms", "20"), ("x-other-ms", "20")])
    with pytest.raises(WireError, match="use 'x-request-timeout-seconds'"):
        parse_parameters(fields.parameters)
    assert parse_parameters(fields.parameters, {}) == CallOptions()


def test_no_name_of_ours_is_a_look_alike():
    ours = {*PARAMETER_HEADERS, *PARAMETER_HEADERS.values(), *TIMEOUT_HEADERS}
    assert ours.isdisjoint(LOOK_ALIKES)
    reserved = {"timeout", "priority", "sequence_id", "binary_data_output", "classification"}
    assert reserved.isdisjoint(LOOK_ALIKES)
    assert all(name == name.lower() for name in LOOK_ALIKE_HEADERS)


def test_headers_become_typed_parameters():
    fields = read_headers(
        [
            ("slacktide-application", "camera"),
            ("slacktide-variant", "320"),
            ("slacktide-work-hint", "12.5"),
            ("slacktide-late", "discard"),
            ("slacktide-report-timing", "TRUE"),
            ("slacktide-network-us", "900"),
            ("slacktide-final", "1"),
            ("user-agent", "x"),
        ]
    )
    assert fields.parameters == {
        "application": "camera",
        "variant": "320",
        "work_hint": 12.5,
        "late": "discard",
        "report_timing": True,
        "network_us": 900.0,
        "final": True,
    }
    assert fields.budget_s is None
    assert parse_parameters(fields.parameters).network_s == pytest.approx(9e-4)


def test_the_smallest_timeout_header_holds():
    both = [("x-envoy-expected-rq-timeout-ms", "250"), ("x-request-timeout-seconds", "0.1")]
    assert read_headers(both).budget_s == pytest.approx(0.1)
    assert read_headers(reversed(both)).budget_s == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-envoy-expected-rq-timeout-ms", "-5"),
        ("x-envoy-expected-rq-timeout-ms", "0"),
        ("x-envoy-expected-rq-timeout-ms", "soon"),
        ("x-request-timeout-seconds", "nan"),
        ("x-request-timeout-seconds", "inf"),
        ("x-request-timeout-seconds", "1_0"),
        ("x-request-timeout-seconds", ""),
        ("slacktide-work-hint", "many"),
        ("slacktide-network-us", "-1"),
        ("slacktide-late", "perhaps"),
        ("slacktide-report-timing", "2"),
        ("slacktide-final", "yes"),
        ("slacktide-application", "x" * 300),
    ],
)
def test_bad_headers_are_named(name: str, value: str):
    with pytest.raises(BadField) as caught:
        read_headers([(name, value)])
    assert caught.value.field == name


@pytest.mark.parametrize("text", ["", "-1", "+1", "1.0", "1e3", " 1", "٣", "9" * 19])
def test_lengths_are_plain_decimal_digits(text: str):
    assert parse_length("slacktide-bytes", "150528") == 150528
    with pytest.raises(BadField):
        parse_length("slacktide-bytes", text)


scalars = st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=20))


@given(
    st.dictionaries(
        st.one_of(
            st.sampled_from(
                ["timeout", "priority", "late", "work_hint", "network_us", "report_timing", "slo"]
            ),
            st.text(max_size=8),
        ),
        scalars,
        max_size=5,
    )
)
def test_any_parameters_end_in_options_or_in_an_error_of_the_wire(parameters):
    try:
        options = parse_parameters(parameters)
    except WireError:
        return
    assert options.timeout_s is None or 0 < options.timeout_s < math.inf
    assert options.penalty is None or 0.25 <= options.penalty <= 4.0
    assert 0 <= options.network_s < math.inf


def test_messages_quote_little_of_what_came():
    assert len(BadField("f", "less", "x" * 10_000).message) < 200
    assert len(BadField("f" * 5_000, "less", [1] * 10_000).message) < 200
    assert "\n" not in quote("a\nb")
    assert quote({"secret": 1}) == "an object"
    assert quote(None) == "nothing"
    assert "bits" in quote(10**5000)
    assert isinstance(BadField("f", "x", b"\xff\x00"), WireError)
