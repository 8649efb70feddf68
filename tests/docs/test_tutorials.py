"""The tutorials do what they say, with real models and stock packages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
import venv
from pathlib import Path

import cv2
import matplotlib.cbook
import numpy as np
import pytest
from bench.pinned_models import CACHE, NUDENET
from bench.servers import Serving, slacktide

from bench import minilm
from slacktide.lab.examples.packaged import fetch
from slacktide.lab.examples.zoo import ZOO, make_zoo

network = pytest.mark.network
pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
TABLES = ROOT / ".cache" / "tutorials"


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / "tutorials" / f"{page}.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def run(code: str, serving: Serving | None, *words: object, python: object = sys.executable) -> str:
    """Output of a program of a page, with the ports of `serving`."""
    if serving is not None:
        code = code.replace("127.0.0.1:8000", f"127.0.0.1:{serving.port}")
        code = code.replace("127.0.0.1:8001", f"127.0.0.1:{serving.grpc_port}")
    command = [str(word) for word in (python, "-c", code, *words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


EXAMPLES = [
    pytest.param(text, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, text in enumerate(re.split(r"^## ", page.read_text(), flags=re.M))
    if "```python" in text or "```yaml" in text
]
"""The sections of all pages that have code."""


@pytest.mark.parametrize("text", EXAMPLES)
def test_no_example_is_long(text: str) -> None:
    code = "".join(re.findall(r"```(?:yaml|python)\n(.*?)```", text, re.S))
    assert 10 < len(code.splitlines()) <= 40


@network
def test_a_classifier_tells_how_a_page_is_turned(tmp_path: Path) -> None:
    make_zoo(tmp_path / "models", CACHE, models=["orientation"])
    (settings,) = blocks("classifier", "yaml")
    assert settings == ZOO["orientation"].settings
    page = np.full((900, 640, 3), 255, np.uint8)
    for line in range(24):
        place = (40, 60 + 34 * line)
        text = "The tide comes in twice a day"
        cv2.putText(page, text, place, cv2.FONT_HERSHEY_DUPLEX, 1.0, (0, 0, 0), 2)
    cv2.imwrite(str(tmp_path / "page.jpg"), page)
    cv2.imwrite(str(tmp_path / "turned.jpg"), np.rot90(page, 2))
    with slacktide(tmp_path / "models") as serving:
        (program,) = blocks("classifier", "python")
        assert run(program, serving, tmp_path / "page.jpg").startswith("turned by 0 degrees")
        assert run(program, serving, tmp_path / "turned.jpg").startswith("turned by 180 degrees")


@network
def test_a_sentence_encoder_tells_which_passage_answers(tmp_path: Path) -> None:
    """With an export of the same weights in place of the reader's."""
    minilm.lay_out(tmp_path / "models")
    (settings,) = blocks("text", "yaml")
    assert settings == minilm.SETTINGS
    with slacktide(tmp_path / "models") as serving:
        (program,) = blocks("text", "python")
        bread, moon = run(program, serving).splitlines()
    assert (bread[5:10], moon[5:13]) == ("Bread", "The moon")
    assert float(bread[:4]) + 0.2 < float(moon[:4])


@network
def test_text_is_read_from_a_page(tmp_path: Path) -> None:
    make_zoo(tmp_path / "models", CACHE, models=["ocr"])
    (settings,) = blocks("ocr", "yaml")
    assert (tmp_path / "models" / "ocr" / "pipeline.yaml").read_text().endswith(settings)
    page = np.full((500, 900, 3), 255, np.uint8)
    expected = ["The tide comes in", "twice a day", "and goes out again twice, as the moon has it"]
    for line, text in enumerate(expected):
        place = (40, 100 + 120 * line)
        cv2.putText(page, text, place, cv2.FONT_HERSHEY_DUPLEX, 1.0, (0, 0, 0), 2, cv2.LINE_AA)
    cv2.imwrite(str(tmp_path / "page.png"), page)
    cv2.imwrite(str(tmp_path / "turned.jpg"), np.rot90(page, 2))
    with slacktide(tmp_path / "models") as serving:
        (program,) = blocks("ocr", "python")
        for file, order in (("page.png", 1), ("turned.jpg", -1)):
            lines = run(program, serving, tmp_path / file).splitlines()
            texts = ["".join(line.partition("]")[2].split()) for line in lines][::order]
            assert texts == ["".join(text.split()) for text in expected]


