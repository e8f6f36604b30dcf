"""What computes: the kinds of devices that train a run, for records and for models that are bound to one kind."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch

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
