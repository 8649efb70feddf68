"""slacktide.yaml over config.pbtxt over the defaults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slacktide.models.repository.errors import (
    ModelConfigError,
    RefusedFieldError,
    RepositoryError,
    SettingsError,
)
from slacktide.models.repository.fields import DEFAULT_SCHEDULER, ReplicaCount
from slacktide.models.repository.repository import ModelDefinition
from slacktide.models.repository.settings import Versions
from slacktide.scheduling import FifoOptions

Builder = Callable[..., Path]
Define = Callable[..., ModelDefinition]

BATCHING = """
dynamic_batching {
  preferred_batch_size: [ 4, 8 ]
  max_queue_delay_microseconds: 500
  priority_levels: 3
  default_priority_level: 2
  default_queue_policy { max_queue_size: 9 default_timeout_microseconds: 25000 }
}
"""


def test_triton_fields_become_settings(define: Define) -> None:
    pbtxt = """
        name: "m"  backend: "onnxruntime"  platform: "onnxruntime_onnx"
        max_batch_size: 16
        instance_group [ { count: 2 kind: KIND_CPU }, { kind: KIND_CPU } ]
        version_policy { all {} }
        model_warmup [
          { name: "a" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: 7 } } },
          { name: "b" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: 9 } } }
        ]
    """
    definition = define(pbtxt=pbtxt)
    settings = definition.settings
    assert settings.max_batch == 16
    assert settings.replicas == ReplicaCount(min=3, max=3)
    assert settings.device == "cpu"
    assert settings.versions == Versions(all=True)
    assert definition.warmup_shapes == {"x": (7,)}
    assert definition.more_shapes == ({"x": (9,)},)


@pytest.mark.parametrize(
    ("pbtxt", "shapes"),
    [
        ('input { name: "x" dims: [3, 64, 64] }', {"x": (3, 64, 64)}),
        ('input { name: "x" dims: [3, -1, 64] }', {"x": (3, -1, 64)}),
        ('input { name: "x" dims: [-1, -1] }', {}),
        ('input { name: "x" dims: [1, 6] reshape { shape: [6] } }', {"x": (6,)}),
        ('input { name: "x" dims: [1] reshape { shape: [] } }', {}),
        ('input { name: "x" dims: 5 } input { name: "y" dims: 6 }', {"x": (5,), "y": (6,)}),
        (
            'input { name: "x" dims: 5 } '
            'model_warmup { inputs { key: "x" value { dims: 7 } } } '
            'model_warmup { inputs { key: "x" value { dims: 9 } } }',
            {"x": (7,)},
        ),
    ],
)
def test_stated_dims_are_the_typical_shape(
    define: Define, pbtxt: str, shapes: dict[str, tuple[int, ...]]
) -> None:
    assert define(pbtxt=pbtxt).warmup_shapes == shapes


def test_a_shape_in_our_own_settings_counts_before_stated_dims(define: Define) -> None:
    definition = define(pbtxt='input { name: "x" dims: 5 }', yaml="inputs: {x: {shape: [8]}}")
    assert definition.warmup_shapes == {"x": (8,)}


def test_triton_warm_up_is_what_rows_are_made_of(define: Define, root: Path) -> None:
    (root / "m" / "warmup").mkdir(parents=True)
    (root / "m" / "warmup" / "tokens").write_bytes(b"....")
    pbtxt = """
        model_warmup [
          { inputs [ { key: "tokens" value { dims: 4 input_data_file: "tokens" } },
                     { key: "rate" value { data_type: TYPE_INT64 zero_data: true } },
                     { key: "text" value { data_type: TYPE_STRING dims: 1 zero_data: true } } ] },
          { inputs [ { key: "tokens" value { dims: 8 random_data: true } } ] },
          { inputs [ { key: "tokens" value { dims: 4 } }, { key: "text" value { dims: 2 } } ] }
        ]
    """
    definition = define(pbtxt=pbtxt)
    assert definition.warmup_shapes == {"tokens": (4,), "text": (1,)}
    assert definition.more_shapes == (
        {"tokens": (8,), "text": (1,)},
        {"tokens": (4,), "text": (2,)},
    )
    assert definition.values == {"rate": 0, "text": ""}
    assert definition.sample_rows == {"tokens": root / "m" / "warmup" / "tokens"}
    (warning,) = definition.warnings
    assert warning.endswith(" have no effect: model_warmup.inputs.data_type")


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("../x", "model_warmup.inputs.input_data_file: expected letters"),
        ("gone", "m: samples: expected a file 'gone' in m/1 or m or m/warmup, found none"),
    ],
)
def test_a_warm_up_file_that_is_not_there(define: Define, file: str, message: str) -> None:
    tensor = f'inputs {{ key: "x" value {{ dims: 4 input_data_file: "{file}" }} }}'
    with pytest.raises(RepositoryError) as caught:
        define(pbtxt=f"model_warmup {{ {tensor} }}")
    assert message in str(caught.value)


def test_under_fifo_the_queue_is_tritons(define: Define) -> None:
    definition = define(pbtxt=BATCHING, yaml="scheduler: fifo")
    fifo = definition.settings.scheduler.options
    assert isinstance(fifo, FifoOptions)
    assert (fifo.max_delay, fifo.preferred) == (0.0005, (4, 8))
    assert (fifo.timeout, fifo.timeout_action) == (0.025, "reject")
    assert definition.settings.slo is None
    assert definition.settings.queue_limit == 9
    assert definition.settings.priority == 2
    assert definition.warnings == ()


def test_under_slack_the_timeout_is_the_slo_and_the_delay_earns_a_warning(define: Define) -> None:
    definition = define(pbtxt=BATCHING)
    assert definition.settings.scheduler == DEFAULT_SCHEDULER
    assert definition.settings.slo == 0.025
    assert definition.settings.queue_limit == 9
    (warning,) = definition.warnings
    assert "no effect under the scheduler 'slack'" in warning


def test_a_timeout_that_only_delays_is_no_deadline(define: Define) -> None:
    policy = "timeout_action: DELAY default_timeout_microseconds: 5"
    definition = define(pbtxt=f"dynamic_batching {{ default_queue_policy {{ {policy} }} }}")
    assert definition.settings.slo is None


def test_slacktide_yaml_wins(define: Define) -> None:
    yaml = "slo: 1s\nlimits: {rows: 3}\nscheduler: {name: fifo, max_delay: 2ms}\nreplicas: 1"
    definition = define(yaml=yaml, pbtxt=f"{BATCHING} instance_group {{ count: 4 }}")
    settings = definition.settings
    assert settings.slo == 1.0
    assert (settings.limits.rows, settings.limits.queue) == (3, 9)
    fifo = settings.scheduler.options
    assert isinstance(fifo, FifoOptions)
    assert (fifo.max_delay, fifo.preferred) == (0.002, (4, 8))
    assert settings.replicas == ReplicaCount(min=1, max=1)


def test_a_contradiction_between_the_files(define: Define) -> None:
    with pytest.raises(SettingsError, match=r"m/slacktide\.yaml: expected slo at most max_slo"):
        define(pbtxt=BATCHING, yaml="max_slo: 10ms")


@pytest.mark.parametrize(
    ("pbtxt", "max_batch"),
    [
        ("", None),
        ("max_batch_size: 0", 0),
        ("max_batch_size: 4", 4),
        ("input { name: 'x' data_type: TYPE_FP32 dims: 4 }", 0),
        ("max_batch_size: 4 input { name: 'x' data_type: TYPE_FP32 dims: 4 }", 4),
    ],
)
def test_max_batch_size_stated_or_not(define: Define, pbtxt: str, max_batch: int | None) -> None:
    assert define(pbtxt=pbtxt).settings.max_batch == max_batch


@pytest.mark.parametrize(
    ("group", "device"),
    [
        ("kind: KIND_CPU", "cpu"),
        ("kind: KIND_AUTO", "cpu"),
        ("kind: KIND_GPU", "cuda:0"),
        ("kind: KIND_GPU gpus: 1", "cuda:1"),
        ("gpus: [ 0 ]", "cuda:0"),
    ],
)
def test_instance_groups_name_the_device(define: Define, group: str, device: str) -> None:
    assert define(pbtxt=f"instance_group {{ {group} }}").settings.device == device


def test_providers_name_the_device_where_nothing_else_does(define: Define) -> None:
    pbtxt = "instance_group { count: 1 }"
    assert define(pbtxt=pbtxt, yaml="providers: [cuda]").settings.device == "cuda:0"


def test_providers_and_the_device_of_the_other_file_must_agree(define: Define) -> None:
    with pytest.raises(SettingsError, match="providers: expected 'cpu' alone on cpu"):
        define(pbtxt="instance_group { kind: KIND_CPU }", yaml="providers: [cuda]")


def test_replicas_beyond_the_one_that_a_device_has_are_said_to_be_in_vain(define: Define) -> None:
    (warning,) = define(pbtxt="instance_group { count: 2 kind: KIND_GPU gpus: 1 }").warnings
    assert warning == "replicas: only one of 2 is used: cuda:1 runs one batch at a time"


@pytest.mark.parametrize(
    ("pbtxt", "error", "message"),
    [
        ('name: "other"', ModelConfigError, "name: expected the folder's name 'm', got 'other'"),
        ('backend: "dali"', RefusedFieldError, "backend: is not supported: only 'onnxruntime'"),
        ('platform: "tensorrt_plan"', RefusedFieldError, "platform: is not supported"),
        ("max_batch_size: -1", ModelConfigError, "max_batch_size: expected 0 or more, got -1"),
        ("version_policy { latest {} }", ModelConfigError, "num_versions: expected 1 or more"),
        ("version_policy { specific {} }", ModelConfigError, "expected versions from 1"),
        ("instance_group { kind: KIND_MODEL }", RefusedFieldError, "KIND_MODEL"),
        ("instance_group { count: -2 }", ModelConfigError, "count: expected 1 or more, got -2"),
        (
            "instance_group { count: 999 }",
            ModelConfigError,
            "replicas: (translated to slacktide.yaml)",
        ),
        ("instance_group { gpus: [0, 1] }", RefusedFieldError, "a model runs on one GPU"),
        ("instance_group [{kind: KIND_CPU}, {kind: KIND_GPU}]", RefusedFieldError, "cpu and cuda"),
        ("dynamic_batching { priority_levels: 9 }", RefusedFieldError, "expected at most 5"),
        ("dynamic_batching { default_priority_level: 2 }", ModelConfigError, "expected 1 to"),
        ("dynamic_batching { preferred_batch_size: 0 }", ModelConfigError, "expected 1 or more"),
        ('default_model_filename: "../x"', ModelConfigError, "default_model_filename: expected"),
    ],
)
def test_values_that_cannot_be(
    define: Define, pbtxt: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        define(pbtxt=pbtxt)
    assert message in str(caught.value)
    assert str(caught.value).startswith("m/config.pbtxt: ")
