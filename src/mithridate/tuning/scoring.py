"""Certified accuracy as a scorer of scikit-learn, for people's own searches on trusted data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mithridate.comparing.result import checked_radii


@dataclass(frozen=True)
class CertifiedAccuracyScorer:
    """Scores a fitted `CertifiedClassifier`; made by `certified_accuracy_scorer`."""

    radii: tuple[int, ...]
    balanced: bool = False

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:
        """The mean over the radii of certified accuracy on some inputs."""
        certificate = estimator.certify(X)
        score = certificate.balanced_accuracy if self.balanced else certificate.accuracy
        return float(score(y, self.radii).mean())


def certified_accuracy_scorer(radius: int | Sequence[int] = 0, *, balanced: bool = False) -> CertifiedAccuracyScorer:
    """A scorer for `GridSearchCV(scoring=...)`, `cross_val_score` and the like: certified accuracy at a radius.

    Guarantee: the score is the share of inputs whose prediction is correct and certified at least to the radius, by
    models that were trained on the other parts; of several radii, the mean.

    Assumes: the search runs on trusted data, with `refit=False`, and what it chose is fitted to the training data
    afterwards. A search on the training data itself has looked at it: a `CertifiedClassifier` that is fitted inside of
    one says so, and its certificates are conditional on `tuned-on-training-data`. Where the fit comes after such a
    search, say so in `assumptions`.

    Args:
        radius: how many changes of what the models were trained on predictions should withstand: a part of the trusted
            data, so scale the radius by the sizes of the two; or several radii that increase.
        balanced: count every class alike, however rare.

    Raises:
        ConfigError: a radius is not a whole number of 0 or more.

    >>> certified_accuracy_scorer(radius=5)
    CertifiedAccuracyScorer(radii=(5,), balanced=False)
    """
    radii: Any = radius if isinstance(radius, list | tuple) else [radius]
    return CertifiedAccuracyScorer(checked_radii(radii), bool(balanced))
