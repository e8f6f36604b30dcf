"""What rooms above this one do with a value, found by a word when somebody asks for it.

A certificate shows itself in a notebook, but knows nothing of pages: no module here imports what the words stand for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Names and no imports: nothing here depends on what they hold.
_HOMES = {
    "advise": "mithridate.certifying.advice",
    "Report": "mithridate.reporting.report",
    "ComparisonReport": "mithridate.reporting.comparison",
}


def hook(name: str) -> Any:
    """The function or class that a word stands for."""
    return getattr(import_module(_HOMES[name]), name)
