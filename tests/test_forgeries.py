"""Forgeries of every kind, and constants at the edge of arithmetic: nothing false is believed, nothing hangs."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from rival_votes import RIVALS
from test_certificate import scored_votes
from test_tradeoff_route import reached
from test_verification import forge

from mithridate import (
    ADP,
    FDP,
    RDP,
    Certificate,
    MithridateError,
    SampledGaussian,
    Scope,
    Status,
    Subsampled,
    Threat,
    Votes,
    certify,
    verify,
)
from mithridate.accounting import fdp
from mithridate.core.mechanism import Mechanism, Private
from mithridate.defences.bagging import Bagged
from mithridate.defences.smoothing import FeatureNoiseRule, NoisyFeatures, NoisyLabels


@pytest.mark.more
def test_a_radius_that_a_threshold_refutes_is_not_believed(tmp_path: Path) -> None:
    mechanism = Subsampled(0.1, SampledGaussian(0.08, 0.99, 2))
    assert reached(mechanism, (10, 0))[1] > 0.6  # an event of probability 1e-12 that D' makes likely
    certificate = certify(Votes.from_counts([[100_000, 0]], mechanism=mechanism))
    for radius, holds in ((int(certificate.radius[0]), True), (10, False)):
        replace(certificate, radius=np.array([radius])).save(tmp_path / "c.json")
        assert verify(tmp_path / "c.json").valid == holds


@pytest.mark.more
@pytest.mark.parametrize(
    "mechanism",
    [
        SampledGaussian(1.0, 1e-300, 1000),
        SampledGaussian(1e-300, 1e-300, 2),
        SampledGaussian(1.0, 5e-324, 1),
        SampledGaussian(1e-300, 0.5, 3),
        SampledGaussian(1e300, 0.5, 2**53 - 1),
        SampledGaussian(1e-300, 1.0, 2**53 - 1),
        Subsampled(5e-324, SampledGaussian(1e-3, 0.5, 2)),
        Bagged(2**53 - 1, 2**53 - 1),
        Bagged(10**6, 2**53 - 1),
        NoisyLabels(5e-324, 3),
        NoisyLabels(0.5 * (1 - 1e-15), 2),
        NoisyFeatures(1.7e308),
        NoisyFeatures(5e-324),
    ],
    ids=str,
)
def test_constants_at_the_edge_of_arithmetic_neither_crash_nor_hang(tmp_path: Path, mechanism: Mechanism) -> None:
    methods: list[Any] = [None]
    if isinstance(mechanism, Private):
        methods = [FDP(), RDP(), RDP("standard"), ADP()]
    elif isinstance(mechanism, NoisyFeatures):
        methods = [FeatureNoiseRule(1.7e308)]
    labels = mechanism.classes if isinstance(mechanism, NoisyLabels) else 2
    votes = Votes.from_counts([[1000] + [0] * (labels - 1)], mechanism=mechanism)
    started = time.process_time()
    for method in methods:
        # Renyi divergences of every split of a large radius take minutes at any constants.
        threat = Threat.ADD if isinstance(method, RDP | ADP) else None
        certificate = certify(votes, method=method, threat=threat)
        for radius in (certificate.radius, np.array([37]), np.array([1 << 20])):
            status = Status.SEARCH_LIMIT if radius[0] == 1 << 20 else Status.CERTIFIED
            replace(certificate, radius=radius, status=np.array([status.value])).save(tmp_path / "c.json")
            verify(tmp_path / "c.json")
    assert time.process_time() - started < 5 * 4 * len(methods)


def test_many_claims_on_noisy_labels_are_checked_in_no_time(tmp_path: Path) -> None:
    counts = np.array([[1000 - i, i] for i in range(40)])
    certificate = certify(Votes.from_counts(counts, mechanism=NoisyLabels(0.3, 2)))
    forged = replace(certificate, radius=(1 << 20) - 1 - np.arange(40))
    forged.save(tmp_path / "c.json")
    started = time.process_time()
    assert not verify(tmp_path / "c.json").valid
    assert time.process_time() - started < 10


def test_rarely_sampled_examples_need_few_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return original(*args, **kwargs)

    original = fdp.compose
    monkeypatch.setattr(fdp, "compose", counted)
    votes = Votes.from_counts([[1000, 0, 0], [900, 50, 50]], mechanism=SampledGaussian(1.0, 1e-9, 1000))
    certificate = certify(votes, method=FDP(cached=False))
    assert certificate.radius.tolist() == [1 << 20, 1 << 20]
    assert len(calls) < 100


# --- forgeries ------------------------------------------------------------------------------------------------------

FORGERIES = 1000
COUNTS = np.array([[1000, 0, 0], [900, 60, 40], [600, 250, 150], [340, 330, 330]])


@dataclass(frozen=True)
class Kind:
    """A kind of certificate: how one is made for a threat."""

    make: Callable[[Threat], Certificate]
    threats: tuple[Threat, ...]


def _private(method: Any, mechanism: Private, on: str = "votes", bounds: str | None = None) -> Kind:
    votes = Votes.from_counts(COUNTS, mechanism=mechanism) if on == "votes" else scored_votes(mechanism=mechanism)
    threats = (Threat.ADD, Threat.REMOVE, Threat.REPLACE, Threat.SYMMETRIC_DIFFERENCE)
    return Kind(lambda threat: certify(votes, method=method, threat=threat, on=on, bounds=bounds), threats)


# Constants with which radii are small, and audits quick.
SAMPLED = SampledGaussian(2.0, 0.1, 20)
KINDS = {
    "fdp": _private(FDP(), SAMPLED),
    "fdp without sampling": _private(FDP(), SampledGaussian(12.0, 1.0, 4)),
    "fdp subsampled": _private(FDP(), Subsampled(0.5, SampledGaussian(6.0, 1.0, 4))),
    "fdp on scores": _private(FDP(), SampledGaussian(12.0, 1.0, 4), "scores"),
    "fdp on scores by Hoeffding": _private(FDP(), SampledGaussian(12.0, 1.0, 4), "scores", "hoeffding"),
    "fdp on scores by betting": _private(FDP(), SampledGaussian(12.0, 1.0, 4), "scores", "betting"),
    "fdp on scores by histogram": _private(FDP(), SampledGaussian(12.0, 1.0, 4), "scores", "histogram"),
    "rdp": _private(RDP(), SAMPLED),
    "rdp with complement": _private(RDP(complement=True), SAMPLED),
    "rdp standard": _private(RDP("standard"), SampledGaussian(40.0, 0.1, 20)),
    "rdp paper": _private(RDP("paper"), SAMPLED),
    "adp": _private(ADP(), SampledGaussian(40.0, 0.1, 20)),
    **{name: Kind(rival.certificate, tuple(dict.fromkeys(rival.threats))) for name, rival in RIVALS.items()},
}


def _one(rng: np.random.Generator, array: np.ndarray, value: Any) -> np.ndarray:
    """The array with one row changed."""
    changed = np.array(array)
    changed[rng.integers(len(array))] = value
    return changed


def _other_constants(rng: np.random.Generator, mechanism: Mechanism) -> Mechanism:
    """The mechanism with one of its constants changed."""
    factor = float(rng.choice([0.25, 0.9, 1.1, 4.0]))
    if isinstance(mechanism, Subsampled):
        return replace(mechanism, keep=min(mechanism.keep * factor, 1.0))
    values = {name: value for name, value in vars(mechanism).items() if isinstance(value, int | float)}
    if not values:
        return mechanism
    name = str(rng.choice(sorted(values)))
    value = values[name] * factor
    changed: Any = {name: max(int(value), 1) if isinstance(values[name], int) else value}
    return replace(cast("Any", mechanism), **changed)


def _forgery(rng: np.random.Generator, certificate: Certificate) -> Certificate:
    """The certificate with something changed that its reader relies on."""
    votes, radius = certificate.votes, certificate.radius
    match int(rng.integers(11)):
        case 0:
            return replace(certificate, radius=radius + rng.integers(0, 2, len(radius)))
        case 1:
            return replace(certificate, radius=_one(rng, radius, int(2 ** rng.uniform(0, 20))))
        case 2:
            return replace(certificate, radius=np.ceil(radius * rng.uniform(1, 1.3)).astype(np.int64))
        case 3:
            return replace(certificate, label=_one(rng, certificate.label, int(rng.integers(-1, 4))))
        case 4:
            status = str(rng.choice([status.value for status in Status]))
            return replace(certificate, status=_one(rng, certificate.status, status), radius=_one(rng, radius, 1))
        case 5:
            return replace(certificate, votes=replace(votes, mechanism=_other_constants(rng, votes.mechanism)))
        case 6:
            counts = votes.counts[rng.permutation(len(radius))]
            return replace(certificate, votes=replace(votes, counts=counts))
        case 7:
            moved = votes.counts.copy()
            row, (giver, taker) = rng.integers(len(moved)), rng.permutation(moved.shape[1])[:2]
            moved[row, taker] += (amount := int(moved[row, giver] * rng.random()))
            moved[row, giver] -= amount
            return replace(certificate, votes=replace(votes, counts=moved))
        case 8:
            evidence = {name: np.array(rng.permutation(array)) for name, array in votes.evidence.items()}
            return replace(certificate, votes=replace(votes, evidence=evidence))
        case 9:
            return replace(certificate, threat=Threat(rng.choice(list(Threat))))
        case _:
            failure_prob = certificate.failure_prob * float(10 ** rng.uniform(-6, 0))
            return replace(certificate, failure_prob=failure_prob, scope=Scope(rng.choice(list(Scope))))


def _is_true(claim: Certificate, genuine: Certificate) -> bool:
    """Whether certifying what the file itself rests on, by the route that is not the auditor's, gives as much."""
    honest = genuine
    if claim.votes is not genuine.votes or _terms(claim) != _terms(genuine):
        terms = {} if claim.failure_prob == 0 else {"failure_prob": claim.failure_prob, "bounds": claim.bounds}
        honest = certify(claim.votes, method=claim.method, threat=claim.threat, on=claim.on, scope=claim.scope, **terms)
    return bool((claim.label == honest.label).all() and (claim.radius <= honest.radius).all())


