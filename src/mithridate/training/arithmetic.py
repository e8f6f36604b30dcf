"""Settings of torch's that anyone may have changed: the precision of matrix products, autocast, the default dtype."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
def usual_settings() -> Iterator[None]:
    """Torch as it is when it has been imported, whatever the caller has set; it is set back after.

    Single precision is the default, nothing is cast automatically, and tensors may be used in a backward pass. Whether
    gradients are recorded by default stays as it was: a user's encoder may rely on it, and nothing else here does.
    """
    records, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else []), *(["mps"] if _has_mps() else [])]
    with ExitStack() as settings:
        settings.enter_context(torch.inference_mode(False))
        settings.enter_context(torch.set_grad_enabled(records))
        for device in devices:
            settings.enter_context(torch.autocast(device, enabled=False))
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)


def _has_mps() -> bool:
    return torch.backends.mps.is_available()


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
