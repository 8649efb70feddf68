"""`read_npz`: reads the arrays of an untrusted .npz archive, with limits and without pickle."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MOST_ARRAYS = 256


def read_npz(source: bytes | Path, *, most_bytes: int, where: str) -> dict[str, NDArray[Any]]:
    """Read the arrays of an archive, by name. Unpacked they may take at most `most_bytes`. Raises
    ValueError with a message that begins with `where`."""
    arrays = {}
    try:
        file = io.BytesIO(source) if isinstance(source, bytes) else source
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            nbytes = sum(entry.file_size for entry in entries)
            if nbytes > most_bytes or len(entries) > _MOST_ARRAYS:
                excess = f"arrays: {len(entries)}, bytes: {nbytes}"
                raise ValueError(f"{excess}; at most {_MOST_ARRAYS} and {most_bytes} are read")
            for entry in entries:
                # `read` reads at most the declared size, and checks that the data has that size.
                stream = io.BytesIO(archive.read(entry))
                array = np.lib.format.read_array(stream, allow_pickle=False)
                if array.size > most_bytes:  # elements of zero bytes
                    raise ValueError(f"{array.size} elements; at most {most_bytes} are read")
                arrays[entry.filename.removesuffix(".npy")] = array
    except Exception as error:  # errors of zipfile, zlib and NumPy have no useful common base
        text = error.strerror or "" if isinstance(error, OSError) else str(error)  # without a path
        problem = text.partition("\n")[0][:100] or type(error).__name__
        raise ValueError(f"{where}: expected an .npz file without objects: {problem}") from None
    return arrays
