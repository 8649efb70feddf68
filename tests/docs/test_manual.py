"""The manual says what is: the files it names exist, links lead somewhere, examples run."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from bench.__main__ import BENCHMARKS

import slacktide
from slacktide.cli.main import VERBS as NAMES
from slacktide.cli.main import load_verb
from slacktide.lab.examples import make_repository
from slacktide.planning.pipelines.policies import PLACEMENTS
from slacktide.planning.scaling.policies import SCALING_POLICIES
from slacktide.scheduling import POLICIES

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "slacktide"
DECISIONS = ROOT / "docs" / "decisions"
PAGES = sorted(
    [
        *(
            ROOT / name
            for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "papers/README.md")
        ),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "bench" / "results").glob("*.md"),
    ]
)
VERBS = (
    "serve",
    "profile",
    "load",
    "simulate",
    "cluster up",
    "cluster status",
    "cluster down",
    "demo",
    "demo clients",
    "demo pipeline",
    "models make",
    "models check",
    "exits add",
    "reproduce orloj",
)


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `models/`, which holds the MLP."""
    folder = tmp_path_factory.mktemp("manual")
    make_repository(folder / "models", models=["mlp"])
    return folder


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    words = [re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", line)) for line in headings]
    return {line.lower().replace(" ", "-") for line in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path):
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        if not target.startswith(("http://", "https://")):
            place = page.parent / target if target else page
            assert place.exists(), target
            assert not anchor or anchor in anchors(place), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_table_is_torn(page: Path):
    rows = re.findall(r"\|\n\n(\|.*)\n(?!\| ---)", page.read_text())
    assert rows == []


def test_the_life_of_a_request_names_files_that_exist():
    text = (ROOT / "docs" / "internals" / "life-of-a-request.md").read_text()
    steps = re.findall(r"^\d\. ", text, re.MULTILINE)
    files = re.findall(r"`([a-z_/]+\.py)`", text)
    assert len(steps) == 8
    assert 18 <= len(set(files)) <= 26
    for file in files:
        assert (SOURCE / file).is_file(), file


def test_the_manual_names_every_verb():
    assert {verb.split()[0] for verb in VERBS} == set(NAMES)
    text = (ROOT / "docs" / "README.md").read_text()
    for verb in VERBS:
        assert f"`slacktide {verb}" in text


def test_every_page_of_the_manual_is_in_its_index():
    for folder in (ROOT / "docs", ROOT / "docs" / "internals"):
        index = (folder / "README.md").read_text()
        for page in folder.glob("*.md"):
            assert page.name == "README.md" or f"]({page.name})" in index, page.name


def test_the_page_of_the_structure_names_every_package_and_what_is_there():
    text = (ROOT / "docs" / "structure.md").read_text()
    folders = re.findall(r"^\| `src/slacktide/([\w/]+)` \|", text, re.MULTILINE)
    packages = {page.parent for page in SOURCE.glob("*/README.md")} - {SOURCE / "lab"}
    packages |= {page.parent for page in SOURCE.glob("lab/*/README.md")}
    assert sorted(folders) == sorted(path.relative_to(SOURCE).as_posix() for path in packages)
    for name in re.findall(r"`((?:src|papers|docs|tests|bench|examples|deploy)/[^`]*)`", text):
        assert (ROOT / name).exists(), name


def test_the_picture_of_the_readme_is_made_by_make():
    readme, makefile = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
    (picture,) = re.findall(r"^!\[[^]]+\]\((docs/\w+\.svg)\)", readme, re.MULTILINE)
    script = re.search(r"^picture: setup .*\n\t\S+ (\S+)$", makefile, re.MULTILINE)
    assert script is not None
    assert picture.removeprefix("docs/") in (ROOT / script[1]).read_text()
    assert len(readme.splitlines()) <= 90


def listed_decisions() -> tuple[list[str], list[str]]:
    """Pages of the first table of the index, and the retired numbers of the second."""
    index, _, retired = (DECISIONS / "README.md").read_text().partition("## Retired numbers")
    pages = re.findall(r"^\| \[\d{4}\]\(([^)]+)\) \|", index, re.MULTILINE)
    return pages, re.findall(r"^\| (\d{4}) \|", retired, re.MULTILINE)


def absent_paths(text: str) -> list[str]:
    """Files and folders in back-ticks that are neither in the repository nor in `SOURCE`."""
    parents = {path.name for path in (*ROOT.iterdir(), *SOURCE.iterdir()) if path.is_dir()}
    words = (word for code in re.findall(r"`([^`\n]+)`", text) for word in code.split())
    return [
        word
        for word in words
        if re.fullmatch(r"(\./)?[\w./-]+\.(py|md|toml|txt)|[\w.-]+(/[\w.-]+)+/?", word)
        and (word.split("/")[0] in parents or Path(word).suffix in (".py", ".md", ".toml", ".txt"))
        and not (ROOT / word).exists()
        and not (SOURCE / word).exists()
    ]


def absent_commands(text: str) -> list[str]:
    """Targets of make, benchmarks and verbs in back-ticks that nothing offers."""
    text = " ".join(text.split())
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    offers = {
        r"`make ([a-z-]+)": targets,
        r"`(?:python -m )?bench ([a-z_]+)": [*BENCHMARKS, "compare"],
        r"`slacktide ([a-z]+)": [*NAMES],
    }
    return [
        name
        for command, names in offers.items()
        for name in re.findall(command, text)
        if name not in names
    ]


def decision_numbers(text: str) -> set[str]:
    """Numbers of the decisions that a file refers to, in words or by a link."""
    return {
        number
        for numbers in re.findall(r"decisions?[\s/]+(0\d{3})\b|\[(0\d{3})\]\(", text, re.IGNORECASE)
        for number in numbers
        if number
    }


@pytest.mark.slow
def test_the_figures_beside_the_picture_are_those_of_the_picture():
    spec = importlib.util.spec_from_file_location("picture", ROOT / "examples" / "picture.py")
    assert spec is not None
    assert spec.loader is not None
    picture = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(picture)
    goodputs = {name: round(picture.goodput(name, 1.5)) for name in picture.SCHEDULERS}
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"`slack` answers {goodputs['slack']} of 100 requests on time" in text
    assert f"Earliest deadline first answers {goodputs['edf']}, and dynamic batching none." in text
    assert goodputs["fifo"] == 0


def test_decisions_are_numbered_and_listed():
    pages = sorted(page.name for page in DECISIONS.glob("*.md") if page.name != "README.md")
    listed, retired = listed_decisions()
    assert all(re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", page) for page in pages)
    numbers = [page[:4] for page in pages]
    assert len(set(numbers)) == len(pages)  # numbers may have been reserved
    assert listed == pages
    assert retired == sorted(set(retired) - set(numbers))


@pytest.mark.parametrize("page", sorted(DECISIONS.glob("0*.md")), ids=lambda page: page.name[:4])
def test_a_decision_begins_with_its_summary_and_names_what_exists(page: Path):
    text = page.read_text()
    lines = ("- **Decision.** ", "- **Why.** ", "- **Cost.** ")
    summary = "".join(re.escape(line) + ".*\n" for line in lines)
    assert re.match(rf"# {page.name[:4]}: .*\n\n{summary}\n", text)
    assert absent_paths(text) == []
    assert absent_commands(text) == []


def test_paths_and_commands_that_do_not_exist_are_found():
    text = (
        "`engine/engine.py` `hatch_build.py` `frontends/http2` `net/http` `slacktide.yaml` `a / b`"
    )
    assert absent_paths(text) == []
    assert absent_paths("`engine/gone.py` `gone.py --quick` `frontends/gone` `gone/x.md`") == [
        "engine/gone.py",
        "gone.py",
        "frontends/gone",
        "gone/x.md",
    ]
    assert absent_commands("`make check` `python -m bench\ncompare` `slacktide serve --x`") == []
    assert absent_commands("`make gone` `bench gone_too` `slacktide lost`") == [
        "gone",
        "gone_too",
        "lost",
    ]


def test_every_decision_referred_to_exists_or_is_retired():
    listed, retired = listed_decisions()
    numbers = {*retired, *(page[:4] for page in listed)}
    folders = ("src", "papers", "tests", "bench", "docs", "examples", "deploy")
    files = [*ROOT.glob("*.*"), *(path for name in folders for path in (ROOT / name).rglob("*.*"))]
    references = {
        path: decision_numbers(path.read_text())
        for path in files
        if path.suffix in (".md", ".py", ".toml", ".yaml") and path.is_file()
    }
    assert len([path for path in references if references[path]]) > 60
    unknown = {path: absent for path in references if (absent := references[path] - numbers)}
    assert unknown == {}


def test_references_to_decisions_are_found():
    text = "(Decision 0005) docs/decisions/0006, (decision\n0010), [0012](0012-x.md), 0.0013 [0014]"
    assert decision_numbers(text) == {"0005", "0006", "0010", "0012"}


def faulty_changes(text: str) -> list[str]:
    """Lines below the title that are no heading and no entry of one line with 25 words at most."""
    heading = re.compile(r"#{2,4} \w[\w ,.-]*")
    _, _, lines = text.partition("\n## ")
    return [
        line
        for line in f"## {lines}".splitlines()
        if line
        and not heading.fullmatch(line)
        and not (
            re.fullmatch(r"- \W*[A-Z].*[.)]", line)
            and len(re.sub(r"`[^`]*`", "code", line[2:]).split()) <= 25
        )
    ]


def test_changes_are_short_lines_that_name_pages_of_the_manual():
    text = (ROOT / "CHANGELOG.md").read_text()
    assert faulty_changes(text) == []
    assert re.findall(r"^### (.*)", text, re.MULTILINE)[:3] == ["Added", "Changed", "Fixed"]
    pages = set(re.findall(r"\bdocs/[\w/-]+\.md", text))
    assert len(pages) > 10
    assert [page for page in sorted(pages) if not (ROOT / page).is_file()] == []


def test_changes_that_are_long_or_continued_are_found():
    long = "- Say " + "word " * 24 + "again."
    lines = ["- Say `what was told`.", long, "- say less.", "  and more.", "- No end"]
    assert faulty_changes("\n".join(["# Changes", "", "## 1.0", "", *lines])) == lines[1:]


def test_every_core_dependency_earns_its_place():
    text = (ROOT / "pyproject.toml").read_text()
    core = re.search(r"^dependencies = \[(.*?)\]", text, re.DOTALL | re.MULTILINE)
    assert core is not None
    names = re.findall(r'"([a-z-]+)', core[1])
    page = (DECISIONS / "0001-dependencies.md").read_text()
    table = re.findall(r"^\| ([a-z][a-z-]+) \|", page, re.MULTILINE)
    assert table == ["package", *sorted(names)]


def test_the_commands_of_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    commands = [
        *re.findall(r"`(make [a-z]+)`", (ROOT / "README.md").read_text()),
        *re.findall(r"`(make [a-z]+)`", (ROOT / "CONTRIBUTING.md").read_text()),
    ]
    text = "".join(blocks(ROOT / "README.md", "sh"))
    assert set(re.findall(r"(?:^|&& )slacktide ([a-z]+)", text, re.MULTILINE)) <= set(NAMES)
    targets = {command.split()[1] for command in commands}
    assert {"demo", "serve", "setup", "check", "test", "bench"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_live_resize_says_where_it_can_show_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    spec = importlib.util.spec_from_file_location("live", ROOT / "examples" / "live_resize.py")
    assert spec is not None
    assert spec.loader is not None
    live = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "live", live)  # its dataclasses look themselves up there
    spec.loader.exec_module(live)
    monkeypatch.setattr(live.os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(sys, "argv", ["live_resize.py"])
    shares = [1.0, 1.0]
    monkeypatch.setattr("slacktide.executors.core_probe.cpu_share", lambda cores: shares[cores[0]])
    record = {"table": {"batches": [1, 2, 4]}, "cpu_share": 0.9}
    monkeypatch.setattr(live, "command", lambda *words: json.dumps({"1": record}))
    assert live.main() == 2
    assert "8 frames at once take too long here" in capsys.readouterr().err
    record["cpu_share"] = 0.5
    assert live.main() == 2
    assert "other programs used 50 % of these cores" in capsys.readouterr().err
    shares[1], record["cpu_share"] = 0.4, None
    assert live.main() == 2
    assert "other programs used 60 % of these cores" in capsys.readouterr().err
    shares[1] = 1.0
    assert live.without_gain(live.Scene(0.6, 0.08, 5.0, one_core=0.1, two_cores=0.06)) == ""
    alike = live.Scene(0.6, 0.1, 5.0, one_core=0.1, two_cores=0.098)
    monkeypatch.setattr(live, "prepare", lambda folder, probe: alike)
    assert live.main() == 2
    assert "A second core hardly speeds up the model" in capsys.readouterr().err


def test_users_are_not_given_what_developers_need(tmp_path: Path):
    printed = {}
    for target in ("demo", "serve", "test"):
        words = ["make", "--dry-run", "--directory", str(ROOT), target, f"VENV={tmp_path}"]
        printed[target] = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "[dev]" in printed["test"]
    for target in ("demo", "serve"):
        assert "pip install" in printed[target]
        assert "[dev]" not in printed[target]


def test_the_constraints_are_names_and_versions():
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line)


def test_the_request_of_the_readme_is_answered(mlp: Path):
    (command,) = [block for block in blocks(ROOT / "README.md", "sh") if "/infer" in block]
    # A curl that prints what it would send: it is called as `curl -s URL -d BODY`.
    shown = ["bash", "-c", f"""curl() {{ printf '%s\n%s' "$2" "$4"; }}; {command}"""]
    printed = subprocess.run(shown, capture_output=True, text=True, check=True).stdout
    address, _, body = printed.partition("\n")
    with slacktide.Server(mlp / "models", profile_budget_s=0.2) as server:
        url = "http://" + address.replace("localhost:8000", f"127.0.0.1:{server.http_port}")
        with urllib.request.urlopen(url, body.encode()) as answer:
            reply = json.load(answer)
    assert reply["outputs"][0]["shape"] == [1, 10]
    assert reply["parameters"]["budget_us"] <= 50_000


def test_the_example_of_the_python_api_runs(mlp: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(mlp)
    page = ROOT / "docs" / "python-api.md"
    (example,), (expected,) = blocks(page, "python"), blocks(page, "text")
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        exec(compile(example, str(page), "exec"), {"__name__": "example"})
    assert written.getvalue() == expected


def shown_commands() -> list[list[str]]:
    """Words of each `slacktide` command in a block of a page."""
    commands = []
    for page in PAGES:
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                if not re.match(rf"slacktide ({'|'.join(NAMES)})\b", line):
                    continue
                words = shlex.split(line, comments=True)[1:]
                ends = [words.index(end) for end in ("|", "&", "&&", ">") if end in words]
                commands.append(words[: min(ends, default=None)])
    assert commands
    return commands


@pytest.mark.parametrize("words", shown_commands(), ids=" ".join)
def test_commands_of_the_manual_have_flags_and_options_that_exist(words: list[str]) -> None:
    command = load_verb(words[0])
    arguments = words[1:]
    while arguments and arguments[0] in getattr(command, "commands", ()):
        command, arguments = command.commands[arguments[0]], arguments[1:]
    error = ""
    try:
        command.make_context(words[0], arguments)
    except Exception as raised:
        error = str(raised)
    assert error == "" or "does not exist" in error  # a file that the reader is to have
    text = " ".join(words)
    registries = {
        "scheduler": POLICIES,
        "scaling-policy": SCALING_POLICIES,
        "placement": PLACEMENTS,
    }
    for flag, registry in registries.items():
        pattern = rf"--{flag} (\w+) --{flag}-option (\w+)=(\S+)"
        for name, key, value in re.findall(pattern, text):
            registry.read(name, {key: float(value)})
