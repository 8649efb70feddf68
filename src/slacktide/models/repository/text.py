"""`DeclaredText`: the input whose texts a tokenizer turns into inputs of the model's file.

inputs: {text: {tokenizer: tokenizer.json}}

`with_text` completes the settings of the file's inputs: their padding and their lengths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.ports import TokenSource
from slacktide.executors.tokenizer_file import TokenizerFacts
from slacktide.models.repository.settings import InputPad, InputSettings, ModelSettings, WorkHint

_LENGTHS = (16, 64, 256)
"""Lengths to measure, if none are stated."""


@dataclass(frozen=True, slots=True)
class DeclaredText:
    """The settings of a text input, and what its tokenizer's file says."""

    name: str
    path: Path
    facts: TokenizerFacts
    gives: Mapping[str, str]
    """Inputs of the model's file, by role: `input_ids`, `attention_mask`, `token_type_ids`."""
    stated: bool
    """Whether `gives` is stated: then the model must have these inputs."""
    max_length: int | None
    """Tokens to which a text is cut; None: as many as the model's fixed axis has."""
    pairs: bool
    most_bytes: int
    """Maximum bytes of a text."""

    @classmethod
    def of(
        cls, name: str, section: InputSettings, facts: TokenizerFacts, path: Path, most_bytes: int
    ) -> DeclaredText:
        length = section.max_length or facts.max_length
        stated, gives = section.gives is not None, section.inputs_by_role
        return cls(name, path, facts, gives, stated, length, section.pairs, most_bytes)

    @property
    def source(self) -> TokenSource:
        """Names and ranges of the inputs that the tokenizer makes, for workers."""
        ranges = {"input_ids": (0, self.facts.largest_id), "attention_mask": (1, 1)}
        named = {name: ranges.get(role, (0, 0)) for role, name in self.gives.items()}
        return TokenSource(f"inputs.{self.name}.tokenizer", self.gives["input_ids"], named)

    def specs(self, interface: ModelInterface) -> dict[str, TensorSpec]:
        """The inputs of a file that the tokenizer makes, by role."""
        inputs = {spec.name: spec for spec in interface.inputs}
        return {role: inputs[name] for role, name in self.gives.items() if name in inputs}

    def shown(self, interface: ModelInterface) -> ModelInterface:
        """Return a file's interface as clients see it: a BYTES input instead of the inputs that the
        tokenizer makes."""
        given_names = set(self.gives.values())
        other_inputs = [spec for spec in interface.inputs if spec.name not in given_names]
        rows = next((spec.shape[0] for spec in self.specs(interface).values()), -1)
        spec = TensorSpec(self.name, Datatype.BYTES, (rows, 2 if self.pairs else 1))
        return replace(interface, inputs=(spec, *other_inputs))


def with_text(settings: ModelSettings, text: DeclaredText | None) -> ModelSettings:
    """Return the settings, completed for the inputs that the tokenizer makes. Stated settings
    win."""
    if text is None:
        return settings
    facts, roles = text.facts, text.gives
    inputs = dict(settings.inputs)
    mask = roles.get("attention_mask")
    values = {"input_ids": facts.pad_id or 0, "token_type_ids": facts.pad_type_id}
    for role, value in values.items():
        name = roles.get(role)
        section = InputSettings() if name is None else inputs.get(name, InputSettings())
        if name is not None and mask is not None and section.pad is None:
            pad = InputPad(value=value, mask=mask if role == "input_ids" else None)
            inputs[name] = section.model_copy(update={"pad": pad})
    update: dict[str, object] = {"inputs": inputs}
    if settings.work_hint is None:
        update["work_hint"] = WorkHint(input=roles["input_ids"])
    if text.max_length is not None:
        longest = min(text.max_length, settings.limits.length or text.max_length)
        update["limits"] = settings.limits.model_copy(update={"length": longest})
        lengths = tuple(n for n in _LENGTHS if n <= longest) or (longest,)
        update["lengths"] = settings.lengths or lengths
    return settings.model_copy(update=update)
