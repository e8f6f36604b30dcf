"""What could be certified, before anyone trains: radii at unanimity and below, and what a wanted radius would need."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from mithridate import _validate
from mithridate.accounting import FDP, Method
from mithridate.certifying.certification import SEARCH_LIMIT, certify, default_bounds, separated_margins
from mithridate.core.bounds import IntArray
from mithridate.core.input_change import InputNoise
from mithridate.core.mechanism import Private, SampledGaussian, Subsampled, Threat
from mithridate.core.rule import Accountant, BoolArray, Weighted
from mithridate.core.units import Unit, unit_in_json, words_of
from mithridate.core.votes import Votes
from mithridate.errors import ConfigError, NumericalError

TOP_SHARES = (1.0, 0.99, 0.95, 0.9, 0.8, 0.7, 0.6)
# More instances, steps or noise than this are not looked for.
_MOST_INSTANCES = 10_000_000
_MOST_CLASSES = 1_000_000
_MOST_STEPS = 10_000_000
_MOST_NOISE = 1e6


@dataclass(frozen=True)
class Plan:
    """What a mechanism and a number of instances could certify.

    Attributes:
        mechanism: what each instance would run.
        instances: how many instances would vote.
        classes: number of labels.
        method: how privacy would become a radius.
        threat: how the data may have been changed.
        failure_prob: probability with which a claim may fail.
        bounds: confidence bounds on the votes.
        max_radius: the radius of a prediction on which all instances agree.
        radius_by_top_share: the radius by the share of votes for the label, the other votes all for one rival; -1
            where nothing is certified. With class weights it is that of the label with the smallest weight, whose
            rival has the largest.
        radius: the radius that was asked for, or None.
        needed_instances: the fewest instances with which unanimous votes reach it, all else equal.
        needed_noise_multiplier: the least noise with which they do, all else equal (to 1 part in 1000, rounded up).
        needed_steps: the most steps with which they do, all else equal.
        unit: what radii count, where that is not single examples.
        input_noise: standard deviation of the noise that each instance would add to the input; None: none.
        frontier: `radius_by_top_share` by how far the input may move, too; the plan itself is for the least of these.
    """

    mechanism: Private
    instances: int
    classes: int
    method: Method
    threat: Threat
    failure_prob: float
    bounds: str
    max_radius: int
    radius_by_top_share: dict[float, int]
    radius: int | None = None
    needed_instances: int | None = None
    needed_noise_multiplier: float | None = None
    needed_steps: int | None = None
    unit: Unit | None = None
    input_noise: float | None = None
    frontier: dict[float, dict[float, int]] | None = None

    def __repr__(self) -> str:
        asked = "" if self.radius is None else f"; {self.radius:,} was asked for"
        words = words_of(self.unit)
        of = f" of {words.many}" if words.are_named else ""
        return (
            f"Plan of {self.instances:,} instances, {self.classes} classes, by {self.method.name} against "
            f"{self.threat}{of}: radius {self.max_radius:,} where all agree{asked}\n{self.mechanism.in_words(words)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain JSON values."""
        options = self.method.to_dict()
        values: dict[str, Any] = {"schema": "mithridate.plan/1"}
        for each in fields(self):
            if each.name in ("unit", "input_noise", "frontier"):
                continue
            values[each.name] = getattr(self, each.name)
            if each.name == "method":
                values |= {"method": options.pop("name"), "method_options": options}
        values["mechanism"] = self.mechanism.to_dict()
        values["threat"] = self.threat.value
        values["radius_by_top_share"] = _by_share(self.radius_by_top_share)
        if self.frontier is not None:
            values["input_noise"] = self.input_noise
            values["frontier"] = [
                {"input_change": change, "radius_by_top_share": _by_share(radii)}
                for change, radii in self.frontier.items()
            ]
        values |= unit_in_json(self.unit)
        asked = ("radius", "needed_instances", "needed_noise_multiplier", "needed_steps")
        return values if self.radius is not None else {key: values[key] for key in values if key not in asked}


def _by_share(radii: dict[float, int]) -> dict[str, int]:
    return {f"{share:g}": radius for share, radius in radii.items()}


def plan(
    mechanism: Private,
    *,
    instances: int,
    classes: int,
    radius: int | None = None,
    failure_prob: float = 1e-3,
    threat: Threat | str | None = None,
    method: Method | None = None,
    bounds: str | None = None,
    unit: Unit | None = None,
    input_noise: float | None = None,
    input_change: float | Sequence[float] | None = None,
) -> Plan:
    """What could be certified with this mechanism and this many instances.

    Args:
        mechanism: what each instance would run.
        instances: how many instances would vote, at least 1.
        classes: number of labels, at least 2.
        radius: a radius that is wanted for unanimous votes; the plan then says what would reach it.
        failure_prob: probability with which a claim may fail, in (0, 1).
        threat: how the data may have been changed; by default `symmetric-difference`, with units `edit`.
        method: `FDP()` (default), `RDP(...)` or `ADP(...)`.
        bounds: confidence bounds on the votes; `winner` by default.
        unit: what radii count, where an attacker controls more than one example at a time; the mechanism then speaks of
            units wherever it says examples.
        input_noise: standard deviation of the noise that each instance would add to the input before it votes.
        input_change: how far the input may move, too, one distance or several, in the units of the noise.

    Raises:
        ConfigError: an argument is not what it should be.

    >>> plan(SampledGaussian(20.0, 1.0, 50), instances=1000, classes=10).max_radius
    6
    """
    _validate.positive_integer(instances=instances, classes=classes)
    if not 2 <= classes <= _MOST_CLASSES:
        raise ConfigError(f"Expected classes from 2 to {_MOST_CLASSES:,}, got {classes}.")
    if radius is not None:
        _validate.positive_integer(radius=radius)
        if radius > SEARCH_LIMIT:
            raise ConfigError(f"Expected radius of at most {SEARCH_LIMIT}, the largest that is searched, got {radius}.")
        if unit is not None and radius > unit.count:
            raise ConfigError(f"radius {radius} is above the number of {unit.many} ({unit.count:,}); lower the radius.")
    method, kind = FDP() if method is None else method, default_bounds("votes") if bounds is None else bounds
    label, rival = _hardest(method, classes)
    counts = [_counts(share, instances, classes, label, rival) for share in TOP_SHARES]
    if input_noise is not None and input_change is None:
        raise ConfigError("input_noise is for inputs that change; add input_change (--input-change), or leave it out.")
    noise = None if input_noise is None else InputNoise(input_noise)
    certificate = certify(
        replace(Votes.from_counts(counts, mechanism=mechanism), unit=unit, input_noise=noise),
        input_change=input_change,
        method=method,
        threat=threat,
        failure_prob=failure_prob,
        bounds=kind,
    )
    radii = _radii_by_share(certificate.label == label, certificate.radius)
    frontier = certificate.frontier
    result = Plan(
        mechanism,
        instances,
        classes,
        method,
        certificate.threat,
        failure_prob,
        kind,
        radii[1.0],
        radius_by_top_share=radii,
        unit=unit,
        input_noise=input_noise,
        frontier=None
        if frontier is None
        else {
            change: _radii_by_share(certificate.label == label, row)
            for change, row in zip(frontier.changes, frontier.radius, strict=True)
        },
    )
    return result if radius is None else _with_needs(result, radius)


