"""Which rows to try where a model leaves axes free and nothing states them: common conventions.

A free axis has a role: *rows* (the first of a model without a batch axis, or one that is named so)
is 1; *height* and *width*, of an input of four axes with 1, 3 or 4 channels first or last, are an
image's; any other is a *length*, 128 or 512. Axes that the model gives one name are one size. What
is right is known only once a row has run, so these are proposals, the likeliest first. They end
with 1 everywhere: what a profile was taken at before there were conventions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from slacktide.domain.tensors import ModelInterface, TensorSpec
from slacktide.executors.ports import RowShapes
from slacktide.executors.synthetic_inputs import row_bytes

LENGTHS = (128, 512)
IMAGE_SIZES = ((224, 224), (320, 320), (640, 640), (48, 320), (32, 320))
"""Height and width: classifiers, detectors, and the lines of text of recognisers."""
_LINE = 128
"""An image of a fixed height below this is a line of text, and wide."""
_CHANNELS = frozenset({1, 3, 4})
_ROW_NAMES = frozenset({"batch", "batch_size", "batchsize", "bs", "rows"})
_MOST_BYTES = 64 << 20
_MOST = 32

Group = str | tuple[str, int]
"""Axes of one size: those of a name, or one without, by its input and number."""

AxisNames = Mapping[str, Sequence[str | None]]
"""By input: what the model calls the axes of a row; None for one without a name."""


def candidate_rows(
    interface: ModelInterface,
    axes: RowShapes,
    names: AxisNames,
    stated_sizes: Sequence[tuple[int, int]] = (),
) -> list[dict[str, tuple[int, ...]]]:
    """Shapes of rows to try, in order, at most 32, none above 64 MiB (but the last).

    `axes` of a row of each input, −1 where they are open; `stated_sizes`: heights and widths that
    the file itself names. Empty if no axis is open.
    """
    if not any(-1 in shape for shape in axes.values()):
        return []
    images = {spec.name: _image_axes(spec, interface) for spec in interface.inputs}
    groups = _groups(axes, names)
    lengths = _lengths(interface, names, groups, images)
    short: list[set[Group]] = [set(), *({group} for group in reversed(lengths)), {*lengths}]
    sizes = _sizes(axes, images, stated_sizes)
    candidates: dict[tuple[tuple[int, ...], ...], None] = {}
    for length, unit_groups, size in product(LENGTHS, short, sizes):
        shapes = {name: list(shape) for name, shape in axes.items()}
        for (name, axis), group in groups.items():
            if axis in images[name]:
                shapes[name][axis] = (*size, 3)[images[name].index(axis)]
            else:
                shapes[name][axis] = length if group in lengths and group not in unit_groups else 1
        if (
            sum(row_bytes(spec, tuple(shapes[spec.name])) for spec in interface.inputs)
            <= _MOST_BYTES
        ):
            candidates.setdefault(tuple(map(tuple, shapes.values())))
    last = tuple(tuple(1 if n < 0 else n for n in shape) for shape in axes.values())
    rows = [row for row in candidates if row != last][: _MOST - 1]
    return [dict(zip(axes, row, strict=True)) for row in (*rows, last)]


def _groups(axes: RowShapes, names: AxisNames) -> dict[tuple[str, int], Group]:
    """The group of each free axis, by input and number."""
    return {
        (name, axis): names[name][axis] or (name, axis)
        for name, shape in axes.items()
        for axis, size in enumerate(shape)
        if size < 0
    }


def _lengths(
    interface: ModelInterface,
    names: AxisNames,
    groups: Mapping[tuple[str, int], Group],
    images: Mapping[str, Sequence[int]],
) -> dict[Group, None]:
    """Groups of free axes that are lengths, in order."""
    lengths: dict[Group, None] = {}
    for (name, axis), group in groups.items():
        is_rows = axis == 0 and not interface.batches
        is_rows = is_rows or str(names[name][axis]).lower() in _ROW_NAMES
        if axis not in images[name] and not is_rows:
            lengths.setdefault(group)
    return lengths


def _image_axes(spec: TensorSpec, interface: ModelInterface) -> tuple[int, ...]:
    """Axes of a row that are an image's height, width and, where that is open as well, channels;
    none if the input is no image."""
    if len(spec.shape) != 4:
        return ()
    lead = len(spec.shape) - len(interface.row_axes(spec))
    if spec.shape[1] in _CHANNELS:
        return (2 - lead, 3 - lead)
    if spec.shape[3] in _CHANNELS:
        return (1 - lead, 2 - lead)
    return (2 - lead, 3 - lead, 1 - lead) if spec.shape[1:] == (-1, -1, -1) else ()


def _sizes(
    axes: RowShapes,
    images: Mapping[str, tuple[int, ...]],
    stated: Sequence[tuple[int, int]],
) -> list[tuple[int, int]]:
    """Heights and widths to try: what the file names first, then what its own height suggests."""
    extents = [axes[name][axis] for name, two in images.items() for axis in two[:2]]
    if -1 not in extents:
        return [IMAGE_SIZES[0]]  # no image is open: none of them counts
    fixed = next((size for size in extents if size > 0), None)
    likely = [] if fixed is None else [(fixed, fixed if fixed >= _LINE else 320)]
    return list(dict.fromkeys((*stated, *likely, *IMAGE_SIZES)))
