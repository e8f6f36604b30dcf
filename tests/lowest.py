"""Print the lowest versions that pyproject.toml promises, as constraints for pip: `make lowest` tests with them.

    python tests/lowest.py [PACKAGE ...]

What is named keeps the version of constraints.txt instead, for machines on which its lowest one cannot be had.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What users install; the tools of developers may be as new as they like.
EXTRAS = ("train", "data", "report")
# Newer ones than these do not get along with the lowest matplotlib and scikit-learn: nothing of ours.
OF_THEIR_TIME = {"pandas": "2.2", "polars": "1.0", "pyparsing": "3.1"}


def floors() -> dict[str, str]:
    """The lowest version of everything that is promised to work with one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = [*project["dependencies"], *(one for extra in EXTRAS for one in project["optional-dependencies"][extra])]
    found = [re.fullmatch(r"([\w-]+)(?:\[.*\])?>=([\d.]+)", one) for one in promised]
    assert all(found), promised
    return {one[1]: one[2] for one in found if one}


def pinned() -> dict[str, str]:
    """What constraints.txt says."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))


if __name__ == "__main__":
    chosen = floors() | OF_THEIR_TIME | {name: pinned()[name] for name in sys.argv[1:]}
    print("\n".join(f"{name}=={version}" for name, version in chosen.items()))
