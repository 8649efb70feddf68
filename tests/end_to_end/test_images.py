"""Images from stock clients: JPEG and pixels of any size, damaged ones, and a worker that dies."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

SIZES = """
slo: 20s
max_batch: 4
limits: {pixels: 100000}
variants:
  sizes: [32, 64, 128]
  planner: none
"""


def jpeg(height: int, width: int, grey: int = 120) -> bytes:
    return cv2.imencode(".jpg", np.full((height, width, 3), grey, np.uint8))[1].tobytes()


WHOLE = jpeg(90, 200)
FRAME = WHOLE.index(b"\xff\xc0") + 5
SCAN = WHOLE.index(b"\xff\xda")
DAMAGED = {
    WHOLE[: len(WHOLE) // 2]: "got a truncated one",
    b"\x89PNG\r\n\x1a\n": "got PNG whose header is damaged",
    b"GIF89a": "got GIF; send JPEG, or its pixels as UINT8 [rows, height, width, 3]",
    b"text": "got something else",
    WHOLE[:-4] + WHOLE: "got a truncated one, followed by another",
    WHOLE[:-2] + WHOLE[SCAN:-2] * 600 + WHOLE[-2:]: "got one with more than 3 scans",
    WHOLE[:FRAME] + b"\xff\xff\xff\xff" + WHOLE[FRAME + 4 :]: (
        "expected at most 100000 pixels (limits.pixels), got 65535 × 65535"
    ),
    WHOLE.replace(b"\xff\xda", b"\xff\xfe"): "expected a JPEG as element 0, got a damaged one",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    zoo = zoo_at(tmp_path_factory.mktemp("images") / "repository")
    zoo.sight("sizes", settings=SIZES)
    zoo.sight("fixed", size=48, settings="max_batch: 4\n")
    zoo.matmul()
    zoo.floats("floats", settings="inputs: {x: {image: {resize: letterbox, pad_value: 0}}}\n")
    with serve(zoo) as house:
        yield house


@pytest.fixture
def house(server: Any) -> Iterator[Any]:
    yield server
    server.settle()


@pytest.fixture(params=["http", "grpc"])
def ask(request: pytest.FixtureRequest, house: Any) -> Iterator[Any]:
    """Ask for images, all JPEG or an array of pixels, with a client of Triton's."""
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[request.param]
    with module.InferenceServerClient(getattr(house, request.param)) as client:

        def asked(model: str, *images: Any, input: str = "image", **parameters: str) -> Any:
            jpegs = isinstance(images[0], bytes)
            array = np.array(images, object) if jpegs else images[0]
            tensor = module.InferInput(input, array.shape, "BYTES" if jpegs else "UINT8")
            tensor.set_data_from_numpy(array)
            return client.infer(model, [tensor], parameters=parameters or None)

        yield asked


def test_stock_clients_send_jpeg_and_pixels_of_any_size(ask: Any) -> None:
    for size in ("32", "128", "64", "32"):
        for images in ([jpeg(90, 200, 60), jpeg(30, 20, 180)], [np.full((2, 77, 55, 3), 99, "u1")]):
            answer = ask("sizes", *images, variant=size)
            expected = [60, 180] if len(images) == 2 else [99, 99]
            assert answer.as_numpy("mean") == pytest.approx(expected, abs=2)
            assert answer.as_numpy("side").tolist() == [int(size)] * 2
    answer = ask("fixed", WHOLE, WHOLE)
    assert answer.as_numpy("side").tolist() == [48, 48]
    with pytest.raises(InferenceServerException, match=r"expected '?\[-1, 48, 48, 3\]"):
        ask("fixed", np.zeros((1, 47, 48, 3), np.uint8))


