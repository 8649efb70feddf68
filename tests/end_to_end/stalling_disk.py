"""A file system that stops answering, as a network disk does: `python stalling_disk.py SOURCE PLACE
OPERATION NAME` serves SOURCE read-only at PLACE until it has answered OPERATION of a file called
NAME. Whoever asks after that waits; only a signal that ends its process takes it out.

It speaks FUSE itself (linux/fuse.h), as little as reading needs. `mount` takes root.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
import sys

LOOKUP, GETATTR, OPEN, READ, INIT, OPENDIR, READDIR = 1, 3, 14, 15, 26, 27, 28
FORGET, RELEASE, FLUSH, RELEASEDIR, INTERRUPT, BATCH_FORGET = 2, 18, 25, 29, 36, 42
DIRECT_IO_WITHOUT_FLUSH = 1 | 32
"""Closing a file must not wait for an answer: the kernel lets no signal end that wait."""
DETACH = 2


def mount(place: str, device: int) -> None:
    """Raises PermissionError where this process may not."""
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"stalling", place.encode(), b"fuse", 1, options.encode()):
        raise OSError(ctypes.get_errno(), "mount", place)


def unmount(place: str) -> None:
    ctypes.CDLL(None).umount2(place.encode(), DETACH)


class StallingDisk:
    def __init__(self, source: str, device: int) -> None:
        self.device = device
        self.paths = {1: source}
        self.ids = {source: 1}

    def serve(self, last: tuple[int, str]) -> None:
        """Answer until `last`, the operation and the file's name, is answered."""
        while True:
            message = os.read(self.device, 1 << 17)
            size, operation, unique, node = struct.unpack_from("<IIQQ", message)
            path = self.paths.get(node, "")
            if operation == LOOKUP:
                path = os.path.join(path, message[40 : size - 1].decode())
            if operation not in (FORGET, BATCH_FORGET, INTERRUPT):
                self.reply(unique, *self.answer(operation, path, message[40:size]))
            if (operation, os.path.basename(path)) == last:
                return

    def reply(self, unique: int, error: int, data: bytes) -> None:
        os.write(self.device, struct.pack("<IiQ", 16 + len(data), -error, unique) + data)

    def answer(self, operation: int, path: str, body: bytes) -> tuple[int, bytes]:
        if operation == INIT:
            numbers = (7, 31, 0, 0, 12, 9, 1 << 16, 1, 32, 0, 0)
            return 0, struct.pack("<IIIIHHIIHHI28x", *numbers)
        if operation == LOOKUP:
            if not os.path.exists(path):
                return errno.ENOENT, b""
            node = self.ids.setdefault(path, len(self.ids) + 1)
            self.paths[node] = path
            return 0, struct.pack("<Q32x", node) + self.attributes(path)
        if operation == GETATTR:
            return 0, bytes(16) + self.attributes(path)
        if operation in (OPEN, OPENDIR):
            flags = DIRECT_IO_WITHOUT_FLUSH if operation == OPEN else 0
            return 0, struct.pack("<QII", 0, flags, 0)
        _, offset, size = struct.unpack_from("<QQI", body) if len(body) >= 20 else (0, 0, 0)
        if operation == READ:
            with open(path, "rb") as file:
                file.seek(offset)
                return 0, file.read(size)
        if operation == READDIR:
            return 0, b"".join(self.entries(path)[offset:])
        return (0 if operation in (RELEASE, RELEASEDIR, FLUSH) else errno.ENOSYS), b""

    def attributes(self, path: str) -> bytes:
        status = os.stat(path)
        place = (self.ids[path], status.st_size)
        return struct.pack("<QQ44xII12xI4x", *place, status.st_mode, status.st_nlink, 4096)

    def entries(self, path: str) -> list[bytes]:
        encoded = []
        for number, name in enumerate((".", "..", *sorted(os.listdir(path))), 1):
            entry = struct.pack("<QQII", number, number, len(name), 0) + name.encode()
            encoded.append(entry + bytes(-len(entry) % 8))
        return encoded


def main() -> None:
    source, place, operation, name = sys.argv[1:]
    device = os.open("/dev/fuse", os.O_RDWR)
    mount(place, device)
    print("mounted", flush=True)
    StallingDisk(source, device).serve((int(operation), name))
    print("stalls", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