def _radii_by_share(wins: BoolArray, radius: IntArray) -> dict[float, int]:
    """Radii by the share of votes for the label, -1 where another one wins."""
    return dict(zip(TOP_SHARES, np.where(wins, radius, -1).tolist(), strict=True))


def _hardest(method: Method, classes: int) -> tuple[int, int]:
    """The label that is the hardest to certify, and its hardest rival: by their weights, else the first two."""
    if not isinstance(method, Weighted) or method.class_weights is None:
        return 0, 1
    weights = method.weights(classes)
    label = int(weights.argmin())
    return label, int(np.where(np.arange(classes) == label, 0, weights).argmax())


def _counts(share: float, instances: int, classes: int, label: int, rival: int) -> list[int]:
    """Votes with a given share for a label, all others for one rival, which is the hardest case."""
    top = math.floor(share * instances + 1e-9)
    counts = [0] * classes
    counts[label], counts[rival] = top, instances - top
    return counts


def _with_needs(asked: Plan, radius: int) -> Plan:
    inner = asked.mechanism.inner if isinstance(asked.mechanism, Subsampled) else asked.mechanism

    def reaches(mechanism: SampledGaussian) -> bool:
        whole = replace(asked.mechanism, inner=mechanism) if isinstance(asked.mechanism, Subsampled) else mechanism
        return _reaches(asked, whole, asked.instances, radius)

    instances = _least(lambda n: _reaches(asked, asked.mechanism, n, radius), asked.instances, _MOST_INSTANCES)
    too_many = _least(lambda n: not reaches(replace(inner, steps=n)), inner.steps, _MOST_STEPS)
    steps = _MOST_STEPS if too_many is None else too_many - 1 or None
    noise = _least_noise(lambda s: reaches(replace(inner, noise_multiplier=s)), inner.noise_multiplier)
    return replace(asked, radius=radius, needed_instances=instances, needed_noise_multiplier=noise, needed_steps=steps)


def _reaches(asked: Plan, mechanism: Private, instances: int, radius: int) -> bool:
    """Whether unanimous votes are certified at the radius."""
    counts = [_counts(1.0, instances, asked.classes, *_hardest(asked.method, asked.classes))]
    unanimous = Votes.from_counts(counts, mechanism=mechanism)
    margins = separated_margins(asked.method, unanimous, kind=asked.bounds, failure_prob=asked.failure_prob)
    if margins is None:
        return False
    method = replace(asked.method, cached=False) if isinstance(asked.method, FDP) else asked.method
    try:
        # The two pure splits are quick and nearly always decide; all splits are asked only when they hold.
        quick = (Threat.ADD, Threat.REMOVE) if asked.threat is Threat.SYMMETRIC_DIFFERENCE else ()
        for threat in quick:
            if not _accountant(asked, method, mechanism, threat).holds(radius, margins).all():
                return False
        return bool(_accountant(asked, method, mechanism, asked.threat).holds(radius, margins).all())
    except NumericalError:
        return False


def _accountant(asked: Plan, method: Method, mechanism: Private, threat: Threat) -> Accountant:
    """For the least change of the input that was asked about."""
    change = min(asked.frontier, default=0.0) if asked.frontier else 0.0
    if not change or asked.input_noise is None:
        return method.accountant(mechanism, threat)
    return method.accountant_moved(mechanism, threat, math.nextafter(change / asked.input_noise, math.inf))


def _least(holds: Callable[[int], bool], start: int, limit: int) -> int | None:
    """The smallest whole number at which an increasing condition holds, or None up to the limit."""
    low, high = 0, start
    while not holds(high):
        if high >= limit:
            return None
        low, high = high, min(2 * high, limit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _least_noise(holds: Callable[[float], bool], start: float) -> float | None:
    """The least noise at which an increasing condition holds, to one part in a thousand, rounded up; None if none."""
    high = start
    while not holds(high):
        high *= 2
        if high > _MOST_NOISE:
            return None
    low = high / 2
    while holds(low):
        low, high = low / 2, low
        if high < 1e-3:
            return high
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return float(f"{high * 1.0005:.4g}") if holds(float(f"{high * 1.0005:.4g}")) else high
