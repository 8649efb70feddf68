"""What every verb has: help with an example, exit codes, errors that name the flag."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

import slacktide.__main__ as program
import slacktide_papers
from slacktide import __version__
from slacktide._version import BUILD
from slacktide.cli import main as command_line
from slacktide.cli.main import VERBS as SENTENCES
from slacktide.cli.main import app, load_verb
from slacktide.domain.options import options_of
from slacktide.lab.load.flags import LoadFlags

Run = Any

VERBS = (
    ("serve",),
    ("profile",),
    ("load",),
    ("simulate",),
    ("reproduce", "apparate"),
    ("reproduce", "jellyfish"),
    ("reproduce", "octopinf"),
    ("reproduce", "orloj"),
    ("reproduce", "sponge"),
    ("demo",),
    ("demo", "clients"),
    ("demo", "exits"),
    ("demo", "pipeline"),
    ("cluster", "up"),
    ("cluster", "status"),
    ("cluster", "down"),
    ("models", "make"),
    ("models", "check"),
    ("exits", "add"),
)


def invoke(*words: str, **env: str) -> Any:
    """The program in this process; `output` is everything it wrote."""
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "100", "NO_COLOR": "1", **env})


def interrupted_import() -> None:
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt as error:
        raise ImportError("no module") from error


@pytest.mark.parametrize(
    ("work", "code"),
    [
        (lambda: signal.raise_signal(signal.SIGINT), 130),
        (lambda: signal.raise_signal(signal.SIGTERM), 143),
        (interrupted_import, 130),
        (lambda: sys.exit(1), 1),
    ],
)
def test_sigterm_does_what_ctrl_c_does(
    work: Callable[[], None], code: int, monkeypatch: pytest.MonkeyPatch
):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(command_line, "app", work)
    try:
        with pytest.raises(SystemExit) as end:
            command_line.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert end.value.code == code


def test_sigterm_ends_a_job_of_the_background_too(monkeypatch: pytest.MonkeyPatch):
    """A shell without job control starts it with SIGINT ignored."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(command_line, "app", lambda: signal.raise_signal(signal.SIGTERM))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(SystemExit) as end:
            command_line.main()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert end.value.code == 143


def test_ctrl_c_during_the_first_imports_is_no_traceback(monkeypatch: pytest.MonkeyPatch):
    class Interrupted(ModuleType):
        def __getattr__(self, name: str) -> None:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "slacktide.cli.main", Interrupted("slacktide.cli.main"))
    monkeypatch.setattr(program, "take_over", lambda: None)
    monkeypatch.setattr(sys, "argv", ["slacktide", "load"])
    with pytest.raises(SystemExit) as end:
        program.main()
    assert end.value.code == 130


def test_an_error_that_no_interrupt_caused_stays_one(monkeypatch: pytest.MonkeyPatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(command_line, "app", lambda: int("x"))
    try:
        with pytest.raises(ValueError, match="invalid literal"):
            command_line.main()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_verbs_are_these():
    verbs: set[tuple[str, ...]] = set()
    for name, sentence in SENTENCES.items():
        command = load_verb(name)
        inner = getattr(command, "commands", None)
        verbs |= {(name, below) for below in inner or ()}
        if inner is None or command.invoke_without_command:
            verbs.add((name,))
        assert " ".join(command.help.split()).startswith(sentence)
    assert verbs == set(VERBS)


def command_of(verb: tuple[str, ...]) -> Any:
    command: Any = load_verb(verb[0])
    for word in verb[1:]:
        command = command.commands[word]
    return command


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_help_has_an_example(verb: tuple[str, ...]):
    result = invoke(*verb, "--help")
    assert result.exit_code == 0
    assert f"Example: slacktide {' '.join(verb)}" in result.output


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_flag_says_what_it_does_and_its_name_in_the_environment(verb: tuple[str, ...]):
    command = command_of(verb)
    text = invoke(*verb, "--help", COLUMNS="300").output
    for parameter in command.params:
        if parameter.param_type_name != "option" or parameter.name == "print_config":
            continue
        assert parameter.help, parameter.name
        name = parameter.envvar or "_".join(("SLACKTIDE", *verb, parameter.name)).upper()
        assert f"env var: {name}" in text


PATHS = [
    "serve @",
    "serve x --config @",
    "serve x --state-dir @",
    "serve x --token-file @",
    "serve x --tls-key @",
    "models make @",
    "models check @",
    "profile @",
    "profile m --plot @",
    "exits add m --data @",
    "load 127.0.0.1:1 --html @",
    "simulate @",
    "simulate --replay @",
    "reproduce sponge --json @",
    "reproduce sponge --data @",
    "reproduce jellyfish plan --instances @",
]


@pytest.mark.parametrize("words", PATHS)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a path, got an empty string"),
        ("s3://bucket/x", "expected a path, not a URL, got 's3://bucket/x'; copy the files to"),
        ("file:///a%20b/c", "expected a path, not a URL, got 'file:///a%20b/c'; write /a b/c"),
    ],
)
def test_a_path_is_neither_empty_nor_a_url(words: str, text: str, message: str) -> None:
    argv = [text if word == "@" else word for word in words.split()]
    result = invoke(*argv, COLUMNS="300")
    assert result.exit_code == 2
    assert message in result.output


