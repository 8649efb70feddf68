"""slacktide.yaml: what it may say, and what it is told when it says something else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain.options import options_of, written
from slacktide.domain.padding import PaddedInput, PaddedOutput, Padding
from slacktide.domain.registry import Registry
from slacktide.models.repository.errors import SettingsError
from slacktide.models.repository.fields import (
    DEFAULT_SCHEDULER,
    Choice,
    Cores,
    read_choice,
)
from slacktide.models.repository.settings import (
    InputPad,
    InputSettings,
    Limits,
    ModelSettings,
    SampleSettings,
    Versions,
    WorkHint,
)
from slacktide.models.repository.settings_file import parse_settings, validate_settings
from slacktide.planning.scaling.policies import SCALING_POLICIES
from slacktide.scheduling import POLICIES, FifoOptions, SlackOptions
from slacktide.scheduling.edf import EdfOptions

RANGE = "cores: {min: 1, max: 2}\n"
PADDED = "inputs: {x: {pad: {}}}\npadding: exact\n"
PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"
EVERY_KEY = Path(__file__).parent / "every_key.yaml"


def load(text: str) -> ModelSettings:
    document = parse_settings(text.encode(), where="m/slacktide.yaml")
    return validate_settings(document, where="m/slacktide.yaml")


def test_nothing_stated_gives_the_defaults() -> None:
    assert load("") == load("{}") == ModelSettings()
    assert ModelSettings().scheduler == DEFAULT_SCHEDULER == Choice("slack", SlackOptions())
    assert ModelSettings().versions == Versions(latest=1)


def test_the_documented_example_loads() -> None:
    settings = load(PAGE.read_text().split("```yaml\n")[1].split("```")[0])
    assert settings.slo == 0.15
    assert settings.inputs["tokens"].pad == InputPad(mask="mask")
    assert settings.lengths == (16, 64, 256)


def test_an_example_with_every_key_loads() -> None:
    text = EVERY_KEY.read_text()
    apart = {"after", "before", "decode", "early_exit", "function", "labels", "window"}
    apart |= {"backend", "normalize", "pooling", "precision"}
    assert {*yaml.safe_load(text), *apart} == set(ModelSettings.model_fields)
    settings = load(text)
    assert settings.slo == 0.15
    assert settings.max_slo == 2.0
    assert settings.cores == Cores(min=1, max=4)
    assert settings.limits == Limits(
        queue=2000, payload=4 * 2**20, memory=2**28, rows=16, length=512
    )
    assert settings.inputs["weights"] == InputSettings(shape=(64,), finite=True, pad=InputPad())
    assert settings.inputs["temperature"].value == 0.7
    assert settings.samples == SampleSettings(file="rows.npz")
    assert settings.work_hint == WorkHint(input="tokens", axis=1)
    assert settings.providers == ("cpu",)


def test_short_forms() -> None:
    short = load("scheduler: fifo\ncores: 2\nversions: all")
    assert short.scheduler == Choice("fifo", FifoOptions())
    assert short.cores == Cores(min=2, max=2)
    assert short.versions == Versions(all=True)
    assert load("versions: [3, '1']").versions == Versions(only=("3", "1"))
    edf = load("scheduler: {name: edf, guarantee: p99}").scheduler
    assert edf == Choice("edf", EdfOptions(guarantee="p99"))
    assert edf.stated() == {"guarantee": "p99"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slo: 150", "slo: expected a duration with its unit, such as '150ms', '2s' or '1m', got"),
        ("profiling: {online: 2}", "profiling.online: expected a percentage, such as '2%', got 2"),
        (
            "profiling: {online: 60%}",
            "profiling.online: expected less than or equal to 0.5, got '60%'",
        ),
        ("slo: 0s", "slo: expected greater than 0, got '0s'"),
        ("sloo: 1s", "sloo: unknown key; did you mean 'slo'?"),
        ("replica: 2", "replica: unknown key; did you mean 'replicas'?"),
        ("slo: 2s\nmax_slo: 1s", "expected slo at most max_slo, got 2s and 1s"),
        ("scheduler: slak", "scheduler.name: expected a scheduler, got 'slak'; did you mean"),
        ("scheduler: {kappa: 1}", "scheduler.name: expected a scheduler, got ''; valid: clipper"),
        ("scheduler: {name: slack, kapa: 1}", "scheduler.kapa: unknown key; did you mean 'kappa'?"),
        (
            "scheduler: {name: fifo, kappa: 1}",
            "scheduler.kappa: unknown key; valid: max_queue",
        ),
        ("scheduler: {name: edf, guarantee: p90}", "scheduler.guarantee: expected 'expected' or"),
        ("limits: {quue: 1}", "limits.quue: unknown key; did you mean 'queue'?"),
        ("limits: {payload: 12mb}", "limits.payload: expected a size in bytes, such as '64MiB'"),
        ("limits: {queue: 0}", "limits.queue: expected greater than or equal to 1, got 0"),
        ("inputs: {x: {shapes: [3]}}", "inputs.x.shapes[0]: expected a list such as [3], got 3"),
        (
            "inputs: {x: {value: [1]}}",
            "inputs.x.value: expected a number, a string, true or false",
        ),
        (
            "inputs: {x: {value: .nan}}",
            "inputs.x.value: expected a number, a string, true or false",
        ),
        (
            "inputs: {x: {shapes: [[1], [2]]}, y: {shapes: [[3]]}}",
            "inputs: expected as many 'shapes' for each input, got 2 of 'x', 1 of 'y'",
        ),
        ("samples: a/b.npz", "samples.file: expected letters, digits, '.', '_' and '-'"),
        ("samples: {file: a, rows: {x: b}}", "samples: expected 'file' or 'rows', got both"),
        (
            "inputs: {x: {value: 1}}\nsamples: {rows: {x: f}}",
            "inputs.x.value: not allowed with samples.rows.x",
        ),
        ("scheduler: 5", "scheduler: expected the name of a scheduler, or keys and values, got 5"),
        ("replicas: two", "replicas: expected a whole number, or keys such as {min: 1, max: 4}"),
        ("versions: 5", "versions: expected all, a list such as [1, 2], or a key such as {latest"),
        ("providers: cuda", "providers: expected a list such as [cuda], got 'cuda'"),
        ("samples: 5", "samples.file: expected a string, got 5"),
        ("limits: 3", "limits: expected keys and values, got 3"),
        ("cores: {min: 3, max: 1}", "cores: expected min at most max, got min 3 and max 1"),
        ("cores: 0", "cores.min: expected greater than or equal to 1, got 0"),
        ("replicas: 0", "replicas: expected 1 to 256, got 0"),
        ("replicas: {min: 0}", "replicas.min: expected greater than or equal to 1, got 0"),
        ("replicas: {min: 2}", "replicas: expected min at most max, got min 2 and max 1"),
        (
            "replicas: {max: 2}",
            "replicas: expected a number without 'cores', got min 1 and max 2 on cpu",
        ),
        (
            "replicas: {max: 2}\ndevice: cuda\ncores: 1",
            "replicas: expected a number, got min 1 and max 2 on cuda:0",
        ),
        ("sessions: one", "sessions: needs a range of 'cores' (min below max)"),
        ("cores: 2\nsessions: one", "sessions: needs a range of 'cores' (min below max)"),
        (f"{RANGE}sessions: two", "sessions: expected"),
        (
            "executor: in_process\nlimits: {worker_memory: 1GiB}",
            "limits.worker_memory: needs 'executor: worker'",
        ),
        ("scaling: vertical", "scaling: needs a range of 'cores' or 'replicas' (min below max)"),
        (
            f"{RANGE}scaling: vertcal",
            "scaling.name: expected a scaling policy, got 'vertcal'; did",
        ),
        (
            f"{RANGE}scaling: {{perod: 2s}}",
            "scaling.perod: unknown key; did you mean 'period'",
        ),
        (f"{RANGE}scaling: {{period: 2}}", "scaling.period: expected a duration with its unit"),
        (f"{RANGE}scaling: {{period: 0s}}", "scaling.period: expected more than 0s, got 0s"),
        (f"{RANGE}scaling: 3", "scaling: expected keys and values, got 3"),
        (
            "cores: true",
            "cores: expected a whole number, or keys such as {min: 1, max: 4}, got True",
        ),
        ("versions: {latest: 1, all: true}", "versions: expected exactly one of 'latest', 'all'"),
        ("versions: []", "versions.only: "),
        ("versions: ['01']", "versions.only[0]: expected a whole number from 1, without leading"),
        ("max_batch: '8'", "max_batch: expected a whole number, got '8'"),
        ("max_batch: true", "max_batch: expected a whole number, got True"),
        ("share: .nan", "share: expected a finite number, got nan"),
        ("executor: wroker", "executor: expected 'worker', 'in_process' or 'profiled', got"),
        ("device: gpu", "device: expected 'cpu', 'cuda' or 'cuda:N', got 'gpu'"),
        ("providers: [CUDA]", "did you mean 'cuda'?"),
        (
            "providers: [cuda]\ndevice: cpu",
            "providers: expected 'cpu' alone on cpu",
        ),
        (
            "providers: [cpu]\ndevice: cuda:2",
            "providers: expected 'cuda' or 'tensorrt' on cuda:2",
        ),
        (
            "device: cuda\nexecutor: in_process",
            "executor: expected 'worker' on cuda:0, got 'in_process'",
        ),
        (
            "providers: [cuda]\nexecutor: in_process",
            "executor: expected 'worker' on cuda:0, got 'in_process'",
        ),
        ("device: cuda:1\nlane: x", "lane: expected none on cuda:1: a device is one lane"),
        ("expose: [y]\nearly_exit: 1%", "expose: not allowed with 'early_exit'"),
        (
            "expose: [y]\nvariants: {depths: {a: [x], b: [y]}}",
            "expose: not allowed with 'variants.depths'",
        ),
        (
            "inputs: {x: {pad: {}}}\noutputs: {y: {pad: {stride: 0}}}",
            "outputs.y.pad.stride",
        ),
        ("lane: ../x", "lane: expected letters, digits"),
        ("file: ../../secret", "file: expected letters, digits"),
        ("inputs: {x: {shape: [0]}}", "inputs.x.shape[0]: expected 1 or more, or -1 for"),
        ("inputs: {x: {shape: [-2]}}", "inputs.x.shape[0]: expected 1 or more, or -1 for"),
        ("inputs: {x: {shapes: [[-1]]}}", "inputs.x.shapes[0][0]: expected greater than or"),
        ("inputs: {x: {shpe: [1]}}", "inputs.x.shpe: unknown key; did you mean 'shape'?"),
        ("inputs: {x: {pad: {axs: 1}}}", "inputs.x.pad.axs: unknown key; did you mean 'axis'?"),
        ("inputs: {x: {pad: {axis: 0}}}", "inputs.x.pad.axis: expected greater than or equal to 1"),
        ("inputs: {x: {pad: {value: a}}}", "inputs.x.pad.value: expected a number, got 'a'"),
        ("inputs: {x: {pad: {value: .nan}}}", "inputs.x.pad.value: expected a finite number"),
        ("outputs: {y: {pda: {}}}", "outputs.y.pda: unknown key; did you mean 'pad'?"),
        ("outputs: {y: {pad: {axs: 1}}}", "outputs.y.pad.axs: unknown key; did you mean 'axis'?"),
        ("outputs: {y: {pad: {}}}", "outputs: needs an input with 'pad'"),
        ("padding: exact", "padding: needs an input with 'pad'"),
        ("padding: exakt", "padding: expected 'exact', got 'exakt'; did you mean 'exact'?"),
        (
            "inputs: {x: {pad: {}}}\nlengths: [4]",
            "lengths: needs an input with 'pad', and a mask",
        ),
        (
            f"{PADDED}lengths: [4, 4]",
            "lengths: expected ascending numbers without repetitions, got [4, 4]",
        ),
        (f"{PADDED}lengths: [0]", "lengths[0]: expected greater than or equal to 1, got 0"),
        (f"{PADDED}lengths: [9]\nlimits: {{length: 8}}", "lengths: expected at most limits.length"),
        ("limits: {length: 8}", "limits.length: needs an input with 'pad', and a mask"),
        ("work_hint: row", "work_hint.of: expected 'rows' or 'bytes', got 'row'; did you mean"),
        ("work_hint: {inptu: x}", "work_hint.inptu: unknown key; did you mean 'input'?"),
        (
            "work_hint: {}",
            "work_hint: expected exactly one of 'input' (with or without 'axis') and 'of'",
        ),
        ("work_hint: {of: rows, axis: 1}", "work_hint: 'axis' needs 'input'"),
        ("- slo", "expected keys and values, got ['slo']"),
        ("slo: 1s\nslo: 2s", "line 2: key 'slo' is repeated"),
        ("priority: 6", "priority: expected less than or equal to 5, got 6"),
    ],
)
def test_mistakes_are_named_with_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(text)
    assert str(caught.value).startswith("m/slacktide.yaml: ")
    assert message in str(caught.value)


def test_every_mistake_is_told_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        load("sloo: 1s\nshare: 0\ndevice: gpu")
    assert {problem.field for problem in caught.value.problems} == {"sloo", "share", "device"}


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(SettingsError, match="expected UTF-8"):
        parse_settings(b"\xff", where="m/slacktide.yaml")


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        ModelSettings().slo = 1.0  # type: ignore[misc]  # that is the point


def test_settings_printed_as_json_read_back() -> None:
    settings = load("slo: 150ms\nlimits: {payload: 64MiB}\ncores: 2\nscheduler: fifo")
    printed = settings.model_dump(mode="json", exclude_none=True)
    assert printed["slo"] == "150ms"
    assert printed["limits"] == {"payload": "64MiB", "text": "64KiB", "pixels": 50 << 20}
    assert validate_settings(printed, where="") == settings


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("cores: {min: 1, max: 2}", "vertical"),
        ("cores: {min: 1}", "vertical"),
        ("cores: {min: 2, max: 4}\nreplicas: 2", "vertical"),
        ("cores: 2\nreplicas: {max: 4}", "horizontal"),
        ("cores: {min: 1, max: 2}\nreplicas: {max: 4}", "joint"),
        ("cores: {min: 1, max: 2}\nscaling: static", "static"),
    ],
)
def test_a_range_says_who_decides(text: str, name: str) -> None:
    settings = load(text)
    assert settings.scaled
    assert settings.scaling_policy[0] == name


def test_options_of_a_planner_that_are_times_carry_their_unit() -> None:
    settings = load(f"{RANGE}scaling: {{name: vertical, period: 500ms, delta: 0.1}}")
    assert settings.scaling_policy == ("vertical", {"period": 0.5, "row_cost": 0.1})
    printed = settings.model_dump(mode="json", exclude_none=True)
    assert validate_settings(printed, where="") == settings


@pytest.mark.parametrize("text", ["", "cores: 2", "cores: 2\nreplicas: 2", "replicas: 2"])
def test_without_a_range_nothing_is_scaled(text: str) -> None:
    assert not load(text).scaled


@pytest.mark.parametrize(
    "registry", [POLICIES, SCALING_POLICIES], ids=lambda registry: registry.kind
)
def test_every_option_is_stated_once_with_what_it_does_and_reads_back(
    registry: Registry[Any],
) -> None:
    for name, entry in registry.items():
        defaults = entry.options()
        for key, option in options_of(entry.options).items():
            assert option.text.rstrip().endswith((".", "]]`."))
            assert not ("Time" in option.text and option.unit is None and "times" not in key), key
        stated = {"name": name, **written(defaults, options_of(entry.options))}
        choice = read_choice(registry, stated)
        assert choice == Choice(name, defaults)
        assert registry.read(name, choice.spelt_out()) == defaults


def test_a_list_of_times_carries_units_too() -> None:
    stated = load("cores: 1\nreplicas: {max: 2}\nscaling: {name: octopinf, windows: [5s, 1m]}")
    assert stated.scaling_policy == ("octopinf", {"windows": (5.0, 60.0)})


def test_padding_needs_a_mask_or_the_owners_word() -> None:
    assert load("").pads is None
    assert load("inputs: {x: {pad: {axis: 2}}}").pads is None
    assert load(f"{PADDED}lengths: [4, 9]").pads == Padding({"x": PaddedInput(1)}, {}, (4, 9))
    masked = load(
        "inputs: {x: {pad: {value: 7, mask: m}}}\noutputs: {y: {pad: {axis: 2, stride: 8}}}"
    )
    inputs = {"x": PaddedInput(1, 7), "m": PaddedInput(1, 0, mask=True)}
    assert masked.pads == Padding(inputs, {"y": PaddedOutput(2, 8)})
    assert masked.masks == {"m"}


def test_the_smaller_queue_limit_counts() -> None:
    assert load("").queue_limit is None
    assert load("limits: {queue: 5}").queue_limit == 5
    assert load("limits: {queue: 5}\nscheduler: {name: fifo, max_queue: 3}").queue_limit == 3


@pytest.mark.parametrize(
    ("versions", "chosen"),
    [
        (Versions(latest=1), ("10",)),
        (Versions(latest=2), ("9", "10")),
        (Versions(latest=9), ("1", "9", "10")),
        (Versions(all=True), ("1", "9", "10")),
        (Versions(only=("9", "1", "9")), ("1", "9")),
        (Versions(only=("7",)), ("7",)),
    ],
)
def test_versions_are_chosen_by_number_not_by_text(
    versions: Versions, chosen: tuple[str, ...]
) -> None:
    assert versions.choose(["10", "9", "1"]) == chosen


_words = st.sampled_from(
    [*ModelSettings.model_fields, *POLICIES, *Limits.model_fields, "name", "kappa", "x", ""]
)
_documents = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), _words),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(_words, inner, max_size=4)
    ),
    max_leaves=8,
)


@given(st.dictionaries(_words, _documents, max_size=4))
def test_no_document_is_worse_than_a_settings_error(document: dict[str, object]) -> None:
    message = ""
    try:
        validate_settings(document, where="f")
    except SettingsError as error:
        message = str(error)
    assert not re.search(r"pydantic|Traceback|Input should", message)
    assert message.isprintable()


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("device: cuda", "cuda:0"),
        ("device: cuda:0", "cuda:0"),
        ("device: cuda:007", "cuda:7"),
        ("providers: [cuda]", "cuda:0"),
        ("providers: [tensorrt, cuda, cpu]", "cuda:0"),
        ("providers: [cuda]\ndevice: cuda:3", "cuda:3"),
        ("providers: [cpu]", "cpu"),
        ("slo: 1s", "cpu"),
    ],
)
def test_a_device_has_one_name_and_providers_imply_one(text: str, device: str) -> None:
    assert load(text).device == device
