"""From a mechanism to what r changed examples can do to it; numpy and scipy only."""

from mithridate.accounting.accountant import Accountant, DistinctValues, Margins, Method
from mithridate.accounting.adp import ADP
from mithridate.accounting.fdp import FDP
from mithridate.accounting.rdp import RDP

__all__ = ["ADP", "FDP", "RDP", "Accountant", "DistinctValues", "Margins", "Method"]
