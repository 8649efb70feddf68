"""The page on requests: every example in it is run, and its tables are those of the program."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import slacktide
from slacktide.domain import Outcome, Reason
from slacktide.lab.examples import make_repository
from slacktide.wire.parameters import (
    BYTES_HEADER,
    LOOK_ALIKES,
    MODEL_KEY,
    PARAMETER_HEADERS,
    TIMEOUT_HEADERS,
    VERSION_KEY,
    timing_parameters,
)
from slacktide.wire.status import STATUS, numbers_of

PAGE = Path(__file__).parents[2] / "docs" / "requests.md"
TEXT = PAGE.read_text()
PYTHON = re.findall(r"^```python\n(.*?)^```\n\nprints\n\n```text\n(.*?)^```", TEXT, re.S | re.M)
KSERVE = "kserve==0.21.0"


def below(heading: str, page: Path = PAGE) -> str:
    """The section of that heading, up to the next one."""
    text = page.read_text().partition(f"# {heading}\n")[2]
    return re.split(r"^##+ ", text, maxsplit=1, flags=re.M)[0]


def rows(heading: str, page: Path = PAGE) -> list[list[str]]:
    """The cells of the table in that section, without its head."""
    lines = [line for line in below(heading, page).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[2:]]


def names(cells: list[str]) -> set[str]:
    return {name for cell in cells for name in re.findall(r"`([\w.-]+)`", cell)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slacktide.Server]:
    """The example models on free ports."""
    folder = tmp_path_factory.mktemp("requests")
    make_repository(folder / "models", models=["mlp", "street"])
    with slacktide.Server(folder / "models", profile_budget_s=0.2) as server:
        yield server


def addressed(example: str, server: slacktide.Server) -> str:
    """An example with the ports of `server`."""
    example = example.replace("localhost:8000", f"localhost:{server.http_port}")
    return example.replace("localhost:8001", f"localhost:{server.grpc_port}")


def sent(command: str, server: slacktide.Server) -> tuple[int, dict[str, str], object]:
    """What becomes of a command `curl -s URL -d BODY`: status, headers, JSON."""
    # A curl that prints what it would send.
    shown = ["bash", "-c", f"""curl() {{ printf '%s\n%s' "$2" "$4"; }}; {command}"""]
    printed = subprocess.run(shown, capture_output=True, text=True, check=True).stdout
    address, _, body = printed.partition("\n")
    path = address.removeprefix("localhost:8000")
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    with contextlib.closing(connection):
        connection.request("POST", path, body)
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, headers, json.load(answer)


def forms(document: object) -> object:
    """A JSON document with the numbers left out, which differ from run to run."""
    if isinstance(document, dict):
        return {name: forms(value) for name, value in document.items()}
    if isinstance(document, list):
        return [forms(value) for value in document]
    return float if isinstance(document, int | float) else document


@pytest.mark.slow
def test_curl_gets_the_answers_that_are_shown(server: slacktide.Server) -> None:
    section = below("curl")
    (served, refused), (shown,), (refusal,) = (
        re.findall(rf"^```{language}\n(.*?)^```", section, re.S | re.M)
        for language in ("sh", "json", "http")
    )
    status, _, document = sent(served, server)
    assert status == 200
    assert forms(document) == forms(json.loads(shown))
    status, headers, document = sent(refused, server)
    head, _, body = refusal.partition("\n\n")
    first, *lines = head.splitlines()
    assert first.split()[1] == str(status)
    expected = dict(line.split(": ") for line in lines)
    assert {name.lower() for name in expected} == set(headers)
    assert headers["slacktide-reason"] == expected["slacktide-reason"]
    assert forms(document) == forms(json.loads(body))


@pytest.mark.parametrize(
    ("example", "expected"), [block for block in PYTHON if "kserve" not in block[0]]
)
def test_the_examples_in_python_print_what_is_shown(
    server: slacktide.Server, example: str, expected: str
) -> None:
    command = [sys.executable, "-c", addressed(example, server)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == expected


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.timeout(600)
def test_the_example_of_kserve_prints_what_is_shown(
    server: slacktide.Server, tmp_path: Path
) -> None:
    """KServe's package wants 60 others (450 MB), so it is installed apart, and only on demand."""
    ((example, expected),) = [block for block in PYTHON if "kserve" in block[0]]
    python = str(tmp_path / "bin" / "python")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path)], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", KSERVE], check=True)
    (tmp_path / "example.py").write_text(addressed(example, server))
    command = [python, str(tmp_path / "example.py")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == expected


def test_every_example_in_python_is_run() -> None:
    assert len(PYTHON) == TEXT.count("```python") == 5


def test_every_reason_is_there_with_its_statuses() -> None:
    table = {cells[0]: cells[1:4] for cells in rows("Statuses and reasons")}
    assert table == {
        f"`{reason.label}`": [reason.kind.value, str(status.http), status.grpc]
        for reason, status in STATUS.items()
    }


def test_every_look_alike_is_there_with_the_right_name() -> None:
    table = {
        name: right.replace("`", "'")
        for right, others in rows("Look-alikes", PAGE.parent / "internals" / "look-alikes.md")
        for name in names([others])
    }
    assert table == LOOK_ALIKES


def test_every_header_and_field_is_there() -> None:
    headers = names([cells[0] for cells in rows("Headers")])
    grpc = {BYTES_HEADER, MODEL_KEY, VERSION_KEY}
    assert headers >= {*PARAMETER_HEADERS, *TIMEOUT_HEADERS, *grpc}
    assert names([cells[0] for cells in rows("Parameters")]) >= {
        "timeout",
        "priority",
        *PARAMETER_HEADERS.values(),
    }
    outcome = Outcome(Reason.ON_TIME, 0.0, budget_s=1.0, needed_s=1.0, wait_s=1.0)
    fields = {f"parameters.{name}" for name in timing_parameters(outcome, "", "")}
    assert names([cells[0] for cells in rows("Answers")]) >= fields | set(numbers_of(outcome))
