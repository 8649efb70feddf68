"""The files of ramps: what is written is read, and what is almost right is refused by name."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.exits.errors import ExitError
from slacktide.exits.manifest import MANIFEST, STYLE, ExitManifest, Ramp, read_manifest

MODEL = "a" * 64


def a_ramp(position: int, features: int = 3, classes: int = 4) -> Ramp:
    rng = np.random.default_rng(position)
    weights = rng.normal(size=(features, classes)).astype(np.float32)
    bias = rng.normal(size=classes).astype(np.float32)
    return Ramp(position, f"block{position}/out", weights, bias, 0.5 + position, 0.9, position / 4)


def a_manifest(**stated: Any) -> ExitManifest:
    defaults: dict[str, Any] = {
        "model_sha256": MODEL,
        "revision": 3,
        "rows": 3000,
        "source": "traffic",
        "outputs": ("probabilities", "label"),
        "ramps": (a_ramp(0), a_ramp(1, features=8)),
    }
    return ExitManifest(**{**defaults, **stated})


def lay(folder: Path, manifest: ExitManifest) -> Path:
    document, weights = manifest.encode()
    (folder / MANIFEST).write_bytes(document)
    (folder / manifest.weights_file).write_bytes(weights)
    return folder


def edit(folder: Path, **changes: Any) -> None:
    stated = json.loads((folder / MANIFEST).read_bytes())
    (folder / MANIFEST).write_text(json.dumps({**stated, **changes}))


def edit_ramp(folder: Path, **changes: Any) -> None:
    ramps = json.loads((folder / MANIFEST).read_bytes())["ramps"]
    edit(folder, ramps=[ramps[0], {**ramps[1], **changes}])


def edit_weights(folder: Path, **arrays: Any) -> None:
    with np.load(folder / "ramps.3.npz", allow_pickle=True) as archive:
        stored = {name: archive[name] for name in archive.files}
    packed = io.BytesIO()
    np.savez(packed, **{**stored, **arrays})
    (folder / "ramps.3.npz").write_bytes(packed.getvalue())
    edit(folder, weights_sha256=hashlib.sha256(packed.getvalue()).hexdigest())


def test_a_written_manifest_is_read(tmp_path: Path) -> None:
    wrote = a_manifest()
    read = read_manifest(lay(tmp_path, wrote), model_sha256=MODEL)
    assert (read.model_sha256, read.revision, read.rows, read.source) == (MODEL, 3, 3000, "traffic")
    assert read.outputs == ("probabilities", "label")
    assert read.positions == ("block0/out", "block1/out")
    for ramp, other in zip(read.ramps, wrote.ramps, strict=True):
        assert (ramp.position, ramp.tensor, ramp.style) == (other.position, other.tensor, STYLE)
        assert (ramp.temperature, ramp.agreement, ramp.cost) == (
            *(other.temperature, other.agreement, other.cost),
        )
        np.testing.assert_array_equal(ramp.weights, other.weights)
        np.testing.assert_array_equal(ramp.bias, other.bias)


def test_ramps_of_another_model_are_refused(tmp_path: Path) -> None:
    lay(tmp_path, a_manifest())
    with pytest.raises(ExitError, match=r"^manifest\.json: model_sha256: .* another model"):
        read_manifest(tmp_path, model_sha256="b" * 64)
    assert read_manifest(tmp_path).revision == 3


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ExitError, match=r"^manifest\.json: cannot be read: No such file"):
        read_manifest(tmp_path)
    (lay(tmp_path, a_manifest()) / "ramps.3.npz").unlink()
    with pytest.raises(ExitError, match=r"^ramps\.3\.npz: cannot be read"):
        read_manifest(tmp_path)


@given(share=st.floats(0.0, 0.999), of_weights=st.booleans())
def test_truncated_files_are_refused(
    tmp_path_factory: pytest.TempPathFactory, share: float, of_weights: bool
) -> None:
    folder = lay(tmp_path_factory.mktemp("exits"), a_manifest())
    file = folder / ("ramps.3.npz" if of_weights else MANIFEST)
    data = file.read_bytes()
    file.write_bytes(data[: int(share * len(data))])
    named = (
        r"weights_sha256: ramps\.3\.npz was truncated" if of_weights else "expected a JSON object"
    )
    with pytest.raises(ExitError, match=rf"^manifest\.json: {named}"):
        read_manifest(folder)


@given(at=st.floats(0.0, 0.999), value=st.integers(0, 255))
def test_edited_weights_are_refused(
    tmp_path_factory: pytest.TempPathFactory, at: float, value: int
) -> None:
    folder = lay(tmp_path_factory.mktemp("exits"), a_manifest())
    data = bytearray((folder / "ramps.3.npz").read_bytes())
    place = int(at * len(data))
    data[place] = value if data[place] != value else value ^ 1
    (folder / "ramps.3.npz").write_bytes(bytes(data))
    with pytest.raises(ExitError, match="weights_sha256"):
        read_manifest(folder)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"schema": 2}, "schema: expected 1"),
        ({"schema": True}, "schema: expected 1"),
        ({"revision": 0}, "revision: expected 1 to"),
        ({"revision": 1.5}, "revision: expected a whole number"),
        ({"rows": -1}, "rows: expected 1 to"),
        ({"source": "guess"}, "source: expected samples or traffic"),
        ({"weights": "../ramps.3.npz"}, r"weights: expected a file name such as ramps\.1\.npz"),
        ({"weights": "/etc/passwd"}, "weights: expected a file name"),
        ({"outputs": "label"}, "outputs: expected a list"),
        ({"weights": 3}, "weights: expected a string"),
        ({"ramps": []}, "ramps: expected 1 to 120, got 0"),
        ({"ramps": {}}, "ramps: expected a list"),
        ({"ramps": [1]}, r"ramps\[0\]: expected an object"),
        ({"more": 1}, "manifest: unknown more"),
        ({"model_sha256": None}, "model_sha256: expected a string"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    edit(lay(tmp_path, a_manifest()), **changes)
    with pytest.raises(ExitError, match=rf"^manifest\.json: {named}"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"position": 2}, "position: expected 1, got 2"),
        ({"style": "mean"}, "style: expected 'mean and maximum', got 'mean'"),
        ({"temperature": 0}, "temperature: expected more than 0"),
        ({"temperature": float("nan")}, "temperature: expected a finite number"),
        ({"agreement": 1.01}, "agreement: expected 0 to 1"),
        ({"cost": -0.1}, "cost: expected 0 to 1"),
        ({"tensor": 5}, "tensor: expected a string"),
        ({"more": 5}, "unknown more"),
    ],
)
def test_a_wrong_field_of_a_ramp_is_named(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    edit_ramp(lay(tmp_path, a_manifest()), **changes)
    with pytest.raises(ExitError, match=rf"^manifest\.json: ramps\[1\]\.?:? ?{named}"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "arrays",
    [
        {"weights.1": np.zeros((8, 5), np.float32)},
        {"weights.1": np.zeros((8, 4), np.float64)},
        {"weights.1": np.full((8, 4), np.nan, np.float32)},
        {"weights.1": np.zeros((0, 4), np.float32)},
        {"bias.1": np.zeros((1, 4), np.float32)},
        {"bias.1": np.zeros(5, np.float32)},
        {"weights.1": np.zeros((8, 5), np.float32), "bias.1": np.zeros(5, np.float32)},
    ],
)
def test_weights_of_the_wrong_shape_are_refused(tmp_path: Path, arrays: dict[str, Any]) -> None:
    edit_weights(lay(tmp_path, a_manifest()), **arrays)
    with pytest.raises(ExitError, match=r"^ramps\.3\.npz: weights\.1, bias\.1: expected finite"):
        read_manifest(tmp_path)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    folder = lay(tmp_path, a_manifest())
    edit_weights(folder, **{"weights.0": np.array([{"a": 1}], dtype=object)})
    with pytest.raises(ExitError, match=r"^ramps\.3\.npz: expected an \.npz file without objects"):
        read_manifest(folder)
