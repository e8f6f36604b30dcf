"""Which computer this is, as far as rounding is concerned."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """The processor's model and what it can do, so that machines may share a cache folder; else the machine's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.node()}"
    kinds = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(kinds)}))
