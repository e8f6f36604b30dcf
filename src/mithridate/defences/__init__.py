"""Every defence behind one interface: small objects that train on data and certify their votes.

>>> from mithridate.defences import defence
>>> defence("dpa", partitions=250).title
'DPA, 250 partitions'
"""

from mithridate.defences.bagging import Bagging
from mithridate.defences.base import Defence
from mithridate.defences.kernel import KernelVote
from mithridate.defences.neighbours import NearestNeighbours
from mithridate.defences.partitions import DPA, FiniteAggregation, RunOffElection
from mithridate.defences.prediction import predict
from mithridate.defences.private import PrivateEnsemble
from mithridate.defences.registry import defence, names, register
from mithridate.defences.ridge import Ridge
from mithridate.defences.smoothing import FeatureSmoothing, LabelSmoothing
from mithridate.defences.spread_election import SpreadRunOff
from mithridate.defences.statistical import StatisticalDP

__all__ = [
    "DPA",
    "Bagging",
    "Defence",
    "FeatureSmoothing",
    "FiniteAggregation",
    "KernelVote",
    "LabelSmoothing",
    "NearestNeighbours",
    "PrivateEnsemble",
    "Ridge",
    "RunOffElection",
    "SpreadRunOff",
    "StatisticalDP",
    "defence",
    "names",
    "predict",
    "register",
]
