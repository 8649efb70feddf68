"""`variants` in slacktide.yaml: which make a family, and what is told of those that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slacktide.models.repository.errors import NotFoundError, SettingsError
from slacktide.models.repository.profile_store import ProfileKey, ProfileStore, model_hash
from slacktide.models.repository.repository import ModelDefinition, Repository
from slacktide.models.repository.settings import ModelSettings
from slacktide.models.repository.settings_file import parse_settings, validate_settings
from slacktide.models.repository.variants import VariantSettings

Builder = Callable[..., Path]
DEPTHS = "variants: {depths: {shallow: [early/y], deep: [y]}}"
FILES = "variants: {files: {small: small.onnx, large: large.onnx}}"


def load(text: str) -> ModelSettings:
    document = parse_settings(text.encode(), where="m")
    return validate_settings(document, where="m")


def test_a_list_is_short_for_sizes() -> None:
    variants = load("variants: [128, 256]").variants
    assert variants == VariantSettings(sizes=(128, 256))
    assert variants.names == ("128", "256")
    assert variants.planner == {"name": "variants"}
    assert load("").variants is None


def test_files_keep_their_order_and_options_stand_beside_the_planner() -> None:
    text = """
        variants:
          files: {small: s.onnx, large: l.onnx, huge: h.onnx}
          accuracy: {small: 0.5}
          memory: {large: 12MiB}
          lane_memory: 1GiB
          resident: 2
          planner: {name: none}
          rescue: false
    """
    variants = load(text).variants
    assert variants is not None
    assert variants.names == ("small", "large", "huge")
    assert variants.memory == {"large": 12 << 20}
    assert (variants.lane_memory, variants.resident, variants.rescue) == (1 << 30, 2, False)
    assert variants.planner == {"name": "none"}


def test_depths_are_parts_of_one_file_with_the_outputs_of_the_last(
    root: Path, add_model: Builder
) -> None:
    add_model("m", yaml=DEPTHS)
    (definition,) = Repository(root).read("m")
    shallow, deep = map(definition.of_variant, ("shallow", "deep"))
    assert (shallow.outputs, deep.outputs) == ({"early/y": "y"}, {"y": "y"})
    assert shallow.model_path == deep.model_path == definition.model_path
    assert (shallow.image_size, definition.outputs) == (0, {})
    assert list(definition.files) == ["shallow", "deep"]


def test_the_planners_options_are_read_as_its_own() -> None:
    variants = load("variants: {sizes: [64], planner: {period: 200ms, urgent: false}}").variants
    assert variants is not None
    assert variants.planner_name == "variants"
    assert variants.planner_options == {"period": "200ms", "urgent": False}


def test_a_family_of_one_is_a_family() -> None:
    variants = load("variants: [320]").variants
    assert variants is not None
    assert variants.names == ("320",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "variants: {}",
            "variants: expected exactly one of 'sizes', 'files', 'depths' and 'precisions'",
        ),
        ("variants: {sizes: [8], files: {a: a.onnx}}", "variants: expected exactly one of"),
        ("variants: {depths: {a: [x]}, files: {a: a.onnx}}", "variants: expected exactly one of"),
        (
            "variants: {depths: {a: [x, y], b: [z]}}",
            "variants.depths.a: expected as many different outputs as the last variant lists",
        ),
        ("variants: {depths: {a: [x, x], b: [y, z]}}", "variants.depths.a: expected as many"),
        ("variants: {depths: {a: []}}", "variants.depths.a: expected"),
        (
            "variants: 5",
            "variants: expected a list of sizes such as [224, 320], or keys and values, got 5",
        ),
        ("variants: [256, 128]", "variants.sizes: expected ascending numbers"),
        ("variants: [128, 128]", "variants.sizes: expected ascending numbers"),
        ("variants: [4]", "variants.sizes[0]: expected greater than or equal to 8, got 4"),
        ("variants: [99999]", "variants.sizes[0]: expected less than or equal to 8192"),
        ("variants: {sizes: big}", "variants.sizes: expected"),
        ("variants: {size: [128]}", "variants.size: unknown key; did you mean 'sizes'?"),
        (
            "variants: {sizes: [128], accuracy: {'129': 0.5}}",
            "variants.accuracy.129: no such variant; did you mean '128'?",
        ),
        (
            "variants: {files: {a: a.onnx}, memory: {b: 1MiB}}",
            "variants.memory.b: no such variant; valid: a",
        ),
        ("variants: {sizes: [128], accuracy: {'128': 0}}", "variants.accuracy.128: expected"),
        ("variants: {sizes: [128], accuracy: {'128': 1.1}}", "variants.accuracy.128: expected"),
        ("variants: {sizes: [128], memory: {'128': 1MiB}}", "variants.memory: not allowed"),
        (
            "variants: {files: {a: a.onnx, b: a.onnx}}",
            "variants.files: expected a different file, backend or precision",
        ),
        ("variants: {files: {a: ../a.onnx}}", "variants.files.a.file: expected letters"),
        (
            "variants: {files: {a: a.bin}}",
            "variants.files.a.file: expected a file that ends in .onnx",
        ),
        ("variants: {files: {a: {image: imagenet}}}", "variants.files.a: expected a key 'file'"),
        (
            "variants: {files: {a: {file: a.onnx, image: imagnet}}}",
            "variants.files.a.image.preset: there is no preset 'imagnet'; did you mean 'imagenet'?",
        ),
        ("variants: {files: {a/b: a.onnx}}", "variants.files.a/b: expected letters"),
        ("variants: {sizes: [128], planner: best}", "variants.planner: expected 'variants' or"),
        (
            "variants: {sizes: [128], planner: {name: variants, urgnt: true, period: 5}}",
            "variants.planner.urgnt: unknown key; did you mean 'urgent'?",
        ),
        ("variants: {sizes: [128], planner: {period: 0.5}}", "variants.planner.period: expected"),
        (
            "variants: {sizes: [128], planner: {name: none, period: 1s}}",
            "planner: expected no options with 'none', got period",
        ),
        ("variants: {sizes: [128], planner: {name: [1]}}", "variants.planner: expected 'variants'"),
        ("variants: {sizes: [128], resident: 0}", "variants.resident: expected greater than or"),
        (f"file: x.onnx\n{FILES}", "file: not allowed with 'variants.files', got 'x.onnx'"),
    ],
)
def test_invalid_variants_are_named(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(text)
    assert message in str(caught.value)


def test_every_file_is_found_and_the_first_stands_for_the_model(
    root: Path, add_model: Builder
) -> None:
    folder = add_model("m", file="small.onnx", yaml=FILES)
    (folder / "1" / "large.onnx").write_bytes(b"larger")
    (definition,) = Repository(root).read("m")
    assert definition.where == "m/1/small.onnx"
    assert definition.model_path == folder.resolve() / "1" / "small.onnx"
    large = definition.of_variant("large")
    assert (large.where, large.model_path) == ("m/1/large.onnx", definition.files["large"])
    assert large.image_size == definition.image_size == 0
    assert model_hash(large) != model_hash(definition)


def test_a_file_that_is_missing_is_named(root: Path, add_model: Builder) -> None:
    add_model("m", file="small.onnx", yaml=FILES)
    with pytest.raises(
        NotFoundError, match=r"m/1/large\.onnx: expected a regular file, found none"
    ):
        Repository(root).read("m")


def test_sizes_share_a_profile_and_files_have_their_own(
    root: Path, add_model: Builder, define: Callable[..., ModelDefinition]
) -> None:
    store, key = ProfileStore(), ProfileKey("hash", "machine")
    size = define(yaml="variants: [128, 256]").of_variant("128")
    assert size.image_size == 128
    assert store.save(size, key, {}) == store.save(size.of_variant("256"), key, {})
    learnt = [store.save(size.of_variant(name), key, {}, "learnt").name for name in ("128", "256")]
    assert [name.partition("@")[2] for name in learnt] == ["128.learnt.json", "256.learnt.json"]
    assert store.save(size, key, {}, "accuracy").name == "profile.accuracy.json"
    folder = add_model("n", file="small.onnx", yaml=FILES)
    (folder / "1" / "large.onnx").write_bytes(b"larger")
    (family,) = Repository(root).read("n")
    for name in family.files:
        store.save(family.of_variant(name), key, {"of": name})
    for name in family.files:
        assert store.find(family.of_variant(name), key) == {"of": name}
