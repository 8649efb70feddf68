"""`slacktide models make DIR`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slacktide.cli import fail, print_json, progress


def make(
    directory: Annotated[Path, typer.Argument(help="Folder to make the models in.")],
    only: Annotated[
        list[str] | None, typer.Option(help="Make only this model. May be given several times.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace existing example models.")
    ] = False,
    samples: Annotated[
        int,
        typer.Option(
            min=0,
            help="Labelled pictures to write into NAME/data, for each model that takes pictures.",
        ),
    ] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Build a repository of small example models and pipelines: mlp, text, street, traffic, …

    Example: slacktide models make /tmp/models
    """
    from slacktide.lab.examples import ExamplesError, make_repository

    try:
        with progress(shown=not json) as move:
            paths = make_repository(
                directory,
                models=only,
                overwrite=overwrite,
                pictures=samples,
                progress=lambda model, done, total: move(done / total, model),
            )
    except ExamplesError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{directory}: {error.strerror or error}")
    if json:
        print_json(paths)
    else:
        for path in paths:
            typer.echo(path)
