"""`ExitManifest`: the ramps of a model, as two files in a folder of the version.

    REPOSITORY/residual/1/exits/manifest.json   the ramps, their model, and how well they agree
    REPOSITORY/residual/1/exits/ramps.3.npz     weights.N [features, classes] and bias.N [classes]

The manifest names the weights file and its SHA-256, so replacing the manifest replaces both
atomically. Both come with the repository and are untrusted: they are read with limits and checked
strictly.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide._files import open_file
from slacktide.exits.archives import read_npz
from slacktide.exits.errors import ExitError
from slacktide.profiles.reading import ProfileError, items, mapping, number, text, whole_number

MANIFEST = "manifest.json"
SCHEMA = 1
MOST_MANIFEST_BYTES = 1 << 20
MOST_WEIGHT_BYTES = 1 << 29
MOST_RAMPS = 120
STYLE = "mean and maximum"
"""The style of ramps: the features of `Position.features`, and one Gemm."""
_WEIGHTS = re.compile(r"ramps\.[0-9]{1,9}\.npz", re.ASCII)
_KEYS = (
    "schema", "model_sha256", "revision", "rows", "source", "outputs", "weights", "weights_sha256",
    "ramps",
)  # fmt: skip
_RAMP_KEYS = ("position", "tensor", "style", "temperature", "agreement", "cost")
_SOURCES = ("samples", "traffic")


@dataclass(frozen=True, slots=True, eq=False)
class Ramp:
    """A classifier at a position: softmax((features · weights + bias) ÷ temperature)."""

    position: int
    tensor: str
    """Name of the pooled tensor."""
    weights: NDArray[np.float32]
    """[features, classes]."""
    bias: NDArray[np.float32]
    """[classes]."""
    temperature: float
    """Temperature, above 0, by which logits are divided to get an uncertainty."""
    agreement: float
    """Share of unseen rows for which it gave the model's answer."""
    cost: float
    """Share of the model's computation before the position, 0 to 1."""
    style: str = STYLE

    def logits(self, features: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """The logits [n, classes] of rows [n, features]."""
        return features @ self.weights + self.bias


@dataclass(frozen=True, slots=True, eq=False)
class ExitManifest:
    """All ramps of a model, by position."""

    model_sha256: str
    """Hash of the model files for which the ramps were learnt."""
    revision: int
    """Starts at 1 and rises each time the ramps are learnt again."""
    rows: int
    """Number of rows from which the ramps were learnt."""
    source: str
    """`samples` or `traffic`."""
    outputs: tuple[str, ...]
    """Names of the model's outputs that ramps provide."""
    ramps: tuple[Ramp, ...]

    @property
    def positions(self) -> tuple[str, ...]:
        """Names of the tensors by position."""
        return tuple(ramp.tensor for ramp in self.ramps)

    @property
    def weights_file(self) -> str:
        return f"ramps.{self.revision}.npz"

    def encode(self) -> tuple[bytes, bytes]:
        """The contents of the manifest and of the weights file."""
        arrays: dict[str, NDArray[np.float32]] = {}
        for ramp in self.ramps:
            arrays[f"weights.{ramp.position}"] = ramp.weights
            arrays[f"bias.{ramp.position}"] = ramp.bias
        packed = io.BytesIO()
        np.savez(packed, allow_pickle=False, **arrays)
        weights = packed.getvalue()
        document = {
            "schema": SCHEMA,
            "model_sha256": self.model_sha256,
            "revision": self.revision,
            "rows": self.rows,
            "source": self.source,
            "outputs": list(self.outputs),
            "weights": self.weights_file,
            "weights_sha256": hashlib.sha256(weights).hexdigest(),
            "ramps": [{key: getattr(ramp, key) for key in _RAMP_KEYS} for ramp in self.ramps],
        }
        return json.dumps(document, indent=1, allow_nan=False).encode(), weights


def read_manifest(folder: Path, *, model_sha256: str | None = None) -> ExitManifest:
    """Read the manifest and weights in `folder`. Raises ExitError naming file and field, also if
    they belong to a model other than `model_sha256`."""
    try:
        document = json.loads(_read(folder, MANIFEST, MOST_MANIFEST_BYTES))
    except (ValueError, RecursionError) as error:
        if isinstance(error, ExitError):
            raise
        raise ExitError(f"{MANIFEST}: expected a JSON object") from None
    try:
        return _checked(folder, document, model_sha256)
    except ProfileError as error:
        raise ExitError(f"{MANIFEST}: {error}") from None
    except ValueError as error:  # names the weights file
        raise ExitError(str(error)) from None


def _checked(folder: Path, document: object, model_sha256: str | None) -> ExitManifest:
    fields = mapping(document, "manifest", _KEYS)
    if fields["schema"] != SCHEMA or isinstance(fields["schema"], bool):
        raise ProfileError(f"schema: expected {SCHEMA}, got {fields['schema']!r:.20}; learn again")
    trained_for = text(fields["model_sha256"], "model_sha256")
    if model_sha256 is not None and trained_for != model_sha256:
        raise ProfileError("model_sha256: the ramps belong to another model; learn again")
    revision = _ranged(fields["revision"], "revision", 1, 999_999_999)
    rows = _ranged(fields["rows"], "rows", 1, 1 << 53)
    source = text(fields["source"], "source")
    if source not in _SOURCES:
        raise ProfileError(f"source: expected {' or '.join(_SOURCES)}, got {source!r:.20}")
    outputs = items(fields["outputs"], "outputs", text)
    file = text(fields["weights"], "weights")
    if _WEIGHTS.fullmatch(file) is None:
        raise ProfileError(f"weights: expected a file name such as ramps.1.npz, got {file!r:.40}")
    entries = items(fields["ramps"], "ramps", lambda entry, name: mapping(entry, name, _RAMP_KEYS))
    if not 1 <= len(entries) <= MOST_RAMPS:
        raise ProfileError(f"ramps: expected 1 to {MOST_RAMPS}, got {len(entries)}")
    data = _read(folder, file, MOST_WEIGHT_BYTES)
    if hashlib.sha256(data).hexdigest() != text(fields["weights_sha256"], "weights_sha256"):
        raise ProfileError(f"weights_sha256: {file} was truncated or changed")
    arrays = read_npz(data, most_bytes=MOST_WEIGHT_BYTES, where=file)
    classes = 0
    ramps = []
    for index, entry in enumerate(entries):
        where = f"ramps[{index}]"
        position = _ranged(entry["position"], f"{where}.position", index, index)
        if (style := text(entry["style"], f"{where}.style")) != STYLE:
            raise ProfileError(f"{where}.style: expected {STYLE!r}, got {style!r:.20}")
        weights, bias = (arrays.get(f"{name}.{position}") for name in ("weights", "bias"))
        if weights is None or bias is None or not _fit(weights, bias, classes):
            expected = "expected finite float32 [features, classes] and [classes]"
            raise ExitError(f"{file}: weights.{position}, bias.{position}: {expected}")
        classes = bias.size
        temperature = number(entry["temperature"], f"{where}.temperature")
        if not 0.0 < temperature <= 1e6:
            raise ProfileError(f"{where}.temperature: expected more than 0, got {temperature}")
        ramps.append(
            Ramp(
                position,
                text(entry["tensor"], f"{where}.tensor"),
                weights,
                bias,
                temperature,
                _share(entry["agreement"], f"{where}.agreement"),
                _share(entry["cost"], f"{where}.cost"),
            )
        )
    return ExitManifest(trained_for, revision, rows, source, outputs, tuple(ramps))


def _fit(weights: NDArray[Any], bias: NDArray[Any], classes: int) -> bool:
    """Whether these are valid weights of a ramp with `classes` classes; 0: any number."""
    shaped = weights.ndim == 2 and bias.ndim == 1 and weights.size > 0 and bias.size >= 2
    alike = shaped and weights.shape[1] == bias.size == (classes or bias.size)
    floats = weights.dtype == bias.dtype == np.float32
    return alike and floats and bool(np.isfinite(weights).all() and np.isfinite(bias).all())


def _read(folder: Path, name: str, limit: int) -> bytes:
    try:
        with open_file(folder / name) as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ExitError(f"{name}: cannot be read: {error.strerror}") from None
    if len(data) > limit:
        raise ExitError(f"{name}: expected at most {limit} bytes")
    return data


def _ranged(value: object, name: str, least: int, most: int) -> int:
    count = whole_number(value, name)
    if not least <= count <= most:
        expected = f"{least}" if least == most else f"{least} to {most}"
        raise ProfileError(f"{name}: expected {expected}, got {count}")
    return count


def _share(value: object, name: str) -> float:
    share = number(value, name)
    if not 0.0 <= share <= 1.0:
        raise ProfileError(f"{name}: expected 0 to 1, got {share}")
    return share
