"""What else the votes of a certificate could show: by other methods, and with more instances that agree.

No method is followed farther than a reader of a report would wait for. What a report shows must not depend on how busy
the machine was, so the limit is on radii and not on a clock: the cost of trying a radius grows with the radius, and
whether a method meets the limit follows from the votes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from mithridate.accounting import ADP, FDP, RDP, Method
from mithridate.certifying.certification import BeyondLimitError, Progress, bounded, certify, default_bounds
from mithridate.core.certificate import Advice, Certificate, Scope
from mithridate.core.mechanism import Private
from mithridate.core.rule import Rule, Weighted
from mithridate.core.votes import Votes
from mithridate.errors import UnsupportedMechanismError

# What the radii of a private learner are compared with: from the same votes, at the same confidence; the slowest last.
METHODS: tuple[Rule, ...] = (FDP(), ADP(), RDP("mixture", complement=True))
# Farther than this no other method is followed: seconds each, as a rule, and half a minute at worst.
_FARTHEST = 2048
# More instances are worth the search up to this radius, and where so many predictions are unanimous.
_FARTHEST_UNANIMOUS = 1024
_MANY = 0.1
# How many times the instances are tried when they are too few, and how often.
_MORE = 4
_TRIES = 5


def advise(
    certificate: Certificate, *, methods: Sequence[Rule] | None = None, progress: Progress | None = None
) -> Advice:
    """Certify the votes of a certificate by other methods, and see what more instances could show.

    Guarantee: every certificate in `others` makes the same claim from the same votes, as `certify` would by its method.
    What is in the advice is a function of the arguments, never of a clock.

    Args:
        certificate: what was certified.
        methods: methods to compare with, on the same votes, threat, confidence, scope and bounds; by default `FDP()`,
            `ADP()` and `RDP("mixture", complement=True)` for a private learner, none for other defences. The
            certificate's own is not computed again. One that certifies beyond radius 2,048 is left out, with a sentence
            that says so; so are all where the radii are for inputs that move.
        progress: called with the number of methods done and their total.

    >>> from mithridate import SampledGaussian, certify
    >>> votes = Votes.from_counts([[1000, 0]], mechanism=SampledGaussian(3.0, 0.001, 1000))
    >>> advice = advise(certify(votes), methods=[ADP()])
    >>> [other.method.name for other in advice.others], list(advice.unanimous)
    (['adp'], [4000])
    """
    is_compared = isinstance(certificate.votes.mechanism, Private) and not certificate.input_change
    usual = METHODS if is_compared else ()
    chosen = tuple(_weighing(method, certificate.method) for method in (usual if methods is None else methods))
    others: list[Certificate] = []
    left_out: list[str] = []
    for done, method in enumerate(chosen, start=1):
        found = certificate if method == certificate.method else _certified_by(method, certificate)
        if isinstance(found, str):
            left_out.append(f"{method.in_words()} is left out: {found}")
        elif found is not certificate:
            others.append(found)
        if progress is not None:
            progress(done, len(chosen))
    return Advice(tuple(others), tuple(left_out), _unanimous(certificate))


def _weighing(method: Rule, own: Rule) -> Rule:
    """A method with the class weights of the certificate, so that its claim is about the same predictions."""
    if not isinstance(method, Weighted) or not isinstance(own, Weighted):
        return method
    return replace(method, class_weights=own.class_weights)


def _bounds_for(method: Method, certificate: Certificate) -> str:
    """The bounds of the certificate, but means for a method that does not read distributions."""
    by_means = certificate.bounds == "histogram" and not method.reads_distributions
    has_squares = certificate.votes.score_squares is not None
    return default_bounds(certificate.on) if by_means and has_squares else certificate.bounds


def _certified_by(method: Rule, certificate: Certificate) -> Certificate | str:
    """The same claim by another method, or the reason why there is none."""
    if certificate.input_change:
        return "methods are compared for inputs that stay as they are."
    try:
        if not isinstance(method, Method):  # which takes no time
            return certify(certificate.votes, method=method, threat=certificate.threat)
        return bounded(
            certificate.votes,
            method,
            certificate.threat,
            certificate.failure_prob,
            on=certificate.on,
            bounds=_bounds_for(method, certificate),
            scope=certificate.scope,
            farthest=_FARTHEST,
        )
    except UnsupportedMechanismError as error:
        return str(error)
    except BeyondLimitError:
        return f"it certifies beyond r = {_FARTHEST:,}, farther than a report follows other methods."


def _unanimous(certificate: Certificate) -> dict[int, int | None]:
    """What so many instances show if they agree: where these show nothing, or where many predictions are unanimous."""
    votes = certificate.votes
    if not isinstance(certificate.method, Method) or certificate.on != "votes" or certificate.input_change:
        return {}
    own, more = votes.instances, _MORE * votes.instances
    if certificate.radius.max() < 0 and _radius_at_unanimity(certificate, own) == -1:
        found: dict[int, int | None] = {own: -1}
        # Ever more instances, up to a number that can certify something or is too large to tell.
        for number in (own * _MORE**power for power in range(1, _TRIES + 1)):
            found[number] = _radius_at_unanimity(certificate, number)
            if found[number] != -1:
                break
        return found
    agree = votes.counts.max(axis=1) == own
    return {more: _radius_at_unanimity(certificate, more)} if agree.sum() >= _MANY * len(agree) else {}


def _radius_at_unanimity(certificate: Certificate, instances: int) -> int | None:
    """The radius of a prediction on which so many instances agree, all else equal; None if it is too far to search."""
    votes = certificate.votes
    method = cast("Method", certificate.method)
    # With class weights, that of the label that is the hardest to certify.
    label = int(method.weights(votes.classes).argmin()) if isinstance(method, Weighted) else 0
    counts = [instances if each == label else 0 for each in range(votes.classes)]
    agreed = Votes.from_counts([counts], mechanism=votes.mechanism)
    share = votes.examples if certificate.scope is Scope.ALL else 1
    try:
        found = bounded(
            replace(agreed, size=votes.size, unit=votes.unit),
            method,
            certificate.threat,
            certificate.failure_prob / share,
            on="votes",
            bounds=certificate.bounds,
            scope=Scope.PREDICTION,
            farthest=_FARTHEST_UNANIMOUS,
        )
    except BeyondLimitError:
        return None
    return int(found.radius[0])
