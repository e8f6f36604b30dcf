"""What computes: the kinds of devices that train a run, for records and for what is bound to one; and their memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from mithridate.errors import ConfigError
from mithridate.training.kernels.native import processor


def computer_of(device: torch.device, versions: Mapping[str, str]) -> dict[str, str]:
    """What rounds numbers: the models of a run that goes on elsewhere would be other functions."""
    # Libraries for CPUs choose their code by maker and model, not only by what a processor can do.
    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else hashlib.sha256(processor().encode()).hexdigest()[:16]
    return {"name": name, **{library: versions[library] for library in ("torch", "numpy", "arithmetic")}}


def shown(device: torch.device, computer: Mapping[str, str]) -> str:
    """The name of a device and of what computes on it, for people."""
    names = [line.partition(":")[2].strip() for line in processor().splitlines() if line.startswith("model name")]
    name = computer["name"] if device.type == "cuda" or not names else names[0]
    return listed({**computer, "name": name})


def listed(computer: Mapping[str, str]) -> str:
    """The same of a computer by itself."""
    return f"{computer['name']} (torch {computer['torch']}, numpy {computer['numpy']}, {computer['arithmetic']})"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice, on any device."""
    words = ("out of memory", "not enough memory", "can't allocate memory", "STATUS_ALLOC_FAILED")
    return isinstance(error, MemoryError | torch.cuda.OutOfMemoryError) or any(word in str(error) for word in words)


@contextmanager
def enough_memory(what: str) -> Iterator[None]:
    """Say in words where memory does not suffice."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(f"There is not enough memory for {what}; use another device or fewer examples.") from error