def test_more_images_than_a_batch_holds_are_split(ask: Any) -> None:
    greys = [20 * n for n in range(1, 10)]
    for images in ([jpeg(40, 30, grey) for grey in greys], [np.full((9, 48, 48, 3), 99, "u1")]):
        answer = ask("fixed", *images)
        expected = greys if len(images) == 9 else [99] * 9
        assert answer.as_numpy("mean") == pytest.approx(expected, abs=2)
    with pytest.raises(InferenceServerException, match="got a truncated one"):
        ask("fixed", *[WHOLE] * 8, WHOLE[: len(WHOLE) // 2])


@pytest.mark.parametrize("image", DAMAGED, ids=list(DAMAGED.values()))
def test_a_bad_jpeg_is_the_clients_mistake_and_named(image: bytes, ask: Any, house: Any) -> None:
    before = house.counts("sizes").get("bad_input", 0)
    with pytest.raises(InferenceServerException) as refused:
        ask("sizes", image)
    assert DAMAGED[image] in refused.value.message()
    assert refused.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    assert house.counts("sizes")["bad_input"] == before + 1
    house.good()


def test_a_damaged_image_costs_no_other_request_its_batch(house: Any) -> None:
    worker = house.worker("sizes")
    os.kill(worker, signal.SIGSTOP)  # so that those behind the first share a batch
    good = [house.later("sizes", in_json(WHOLE)) for _ in range(2)]
    bad = house.later("sizes", in_json(list(DAMAGED)[-1]))
    house.until(lambda app: app.driver.in_flight == 3, "all three are there")
    os.kill(worker, signal.SIGCONT)
    assert bad.result().status == 400
    assert "input 'image': expected a JPEG as element 0, got a damaged one" in bad.result().error
    assert [answer.result().status for answer in good] == [200, 200]


@pytest.mark.parametrize("model", ["sizes", "fixed"])
def test_a_picture_that_looks_damaged_is_answered_and_counted(model: str, house: Any) -> None:
    def counted() -> int:
        page = house.ask(house.server.metrics_port, "GET", "/metrics").body.decode()
        name = f'slacktide_damaged_pictures_total{{model="{model}",version="1"}} '
        return int(page.partition(name)[2].partition("\n")[0])

    before = counted()
    stray = WHOLE[:-2] + b"\x5a" * 6 + WHOLE[-2:]
    for image, more in ((WHOLE, 0), (stray, 1), (WHOLE[:-2] + bytes(9) + WHOLE[-2:], 1)):
        answer = house.infer(model, in_json(image))
        assert answer.json["outputs"][0]["data"] == pytest.approx([120], abs=2)
        assert counted() == before + more


def test_json_has_jpeg_in_base64_and_a_raw_body_may_be_one(house: Any) -> None:
    answer = house.infer("fixed", in_json(WHOLE))
    assert answer.json["outputs"][0]["data"] == pytest.approx([120], abs=2)
    raw = {"Inference-Header-Content-Length": "0", "Content-Type": "application/octet-stream"}
    answer = house.ask(house.server.http_port, "POST", "/v2/models/fixed/infer", WHOLE, raw)
    assert np.frombuffer(answer.body[-8:], np.float32) == pytest.approx([120, 48], abs=2)


def test_a_worker_that_dies_in_mid_batch_is_one_process_again(house: Any) -> None:
    worker = house.worker("sizes")
    processes = len(workers(house))
    os.kill(worker, signal.SIGSTOP)
    answers = [
        house.later("sizes", in_json(WHOLE, variant=size)) for size in ("32", "64", "128") * 2
    ]
    house.running("sizes")
    os.kill(worker, signal.SIGKILL)
    for size, answer in zip((32, 64, 128) * 2, answers, strict=True):
        assert answer.result().status == 200, answer.result()
        assert answer.result().json["outputs"][1]["data"] == [size]
    house.until(lambda app: app.catalog.find("sizes", None).is_up, "every variant is up again")
    assert worker not in workers(house)
    assert len(workers(house)) == processes


def workers(house: Any) -> tuple[int, ...]:
    return house.look(lambda app: app._executors["worker"].worker_pids)


def in_json(image: bytes, **parameters: str) -> dict[str, Any]:
    text = base64.b64encode(image).decode()
    document: dict[str, Any] = {
        "inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": [text]}]
    }
    return {**document, "parameters": parameters} if parameters else document


def test_a_network_of_floats_takes_pictures_from_stock_clients(house: Any, ask: Any) -> None:
    with tritonclient.http.InferenceServerClient(house.http) as client:
        (tensor,) = client.get_model_metadata("floats")["inputs"]
        assert (tensor["datatype"], tensor["shape"]) == ("UINT8", [-1, -1, -1, 3])
    wide = np.full((1, 12, 24, 3), 200, np.uint8)
    answer = ask("floats", wide, input="x")
    assert answer.as_numpy("mean") == pytest.approx([100 / 255], abs=1e-3)  # half is padding
    answer = ask("floats", jpeg(90, 90, 60), jpeg(20, 20, 180), input="x")
    assert answer.as_numpy("mean") == pytest.approx([60 / 255, 180 / 255], abs=0.01)


def curl(house: Any, *arguments: str) -> Any:
    url = f"http://{house.http}/v2/models/floats/infer"
    run = subprocess.run(["curl", "-sS", *arguments, url], capture_output=True, check=True)
    return json.loads(run.stdout)


def test_curl_sends_a_picture_as_a_form_or_a_body(house: Any, tmp_path: Path) -> None:
    picture = tmp_path / "grey.jpg"
    picture.write_bytes(jpeg(60, 60, 100))
    for arguments in (
        ("-F", f"image=@{picture}"),
        ("--data-binary", f"@{picture}", "-H", "Content-Type: image/jpeg"),
    ):
        (output,) = curl(house, *arguments)["outputs"]
        assert output["data"] == pytest.approx([100 / 255], abs=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-F", "image=text"), "body: expected a JPEG"),
        (("-F", "image=@{0}", "-F", "more=1"), "expected a form with one part, the picture"),
        (("--data-binary", "x", "-H", "Content-Type: multipart/form-data"), "a boundary of 1 to"),
        (
            ("--data-binary", "x", "-H", "Content-Type: multipart/form-data; boundary=b"),
            "expected a form with the boundary of Content-Type",
        ),
        (("--data-binary", "x", "-H", "Content-Type: image/png"), "body: expected a JPEG"),
    ],
)
def test_other_forms_and_bodies_are_refused(
    house: Any, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    picture = tmp_path / "grey.jpg"
    picture.write_bytes(jpeg(60, 60, 100))
    assert message in curl(house, *(part.format(picture) for part in arguments))["error"]
