"""One method of a comparison: what it certifies, whether it may be ranked, and what has to be said of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate._text import capitalised, percent
from mithridate.core.certificate import Certificate, Curve, cautions, confidence, guaranteed_failure_prob
from mithridate.core.conditions import Statement, conditions_of, in_json
from mithridate.core.labels import single_label
from mithridate.core.mechanism import SEARCH_LIMIT, Threat
from mithridate.core.units import Unit, words_of
from mithridate.defences.statistical import StatisticalBound

FloatArray = npt.NDArray[np.float64]

# A chart ends where every method is below this share.
_LEAST_SHARE = 0.01
_ONLY = {
    Threat.LABELS: "certifies label flips only",
    Threat.FEATURES: "certifies bounded changes of inputs only",
}


@dataclass(frozen=True, eq=False)
class Entry:
    """One method of a comparison."""

    title: str
    name: str  # that of the method, followed by a number where another entry has the same
    outcome: Certificate | StatisticalBound
    asked: Threat  # the threat of the comparison
    training_seconds: float  # of votes that several methods share, all of it
    certification_seconds: float
    notes: tuple[str, ...] = ()  # what a reader must know, a sentence each
    run_dir: str | None = None  # of its votes, a run like any other

    def __repr__(self) -> str:
        return f"Entry {self.name}: {self.outcome!r}"

    @property
    def full_title(self) -> str:
        """Its name, and what it is."""
        return self.title if self.title == self.name else f"{self.name}: {self.title}"

    @property
    def threat(self) -> Threat:
        """How the data may have been changed, in the claim of this method."""
        return self.outcome.threat

    @property
    def unit(self) -> Unit | None:
        """What its radii count, where that is not single examples."""
        return self.outcome.votes.unit if isinstance(self.outcome, Certificate) else self.outcome.unit

    @property
    def threat_in_words(self) -> str:
        """What the attacker may have done, in the words of the owner of the data."""
        return self.threat.of(words_of(self.unit))

    @property
    def failure_prob(self) -> float:
        """Probability with which a claim may fail, over training; 0 for a deterministic method."""
        return self.outcome.failure_prob

    @property
    def certificate(self) -> Certificate | None:
        """The certificate; None for a bound on mean accuracy."""
        return self.outcome if isinstance(self.outcome, Certificate) else None

    @property
    def per_prediction(self) -> bool:
        """Whether it says something about each prediction."""
        return self.certificate is not None

    @property
    def same_threat(self) -> bool:
        """Whether its claim holds for the threat of the comparison; one about moves up to a distance is another."""
        return covers(self.threat, self.asked) and self.max_change is None

    @property
    def max_change(self) -> float | None:
        """How far one input may have moved, where the claim has such a limit."""
        return None if self.certificate is None else getattr(self.certificate.method, "max_change", None)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What its claim takes for granted, a sentence each."""
        return self.outcome.assumptions

    @property
    def conditions(self) -> tuple[Statement, ...]:
        """What its claim is conditional on."""
        return conditions_of(self.assumptions, self.threat)

    @property
    def is_guarantee(self) -> bool:
        """Whether its claims hold with the confidence they state."""
        found = self.certificate
        return found is None or (found.method.is_sound and guaranteed_failure_prob(found) is not None)

    @property
    def ranked(self) -> bool:
        """Whether it may be called better or worse than another one."""
        return self.per_prediction and self.same_threat and self.is_guarantee

    @property
    def single_label(self) -> bool:
        """Whether nearly all predictions are one label; a bound on mean accuracy predicts nothing."""
        return self.certificate is not None and single_label(self.certificate.label) is not None

    @cached_property
    def curve(self) -> Curve | None:
        """How many points are certified, and correct; None for a bound on mean accuracy."""
        return None if self.certificate is None else Curve.of(self.certificate)

    def accuracy(self, radii: npt.ArrayLike) -> FloatArray:
        """Certified accuracy at radii of 0 or more, or the bound on mean accuracy.

        >>> from mithridate import Votes, certify
        >>> from mithridate.defences.partitions import Partitioned
        >>> votes = Votes.from_counts([[9, 0], [5, 4]], mechanism=Partitioned(9), labels=[0, 0])
        >>> Entry("DPA", "dpa", certify(votes), Threat.SYMMETRIC_DIFFERENCE, 0.0, 0.0).accuracy([0, 4, 5])
        array([1. , 0.5, 0. ])
        """
        if self.curve is None:
            assert isinstance(self.outcome, StatisticalBound)
            return self.outcome.accuracy(radii)
        return self.curve.at(self.curve.shown, radii) / self.curve.total

    def balanced_accuracy(self, radii: npt.ArrayLike) -> FloatArray | None:
        """Certified accuracy as a mean over classes; None for a bound on mean accuracy, which knows no classes."""
        return None if self.certificate is None else self.certificate.balanced_accuracy(None, radii)

    def shares(self, radii: Sequence[int]) -> list[str]:
        """Certified accuracy at some radii in words; a bound on mean accuracy is never rounded up."""
        if self.curve is None:
            return [f"{math.floor(1000 * share) / 10:.1f}%" for share in self.accuracy(radii)]
        return [percent(int(count), self.curve.total) for count in self.curve.at(self.curve.shown, radii)]

    @property
    def confidence(self) -> str:
        """How sure its claims are, in a sentence."""
        found = self.certificate
        if found is None:
            return f"With probability at most {self.failure_prob:g}, over training, the whole curve fails."
        if self.failure_prob == 0:
            return "There is no probability of failure: what it predicts is a function of the training data."
        if not found.method.is_sound:
            return (
                f"The failure probability of {self.failure_prob:g} is that of the counted votes alone: no radius above "
                "0 is guaranteed."
            )
        return f"{capitalised(confidence(found))}."

    @property
    def why_not_ranked(self) -> str | None:
        """What sets it apart from the ranked ones, as a clause; None where nothing does."""
        if self.ranked:
            return None
        if self.certificate is None:
            return "not per prediction: it bounds the mean accuracy of single models, and certifies no prediction."
        if not self.same_threat:
            what = _ONLY.get(self.threat, f"certifies another threat, {self.threat.value}")
            if self.max_change is not None:
                what = f"certifies moves of inputs by up to {self.max_change:g} only"
            return f"{what}; not comparable with the others."
        if self.certificate.method.is_sound:
            return "no guarantee: its confidence is nominal."
        return "no guarantee: its rule is not valid for what was trained."

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader must know about its claim, a sentence or two each."""
        found, apart = self.certificate, self.why_not_ranked
        said = [] if apart is None else [capitalised(apart)]
        if self.same_threat and self.threat is not self.asked:
            said.append(
                f"Certifies more than was asked for: {self.threat_in_words}. Its claims hold for the threat of this "
                "comparison, too."
            )
        if found is not None and not found.method.is_sound:
            said.append(
                f"Its radii follow the paper's rule for groups, which is {found.method.flaw}: do not rely on them; fdp "
                "gives a guarantee for the same models."
            )
        elif found is not None:
            said.extend(cautions(found))
        return tuple(said)

    @cached_property
    def end(self) -> int:
        """The last radius that is worth drawing: where at least a hundredth is certified; -1 where it never is."""
        if self.curve is not None:
            high = np.flatnonzero(self.curve.shown >= _LEAST_SHARE * self.curve.total)
            return int(self.curve.radius[high[-1]]) if len(high) else -1
        low, high = -1, SEARCH_LIMIT  # the bound only falls
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if float(self.accuracy(middle)) >= _LEAST_SHARE else (low, middle - 1)
        return low

    def to_dict(self, radii: Sequence[int]) -> dict[str, Any]:
        """The entry as plain JSON values."""
        found, shares, balanced = self.certificate, self.accuracy(radii), self.balanced_accuracy(radii)
        values: dict[str, Any] = {
            "name": self.name,
            "title": self.title,
            "ranked": self.ranked,
            "per_prediction": self.per_prediction,
            "threat": self.threat.value,
            "threat_in_words": self.threat_in_words,
            "same_threat": self.same_threat,
            "guarantee": self.is_guarantee,
            "failure_prob": self.failure_prob,
            "confidence": self.confidence,
            "scope": None if found is None else found.scope.value,
            "certified_accuracy": _keyed(radii, shares),
            "certified_balanced_accuracy": None if balanced is None else _keyed(radii, balanced),
            "single_label": self.single_label,
            "training_seconds": round(self.training_seconds, 3),
            "certification_seconds": round(self.certification_seconds, 3),
            "notes": list(self.notes),
            "run_dir": self.run_dir,
            **in_json(self.assumptions, self.threat),
            "assumptions": list(map(str, self.assumptions)),
        }
        if isinstance(self.outcome, StatisticalBound):
            # At the radii of the table, and never more than the bound allows.
            right = np.floor(shares * self.outcome.examples).astype(np.int64)
            return {
                **values,
                "certificate": None,
                "method": {"name": "statistical-dp", "delta": self.outcome.delta},
                "mechanism": self.outcome.mechanism.to_dict(),
                "curve": {"radius": list(radii), "right": right.tolist()},
                "bound": self.outcome.to_dict(),
            }
        assert self.curve is not None
        return {
            **values,
            "certificate": certificate_file(self),
            "method": self.outcome.method.to_dict(),
            "mechanism": self.outcome.votes.mechanism.to_dict(),
            "curve": {"radius": self.curve.radius.tolist(), "right": self.curve.shown.tolist()},
            "bound": None,
        }


def _keyed(radii: Sequence[int], shares: FloatArray) -> dict[str, float]:
    return {str(radius): float(share) for radius, share in zip(radii, shares, strict=True)}


def covers(own: Threat, asked: Threat) -> bool:
    """Whether a certificate against one threat holds against another one, at the same radius.

    >>> covers(Threat.EDIT, Threat.SYMMETRIC_DIFFERENCE), covers(Threat.LABELS, Threat.REPLACE)
    (True, False)
    """
    if own is asked or own is Threat.EDIT:
        return True
    weaker = {
        Threat.SYMMETRIC_DIFFERENCE: (Threat.ADD, Threat.REMOVE),
        Threat.REPLACE: (Threat.LABELS, Threat.FEATURES),
    }
    return asked in weaker.get(own, ())


def certificate_file(entry: Entry) -> str:
    """Where `Comparison.write` puts a certificate, below its folder."""
    return f"certificates/{entry.name}.json"
