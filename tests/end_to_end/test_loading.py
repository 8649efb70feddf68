"""Models come, go and are replaced while clients ask for them."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import shutil
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from slacktide.executors.cores import available_cores
from slacktide.wire.errors import ControlError
from slacktide.wire.proto import messages


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    """A server that takes orders; each test has a model of its own."""
    zoo = zoo_at(tmp_path_factory.mktemp("controlled") / "repository")
    zoo.matmul()
    zoo.spin(settings="max_batch: 8\n")
    with serve(zoo, control_port=0, allow_uploads=True) as house:
        yield house


@pytest.fixture
def open_house(shared: Any) -> Iterator[Any]:
    yield shared
    shared.settle()


class Crowd:
    """Clients that never stop asking for a model, over connections that they keep."""

    def __init__(self, house: Any, model: str, clients: int = 3) -> None:
        self._house = house
        self._path = f"/v2/models/{model}/infer"
        self._stop = threading.Event()
        self.answers: list[tuple[int, Any]] = []
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def _ask(self) -> None:
        body = json.dumps(self._house.matmul_call())
        port = self._house.server.http_port
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=self._house.PATIENCE)
        with contextlib.closing(connection):
            while not self._stop.is_set():
                connection.request("POST", self._path, body)
                response = connection.getresponse()
                self.answers.append((response.status, json.loads(response.read())))

    def wait_for(self, more: int) -> None:
        """Wait until so many more answers have come."""
        enough = len(self.answers) + more
        pause = threading.Event()
        while len(self.answers) < enough:
            pause.wait(0.002)

    def __enter__(self) -> Crowd:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def first(answer: Any) -> float:
    """The second number of the answer: how many times the model multiplies."""
    return round(float(answer["outputs"][0]["data"][1]) * 7, 3)


def test_a_new_version_replaces_the_old_without_a_lost_request(open_house: Any) -> None:
    open_house.zoo.matmul("rolling")
    open_house.server.load("rolling")
    with Crowd(open_house, "rolling") as crowd:
        for scale in (2.0, 3.0):
            crowd.wait_for(20)
            open_house.zoo.matmul("rolling", scale=scale, version=str(int(scale)))
            with tritonclient.http.InferenceServerClient(open_house.control) as client:
                client.load_model("rolling")
        crowd.wait_for(20)
    assert {status for status, _ in crowd.answers} == {200}
    versions = [(answer["model_version"], first(answer)) for _, answer in crowd.answers]
    assert set(versions) == {("1", 1.0), ("2", 2.0), ("3", 3.0)}
    index = [entry for entry in open_house.post("/v2/repository/index").json
             if entry["name"] == "rolling"]  # fmt: skip
    assert [(entry["version"], entry["state"]) for entry in index] == [("3", "READY")]


def test_the_same_version_is_loaded_anew_and_its_counters_go_on(open_house: Any) -> None:
    open_house.zoo.matmul("again")
    open_house.server.load("again")
    with Crowd(open_house, "again", clients=1) as crowd:
        crowd.wait_for(10)
        open_house.zoo.matmul("again", scale=5.0)
        open_house.server.load("again")
        crowd.wait_for(10)
    assert {status for status, _ in crowd.answers} == {200}
    assert {first(answer) for _, answer in crowd.answers} == {1.0, 5.0}
    (stats,) = open_house.get("/v2/models/again/stats").json["model_stats"]
    assert stats["inference_count"] == len(crowd.answers)


def test_a_new_version_that_is_broken_leaves_the_old_one_serving(open_house: Any) -> None:
    open_house.zoo.matmul("steady")
    open_house.server.load("steady")
    open_house.zoo.broken("steady", version="2")
    with Crowd(open_house, "steady") as crowd:
        answer = open_house.post("/v2/repository/models/steady/load")
        crowd.wait_for(10)
    assert answer.status in (400, 503)
    assert "steady" in answer.error
    assert str(open_house.zoo.root) not in answer.error
    assert {(status, answer["model_version"]) for status, answer in crowd.answers} == {(200, "1")}
    assert open_house.index()["steady"]["state"] == "READY"
    assert open_house.get("/v2/health/ready").status == 200


def test_calls_at_the_same_time_are_done_one_by_one(open_house: Any) -> None:
    open_house.zoo.matmul("popular")
    path = "/v2/repository/models/popular/load"
    loads = [open_house.spawn(open_house.post, path) for _ in range(4)]
    assert [load.result().status for load in loads] == [200] * 4
    serving = open_house.look(
        lambda app: [v.state.value for v in app.catalog.all() if v.name == "popular"]
    )
    assert serving == ["READY"]
    assert open_house.infer("popular", open_house.matmul_call()).status == 200


def test_unloading_answers_what_is_there_and_refuses_what_comes_later(open_house: Any) -> None:
    open_house.zoo.spin("leaving", settings="max_batch: 1\n")
    open_house.server.load("leaving")
    call = open_house.spin_call(30_000)
    waiting = [open_house.later("leaving", call) for _ in range(3)]
    open_house.running("leaving")
    open_house.queued("leaving", 2)
    with tritonclient.http.InferenceServerClient(open_house.control) as client:
        client.unload_model("leaving")
        assert [pending.result().status for pending in waiting] == [200] * 3
        assert not client.is_model_ready("leaving")
    answer = open_house.infer("leaving", call)
    assert (answer.status, "unloaded" in answer.error) == (503, True)
    entry = open_house.index()["leaving"]
    assert (entry["state"], entry["reason"]) == ("UNAVAILABLE", "unloaded")
    # What was unloaded on purpose does not make the server unready.
    assert open_house.get("/v2/health/ready").status == 200
    open_house.server.load("leaving")
    assert open_house.infer("leaving", open_house.spin_call(1)).status == 200


def test_a_load_goes_on_although_its_client_leaves(zoo: Any, serve: Any, token: Any) -> None:
    zoo.matmul()
    with serve(zoo, allow_control=True, token_file=token.file) as house:
        zoo.matmul("orphan")
        request = messages.RepositoryModelLoadRequest(model_name="orphan")
        with grpc.insecure_channel(house.grpc) as channel:
            method = channel.unary_unary("/inference.GRPCInferenceService/RepositoryModelLoad")
            metadata = tuple((name.lower(), text) for name, text in token.header.items())
            call = method.future(request.SerializeToString(), metadata=metadata)
            house.until(lambda app: app.models._turn.locked(), "the load begins")
            call.cancel()
        house.until(
            lambda app: app.control.model_ready("orphan", None), "the model is loaded all the same"
        )
        assert house.infer("orphan", house.matmul_call(), token.header).status == 200


@pytest.mark.skipif(len(available_cores()) < 2, reason="needs two cores to move between")
def test_models_move_to_other_lanes_without_a_lost_request(zoo: Any, serve: Any) -> None:
    """A newcomer's wishes change where the others run; they serve all the while."""
    zoo.matmul()
    with serve(zoo) as house, Crowd(house, "matmul") as crowd:
        for name, settings in (("twice", "replicas: 2\n"), ("alone", "cores: 1\n")):
            crowd.wait_for(20)
            zoo.matmul(name, settings=settings)
            house.server.load(name)
            assert house.infer(name, house.matmul_call()).status == 200
        crowd.wait_for(20)
        house.server.unload("alone")
        zoo.matmul(scale=2.0, settings="cores: 1\n")
        house.server.load("matmul")
        crowd.wait_for(20)
        house.until(
            lambda app: all(len(v.pool.replicas_up) <= 2 for v in app.catalog.all()),
            "nobody counts replicas that have gone",
        )
    assert {status for status, _ in crowd.answers} == {200}
    assert {first(answer) for _, answer in crowd.answers} == {1.0, 2.0}


