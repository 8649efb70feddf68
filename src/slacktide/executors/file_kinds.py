"""`misplaced_kind`: recognises files found in place of a model or its data.

Downloads and version control leave such files: a pointer instead of the content, a login page
instead of the model, an archive that was never unpacked.
"""

from __future__ import annotations

from pathlib import Path

from slacktide._files import open_file

_HEAD_BYTES = 512

_UNPACK = "unpack it first"
_EXPORT = "export the model to ONNX"

_SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x1f\x8b", f"a gzip file; {_UNPACK}"),
    (0, b"\x28\xb5\x2f\xfd", f"a Zstandard file; {_UNPACK}"),
    (0, b"\xfd7zXZ\x00", f"an xz file; {_UNPACK}"),
    (0, b"BZh", f"a bzip2 file; {_UNPACK}"),
    (257, b"ustar", f"a tar archive; {_UNPACK}"),
    (4, b"TFL3", f"a TensorFlow Lite model; {_EXPORT}"),
    (4, b"ORTM", "a model in ORT format; serve the ONNX file that it was made from"),
    (0, b"\x89HDF\r\n\x1a\n", f"an HDF5 file, as Keras writes; {_EXPORT}"),
    (0, b"\x80", f"a Python pickle; {_EXPORT}"),
    (8, b'{"', f"a safetensors file, which holds only weights; {_EXPORT}"),
)
"""Kinds of files: an offset, the bytes at that offset, and a description."""


def misplaced_kind(path: Path) -> str:
    """A phrase such as `a Git LFS pointer; run 'git lfs pull'`. Empty if the file may be an ONNX
    model, or cannot be read. Reads at most 512 bytes; blocks."""
    try:
        with open_file(path) as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return ""
    return _kind_of(head, complete=len(head) < _HEAD_BYTES)


def _kind_of(head: bytes, *, complete: bool) -> str:
    if not head:
        return "an empty file"
    if head.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer; run 'git lfs pull'"
    if b"/annex/objects/" in head and complete:
        return "a git-annex pointer; run 'git annex get'"
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        saved = b"/data.pkl" in head or b".data/" in head
        return f"a PyTorch checkpoint; {_EXPORT}" if saved else f"a zip archive; {_UNPACK}"
    for offset, signature, phrase in _SIGNATURES:
        if head.startswith(signature, offset):
            return phrase
    if not any(head):
        return "a file of zeros; copy or download it again"
    return _text_kind(head.removeprefix(b"\xef\xbb\xbf").lstrip())


def _text_kind(text: bytes) -> str:
    start = text[:64].lower()
    answered = "; the download returned this instead of the file"
    if b"<html" in text.lower() or start.startswith(b"<!doctype html"):
        return f"an HTML page{answered}"
    if start.startswith((b"<?xml", b"<error")):
        return f"an XML document{answered}"
    if start.startswith((b'{"', b"{\n", b"{ ")):
        return f"a JSON document{answered}"
    if text.isascii() and all(letter >= 32 or letter in b"\t\r\n" for letter in text):
        return "a text file"
    return ""
