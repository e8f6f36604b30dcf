"""The paper's second certificate: approximate differential privacy, (eps, delta), from RDP.

One example obeys (eps, delta) with `delta` fixed beforehand and

    eps = min over orders of  D + log((order - 1) / order) - (log delta + log order) / (order - 1)

(Balle et al. 2020, arXiv 1905.09982, Theorem 21), D the Renyi divergence of one example over all steps. A group of r
examples then obeys (r eps, delta (e^(r eps) - 1) / (e^eps - 1)), the standard group privacy of (eps, delta); the
paper's own code used r delta instead, which is smaller and not valid. With K(x) = e^(eps_r) x + delta_r, the condition
is K^-1(top_lower) > K(rival_upper).
"""

from dataclasses import dataclass

import numpy as np

from mithridate import _validate
from mithridate.accounting.accountant import Accountant, BoolArray, FloatArray, Margins, Method
from mithridate.accounting.rdp import ORDERS, one_example_divergence
from mithridate.accounting.renyi import ERROR
from mithridate.core.mechanism import Mechanism, Private, Subsampled, Threat, private

# Little loss per example needs high orders: at 64 the paper's MNIST setting would certify half as much.
CONVERSION_ORDERS: FloatArray = np.concatenate([ORDERS, np.geomspace(66.0, 256.0, 40, dtype=np.float64)])


@dataclass(frozen=True)
class ADP(Method):
    """Certify by (eps, delta)-differential privacy, as in the paper.

    Guarantee: as `FDP`.

    Assumes: nothing beyond the mechanism.

    Args:
        delta: the delta of one example, in (0, 1).

    References: Liu et al. 2023 (AAAI); Balle et al. 2020 (arXiv 1905.09982), Theorem 21; Balle, Barthe, Gaboardi 2018
    (arXiv 1807.01647) for `Subsampled`.
    """

    delta: float = 1e-5

    def __post_init__(self) -> None:
        _validate.number_in(0, 1, low_open=True, high_open=True, delta=self.delta)
        object.__setattr__(self, "delta", float(self.delta))

    name = "adp"
    title = "ADP"

    def accountant(self, mechanism: Mechanism, threat: Threat) -> Accountant:
        """The accountant for one mechanism and one threat."""
        return AdpAccountant(one_example_epsilon(private(mechanism), self.delta), self.delta, threat)

    def in_words(self) -> str:
        """With its options."""
        return f"ADP (delta {self.delta:g})"


def one_example_epsilon(mechanism: Private, delta: float) -> float:
    """The smallest eps with which one example obeys (eps, delta).

    A `Subsampled` mechanism is amplified: keeping each example with probability m turns (eps, delta) of the inner
    mechanism into (log(1 + m (e^eps - 1)), m delta), for adding or removing an example.
    """
    if isinstance(mechanism, Subsampled):
        inner_delta = delta / mechanism.keep
        inner = one_example_epsilon(mechanism.inner, inner_delta) if inner_delta < 1 else 0.0
        # log(1 + m (e^eps - 1)) = eps + log(m + (1 - m) e^-eps), without overflow.
        return inner + float(np.log(mechanism.keep + (1 - mechanism.keep) * np.exp(-inner)))
    divergence = one_example_divergence(mechanism, CONVERSION_ORDERS)
    eps = (
        divergence
        + np.log1p(-1 / CONVERSION_ORDERS)
        - (np.log(delta) + np.log(CONVERSION_ORDERS)) / (CONVERSION_ORDERS - 1)
    )
    return max(float(eps.min()), 0.0)


class AdpAccountant:
    """The paper's condition for groups of examples."""

    def __init__(self, eps: float, delta: float, threat: Threat) -> None:
        self._eps, self._delta, self._threat = eps, delta, threat

    @property
    def error_budget(self) -> dict[str, float]:
        """The relative error that is added to every divergence."""
        return {"divergence": ERROR}

    def close(self) -> None:
        """Nothing to keep."""

    def holds(self, radius: int, margins: Margins) -> BoolArray:
        """Whether the top label stays on top for every D' within `radius`; see `Accountant`."""
        eps, delta = self._group(self._threat.changes(radius))
        if not np.isfinite(delta):
            return np.zeros(len(margins), dtype=np.bool_)
        lower = margins.top.map(lambda p: (p - delta) * np.exp(-eps))
        upper = margins.rival.map(lambda x: np.exp(eps) * x + delta)
        return lower * (1 - 1e-12) > upper * (1 + 1e-12)

    def _group(self, changes: int) -> tuple[float, float]:
        eps = changes * self._eps
        if eps > 700:
            return eps, np.inf
        factor = np.expm1(eps) / np.expm1(self._eps) if self._eps > 0 else float(changes)
        return eps, float(self._delta * factor)
