"""Run a command that cannot use AMX: `python -m engines.without_amx COMMAND...`.

llama.cpp asks Linux for AMX before it repacks weights for it, and its AMX kernels crash with some
models. Where the answer is no, it repacks for AVX instead.
"""

import ctypes
import os
import struct
import sys

_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ARCH_PRCTL, _REQUEST_STATE, _REFUSED, _ALLOWED = 158, 0x1023, 0x0005_0001, 0x7FFF_0000
# A seccomp filter: code, jumps if true and if false, operand.
_FILTER = (
    (_LOAD, 0, 0, 0),
    (_IF_EQUAL, 0, 3, _ARCH_PRCTL),
    (_LOAD, 0, 0, 16),
    (_IF_EQUAL, 0, 1, _REQUEST_STATE),
    (_RETURN, 0, 0, _REFUSED),
    (_RETURN, 0, 0, _ALLOWED),
)


def main(command):
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in _FILTER))
    program = struct.pack("HxxxxxxP", len(_FILTER), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, seccomp, filtered = 38, 22, 2
    if libc.prctl(no_new_privileges, 1, 0, 0, 0) or libc.prctl(seccomp, filtered, program):
        raise OSError(ctypes.get_errno(), "Linux does not filter system calls")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
