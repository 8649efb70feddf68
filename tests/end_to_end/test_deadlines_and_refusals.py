"""Deadlines and refusals, from the client's word to the status it gets, over both protocols."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from slacktide.domain import Reason
from slacktide.wire.proto import messages

GRPC_OF = {
    200: "OK",
    400: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


@dataclass
class Said:
    """An answer in words that both protocols share: HTTP's status, our parameters, the text."""

    status: int
    text: str
    parameters: dict[str, Any]


class Speaker:
    """Asks for one row of a model over one protocol."""

    def __init__(self, protocol: str, house: Any) -> None:
        self.protocol = protocol
        self._house = house

    def ask(
        self, model: str, turns: int | None = None, headers: Any = None, **parameters: Any
    ) -> Said:
        if self.protocol == "http":
            house = self._house
            call = house.slow_call if turns is None else house.spin_call
            document = call(**parameters) if turns is None else call(turns, **parameters)
            answer = house.infer(model, document, headers)
            if answer.status == 200:
                return Said(200, "", answer.json.get("parameters", {}))
            text = answer.error
            return Said(answer.status, text, {k: v for k, v in answer.json.items() if k != "error"})
        return self._over_grpc(model, turns, headers, parameters)

    def _over_grpc(self, model: str, turns: Any, headers: Any, parameters: dict[str, Any]) -> Said:
        request = messages.ModelInferRequest(model_name=model)
        request.inputs.add(name="x", datatype="FP32", shape=[1, 2])
        request.raw_input_contents.append(np.ones(2, "<f4").tobytes())
        if turns is not None:
            request.inputs.add(name="times", datatype="INT64", shape=[1])
            request.raw_input_contents.append(np.array([turns], "<i8").tobytes())
        kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
        for name, given in parameters.items():
            setattr(request.parameters[name], kinds[type(given)], given)
        with grpc.insecure_channel(self._house.grpc) as channel:
            method = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            metadata = tuple((headers or {}).items())
            try:
                raw = method(
                    request.SerializeToString(), metadata=metadata, timeout=self._house.PATIENCE
                )
            except grpc.RpcError as error:
                http = {name: status for status, name in GRPC_OF.items()}
                details = {
                    key.removeprefix("slacktide-").replace("-", "_"): value
                    for key, value in error.trailing_metadata() or ()
                    if key.startswith("slacktide-")
                }
                numbers = {key: int(v) if key != "reason" else v for key, v in details.items()}
                return Said(http[error.code().name], error.details() or "", numbers)
        answer = messages.ModelInferResponse.FromString(raw)
        details = {
            name: getattr(value, value.WhichOneof("parameter_choice"))
            for name, value in answer.parameters.items()
        }
        return Said(200, "", details)


@pytest.fixture(params=["http", "grpc"])
def speaker(request: pytest.FixtureRequest, house: Any) -> Speaker:
    return Speaker(request.param, house)


@pytest.fixture
def busy(house: Any) -> Iterator[Callable[[], None]]:
    """The lane is taken, until the test ends or calls this."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(house.hold())
        yield stack.close


def risen(house: Any, model: str, before: dict[str, int], reason: Reason) -> int:
    return int(house.counts(model).get(reason.label, 0) - before.get(reason.label, 0))


# ── what cannot be on time ───────────────────────────────────────────────────────────────────────


def test_a_deadline_shorter_than_the_model_alone(speaker: Speaker, house: Any) -> None:
    before = house.counts("slower")
    answer = speaker.ask("slower", timeout=round(0.5e6 * house.alone("slower")))
    assert answer.status == 504
    assert risen(house, "slower", before, Reason.SHORTER_THAN_ALONE) == 1


def test_a_deadline_that_has_passed_on_arrival(speaker: Speaker, house: Any) -> None:
    before = house.counts("slow")
    answer = speaker.ask("slow", timeout=1)
    assert (answer.status, "deadline has passed" in answer.text) == (504, True)
    assert risen(house, "slow", before, Reason.EXPIRED) == 1


def test_network_time_is_taken_off_the_deadline(speaker: Speaker) -> None:
    assert speaker.ask("slow", timeout=10_000_000).status == 200
    answer = speaker.ask("slow", timeout=10_000_000, network_us=9_999_000)
    assert answer.status == 504


def test_a_deadline_that_passes_while_the_request_waits(
    speaker: Speaker, house: Any, busy: Callable[[], None]
) -> None:
    """It could be met when it came, as far as anybody knew; the batch before it took longer."""
    before = house.counts("slow")
    assert speaker.ask("slow", timeout=1_000_000).status == 504
    given_up = (Reason.CROWDED_OUT, Reason.HOPELESS, Reason.EXPIRED)
    assert sum(risen(house, "slow", before, reason) for reason in given_up) == 1


def test_the_transports_own_deadline_counts(house: Any) -> None:
    """A client's gRPC deadline is ours, without any parameter."""
    with triton.InferenceServerClient(house.grpc) as client:
        given = triton.InferInput("x", [1, 2], "FP32")
        given.set_data_from_numpy(np.ones((1, 2), np.float32))
        with pytest.raises(InferenceServerException, match="DEADLINE_EXCEEDED"):
            client.infer("slow", [given], client_timeout=0.004)
        result = client.infer(
            "slow", [given], client_timeout=house.PATIENCE, parameters={"report_timing": True}
        )
    budget = result.get_response().parameters["budget_us"].int64_param
    # grpc-core rounds what it sends up, to a coarse unit.
    assert 0 < budget < 1.1 * house.PATIENCE * 1e6