def test_version():
    result = invoke("--version")
    assert (result.exit_code, result.output) == (0, f"slacktide {__version__} ({BUILD})\n")


HEAVY = {"grpc", "numpy", "onnx", "onnxruntime", "uvloop", "yaml"}


@pytest.mark.parametrize(
    "words",
    [
        "slacktide --version",
        "slacktide ",
        "slacktide se",
        "slacktide serve --h",
        "slacktide simulate --",
        "slacktide load --",
    ],
)
def test_version_and_completion_import_nothing_heavy(words: str) -> None:
    code = (
        "import sys, slacktide.cli.main as program; sys.argv[0] = 'slacktide';"
        "exec('try: program.main()\\nexcept SystemExit: pass');"
        f"print(sorted({HEAVY} & set(sys.modules)), file=sys.stderr)"
    )
    completing = {
        "_SLACKTIDE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    version = words.endswith("--version")
    done = subprocess.run(
        [sys.executable, "-c", code, *(words.split()[1:] if version else ())],
        env={**os.environ, **({} if version else completing)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout
    assert done.stderr == "[]\n"


def test_it_is_a_program(run: Run):
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        f"slacktide {__version__} ({BUILD})\n",
        "",
    )


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["serve"], "repository"),
        (["serve", "x", "--http-port", "many"], "--http-port"),
        (["serve", "x", "--http-port", "70000"], "--http-port"),
        (["serve", "x", "--max-request-size", "0B"], "--max-request-size"),
        (["serve", "/no/such/folder"], "/no/such/folder"),
        (["serve", "x", "--memory-limit", "much"], "--memory-limit"),
        (["serve", "x", "--log-level", "loud"], "--log-level"),
        (["serve", "x", "--tls-cert", "a.pem"], "--tls-key"),
        (["serve", "x", "--scheduler-option", "max_queue"], "--scheduler-option"),
        (["profile", "x", "--budget", "long"], "--budget"),
        (["load"], "TARGET"),
        (["load", "ftp://x", "--model", "m"], "TARGET"),
        (["load", "127.0.0.1:1"], "--model: expected the name of a model (cannot connect to"),
        (["load", "ftp://x"], "--model: expected the name of a model (TARGET: expected http"),
        (["load", "x", "--model", "m", "--arrivals", "poisson:fast"], "--arrivals"),
        (["load", "x", "--model", "m", "--deadline", "soon"], "--deadline"),
        (["load", "x", "--model", "m", "--rows", "a"], "--rows"),
        (["load", "x", "--stream", "model=m rows=a"], "--stream 1, rows"),
        (["load", "x", "--model", "m", "--min-goodput", "200"], "--min-goodput"),
        (["load", "x", "--model", "m", "--min-goodput", "95"], "did you mean 95%?"),
        (["load", "x", "--model", "m", "--min-goodput", "-1%"], "a share such as 95%"),
        (["simulate", "x", "--min-goodput", "nan"], "a share such as 95%"),
        (["load", "x", "--model", "m", "--html", "/no/such/folder/a.html"], "--html"),
        (["demo", "--seconds", "0"], "--seconds"),
        (["demo", "clients", "--slo", "150"], "--slo: expected a duration with its unit, such as"),
        (["demo", "clients", "--slo", "5us"], "--slo: expected 10ms to 10s, got 5us"),
        (
            ["load", "x:1", "--model", "m", "--deadline", "50"],
            "--deadline: expected a duration such",
        ),
        (
            ["load", "x:1", "--model", "m", "--arrivals", "5"],
            "expected a process such as poisson:5",
        ),
        (["demo", "--models", "mpl"], "mpl"),
        (["models", "make", "x", "--only", "mpl"], "mpl"),
        (["models", "check", "/no/such/folder"], "/no/such/folder"),
        (["frobnicate"], "frobnicate"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_usage_ends_with_2_and_names_what_is_wrong(
    words: list[str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    result = invoke(*words)
    assert result.exit_code == 2
    assert named in result.stderr
    assert not result.stdout


def test_a_flag_can_come_from_the_environment():
    result = invoke("load", "x", "--model", "m", SLACKTIDE_LOAD_ROWS="a")
    assert result.exit_code == 2
    assert "--rows: expected a whole number, got 'a'" in result.stderr


def test_the_flags_of_load_are_those_of_build_spec():
    flags = set(importlib.import_module("slacktide.lab.cli.load").load.__annotations__)
    assert flags - set(options_of(LoadFlags)) == {"target", "html", "json", "min_goodput"}
    assert set(options_of(LoadFlags)) <= flags


def test_a_file_gives_defaults_that_environment_and_flags_win_over(tmp_path: Path):
    path = tmp_path / "serve.yaml"
    path.write_text("http_port: 1\ngrpc-port: 2\nmetrics-port: 3\nmemory-limit: 1MiB\n")
    words = ("serve", "x", "--config", str(path), "--metrics-port", "5", "--print-config")
    settings = json.loads(invoke(*words, SLACKTIDE_GRPC_PORT="4").stdout)
    ports = [settings[name] for name in ("http_port", "grpc_port", "metrics_port")]
    assert (ports, settings["memory_limit"]) == ([1, 4, 5], 1 << 20)


def test_a_file_states_lists_and_pairs_as_yaml_has_them(tmp_path: Path):
    path = tmp_path / "serve.yaml"
    path.write_text(
        "allowed-hosts: [a.example, b.example]\nallowed_origins:\n- https://a.example\n"
        "scheduler: slack\nscheduler-option: {max_queue: 7}\nmemory-limit: 64000000\n"
    )
    words = ("serve", "x", "--config", str(path), "--print-config")
    settings = json.loads(invoke(*words).stdout)
    assert settings["allowed_hosts"] == ["a.example", "b.example"]
    assert settings["allowed_origins"] == ["https://a.example"]
    assert settings["scheduler_options"] == {"max_queue": 7}
    assert settings["memory_limit"] == 64_000_000
    assert json.loads(invoke(*words, "--allowed-hosts", "c").stdout)["allowed_hosts"] == ["c"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"host: [a]", "--config: host: expected a single value, got a list"),
        (b"cores: {a: 1}", "--config: cores: expected a single value, got keys and values"),
        (b"allowed-hosts: {a: 1}", "--config: allowed-hosts: expected a list, got keys and values"),
        (b"a: [", "c.yaml: expected YAML: while parsing"),
        (b"a: \xff", "c.yaml: expected UTF-8"),
        (None, "c.yaml: cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "c.yaml"
    if content is not None:
        path.write_bytes(content)
    result = invoke("serve", "x", "--config", str(path))
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Errno" not in result.stderr


def test_a_file_with_an_unknown_key(tmp_path: Path):
    path = tmp_path / "serve.yaml"
    path.write_text("htp-port: 1\n")
    result = invoke("serve", "x", "--config", str(path))
    assert result.exit_code == 2
    assert "--config: unknown key 'htp-port'; did you mean 'http-port'?" in result.stderr


# ── verbs of other packages ──────────────────────────────────────────────────────────────────────


def test_the_verb_of_papers_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slacktide.cli.main.installed", lambda group: {})
    result = invoke("reproduce", "orloj")
    assert result.exit_code == 2
    assert "reproduce is not installed; install it with: pip install ./papers" in result.stderr


def test_a_verb_that_cannot_be_imported_is_named_and_the_others_work(
    install: Any, tmp_path: Path
) -> None:
    verbs = {"broken": "slacktide.nowhere:verb", "checks": "slacktide.cli.models:models"}
    install("shop-verbs", "1.0", "verbs", **verbs)
    result = invoke("broken")
    assert result.exit_code == 2
    message = "verb 'broken' (slacktide.nowhere:verb of shop-verbs 1.0) cannot be used: "
    assert f"{message}ModuleNotFoundError: No module named 'slacktide.nowhere'" in result.stderr
    assert {"broken", "checks"} <= set(invoke("--help").stdout.split())
    assert "no such file or folder" in invoke("checks", "check", str(tmp_path / "none")).stderr


def test_a_verb_that_two_distributions_register_is_refused_with_both(install: Any) -> None:
    install("shop-verbs", "1.0", "verbs", checks="slacktide.cli.models:models")
    install("yard-verbs", "2.1", "verbs", checks="slacktide.cli.exits:exits")
    result = invoke("checks")
    assert result.exit_code == 2
    message = (
        "verb 'checks' is registered by two distributions, yard-verbs 2.1 (slacktide.cli.exits:"
    )
    assert message in result.stderr


def test_a_verb_may_be_named_by_its_place(tmp_path: Path) -> None:
    checked = invoke("slacktide.cli.models:models", "check", str(tmp_path / "none"))
    assert "no such file or folder" in checked.stderr
    absent = invoke("slacktide.nowhere:verb")
    assert absent.exit_code == 2
    message = "verb 'slacktide.nowhere:verb' cannot be used: ModuleNotFoundError: No module named"
    assert message in absent.stderr
    message = "verb 'math:pi' cannot be used: expected a function or a typer.Typer, got a float"
    assert message in invoke("math:pi").stderr


def test_papers_of_another_version_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slacktide._extensions.__version__", "9.9.9")
    result = invoke("reproduce", "orloj", "--quick")
    assert result.exit_code == 2
    message = (
        "verb 'reproduce' cannot be used: slacktide-papers 0.1.0 does not match slacktide 9.9.9; "
    )
    assert f"{message}install the same version of both" in result.stderr


def test_both_distributions_have_one_version() -> None:
    assert slacktide_papers.__version__ == metadata.version("slacktide-papers") == __version__
