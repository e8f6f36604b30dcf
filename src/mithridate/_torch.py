"""Torch as it is needed for numbers that do not depend on what else a program does: devices, settings, threads."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from mithridate.errors import ConfigError


def pick_device(device: str | torch.device) -> torch.device:
    """The device of a name; `auto` is an NVIDIA GPU if there is one, else the CPU.

    Raises:
        ConfigError: there is no such device here.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"Expected device to be cpu, cuda, mps or auto, got {device!r}.") from error
    there = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (found.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not there.get(found.type, False):
        raise ConfigError(f"device={str(device)!r} is not available here; use device='auto' or 'cpu'.")
    return found


# --- settings of torch's that anyone may have changed -----------------------------------------------------------------

# Settings below torch.backends: how operands in single precision are rounded, in torch from 2.9 on and before.
_PRODUCTS = (
    "cuda.matmul.fp32_precision",
    "cudnn.conv.fp32_precision",
    "mkldnn.matmul.fp32_precision",
    "mkldnn.conv.fp32_precision",
)
_PRODUCTS_BEFORE = ("cuda.matmul.allow_tf32", "cudnn.allow_tf32")
_REPEATABLE: dict[str, Any] = {"cudnn.deterministic": True, "cudnn.benchmark": False, "mkldnn.enabled": True}


def _has(path: str) -> bool:
    owner: Any = torch.backends
    for name in path.split("."):
        if not hasattr(owner, name):
            return False
        owner = getattr(owner, name)
    return True


# By what this torch has; on a CPU, and so for mkldnn, there is no TF32.
_SETTINGS: dict[str, dict[str, Any]] = {
    precision: _REPEATABLE
    | (
        {p: "tf32" if p.startswith("cu") and precision != "float32" else "ieee" for p in _PRODUCTS if _has(p)}
        if _has(_PRODUCTS[0])
        else dict.fromkeys(_PRODUCTS_BEFORE, precision != "float32")
    )
    for precision in ("float32", "tf32", "bfloat16")
}


@contextmanager
def usual_settings() -> Iterator[None]:
    """Torch as it is when it has been imported, whatever the caller has set; it is set back after.

    Single precision is the default, nothing is cast automatically, and tensors may be used in a backward pass. Whether
    gradients are recorded by default stays as it was: a user's encoder may rely on it, and nothing else here does.
    """
    records, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    with ExitStack() as settings:
        settings.enter_context(torch.inference_mode(False))
        settings.enter_context(torch.set_grad_enabled(records))
        for device in (name for name, is_there in there.items() if is_there):
            settings.enter_context(torch.autocast(device, enabled=False))
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)


@contextmanager
def products(precision: str, device: torch.device) -> Iterator[None]:
    """Matrix products and convolutions in `float32` or `tf32`, repeatable, whatever was set; it is set back after.

    To torch, `bfloat16` is `tf32`: what has 16 bits is left to our own kernels.
    """
    settings = _SETTINGS[precision]
    before = {path: functools.reduce(getattr, path.split("."), torch.backends) for path in settings}
    with torch.autocast(device.type, enabled=False):
        try:
            for path, value in settings.items():
                _set(path, value)
            yield
        finally:
            for path, value in before.items():
                _set(path, value)


def _set(path: str, value: Any) -> None:
    *owner, name = path.split(".")
    setattr(functools.reduce(getattr, owner, torch.backends), name, value)


@contextmanager
def single_threaded() -> Iterator[int]:
    """Torch on one thread, so that others may have the rest; gives the number of threads that it had."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def pool_of(threads: int) -> ThreadPoolExecutor:
    """So many threads, in each of which torch has one."""
    return ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
