"""A reader of plain YAML for configuration.

It restricts PyYAML's safe loader: no anchors and aliases (a few lines can expand to gigabytes), no
explicit tags, no merge keys, no dates. Keys must be strings, and a repeated key is an error.
"""

from __future__ import annotations

from typing import Any

import yaml

_KEPT_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float")}


Lines = dict[tuple[int | str, ...], int]
"""Line of each place in a document, from 1. A place is a path of keys and indices."""


class YamlError(ValueError):
    """Raised for invalid YAML; `str()` gives the reason and the line."""


def parse_yaml(text: str) -> Any:
    """Return the document in `text`: dicts with string keys, lists, scalars; None if empty. Raises
    only YamlError."""
    return parse_yaml_lines(text)[0]


def parse_yaml_lines(text: str) -> tuple[Any, Lines]:
    """Return the document as `parse_yaml` does, and the line of every key and element."""
    try:
        loader = _PlainLoader(text)
        try:
            try:
                node = loader.get_single_node()
            except OverflowError:
                message = f"line {loader.line + 1}: expected a valid character"
                raise YamlError(message) from None
            document = None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
        lines: Lines = {}
        if node is not None:
            _note_lines(node, (), lines)
        return document, lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark is not None else ""
        raise YamlError(f"{line}{error.problem or error.context}") from None
    except RecursionError:
        raise YamlError("nested too deeply") from None
    except YamlError:
        raise
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # A bad character, or a number too long for Python or too large for a float.
        raise YamlError(str(error).partition(";")[0].partition("\n")[0]) from None


def _note_lines(node: yaml.Node, place: tuple[int | str, ...], lines: Lines) -> None:
    """Add the lines of everything below `node`, whose keys are known to be strings."""
    if isinstance(node, yaml.MappingNode):
        below = [(key.value, key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        below = [(index, value, value) for index, value in enumerate(node.value)]
    else:
        return
    for part, start, value in below:
        lines[*place, part] = start.start_mark.line + 1
        _note_lines(value, (*place, part), lines)


def _refusal(at: Any, why: str) -> yaml.MarkedYAMLError:
    """Return an error at a node or event."""
    return yaml.MarkedYAMLError(problem=why, problem_mark=at.start_mark)


class _PlainLoader(yaml.SafeLoader):
    """PyYAML's safe loader without anchors, tags, merges, dates and repeated keys."""

    yaml_implicit_resolvers = {  # noqa: RUF012  (PyYAML's own attribute, copied and cut)
        first: [pair for pair in pairs if pair[0] in _KEPT_TAGS]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML's stubs lack it
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _refusal(event, "anchors and aliases are not allowed")
        if getattr(event, "tag", None) is not None:
            raise _refusal(event, "tags are not allowed")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen_keys = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != "tag:yaml.org,2002:str":
                why = "expected a string as key (quote it if it is a number)"
                raise _refusal(key_node, why)
            if key_node.value in seen_keys:
                raise _refusal(key_node, f"key {key_node.value!r} is repeated")
            seen_keys.add(key_node.value)
        return super().construct_mapping(node, deep=deep)

    def construct_whole(self, node: yaml.ScalarNode) -> int:
        """Return a whole number of at most 64 bits: reports show it as JSON."""
        value: int = self.construct_yaml_int(node)
        if value.bit_length() > 63:
            raise _refusal(node, "expected a whole number of at most 64 bits")
        return value


_PlainLoader.add_constructor("tag:yaml.org,2002:int", _PlainLoader.construct_whole)
