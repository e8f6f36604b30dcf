"""From a mechanism to what r changed examples can do to it; numpy and scipy only."""

from mithridate.accounting.fdp import FDP
from mithridate.accounting.rdp import ADP, RDP
from mithridate.core.rule import Accountant, DistinctValues, Margins, Method

__all__ = ["ADP", "FDP", "RDP", "Accountant", "DistinctValues", "Margins", "Method"]
