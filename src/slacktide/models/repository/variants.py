"""`VariantSettings`: the section `variants` of a slacktide.yaml, which makes a model a family.

variants: [128, 256, 416, 608]            sizes of one file's image input
variants:
  files: {small: small.onnx, large: {file: large.onnx, image: imagenet}}
  accuracy: {small: 0.71, large: 0.78}
variants:
  depths: {shallow: [early/scores], deep: [scores]}      outputs of one file, after more layers
variants:
  precisions: [int8, bf16, fp32]                         one file, computed in less precision
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from slacktide.domain.options import OptionError, read_options
from slacktide.domain.suggestions import suggestion
from slacktide.models.repository.decode import DecodeSettings
from slacktide.models.repository.fields import (
    Name,
    Section,
    Size,
    ascending,
    name_to_section,
    short_for,
)
from slacktide.models.repository.function import TensorName
from slacktide.models.repository.image import MOST_SIDE, Image
from slacktide.models.repository.precision import Backend, Precision, by_precision
from slacktide.planning.variants import VariantsOptions

MOST_VARIANTS = 64
PLANNERS = ("variants", "none")


def short_variants(value: Any) -> Any:
    """A list of numbers is short for a section that states `sizes`."""
    return {"sizes": value} if isinstance(value, list) else value


def _planner(value: Any) -> Any:
    section = name_to_section(value)
    if isinstance(section, Mapping):
        options = {str(key): option for key, option in section.items() if key != "name"}
        name = section.get("name", PLANNERS[0])
        if name not in PLANNERS:
            raise ValueError(f"expected 'variants' or 'none', got {name!r:.100}")
        if name == PLANNERS[0]:
            read_options(VariantsOptions, options, bare=False)
        elif options:
            raise ValueError(f"expected no options with {name!r}, got {', '.join(options)}")
    return section


def _bare(file: str) -> str:
    if not file.endswith(".onnx"):
        raise ValueError(f"expected a file that ends in .onnx, got {file!r}")
    return file


class VariantFile(Section):
    """One file of a family. Its name is short for `file`."""

    file: Annotated[Name, AfterValidator(_bare)]
    """A model file in the version's folder."""
    output_names: Annotated[dict[TensorName, TensorName], Field(max_length=64)] = {}  # noqa: RUF012
    """For each output that clients see, the output of this file that holds it. Others are hidden.
    Not needed for a single output."""
    image: Image | None = None
    """How pictures become the file's only input, if it differs from `inputs.NAME.image`."""
    decode: Annotated[DecodeSettings, short_for("as")] | None = None
    """The decoder of this file's outputs, if it differs from the model's."""
    backend: Backend | None = None
    """The backend of this file, if it differs from the model's."""
    precision: Precision | None = None
    """The precision of this file, if it differs from the model's."""


class VariantSettings(Section):
    """The variants of one model, smallest first."""

    sizes: Annotated[
        tuple[Annotated[int, Field(ge=8, le=MOST_SIDE)], ...],
        Field(strict=False, max_length=MOST_VARIANTS),
        AfterValidator(ascending),
    ] = ()
    """Image sizes (height and width, in pixels) at which one model file runs, ascending. The size
    is the variant's name, as in `"416"`."""
    files: Annotated[
        dict[Name, Annotated[VariantFile, short_for("file")]], Field(max_length=64)
    ] = {}  # noqa: RUF012
    """Instead of `sizes`: each variant's model file in the version's folder, the smallest first.
    All have the same inputs and outputs, except for the size of an image input. State `image`,
    `output_names` or `decode` for a file that differs in other ways."""
    depths: Annotated[
        dict[Name, Annotated[tuple[str, ...], Field(strict=False, min_length=1)]],
        Field(max_length=64),
    ] = {}  # noqa: RUF012
    """Instead of `sizes`: the outputs of one model file that each variant returns, the shallowest
    first. All lists have the same length and order. Clients see the last variant's names. A variant
    loads only the part of the file that its outputs need."""
    precisions: Annotated[
        tuple[Precision, ...], Field(strict=False, max_length=3), AfterValidator(by_precision)
    ] = ()
    """Instead of `sizes`: the [precisions](precision.md) in which one model file runs, the least
    precise first: `int8`, `bf16`, `fp32`. Until `slacktide profile --accuracy` measures it, the
    accuracy of a variant is its agreement with `fp32`."""
    accuracy: dict[str, Annotated[float, Field(gt=0, le=1)]] = {}  # noqa: RUF012
    """Accuracy of each variant, above 0 and at most 1. Default: as measured by `slacktide profile
    --accuracy`; if not measured, later variants count as better."""
    output: str | None = None
    """For `slacktide profile --accuracy`: the output with class scores, if a classifier has several
    outputs."""
    memory: dict[str, Size] = {}  # noqa: RUF012
    """Memory of a loaded copy of each variant, not for `sizes`. Default: as measured."""
    lane_memory: Size | None = None
    """Maximum memory of all loaded copies on a lane, not for `sizes`."""
    resident: Annotated[int, Field(ge=1, le=MOST_VARIANTS)] = 5
    """Maximum number of loaded copies on a lane, not for `sizes`."""
    planner: Annotated[dict[str, Any], BeforeValidator(_planner)] = {"name": PLANNERS[0]}  # noqa: RUF012
    """The planner that chooses each client's variant: `variants`, with its
    [options](variants.md#how-variants-are-planned) next to its name. With `none`, the scaling
    planner chooses one variant for all clients."""
    rescue: bool = True
    """Whether a request that would be late moves to a smaller variant that can answer in time."""

    @model_validator(mode="after")
    def _fits_together(self) -> VariantSettings:
        if sum(map(bool, (self.sizes, self.files, self.depths, self.precisions))) != 1:
            raise ValueError(
                "expected exactly one of 'sizes', 'files', 'depths' and 'precisions', with at "
                "least one variant"
            )
        for name, outputs in self.depths.items():
            if len(set(outputs)) != len(tuple(self.depths.values())[-1]):
                message = "expected as many different outputs as the last variant lists"
                raise OptionError((f"depths.{name}", message))
        ways = {(file.file, file.backend, file.precision) for file in self.files.values()}
        if len(ways) < len(self.files):
            expected = "expected a different file, backend or precision for each variant"
            raise OptionError(("files", expected))
        if self.memory and self.sizes:
            raise OptionError(("memory", "not allowed with 'sizes': these variants share one copy"))
        unknown = [
            (f"{key}.{name}", f"no such variant; {suggestion(name, self.names)}")
            for key, stated in (("accuracy", self.accuracy), ("memory", self.memory))
            for name in stated
            if name not in self.names
        ]
        if unknown:
            raise OptionError(*unknown)
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the variants, smallest first."""
        return tuple(map(str, self.sizes)) or tuple(self.files or self.depths or self.precisions)

    def model_files(self, file: str) -> dict[str, str]:
        """Return the model file of each variant that has a copy of its own. `file`: the model's."""
        stated = {name: variant.file for name, variant in self.files.items()}
        return stated or dict.fromkeys(self.depths or self.precisions, file)

    @property
    def planner_name(self) -> str:
        """`variants` or `none`."""
        return str(self.planner.get("name", PLANNERS[0]))

    @property
    def planner_options(self) -> dict[str, object]:
        """Options stated next to the planner's name."""
        return {key: value for key, value in self.planner.items() if key != "name"}