def _terms(certificate: Certificate) -> tuple[Any, ...]:
    return certificate.threat, certificate.failure_prob, certificate.scope


def _judged(kind: Kind, rng: np.random.Generator, path: Path) -> Iterator[tuple[Certificate, Certificate]]:
    """Forgeries of a kind that are believed, and what they were made of."""
    genuine = {threat: kind.make(threat) for threat in kind.threats}
    for _ in range(FORGERIES):
        source = genuine[kind.threats[rng.integers(len(kind.threats))]]
        try:
            forged = _forgery(rng, source)
            forge(forged, path, lambda content: None)
            if verify(path).valid:
                yield forged, source
        except MithridateError:  # It makes so little sense that it cannot be built or read: refused.
            continue


@pytest.mark.slow
@pytest.mark.parametrize("name", list(KINDS))
def test_no_forgery_is_believed_that_is_false(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(list(KINDS).index(name))
    believed = list(_judged(KINDS[name], rng, tmp_path / "c.json"))
    false = [claim for claim, source in believed if not _is_true(claim, source)]
    print(f"{name}: {FORGERIES} forgeries, {len(believed) - len(false)} believed and true, {len(false)} and false")
    assert not false, [(claim.threat, claim.radius, claim.votes.mechanism) for claim in false[:3]]
