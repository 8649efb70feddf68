"""`keep_cores`: a process that only another one can move to other cores.

A library may set the cores of its threads although the server chooses them. A filter of system
calls (seccomp) lets such calls succeed without an effect.
"""

from __future__ import annotations

import ctypes
import os
import struct

from slacktide.executors.onnx_runtime import ModelError

_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # linux/filter.h: BPF_LD | BPF_W | BPF_ABS, …
_ALLOW, _PRETEND = 0x7FFF0000, 0x00050000  # linux/seccomp.h: RET_ALLOW, RET_ERRNO with error 0
_CALLS = {"x86_64": (203, 317), "aarch64": (122, 277)}
"""Numbers of the system calls sched_setaffinity and seccomp."""
_NO_NEW_PRIVILEGES = 38  # linux/prctl.h


def keep_cores() -> None:
    """Let calls of this process that would change the cores of its threads do nothing, from now on.
    The server, which is another process, still moves them. Raises ModelError if that is impossible
    here."""
    if (machine := os.uname().machine) not in _CALLS:
        raise ModelError(f"backend: openvino is not served on {machine}")
    affinity, seccomp = _CALLS[machine]
    steps = (
        (_LOAD, 0, 0, 0),
        (_EQUAL, 0, 1, affinity),
        (_RETURN, 0, 0, _PRETEND),
        (_RETURN, 0, 0, _ALLOW),
    )
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    described = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    all_threads = 1  # SECCOMP_FILTER_FLAG_TSYNC
    if libc.syscall(seccomp, 1, all_threads, ctypes.create_string_buffer(described)) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise ModelError(f"backend: openvino needs a seccomp filter, which is refused: {reason}")
