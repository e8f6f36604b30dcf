"""From a mechanism to what r changed examples can do to it; numpy and scipy only."""

from typing import Any

from mithridate.accounting.accountant import Accountant, Column, Margins, Method
from mithridate.accounting.adp import ADP
from mithridate.accounting.fdp import FDP
from mithridate.accounting.rdp import RDP
from mithridate.errors import ArtifactError

__all__ = ["ADP", "FDP", "RDP", "Accountant", "Column", "Margins", "Method", "method_from_dict"]


def method_from_dict(values: dict[str, Any]) -> Method:
    """Read back what a method's `to_dict` wrote.

    Raises:
        ArtifactError: the method is unknown.

    >>> method_from_dict({"name": "rdp", "group": "paper", "complement": False})
    RDP(group='paper', complement=False)
    """
    options = {key: value for key, value in values.items() if key != "name"}
    match values.get("name"):
        case "fdp":
            return FDP(**options)
        case "rdp":
            return RDP(**options)
        case "adp":
            return ADP(**options)
        case name:
            raise ArtifactError(f"The method {name!r} is not known to this version of mithridate; update it.")
