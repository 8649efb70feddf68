"""Every field of ModelConfig has a class, a sentence, and a line in the manual."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor

from slacktide.models.repository.errors import RefusedFieldError
from slacktide.models.repository.triton.fields import FIELDS, Treatment, judge
from slacktide.models.repository.triton.messages import parse_text
from slacktide.wire.proto.messages import message_class

PAGE = Path(__file__).parents[3] / "docs" / "triton-config.md"

_HEAD = """\
# Triton's config.pbtxt, field by field

<!-- Printed by `python tests/models/repository/test_triton_field_classes.py`; a test compares. -->

A model folder made for Triton can be served as it is. `slacktide.yaml` takes precedence over
`config.pbtxt`, and that over the defaults ([configuration](configuration.md)). The `config`
parameter of a load call replaces `config.pbtxt`. An unknown field is an error that names the
nearest valid one.

The scheduler is `slack` unless `slacktide.yaml` names another, whatever `dynamic_batching` says:
`scheduler: fifo` is Triton's own queue.
"""
_SECTIONS = {
    Treatment.HONOURED: "These fields work as in Triton, or as the table says.",
    Treatment.HARMLESS: """\
These fields, and those below them, have no effect and change no answer. One warning per model
names all of them.""",
    Treatment.REFUSED: """\
These fields, and those below them, are not supported, and ignoring them would change the model's
meaning. The model is not loaded, and the error names the field.""",
}


def triton_config_page() -> str:
    """docs/triton-config.md."""
    page = _HEAD
    for treatment, text in _SECTIONS.items():
        paths: dict[str, list[str]] = {}
        for field in FIELDS.values():
            if field.treatment is treatment and not field.note.startswith("See its field"):
                paths.setdefault(field.note, []).append(f"`{field.path}`")
        page += (
            f"\n## {treatment.value.capitalize()}\n\n{text}\n\n| field | meaning |\n| --- | --- |\n"
        )
        page += "".join(f"| {', '.join(names)} | {note} |\n" for note, names in paths.items())
    return page


def _fields(message: Descriptor, prefix: str = "") -> Iterator[str]:
    """Paths of the fields that need an entry: those not covered by an entry above them."""
    for field in message.fields:
        path = f"{prefix}{field.name}"
        yield path
        entry = FIELDS.get(path)
        nested = field.message_type
        if entry is None or entry.treatment is not Treatment.HONOURED or nested is None:
            continue
        if nested.GetOptions().map_entry:
            nested = nested.fields_by_name["value"].message_type
        if nested is not None:
            yield from _fields(nested, f"{path}.")


def test_the_table_has_every_field_and_nothing_else() -> None:
    paths = set(_fields(message_class("inference.ModelConfig").DESCRIPTOR))
    assert paths == set(FIELDS)


def test_every_entry_has_a_sentence() -> None:
    for field in FIELDS.values():
        assert field.note.endswith("."), field
        assert "|" not in field.note


def test_the_manual_is_printed_from_the_table() -> None:
    hint = "run python tests/models/repository/test_triton_field_classes.py > docs/triton-config.md"
    assert PAGE.read_text() == triton_config_page(), hint


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("sequence_batching {}", "sequence_batching"),
        ("sequence_batching { oldest {} }", "sequence_batching"),
        ("ensemble_scheduling { step { model_name: 'x' } }", "ensemble_scheduling"),
        ("model_transaction_policy { decoupled: true }", "model_transaction_policy.decoupled"),
        ("input { name: 'x' optional: true }", "input.optional"),
        ("batch_input {}", "batch_input"),
        ("optimization { execution_accelerators {} }", "optimization.execution_accelerators"),
        ("model_operations {}", "model_operations"),
        ("model_repository_agents {}", "model_repository_agents"),
        ("cc_model_filenames { key: '8.0' value: 'x' }", "cc_model_filenames"),
        ("dynamic_batching { preserve_ordering: true }", "dynamic_batching.preserve_ordering"),
        ("instance_group { passive: true }", "instance_group.passive"),
        ("runtime: 'x'", "runtime"),
    ],
)
def test_fields_that_change_the_meaning_are_refused_by_name(text: str, path: str) -> None:
    config = parse_text(text.encode(), where="m/config.pbtxt")
    with pytest.raises(RefusedFieldError) as caught:
        judge(config, where="m/config.pbtxt")
    assert [problem.field for problem in caught.value.problems] == [path]
    assert FIELDS[path].note in str(caught.value)


def test_a_neutral_value_is_nothing_to_refuse() -> None:
    text = b"model_transaction_policy { decoupled: false } input { name: 'x' optional: false }"
    assert judge(parse_text(text, where="c"), where="c") == ()


def test_all_refused_fields_are_told_at_once() -> None:
    config = parse_text(b"sequence_batching {} runtime: 'x' batch_input {}", where="c")
    with pytest.raises(RefusedFieldError) as caught:
        judge(config, where="c")
    assert len(caught.value.problems) == 3


def test_harmless_fields_share_one_warning() -> None:
    text = b"""
        optimization { graph { level: 1 } cuda { graphs: true } }
        response_cache { enable: true }
        input [ { name: "x" format: FORMAT_NCHW }, { name: "y" format: FORMAT_NCHW } ]
    """
    warnings = judge(parse_text(text, where="m/config.pbtxt"), where="m/config.pbtxt")
    assert warnings == (
        "m/config.pbtxt: these fields have no effect: input.format, optimization.graph, "
        "optimization.cuda, response_cache",
    )


if __name__ == "__main__":
    print(triton_config_page(), end="")
