"""What breaks, and who notices: real worker processes, killed, hung, starved and refused."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import grpc
import pytest

from slacktide.domain import Reason
from slacktide.executors import fork_client as fork_client_module
from slacktide.executors.cores import available_cores
from slacktide.wire.proto import messages

A_WHILE = 150_000
"""Turns of `spin`: about half a second of work."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    """One server for all that is survived; a model for each way to break."""
    zoo = zoo_at(tmp_path_factory.mktemp("fragile") / "repository")
    zoo.matmul()
    zoo.gather()
    zoo.greedy()
    zoo.greedy("confined", settings="limits: {worker_memory: 192MiB}\n")
    zoo.slow(settings="max_batch: 1\n")
    own_lane = "cores: 1\n" if len(available_cores()) > 1 else ""
    for name in ("spin", "killed", "poison", "forked"):
        # What waits together runs together, whatever a busy machine has made of the profile.
        zoo.spin(name, settings="max_batch: 8\nscheduler: fifo\n")
    zoo.spin("hanging", settings=own_lane + "max_batch: 8\n")
    zoo.matmul("five")
    zoo.matmul("again")
    for name in ("divide", "repeated", "several"):
        zoo.divide(name, settings="max_batch: 8\n")
    with serve(zoo, ready_when="all") as house:
        yield house


@pytest.fixture
def fragile(shared: Any) -> Iterator[Any]:
    yield shared
    shared.settle()


def risen(house: Any, model: str, before: dict[str, int], reason: Reason) -> int:
    return int(house.counts(model).get(reason.label, 0) - before.get(reason.label, 0))


def kill(house: Any, model: str) -> None:
    os.kill(house.worker(model), signal.SIGKILL)


def cancelled(house: Any, model: str, before: dict[str, int], reason: Reason) -> None:
    """Wait until one request of `model` has been cancelled for `reason`."""
    house.until(
        lambda app: (
            app.engine.state.request_table.counts[model].by_reason.get(reason, 0)
            > before.get(reason.label, 0)
        ),
        f"a request of {model!r} is cancelled",
    )


# ── workers ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_request_whose_worker_is_killed_is_run_again(fragile: Any) -> None:
    waiting = fragile.later("killed", fragile.spin_call(A_WHILE))
    fragile.running("killed")
    before = fragile.worker("killed")
    kill(fragile, "killed")
    assert waiting.result().status == 200
    assert fragile.worker("killed") != before
    fragile.good()


@pytest.mark.slow
def test_members_of_a_lost_batch_run_again_one_by_one(fragile: Any) -> None:
    with fragile.hold():
        call = fragile.spin_call(A_WHILE, report_timing=True)
        waiting = [fragile.later("killed", call) for _ in range(3)]
        fragile.queued("killed", 3)
    fragile.running("killed", rows=3)
    kill(fragile, "killed")
    answers = [pending.result() for pending in waiting]
    assert [answer.status for answer in answers] == [200] * 3
    assert [answer.json["parameters"]["batch_size"] for answer in answers] == [1] * 3


def test_a_request_that_kills_two_workers_is_not_tried_a_third_time(fragile: Any) -> None:
    before = fragile.counts("poison")
    waiting = fragile.later("poison", fragile.spin_call(fragile.FOREVER))
    for _ in range(2):
        fragile.running("poison")
        kill(fragile, "poison")
        fragile.good()
    answer = waiting.result()
    assert answer.status == 500
    assert "crashed or hung on this request" in answer.error
    assert risen(fragile, "poison", before, Reason.CRASHED) == 1
    assert fragile.infer("poison", fragile.spin_call(1)).status == 200


def test_a_model_that_hangs_is_killed_and_others_are_served_meanwhile(fragile: Any) -> None:
    before = fragile.worker("hanging")
    with fragile.taken_to_hang_after(0.5):
        waiting = fragile.later("hanging", fragile.spin_call(fragile.FOREVER))
        fragile.running("hanging")
        fragile.good()
        answer = waiting.result()
    assert answer.status == 500
    assert "it hung and was killed" in answer.error
    assert fragile.infer("hanging", fragile.spin_call(1)).status == 200
    assert fragile.worker("hanging") != before


def stand_still(house: Any, seconds: float) -> None:
    """Hold up the server's loop while it takes what sockets have, as SIGSTOP does: what comes next
    are timers."""

    async def hold_up(app: Any) -> None:
        loop = asyncio.get_running_loop()
        over = loop.create_future()
        ours, theirs = socket.socketpair()

        def readable() -> None:
            loop.remove_reader(ours)
            time.sleep(seconds)
            over.set_result(None)

        with ours, theirs:
            loop.add_reader(ours, readable)
            theirs.send(b"x")
            await over

    house.server.call(hold_up)


@pytest.mark.slow
def test_a_worker_is_not_blamed_for_what_its_server_did_not_read(fragile: Any) -> None:
    worker = fragile.worker("hanging")
    with fragile.taken_to_hang_after(1.0):
        waiting = fragile.later("hanging", fragile.spin_call(A_WHILE // 3))
        fragile.running("hanging")
        stand_still(fragile, 2.0)  # the worker does not
        assert waiting.result().status == 200
        assert fragile.infer("hanging", fragile.spin_call(1)).status == 200
        assert fragile.worker("hanging") == worker
        waiting = fragile.later("hanging", fragile.spin_call(fragile.FOREVER + 1))
        fragile.running("hanging")
        stand_still(fragile, 2.0)
        assert waiting.result().status == 500  # this one does hang
    assert fragile.infer("hanging", fragile.spin_call(1)).status == 200
    assert fragile.worker("hanging") != worker


def test_workers_are_replaced_when_their_fork_server_dies(fragile: Any) -> None:
    waiting = fragile.later("forked", fragile.spin_call(A_WHILE))
    fragile.running("forked")
    os.kill(fragile.look(lambda app: app._executors["worker"].fork_server_pid), signal.SIGKILL)
    assert waiting.result().status == 200
    fragile.good()


def test_a_model_comes_back_although_the_process_that_starts_workers_stands_still(
    fragile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_client_module, "_ANSWER", 0.5)
    stopped = fragile.look(lambda app: app._executors["worker"].fork_server_pid)
    os.kill(stopped, signal.SIGSTOP)
    try:
        kill(fragile, "forked")
        fragile.until(
            lambda app: app._executors["worker"].fork_server_pid not in (None, stopped),
            "another process starts workers",
        )
        fragile.until(lambda app: app.control.model_ready("forked", None), "the model is back")
        assert fragile.infer("forked", fragile.spin_call(1)).status == 200
        fragile.good()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(stopped, signal.SIGCONT)


def unavailable(app: Any, model: str) -> bool:
    return bool(app.catalog.find(model, None).reason)


def wear_out(house: Any, model: str, *, retry_first: float = 10.0) -> int:
    """Kill its worker until the model is unavailable; how often that took."""

    def try_again_after(app: Any) -> None:
        for id, pool in app.engine.state.pools.items():
            if id.model == model:
                crashes = pool.crashes
                crashes._settings = replace(crashes._settings, retry_first=retry_first)

    house.look(try_again_after)
    kills = 0
    while not house.look(lambda app: unavailable(app, model)):
        kill(house, model)
        kills += 1
        house.until(lambda app: not app.control.model_ready(model, None), "the loss is noticed")
        house.until(
            lambda app: unavailable(app, model) or app.control.model_ready(model, None),
            "the model is up again, or unavailable",
        )
    return kills


def test_five_crashes_make_a_model_unavailable_and_loading_it_again_helps(fragile: Any) -> None:
    kills = wear_out(fragile, "five")
    assert 4 <= kills <= 5  # the death of the fork server may have counted as one
    entry = fragile.index()["five"]
    assert entry["state"] == "UNAVAILABLE"
    assert "5 crashes within 60 s" in entry["reason"]
    assert entry["reason"].endswith("; next try in 10 s")
    answer = fragile.infer("five", fragile.matmul_call())
    assert answer.status == 503
    assert "5 crashes" in answer.error
    assert fragile.get("/v2/health/ready").status == 503
    assert fragile.get("/v2/health/live").status == 200
    fragile.good()
    fragile.server.load("five")
    assert fragile.infer("five", fragile.matmul_call()).status == 200
    assert fragile.get("/v2/health/ready").status == 200


def test_an_unavailable_model_is_tried_again_by_itself(fragile: Any, caplog: Any) -> None:
    wear_out(fragile, "again", retry_first=0.2)
    fragile.until(lambda app: app.control.model_ready("again", None), "the model is tried again")
    assert fragile.infer("again", fragile.matmul_call()).status == 200
    assert fragile.index()["again"]["state"] == "READY"
    assert fragile.get("/v2/health/ready").status == 200
    page = fragile.ask(fragile.server.metrics_port, "GET", "/metrics").body.decode()
    labels = '{model="again",version="1"'
    assert f"slacktide_circuit_openings_total{labels}}} 1" in page
    assert f'slacktide_circuit{labels},state="trial"}} 1' in page
    messages = [
        record.getMessage() for record in caplog.records if "again:1" in record.getMessage()
    ]
    assert any("next try in 0.2 s" in line for line in messages)
    assert "again:1 serves again, on trial" in messages
    # One crash on trial is enough.
    kill(fragile, "again")
    fragile.until(lambda app: unavailable(app, "again"), "the crash on trial counts")
    fragile.until(lambda app: app.control.model_ready("again", None), "it is tried once more")
    assert fragile.infer("again", fragile.matmul_call()).status == 200


def division(house: Any, first: int, second: int) -> dict[str, Any]:
    return dict(house.call_of({"d": ("INT64", [1, 2], [first, second])}))


def poison(house: Any, number: int) -> dict[str, Any]:
    """Inputs that kill the worker of `divide`, a different one for each number."""
    return division(house, number, -2)


def test_poison_counts_for_nothing_while_others_are_served(fragile: Any) -> None:
    before = fragile.counts("divide")
    for number in range(6):
        waiting = fragile.later("divide", poison(fragile, number))
        honest = [fragile.later("divide", division(fragile, n, n)) for n in range(3)]
        answer = waiting.result()
        assert answer.status == 500
        assert "crashed or hung on this request" in answer.error
        assert [pending.result().status for pending in honest] == [200] * 3
    assert risen(fragile, "divide", before, Reason.CRASHED) == 6
    assert fragile.look(lambda app: app.catalog.find("divide", None).counters.circuit_openings) == 0
    answer = fragile.infer("divide", division(fragile, 1, 3))
    assert answer.json["outputs"][0]["data"] == [-(2**62), -(2**61)]
    assert fragile.get("/v2/health/ready").status == 200


def test_the_same_input_does_not_crash_a_model_again(fragile: Any) -> None:
    calls = [fragile.later("repeated", poison(fragile, 0)) for _ in range(5)]
    statuses = sorted(call.result().status for call in calls)
    assert statuses == [422, 422, 422, 422, 500]
    crashes = fragile.look(lambda app: app.catalog.find("repeated", None).counters.crashes)
    again = fragile.infer("repeated", poison(fragile, 0))
    assert again.status == 422
    assert "the same input has just crashed the model" in again.error
    assert crashes == fragile.look(lambda app: app.catalog.find("repeated", None).counters.crashes)
    assert fragile.infer("repeated", division(fragile, 0, 0)).status == 200


def test_a_connection_that_sends_nothing_but_poison_is_refused_and_no_other(fragile: Any) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", fragile.server.http_port, timeout=30)

    def ask(document: dict[str, Any]) -> http.client.HTTPResponse:
        connection.request("POST", "/v2/models/several/infer", json.dumps(document))
        response = connection.getresponse()
        response.read()
        return response

    assert [ask(poison(fragile, number)).status for number in range(3)] == [500] * 3
    refused = ask(division(fragile, 0, 0))
    assert refused.status == 429
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert fragile.infer("several", division(fragile, 0, 0)).status == 200
    connection.close()
    with grpc.insecure_channel(fragile.grpc) as channel:
        assert grpc_division(channel, "several", 0, 0) is grpc.StatusCode.OK
        for number in range(3, 6):
            assert grpc_division(channel, "several", number, -2) is grpc.StatusCode.INTERNAL
        assert grpc_division(channel, "several", 0, 0) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert grpc_division(channel, "several", 3, -2) is grpc.StatusCode.INVALID_ARGUMENT


def grpc_division(channel: Any, model: str, first: int, second: int) -> grpc.StatusCode:
    request = messages.ModelInferRequest(model_name=model)
    tensor = request.inputs.add(name="d", datatype="INT64", shape=[1, 2])
    tensor.contents.int64_contents.extend([first, second])
    method = channel.unary_unary(
        "/inference.GRPCInferenceService/ModelInfer",
        request_serializer=messages.ModelInferRequest.SerializeToString,
        response_deserializer=messages.ModelInferResponse.FromString,
    )
    try:
        method(request, timeout=30)
    except grpc.RpcError as error:
        code = error.code()
        assert isinstance(code, grpc.StatusCode)
        return code
    return grpc.StatusCode.OK


# ── models ───────────────────────────────────────────────────────────────────────────────────────


def rows_of(house: Any, *indices: int) -> dict[str, Any]:
    return dict(house.call_of({"i": ("INT64", [len(indices)], indices)}))


def test_a_model_that_raises_fails_its_request_alone(fragile: Any) -> None:
    before = fragile.counts("gather")
    pid = fragile.worker("gather")
    with fragile.hold():
        good = [fragile.later("gather", rows_of(fragile, i)) for i in (1, 2)]
        bad = fragile.later("gather", rows_of(fragile, 99))
        fragile.queued("gather", 3)
    assert [pending.result().status for pending in good] == [200, 200]
    answer = bad.result()
    assert answer.status == 500
    assert "out of data bounds" in answer.error
    assert risen(fragile, "gather", before, Reason.RUNTIME_ERROR) == 1
    assert fragile.worker("gather") == pid


def test_a_model_that_asks_for_too_much_memory_fails_its_request(fragile: Any) -> None:
    answer = fragile.infer("greedy", fragile.call_of({"size": ("INT64", [1], [10**15])}))
    assert answer.status == 500
    answer = fragile.infer("greedy", fragile.call_of({"size": ("INT64", [1], [10])}))
    assert answer.status == 200
    fragile.good()


def test_a_worker_that_takes_too_much_memory_is_replaced_and_that_is_told(fragile: Any) -> None:
    def ask(size: int) -> Any:
        return fragile.infer("confined", fragile.call_of({"size": ("INT64", [1], [size])}))

    pid = fragile.worker("confined")
    answer = ask(1 << 28)  # 1 GiB
    assert answer.status == 500
    assert (
        "crashed or hung on this request (out of memory: a worker may use at most 192 MiB)"
        in answer.error
    )
    assert ask(1 << 28).status == 422
    assert ask(1 << 10).status == 200
    assert fragile.worker("confined") != pid
    page = fragile.ask(fragile.server.metrics_port, "GET", "/metrics").body.decode()
    labels = '{model="confined",version="1"}'
    assert f"slacktide_out_of_memory_total{labels} 2" in page
    fragile.good()


def test_a_broken_file_makes_its_model_unavailable_and_no_other(zoo: Any, serve: Any) -> None:
    zoo.matmul()
    zoo.broken()
    with serve(zoo) as house:
        entry = house.index()["broken"]
        assert entry["state"] == "UNAVAILABLE"
        assert entry["reason"]
        answer = house.infer("broken", house.matmul_call())
        assert (answer.status, "is unavailable" in answer.error) == (503, True)
        assert str(zoo.root) not in entry["reason"] + answer.error
        assert house.get("/v2/health/ready").status == 200
        assert house.get("/v2/models/broken/ready").status == 400
        assert house.get("/v2/models/matmul/ready").status == 200
        house.good()
        # Once it is whole it can be loaded.
        zoo.matmul("broken")
        house.server.load("broken")
        assert house.infer("broken", house.matmul_call()).status == 200
        assert house.get("/v2/health/ready").status == 200


def test_models_in_the_servers_own_process(zoo: Any, serve: Any) -> None:
    """For tiny ones; what they raise, and what they are not, is told as of any other."""
    zoo.matmul()
    zoo.gather()
    zoo.broken()
    for name in ("matmul", "gather", "broken"):
        (zoo.root / name / "slacktide.yaml").write_text("executor: in_process\n")
    with serve(zoo) as house:
        house.good()
        assert house.look(lambda app: app._executors["worker"].worker_pids) == ()
        assert house.infer("gather", rows_of(house, 99)).status == 500
        assert house.infer("gather", rows_of(house, 1)).status == 200
        assert house.index()["broken"]["state"] == "UNAVAILABLE"


# ── clients that leave ───────────────────────────────────────────────────────────────────────────


def test_a_client_that_leaves_the_queue_over_http(fragile: Any) -> None:
    before = fragile.counts("slow")
    with fragile.hold():
        with fragile.open_call("slow", fragile.slow_call()):
            fragile.queued("slow", 1)
        cancelled(fragile, "slow", before, Reason.DISCONNECTED)
        assert fragile.look(lambda app: app.driver.in_flight) == 1


def test_a_batch_that_nobody_waits_for_is_stopped(fragile: Any) -> None:
    """It would run for ever, and its worker would be killed for it: it is stopped instead."""
    before = fragile.counts("spin")
    pid = fragile.worker("spin")
    with fragile.hold():
        pass
    assert risen(fragile, "spin", before, Reason.DISCONNECTED) == 1
    assert fragile.worker("spin") == pid
    fragile.good()


def test_a_batch_that_somebody_waits_for_runs_on(fragile: Any) -> None:
    with fragile.hold():
        leaving = fragile.open_call("killed", fragile.spin_call(1))
        staying = fragile.later("killed", fragile.spin_call(A_WHILE))
        fragile.queued("killed", 2)
    fragile.running("killed", rows=2)
    before = fragile.counts("killed")
    leaving.close()
    cancelled(fragile, "killed", before, Reason.DISCONNECTED)
    assert staying.result().status == 200


def test_a_slot_is_kept_while_a_running_batch_names_it(fragile: Any) -> None:
    """Both slots: that of the body, and that of the tensors which came as JSON."""

    def used() -> int:
        return int(fragile.look(lambda app: app.models._budget.bytes_in_use))

    long = fragile.spin_call(1, padding="x" * 60_000)  # long enough to be announced
    endless = fragile.spin_call(fragile.FOREVER)
    with fragile.hold():
        leaving = fragile.open_call("killed", long)
        staying = fragile.open_call("killed", endless)
        fragile.queued("killed", 2)
    fragile.running("killed", rows=2)
    before, counts = used(), fragile.counts("killed")
    leaving.close()
    cancelled(fragile, "killed", counts, Reason.DISCONNECTED)
    assert used() == before > 60_000
    staying.close()


@pytest.mark.parametrize("queued", [True, False], ids=["queued", "running"])
def test_a_call_cancelled_over_grpc(fragile: Any, queued: bool) -> None:
    model = "slow" if queued else "spin"
    before = fragile.counts(model)
    request = messages.ModelInferRequest(model_name=model)
    request.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    request.raw_input_contents.append(bytes(8))
    if not queued:
        request.inputs.add(name="times", datatype="INT64", shape=[1])
        request.raw_input_contents.append(fragile.FOREVER.to_bytes(8, "little"))
    with grpc.insecure_channel(fragile.grpc) as channel:
        method = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        if queued:
            with fragile.hold():
                call = method.future(request.SerializeToString())
                fragile.queued("slow", 1)
                call.cancel()
                cancelled(fragile, "slow", before, Reason.CLIENT_CANCELLED)
        else:
            call = method.future(request.SerializeToString())
            fragile.running("spin")
            call.cancel()
            cancelled(fragile, "spin", before, Reason.CLIENT_CANCELLED)
    assert call.cancelled()


def test_a_stream_that_ends_cancels_what_is_on_it(fragile: Any) -> None:
    before = fragile.counts("spin")
    request = messages.ModelInferRequest(model_name="spin")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    request.inputs.add(name="times", datatype="INT64", shape=[1])
    request.raw_input_contents.extend([bytes(8), fragile.FOREVER.to_bytes(8, "little")])
    with grpc.insecure_channel(fragile.grpc) as channel:
        method = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        call = method(iter([request.SerializeToString()]))
        fragile.running("spin")
        call.cancel()
        cancelled(fragile, "spin", before, Reason.CLIENT_CANCELLED)


def test_a_client_that_leaves_in_the_middle_of_its_body(fragile: Any) -> None:
    before = fragile.counts("matmul")
    with fragile.open_call("matmul", fragile.matmul_call()) as connection:
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        head = b"POST /v2/models/matmul/infer HTTP/1.1\r\nHost: localhost\r\n"
        head += b"Content-Length: 9999999\r\n\r\n"
        connection.sendall(head + b"{" * 1000)
        fragile.until(lambda app: app.driver.in_flight == 1, "the body is announced")
        assert fragile.look(lambda app: app.models._budget.bytes_in_use) >= 9999999
    cancelled(fragile, "matmul", before, Reason.DISCONNECTED)


def test_a_body_that_does_not_come_in_time(fragile: Any) -> None:
    """Its deadline runs from the first byte, body or no body."""
    before = fragile.counts("matmul")
    with fragile.open_call("matmul", fragile.matmul_call()) as connection:
        connection.recv(1 << 16)
        connection.sendall(
            b"POST /v2/models/matmul/infer HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: 9999999\r\n"
            b"x-request-timeout-seconds: 0.2\r\n\r\n{"
        )
        fragile.until(lambda app: app.driver.in_flight == 1, "the body is announced")
        fragile.until(lambda app: app.driver.in_flight == 0, "it is given up")
    assert risen(fragile, "matmul", before, Reason.EXPIRED) == 1