def test_versions_can_be_named(open_house: Any) -> None:
    for version in ("1", "2"):
        open_house.zoo.matmul(
            "many", scale=float(version), version=version, settings="versions: all\n"
        )
    open_house.server.load("many")
    body = json.dumps(open_house.matmul_call())
    for version in ("1", "2"):
        answer = open_house.ask(
            open_house.server.http_port, "POST", f"/v2/models/many/versions/{version}/infer", body
        )
        assert (answer.json["model_version"], first(answer.json)) == (version, float(version))
    assert open_house.infer("many", open_house.matmul_call()).json["model_version"] == "2"
    metadata = open_house.get("/v2/models/many").json
    assert metadata["versions"] == ["1", "2"]
    missing = open_house.ask(
        open_house.server.http_port, "POST", "/v2/models/many/versions/7/infer", body
    )
    assert (missing.status, "'7'" in missing.error) == (404, True)


@pytest.mark.parametrize("verb", ["load", "unload"])
@pytest.mark.parametrize("name", ["nobody", "..", "%2e%2e%2fsecret", "a%00b"])
def test_models_that_are_not_there(open_house: Any, verb: str, name: str) -> None:
    answer = open_house.post(f"/v2/repository/models/{name}/{verb}")
    assert answer.status in (400, 404)
    assert str(open_house.zoo.root) not in answer.error


