# What is replaced has other names of its arguments.
# pyright: reportAttributeAccessIssue=false
"""Triton's interpreter, mended where it computes with bfloat16, which it holds as whole numbers of 16 bits."""

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl
from triton.runtime import interpreter


def mend_halves() -> None:
    """Operands of matrix products are widened, which loses nothing; and numbers are rounded to the nearest, not cut."""
    multiply, narrow = interpreter.InterpreterBuilder.create_dot, interpreter.InterpreterBuilder.create_fp_trunc

    def create_dot(self, one, two, *others):  # type: ignore[no-untyped-def]
        return multiply(self, _widened(one), _widened(two), *others)

    def create_fp_trunc(self, handle, kind):  # type: ignore[no-untyped-def]
        if kind.scalar != tl.bfloat16:
            return narrow(self, handle, kind)
        rounded = torch.from_numpy(np.ascontiguousarray(handle.data)).to(torch.bfloat16)
        return interpreter.TensorHandle(rounded.view(torch.int16).numpy().view(np.uint16), kind.scalar)

    interpreter.InterpreterBuilder.create_dot = create_dot
    interpreter.InterpreterBuilder.create_fp_trunc = create_fp_trunc


def _widened(handle):  # type: ignore[no-untyped-def]
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    values: npt.NDArray[np.uint16] = handle.data
    return interpreter.TensorHandle((values.astype(np.uint32) << 16).view(np.float32), tl.float32)