@network
def test_early_exits_keep_lines_that_are_upside_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_zoo(tmp_path / "models", CACHE, models=["direction"])
    with (tmp_path / "models" / "direction" / "slacktide.yaml").open("a") as file:
        file.write("".join(blocks("rare-answers", "yaml")))
    draw, show = blocks("rare-answers", "python")
    run(draw, None)
    command = [sys.executable, "-m", "slacktide", "exits", "add", "models/direction", "--json"]
    command += ["--data", "usual.npz", "--rare", "rare.npz"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["1"]["rare_rows"]["1"] > 250
    usual, rare = (np.load(f"{name}.npz")["x"] for name in ("usual", "rare"))
    with slacktide(tmp_path / "models") as serving:
        for picture in (*usual[:400], *rare[-5:]):
            request = urllib.request.Request(
                serving.url("direction"),
                cv2.imencode(".png", picture[..., ::-1])[1].tobytes(),
                {"Content-Type": "image/png", "x-request-timeout-seconds": "5"},
            )
            with urllib.request.urlopen(request) as answer:
                assert answer.status == 200
        why, *classes = run(show, serving).splitlines()
    rows = {line.split()[0]: line.split() for line in classes}
    assert rows["1"][1] == "guarded"
    assert int(rows["1"][2]) >= 5
    assert int(rows["1"][3]) <= 1
    assert int(rows["0"][2]) > 300 or why.startswith("lines leave")


@pytest.fixture(scope="module")
def python() -> Path:
    """An interpreter with the packages that the page names."""
    if not (TABLES / "installed").exists():
        venv.create(TABLES, clear=True, with_pip=True)
        (install,) = re.findall(
            r"`pip install (.*?)`", (ROOT / "docs" / "tutorials" / "tables.md").read_text()
        )
        command = [str(TABLES / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*command, *install.split()], check=True, capture_output=True, timeout=500)
        (TABLES / "installed").touch()
    return TABLES / "bin" / "python"


@network
def test_tables_are_answered_by_forests_and_boosted_trees(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make, ask = blocks("tables", "python")
    (row,) = re.findall(r"^row = .*\n", ask, re.M)
    own = "for model in (forest, trees):\n    print(model.predict_proba(row)[0].tolist())\n"
    expected = run(make + row + own, None, python=python).splitlines()[-2:]
    with slacktide(tmp_path / "models") as serving:
        lines = run(ask, serving).splitlines()
    for name, line, probabilities in zip(("forest", "trees"), lines, expected, strict=True):
        kind, answer = re.fullmatch(rf"{name} \[(\d)\] (\[.*\])", line).groups()
        assert json.loads(answer) == pytest.approx(json.loads(probabilities), abs=1e-4)
        assert int(kind) == np.argmax(json.loads(answer))


@network
def test_a_yolo_is_served_to_a_camera_as_a_family(tmp_path: Path) -> None:
    """With nudenet's export in place of the reader's."""
    fetch([NUDENET], CACHE)
    (tmp_path / "models" / "street" / "1").mkdir(parents=True)
    model = NUDENET.path(CACHE).read_bytes()
    (tmp_path / "models" / "street" / "1" / "model.onnx").write_bytes(model)
    (settings,) = blocks("yolo", "yaml")
    (tmp_path / "models" / "street" / "slacktide.yaml").write_text(settings)
    with matplotlib.cbook.get_sample_data("grace_hopper.jpg") as file:
        portrait = cv2.imdecode(np.frombuffer(file.read(), np.uint8), cv2.IMREAD_COLOR)
    video = cv2.VideoWriter(
        str(tmp_path / "video.avi"), cv2.VideoWriter.fourcc(*"MJPG"), 5, (512, 600)
    )
    for _ in range(20):
        video.write(portrait)
    video.release()
    with slacktide(tmp_path / "models") as serving:
        (program,) = blocks("yolo", "python")
        lines = run(program, serving, tmp_path / "video.avi").splitlines()
    matches = [re.fullmatch(r"frame \d+: (\d+) objects, sent at (\d+) px", line) for line in lines]
    assert len(matches) >= 10
    assert all(match is not None and int(match[2]) in (192, 256, 320) for match in matches)
    assert any(match is not None and int(match[1]) for match in matches)


def python_model(name: str, folder: Path) -> None:
    """Write the class and the settings of an example of python-models.md."""
    for language, place in (("python", folder), ("yaml", folder / "models" / name)):
        place.mkdir(parents=True, exist_ok=True)
        (text,) = [text for text in blocks("python-models", language) if name in text]
        path = folder / text.splitlines()[0].removeprefix("# ")
        assert path.parent == place
        path.write_text(text)


def asked(serving: Serving, model: str, **tensors: tuple[str, list[int], list[object]]) -> object:
    """Data of each output."""
    inputs = [
        {"name": name, "datatype": datatype, "shape": shape, "data": data}
        for name, (datatype, shape, data) in tensors.items()
    ]
    request = urllib.request.Request(
        f"http://127.0.0.1:{serving.port}/v2/models/{model}/infer",
        json.dumps({"inputs": inputs}).encode(),
        {"x-request-timeout-seconds": "20"},
    )
    with urllib.request.urlopen(request) as answer:
        return {output["name"]: output["data"] for output in json.load(answer)["outputs"]}


def packages(*names: str) -> Path:
    """A folder with packages for the interpreter of these tests."""
    folder = ROOT / ".cache" / "tutorials" / f"python-models-{names[0]}"
    if not (folder / "installed").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
        subprocess.run([*command, *names], check=True, capture_output=True, timeout=500)
        (folder / "installed").touch()
    return folder


def on_path(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    """Let the server import from these folders."""
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*map(str, folders), *before]))