def test_settings_may_come_with_the_load_call(open_house: Any) -> None:
    open_house.zoo.matmul("tuned")
    with (
        tritonclient.http.InferenceServerClient(open_house.control) as control,
        tritonclient.http.InferenceServerClient(open_house.http) as client,
    ):
        control.load_model("tuned", config=json.dumps({"max_batch_size": 3}))
        assert client.get_model_config("tuned")["max_batch_size"] == 3
        rows = np.random.default_rng(1).random((10, 4), np.float32)
        given = tritonclient.http.InferInput("x", [10, 4], "FP32")
        given.set_data_from_numpy(rows)
        in_parts = client.infer("tuned", [given]).as_numpy("y")
        given.set_shape([2, 4])
        given.set_data_from_numpy(rows[8:])
        np.testing.assert_allclose(in_parts[8:], client.infer("tuned", [given]).as_numpy("y"))
        rows = np.ones((97, 4), np.float32)
        given = tritonclient.http.InferInput("x", [97, 4], "FP32")
        given.set_data_from_numpy(rows)
        with pytest.raises(InferenceServerException, match="1 to 96 rows"):
            client.infer("tuned", [given])
        for wrong in ("{", '{"max_batch_size": "many"}', '{"no_such_field": 1}'):
            with pytest.raises(InferenceServerException) as refused:
                control.load_model("tuned", config=wrong)
            assert refused.value.status() == "400"
        assert client.get_model_config("tuned")["max_batch_size"] == 3


def test_a_model_may_be_uploaded_where_that_is_allowed(open_house: Any) -> None:
    """Also one that is larger than any other control call may be. Nothing of it stays behind."""
    file = open_house.zoo.heavy().read_bytes()
    shutil.rmtree(open_house.zoo.root / "heavy")
    with tritonclient.http.InferenceServerClient(open_house.control) as client:
        client.load_model(
            "uploaded", config='{"max_batch_size": 8}', files={"file:1/model.onnx": file}
        )
    answer = open_house.infer("uploaded", open_house.matmul_call())
    assert first(answer.json) == 1.0
    assert not (open_house.zoo.root / "uploaded").exists()
    uploads = open_house.look(lambda app: app.control._staging._folder)
    assert len([*uploads.iterdir()]) == 1
    with tritonclient.http.InferenceServerClient(open_house.control) as client:
        client.unload_model("uploaded")
    assert [*uploads.iterdir()] == []


@pytest.mark.parametrize(
    "key", ["file:../model.onnx", "file:1/../../evil", "file:/etc/passwd", "file:1", "file:x/y"]
)
def test_uploads_cannot_name_a_path(open_house: Any, key: str) -> None:
    parameters = {"config": "{}", key: base64.b64encode(b"x").decode()}
    answer = open_house.post("/v2/repository/models/evil/load", {"parameters": parameters})
    assert answer.status == 400
    assert "evil" not in open_house.index()


def test_uploads_are_refused_unless_allowed(zoo: Any, serve: Any, token: Any) -> None:
    file = zoo.matmul().read_bytes()
    with serve(zoo, allow_control=True, token_file=token.file) as house:
        files = {"file:1/model.onnx": file}
        with tritonclient.grpc.InferenceServerClient(house.grpc) as client:
            with pytest.raises(InferenceServerException, match="--allow-uploads") as refused:
                client.load_model("uploaded", token.grpc, config="{}", files=files)
            assert refused.value.status() == "StatusCode.PERMISSION_DENIED"
            index = client.get_model_repository_index(token.grpc)
        assert [entry.name for entry in index.models] == ["matmul"]
        assert house.infer("matmul", house.matmul_call(), token.header).status == 200


def test_a_program_that_holds_the_server_may_load_what_clients_may_not(
    zoo: Any, serve: Any
) -> None:
    zoo.matmul()
    with serve(zoo) as house:
        zoo.matmul("late", scale=2.0)
        path = "/v2/repository/models/late/load"
        assert house.ask(house.server.http_port, "POST", path).status == 403
        assert house.index()["late"] == {"name": "late"}
        house.server.load("late")
        assert house.infer("late", house.matmul_call()).status == 200
        house.server.unload("late")
        with pytest.raises(ControlError, match="not loaded"):
            house.server.unload("late")
