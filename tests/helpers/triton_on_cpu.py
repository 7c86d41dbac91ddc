"""The programs of `kernels` on a CPU, by Triton's interpreter."""

import importlib
from contextlib import contextmanager, suppress

import numpy as np
import pytest


@contextmanager
def interpreted():
    """The kernels and what they call of Triton are interpreted, also where it is long loaded."""
    pytest.importorskip("triton")
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle
    from triton.runtime.jit import JITFunction

    from specds.transformers.kernels import operations, programs

    class WithinKernel(InterpretedFunction):
        """A function that a kernel calls, for which the language is replaced already.

        What it is by default replaces the language once more, and does not put it back.
        """

        def __call__(self, *args, **kwargs):
            return self.rewrite()(*args, **kwargs)

    with suppress(ImportError):  # it would be loaded meanwhile, and find what it does not expect
        importlib.import_module("triton.experimental.gluon")
    plain_dot = InterpreterBuilder.create_dot

    def dot(builder, *operands_and_rest):
        # The interpreter multiplies the bits of bfloat16 as if they were integers.
        left, right, *rest = operands_and_rest
        if left.dtype.scalar == tl.bfloat16:
            wide = [
                TensorHandle((a.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
                for a in (left, right)
            ]
            return plain_dot(builder, *wide, *rest)
        return plain_dot(builder, left, right, *rest)

    with pytest.MonkeyPatch.context() as patch:
        for module in (tl.standard, tl):
            for name, found in list(vars(module).items()):
                if isinstance(found, JITFunction):
                    patch.setattr(module, name, WithinKernel(found.fn))
        # What a kernel's module names of the language is what is replaced.
        patch.setattr(programs, "core", tl.core, raising=False)
        for name, found in list(vars(programs).items()):
            if isinstance(found, JITFunction):
                patch.setattr(programs, name, InterpretedFunction(found.fn))
        patch.setattr(InterpreterBuilder, "create_dot", dot)
        # Tiles and splits as small as they can be, so that few slots need many.
        patch.setattr(operations, "_TILE_BYTES", 0)
        patch.setattr(operations, "_MIN_SLOTS", 16)
        yield
