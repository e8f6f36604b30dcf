"""The precision of matrix products, which is a setting of torch's that anyone may have changed."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# Settings below torch.backends: how operands in single precision are rounded, in torch from 2.9 on and before.
_PRODUCTS = (
    "cuda.matmul.fp32_precision",
    "cudnn.conv.fp32_precision",
    "mkldnn.matmul.fp32_precision",
    "mkldnn.conv.fp32_precision",
)
_PRODUCTS_BEFORE = ("cuda.matmul.allow_tf32", "cudnn.allow_tf32")
_REPEATABLE: dict[str, Any] = {"cudnn.deterministic": True, "cudnn.benchmark": False}


@contextmanager
def products(precision: str, device: torch.device) -> Iterator[None]:
    """Matrix products and convolutions in `float32` or `tf32`, repeatable, whatever was set; it is set back after."""
    settings = {**_REPEATABLE, **_rounding(precision)}
    before = {path: _get(path) for path in settings}
    with torch.autocast(device.type, enabled=False):
        try:
            for path, value in settings.items():
                _set(path, value)
            yield
        finally:
            for path, value in before.items():
                _set(path, value)


def _rounding(precision: str) -> dict[str, Any]:
    if _has(_PRODUCTS[0]):
        # On a CPU, and so for mkldnn, there is no TF32.
        return {
            path: "tf32" if precision == "tf32" and path.startswith("cu") else "ieee"
            for path in _PRODUCTS
            if _has(path)
        }
    return dict.fromkeys(_PRODUCTS_BEFORE, precision == "tf32")


def _has(path: str) -> bool:
    owner: Any = torch.backends
    for name in path.split("."):
        if not hasattr(owner, name):
            return False
        owner = getattr(owner, name)
    return True


def _get(path: str) -> Any:
    return functools.reduce(getattr, path.split("."), torch.backends)


def _set(path: str, value: Any) -> None:
    *owner, name = path.split(".")
    setattr(functools.reduce(getattr, owner, torch.backends), name, value)