@pytest.mark.slow
def test_a_plain_class_reads_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python_model("sentiment", tmp_path)
    on_path(monkeypatch, tmp_path)
    with slacktide(tmp_path / "models", "--glue", "sentiment=sentiment:Sentiment") as serving:
        texts = ["A good day", "An awful , bad day", "A day"]
        answer = asked(serving, "sentiment", text=("BYTES", [3], texts))
    assert answer == {"label": ["good", "bad", "neither"], "score": [1.0, -3.0, 0.0]}
    assert list((tmp_path / "models" / "sentiment").glob("profile.*.json"))


@network
def test_a_class_with_scikit_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python_model("iris", tmp_path)
    on_path(monkeypatch, tmp_path, packages("scikit-learn"))
    with slacktide(tmp_path / "models", "--glue", "iris=iris:Iris") as serving:
        rows = [5.1, 3.5, 1.4, 0.2, 6.3, 3.3, 6.0, 2.5]
        answer = asked(serving, "iris", rows=("FP32", [2, 4], rows))
    assert answer["kind"] == [0, 2]
    assert answer["scores"][0] > 0.9 < answer["scores"][5]


@network
def test_a_class_with_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python_model("tagger", tmp_path)
    on_path(monkeypatch, tmp_path, packages("torch==2.13.0"))
    with slacktide(tmp_path / "models", "--glue", "tagger=tagger:Tagger") as serving:
        answer = asked(serving, "tagger", features=("FP32", [2, 16], [0.5] * 32))
    first, second = answer["scores"][:3], answer["scores"][3:]
    assert sum(first) == pytest.approx(1, abs=1e-5)
    assert first == pytest.approx(second)
