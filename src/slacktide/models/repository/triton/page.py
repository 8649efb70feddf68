"""Prints docs/triton-config.md from the table of fields.

python -m slacktide.models.repository.triton.page > docs/triton-config.md
"""

from __future__ import annotations

from slacktide.models.repository.triton.fields import FIELDS, Treatment

_HEAD = """\
# Triton's config.pbtxt, field by field

<!-- Printed by `python -m slacktide.models.repository.triton.page`; a test compares. -->

A model folder made for Triton can be served as it is. Each field of its `config.pbtxt` belongs to
one of three classes:

- **honoured**: it does what it does in Triton, or what its sentence says;
- **harmless**: it has no effect here and changes no answer; one warning per model names all of
  these that it states;
- **refused**: it changes what the model means and is not supported; the model is not loaded, and
  the error names the field.

A field that the format does not have is an error that names the nearest one that it has. An entry
that is not honoured also covers the fields below it. `slacktide.yaml` takes precedence over
`config.pbtxt`, and that over the server's defaults ([configuration](configuration.md)). The
`config` parameter of a load call replaces `config.pbtxt` and is read by the same rules.

The scheduler is `slack` unless `slacktide.yaml` names another, whatever `dynamic_batching` says:
`scheduler: fifo` is Triton's own queue.

| field | class | what it means here |
| --- | --- | --- |
"""


def triton_config_page() -> str:
    """The page as Markdown."""
    rows = (
        f"| `{field.path}` | {_shown(field.treatment)} | {field.note} |\n"
        for field in FIELDS.values()
    )
    return _HEAD + "".join(rows)


def _shown(treatment: Treatment) -> str:
    return f"**{treatment.value}**" if treatment is Treatment.REFUSED else treatment.value


if __name__ == "__main__":
    print(triton_config_page(), end="")