@pytest.mark.parametrize(
    ("header", "short", "long"),
    [
        ("x-request-timeout-seconds", "0.004", "20"),
        ("x-envoy-expected-rq-timeout-ms", "4", "20000"),
    ],
)
def test_timeout_headers_count(speaker: Speaker, header: str, short: str, long: str) -> None:
    assert speaker.ask("slow", headers={header: short}).status == 504
    answer = speaker.ask("slow", headers={header: long}, report_timing=True)
    assert 0 < answer.parameters["budget_us"] < 20e6


def test_the_smallest_deadline_holds(speaker: Speaker) -> None:
    headers = {"x-request-timeout-seconds": "20"}
    assert speaker.ask("slow", headers=headers, timeout=4_000).status == 504
    headers = {"x-request-timeout-seconds": "0.004"}
    assert speaker.ask("slow", headers=headers, timeout=20_000_000).status == 504


@pytest.mark.parametrize(
    ("headers", "parameters", "field"),
    [
        ({}, {"timeout": -1}, "parameters.timeout"),
        ({}, {"timeout": "soon"}, "parameters.timeout"),
        ({}, {"priority": 6}, "parameters.priority"),
        ({}, {"late": "perhaps"}, "parameters.late"),
        ({}, {"network_us": -5}, "parameters.network_us"),
        ({"x-request-timeout-seconds": "0"}, {}, "x-request-timeout-seconds"),
        ({"x-request-timeout-seconds": "nan"}, {}, "x-request-timeout-seconds"),
        ({"slacktide-late": "perhaps"}, {}, "slacktide-late"),
        ({}, {"deadline_ms": 5}, "parameters.deadline_ms: unknown; use 'timeout', in microsec"),
        ({"slacktide-timeout-ms": "5"}, {}, "slacktide-timeout-ms: unknown; use 'x-request-timeo"),
    ],
)
def test_deadlines_that_are_none_are_refused_by_name(
    speaker: Speaker, headers: Any, parameters: Any, field: str
) -> None:
    answer = speaker.ask("slow", headers=headers, **parameters)
    assert answer.status == 400
    assert field in answer.text


def test_look_alikes_are_ignored_if_the_server_is_told_to(zoo: Any, serve: Any) -> None:
    zoo.matmul()
    with serve(zoo, ignore_unknown_parameters=True) as house:
        document = house.matmul_call(deadline_ms=5, priorty=1)
        answer = house.infer("matmul", document, {"slacktide-timeout-ms": "5"})
        assert answer.status == 200


# ── what is served, and what is told of it ───────────────────────────────────────────────────────


def test_without_a_deadline_everything_is_served(house: Any) -> None:
    waiting = [house.later("slow", house.slow_call()) for _ in range(20)]
    assert [pending.result().status for pending in waiting] == [200] * 20


def test_timing_is_reported_when_asked_for(speaker: Speaker) -> None:
    assert "queue_us" not in speaker.ask("slow").parameters
    parameters = speaker.ask("slow", report_timing=True, timeout=20_000_000).parameters
    assert parameters["batch_size"] == 1
    assert parameters["compute_us"] > 0
    assert 0 < parameters["budget_us"] < 20_000_000
    assert parameters["late"] is False
    assert speaker.ask("slow", headers={"slacktide-report-timing": "true"}).parameters


def test_a_late_result_is_delivered_or_discarded_as_asked(speaker: Speaker, house: Any) -> None:
    """The profile of `spin` says microseconds: nobody foresees that this one takes so long."""
    before = house.counts("spin")
    answer = speaker.ask("spin", turns=360_000, timeout=300_000, report_timing=True)
    assert answer.status == 200
    assert answer.parameters["late"] is True
    assert answer.parameters["budget_us"] < 0
    answer = speaker.ask("spin", turns=360_000, timeout=300_000, late="discard")
    assert (answer.status, "discarded" in answer.text) == (504, True)
    assert risen(house, "spin", before, Reason.AFTER_DEADLINE) == 2


