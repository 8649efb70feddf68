"""Writes the example models as a model repository, in Triton's layout.

    DIR/README.md
    DIR/NAME/1/model.onnx              or a file for each variant
    DIR/NAME/slacktide.yaml            and config.pbtxt where it shows something
    DIR/NAME/inputs/samples.npz        sample requests and exact labels
    DIR/NAME/data                      labelled pictures, where asked for (see labelled.py)
    DIR/NAME/pipeline.yaml             of a pipeline, instead of all that
    DIR/NAME/.slacktide-example        says that this folder is ours to replace

The inputs lie inside the model's folder because a server takes every folder at the top for a
model, and ignores folders inside one that are not numbers. A model appears whole or not at all:
it is written under a name no server reads, then renamed.
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
"""Called as (model, how many are done, how many there will be) before the first and after each."""

SAMPLE_SEED = 7
"""Seed of the sample inputs; training and its exam use others."""

_MARK = ".slacktide-example"
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
    """Write the example models and pipelines (all, or those named, with the models of pipelines)
    into `directory`; return their folders.

    Example models that are there already are kept as they are, settings and profiles included,
    unless `overwrite`, which makes them anew. With `pictures`, so many labelled pictures are
    written for each model that takes pictures, in the place of any that are there.

    A directory that holds anything else is refused in any case: ExamplesError, as for an unknown
    model name, and for pictures where no model takes any; OSError where writing fails.
    """
    root = Path(directory)
    chosen = _chosen((*MODELS, *PIPELINES) if models is None else models)
    if pictures and not any(isinstance(model, ExampleModel) and model.pictures for model in chosen):
        seeing = ", ".join(model.name for model in MODELS.values() if model.pictures)
        raise ExamplesError(f"none of these models takes pictures; those that do: {seeing}")
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
    """Examples of these names, each once; the models of a pipeline in front of it."""
    listed: dict[str, ExampleModel | ExamplePipeline] = {}
    for name in names:
        if (pipeline := PIPELINES.get(name)) is not None:
            listed |= {model: example(model) for model in pipeline.models if model not in listed}
        listed[name] = example(name) if pipeline is None else pipeline
    return list(listed.values())


def _refuse_foreign(root: Path) -> None:
    """Raise ExamplesError unless `root` is absent, empty, or holds only what we wrote."""
    if root.exists() and not root.is_dir():
        raise ExamplesError(f"{root} is a file; example models are written into a directory")
    for entry in sorted(root.iterdir()) if root.exists() else ():
        if entry.name == _README and _is_ours(entry):
            continue
        marked = not entry.is_symlink() and (entry / _MARK).is_file()
        if entry.name.startswith(_UNFINISHED) or (entry.name in {*MODELS, *PIPELINES} and marked):
            continue
        raise ExamplesError(
            f"{root} holds {entry.name!r}, which is no example model of ours; "
            "choose an empty or a new directory"
        )


def _is_ours(readme: Path) -> bool:
    first = _readme().splitlines()[0]
    return readme.is_file() and readme.read_text("utf-8", "replace").startswith(first)


def _make(model: ExampleModel | ExamplePipeline, folder: Path) -> None:
    """Write one model beside its place, then put it there in the place of any older one."""

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
        (fresh / _MARK).write_text("Made by `slacktide models make`; --overwrite replaces it.\n")

    _replace(folder, folder.parent, fill)


def _make_data(model: ExampleModel, folder: Path, count: int) -> None:
    """Draw labelled pictures into the model's folder, in the place of any older ones."""
    assert model.pictures is not None
    drawn = model.pictures(count, np.random.default_rng(SAMPLE_SEED))
    _replace(folder / "data", folder.parent, lambda fresh: write_labelled(fresh, drawn))


def _replace(folder: Path, root: Path, fill: Callable[[Path], object]) -> None:
    """Put a folder that `fill` makes, beside its place under `root`, in the place of `folder`."""
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
    """Text about the contents of the directory."""
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
