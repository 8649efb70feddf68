"""Writes the example models as a model repository, in Triton's layout.

    DIR/README.md
    DIR/NAME/1/model.onnx              or a file for each variant
    DIR/NAME/slacktide.yaml            and, for some models, config.pbtxt
    DIR/NAME/inputs/samples.npz        sample requests and exact labels
    DIR/NAME/data                      labelled pictures, if requested (see labelled.py)
    DIR/NAME/pipeline.yaml             for a pipeline, instead of the files above
    DIR/NAME/.slacktide-example        says that this folder is ours to replace

The inputs lie inside the model's folder, because a server treats every top-level folder as a model
and ignores subfolders whose names are not numbers. A model appears atomically: it is written under
a name that no server reads, then renamed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from slacktide.lab.examples.catalog import MODELS, ExampleModel, ExamplesError, example, make_inputs
from slacktide.lab.examples.labelled import write_labelled
from slacktide.lab.examples.pipelines import PIPELINES, ExamplePipeline

Progress = Callable[[str, int, int], None]
"""Called with (model, number done, total) before each model and after the last."""

SAMPLE_SEED = 7
"""Seed of the sample inputs; training and its evaluation use other seeds."""

MARK = ".slacktide-example"
_README = "README.md"
_UNFINISHED = ".slacktide-making-"


def make_repository(
    directory: Path | str,
    *,
    models: Sequence[str] | None = None,
    overwrite: bool = False,
    pictures: int = 0,
    progress: Progress | None = None,
) -> list[Path]:
    """Write example models and pipelines into `directory`; return their folders. `models` selects
    some by name, and includes the models of selected pipelines; None: all.

    Existing example models are kept with their settings and profiles, unless `overwrite`, which
    replaces them. `pictures`: number of labelled pictures to write for each model that takes
    pictures; they replace existing pictures.

    Raises ExamplesError if the directory contains anything else, for an unknown name, and for
    `pictures` if no model takes pictures; OSError if writing fails.
    """
    root = Path(directory)
    chosen = _chosen((*MODELS, *PIPELINES) if models is None else models)
    if pictures and not any(isinstance(model, ExampleModel) and model.pictures for model in chosen):
        seeing = ", ".join(model.name for model in MODELS.values() if model.pictures)
        raise ExamplesError(f"expected a model that takes pictures; valid: {seeing}")
    _refuse_foreign(root)
    root.mkdir(parents=True, exist_ok=True)
    folders = []
    for done, model in enumerate(chosen):
        if progress:
            progress(model.name, done, len(chosen))
        folder = root / model.name
        if overwrite or not folder.exists():
            _make(model, folder)
        if pictures and isinstance(model, ExampleModel) and model.pictures:
            _make_data(model, folder, pictures)
        folders.append(folder)
    (root / _README).write_text(_readme(), encoding="utf-8")
    if progress and chosen:
        progress(chosen[-1].name, len(chosen), len(chosen))
    return folders


def _chosen(names: Iterable[str]) -> list[ExampleModel | ExamplePipeline]:
    """Return the examples with these names, each once, with a pipeline's models before it."""
    listed: dict[str, ExampleModel | ExamplePipeline] = {}
    for name in names:
        if (pipeline := PIPELINES.get(name)) is not None:
            listed |= {model: example(model) for model in pipeline.models if model not in listed}
        listed[name] = example(name) if pipeline is None else pipeline
    return list(listed.values())


def _refuse_foreign(root: Path) -> None:
    """Raise ExamplesError if `root` contains anything that `make_repository` did not write."""
    if root.exists() and not root.is_dir():
        raise ExamplesError(f"expected a folder, got the file {root}")
    for entry in sorted(root.iterdir()) if root.exists() else ():
        if entry.name == _README and _is_ours(entry):
            continue
        marked = not entry.is_symlink() and (entry / MARK).is_file()
        if entry.name.startswith(_UNFINISHED) or (entry.name in {*MODELS, *PIPELINES} and marked):
            continue
        raise ExamplesError(
            f"{root} holds {entry.name!r}, which is not an example model; "
            "choose an empty or a new folder"
        )


def _is_ours(readme: Path) -> bool:
    first = _readme().splitlines()[0]
    return readme.is_file() and readme.read_text("utf-8", "replace").startswith(first)


def _make(model: ExampleModel | ExamplePipeline, folder: Path) -> None:
    """Write one model or pipeline, replacing any older one atomically."""

    def fill(fresh: Path) -> None:
        fresh.mkdir()
        for name, content in model.extras().items():
            (fresh / name).write_bytes(content)
        if isinstance(model, ExampleModel):
            (fresh / "1").mkdir()
            (fresh / "inputs").mkdir()
            for name, content in model.onnx_files().items():
                (fresh / "1" / name).write_bytes(content)
            samples = make_inputs(model.name, model.samples, SAMPLE_SEED)
            samples.write(fresh / "inputs" / "samples.npz")
        (fresh / MARK).write_text("Made by `slacktide models make`; --overwrite replaces it.\n")

    replace_folder(folder, folder.parent, fill)


def _make_data(model: ExampleModel, folder: Path, count: int) -> None:
    """Draw labelled pictures into the model's folder, replacing any older ones."""
    assert model.pictures is not None
    drawn = model.pictures(count, np.random.default_rng(SAMPLE_SEED))
    replace_folder(folder / "data", folder.parent, lambda fresh: write_labelled(fresh, drawn))


def replace_folder(folder: Path, root: Path, fill: Callable[[Path], object]) -> None:
    """Replace `folder` by a folder that `fill` makes in a temporary place under `root`."""
    workshop = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=root))
    try:
        fresh = workshop / "new"
        fill(fresh)
        if folder.exists():
            folder.rename(workshop / "old")
        fresh.rename(folder)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _readme() -> str:
    """Return a README about the contents of the directory."""
    listed = "\n".join(
        f"- `{model.name}`: {model.summary}."
        + (f" Classes: {', '.join(model.classes)}." if model.classes else "")
        for model in MODELS.values()
    )
    listed += "".join(f"\n- `{graph.name}`: {graph.summary}." for graph in PIPELINES.values())
    return f"""# Slacktide's example models

Made by `slacktide models make`, with no download. Serve them with `slacktide serve` and this
directory. Each model has its settings in `slacktide.yaml` and sample requests with exact labels
in `inputs/samples.npz` (read it with `slacktide.lab.examples.Samples.read`); a pipeline is what its
`pipeline.yaml` says.

{listed}
"""