def test_the_urgent_go_first(house: Any, busy: Callable[[], None]) -> None:
    """Behind a busy lane, best effort waits for those with deadlines."""
    patient = [house.later("slow", house.slow_call(report_timing=True)) for _ in range(6)]
    house.queued("slow", 6)
    urgent = house.later("slow", house.slow_call(report_timing=True, timeout=20_000_000))
    house.queued("slow", 7)
    busy()
    waited = [pending.result().json["parameters"]["queue_us"] for pending in patient]
    # It came last and was not the last to start.
    assert urgent.result().json["parameters"]["queue_us"] < max(waited)


# ── overload ─────────────────────────────────────────────────────────────────────────────────────


def test_deadlines_that_present_work_makes_impossible_are_refused(
    speaker: Speaker, house: Any, busy: Callable[[], None]
) -> None:
    """Sixty requests, and time for thirty: some must hear no at the door, and nobody nothing."""
    timeout = round(30e6 * house.alone("slow"))
    before = house.counts("slow")
    waiting = [house.spawn(speaker.ask, "slow", timeout=timeout) for _ in range(60)]
    statuses = [pending.result().status for pending in waiting]
    assert 429 in statuses
    assert set(statuses) <= {200, 429, 504}
    assert risen(house, "slow", before, Reason.BEHIND_WORK) == statuses.count(429)


def test_a_refusal_says_how_much_time_was_short(
    speaker: Speaker, house: Any, busy: Callable[[], None]
) -> None:
    timeout = round(0.5e6 * house.alone("slower"))
    answer = speaker.ask("slower", timeout=timeout)
    assert answer.parameters["reason"] == "shorter_than_alone"
    assert 0 < answer.parameters["budget_us"] <= timeout < answer.parameters["needed_us"]
    (stats,) = house.get("/v2/models/slower/stats").json["model_stats"]
    assert stats["outcome_stats"]["shorter_than_alone"] >= 1
    waiting = [house.later("slow", house.slow_call()) for _ in range(2)]
    house.queued("slow", 2)
    timeout = round(30e6 * house.alone("slow"))
    first = [house.spawn(speaker.ask, "slow", timeout=timeout) for _ in range(60)]
    refused = [answer.parameters for pending in first if (answer := pending.result()).status == 429]
    assert refused
    for numbers in refused:
        assert numbers["reason"] == "behind_work"
        assert 0 < numbers["budget_us"] <= timeout
        assert numbers["needed_us"] > 0
        # How long the lane stays taken was foreseen; that it is held on is not.
        assert numbers["queue_us"] >= 0
    busy()
    assert {pending.result().status for pending in waiting} == {200}


@pytest.mark.slow
def test_triton_strict_answers_as_triton_and_the_log_says_why(
    zoo: Any, serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    zoo.slow(turns=120_000, settings="max_batch: 1\nlimits: {queue: 1}\n")
    with serve(zoo, triton_strict=True) as house:
        for protocol in ("http", "grpc"):
            assert Speaker(protocol, house).ask("slow", timeout=40_000).status == 503
    assert "2 refused in the last 1 s: 2 shorter_than_alone" in caplog.text


# ── limits ───────────────────────────────────────────────────────────────────────────────────────


def test_limits_of_the_queue_of_a_client_and_of_memory(zoo: Any, serve: Any) -> None:
    zoo.matmul()
    zoo.slow(settings="max_batch: 1\nlimits: {queue: 2}\n")
    zoo.spin("spin", settings="max_batch: 1\n")
    with serve(zoo, max_in_flight_per_client=40) as house, contextlib.ExitStack() as stack:
        stack.enter_context(house.hold())
        # The model's own queue.
        waiting = [house.later("slow", house.slow_call()) for _ in range(2)]
        house.queued("slow", 2)
        full = house.infer("slow", house.slow_call())
        assert (full.status, "queue is full" in full.error) == (429, True)
        assert int(full.headers["retry-after"]) >= 1
        # The requests of one client.
        more = [house.later("spin", house.spin_call(1)) for _ in range(37)]
        house.queued("spin", 37)
        for answer in (
            house.infer("matmul", house.matmul_call()),
            Speaker("grpc", house).ask("slow"),
        ):
            assert answer.status == 429
        stack.close()
        for pending in [*waiting, *more]:
            assert pending.result().status == 200
        house.good()


def test_memory_of_one_client_and_of_all(zoo: Any, serve: Any) -> None:
    """Bodies are charged as they come, to their client first."""
    zoo.matmul()
    zoo.spin(settings="max_batch: 8\n")
    with serve(zoo, memory_limit=1 << 20, client_memory_limit=256 << 10) as house:
        body = b"\x00" * (300 << 10)
        answer = house.ask(house.server.http_port, "POST", "/v2/models/matmul/infer", body)
        assert answer.status == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert "this client" in answer.error
        house.good()
    with serve(zoo, memory_limit=256 << 10, client_memory_limit=1 << 20) as house:
        answer = house.ask(house.server.http_port, "POST", "/v2/models/matmul/infer", body)
        assert answer.status == 429
        house.good()
