"""How sure the claims of a certificate are, in words that promise no more than its bounds do."""

from __future__ import annotations

from decimal import ROUND_CEILING, Context, Decimal

from mithridate.core.certificate import Certificate, Scope
from mithridate.core.rule import is_exact

# Below this, a confidence in per cent would be a row of nines.
_TINY = 1e-6


def guaranteed_failure_prob(certificate: Certificate) -> float | None:
    """The probability with which a claim may fail, as far as the bounds guarantee it; None where they do not."""
    if certificate.bounds == "pointwise":
        return None
    factor = 1 + 2 / certificate.votes.classes if certificate.bounds == "simuem" else 1.0
    probability = factor * certificate.failure_prob
    return probability if probability < 1 else None


def confidence(certificate: Certificate) -> str:
    """How sure the claims are, as a clause that promises no more than the bounds do."""
    if is_exact(certificate.method):
        one = len(certificate.radius) == 1
        return f"{'this claim is' if one else 'these claims are'} certain, given what is assumed"
    probability = guaranteed_failure_prob(certificate)
    if probability is None:
        nominal = percent_confidence(certificate.failure_prob)
        return f"the confidence of {nominal}% is nominal and not guaranteed"
    holds, fails = _claims(certificate)
    if probability < _TINY:
        return f"{fails} with probability at most {float(_rounded_up(probability, 2)):g}"
    return f"{holds} with {percent_confidence(probability)}% confidence"


def _claims(certificate: Certificate) -> tuple[str, str]:
    """Which claims hold with the stated confidence, and which fail with the rest, as two clauses."""
    if len(certificate.radius) == 1:
        return "this claim holds", "this claim fails"
    if certificate.scope is Scope.ALL:
        return "all of these claims together hold", "any of these claims fails"
    return "each of these claims holds", "each of these claims fails"


def percent_confidence(failure_prob: float) -> str:
    """One minus a failure probability in per cent, never rounded up.

    >>> percent_confidence(1e-3), percent_confidence(0.05), percent_confidence(1 / 3)
    ('99.9', '95', '66.6')
    """
    return f"{100 - _rounded_up(failure_prob, 3) * 100:f}".rstrip("0").rstrip(".")


def _rounded_up(number: float, digits: int) -> Decimal:
    return Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(number))


def cautions(certificate: Certificate) -> list[str]:
    """Why a certificate is no guarantee, or a lesser one than it seems; empty for sound choices."""
    sentences: list[str] = []
    if not certificate.method.is_sound:
        sentences.append(
            "These radii follow the paper's rule for groups, which is not valid for DP-SGD: do not rely on them. "
            "Certify with --method fdp for a guarantee."
        )
    if certificate.bounds == "pointwise":
        sentences.append(
            "Pointwise bounds ignore that the label was picked from the same votes: the confidence is nominal. "
            "Certify with --bounds simultaneous for a guarantee."
        )
    if certificate.bounds == "simuem":
        sentences.append(
            "With simuem bounds a claim may fail with up to (1 + 2 / classes) times the stated probability, which is "
            "counted in the confidence here. --bounds simultaneous has no such factor."
        )
    return sentences
