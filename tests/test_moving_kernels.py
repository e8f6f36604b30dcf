"""Inputs that move, for kernel votes: against sums example by example, every poisoning, and inputs that really move."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_moving_inputs import DOMAIN, Example, forged, moved_to, poisoned, splits

from mithridate import certify, verify
from mithridate.auditing.routes import Claim, recheck
from mithridate.core.mechanism import SEARCH_LIMIT, Threat, mechanism_from_dict
from mithridate.core.votes import Votes
from mithridate.data.examples import as_examples
from mithridate.defences._moves import BINS, LENGTHS
from mithridate.defences._nearness import StoredExamples
from mithridate.defences.kernel import (
    Exponential,
    Kernel,
    KernelRule,
    KernelSum,
    KernelVote,
    Within,
    kernel_votes,
)
from mithridate.errors import ArtifactError, ConfigError

# What a feature of 1 becomes in two columns, the full weight, and the steps of a bin.
SCALE, FULL, BIN = 4094, 1024, 256
KERNELS: list[Kernel] = [Exponential(0.2, full=0.9), Within(0.7)]


def voted(data: Sequence[Example], inputs: np.ndarray, **options: Any) -> Votes:
    x, y = np.array([each for each, _ in data]), np.array([label for _, label in data])
    stored = StoredExamples.of(as_examples((x, y), "training", need_labels=True, classes=2), None, 2)
    return kernel_votes(stored, inputs, **options)


# --- The rule, example by example -------------------------------------------------------------------------------------


def weight(kernel: Kernel, step: int) -> int:
    """The weight of an example by the step of its product, from the kernel itself."""
    cosine = min(max(step * 256 / SCALE**2, -1.0), 1.0)
    return int(np.rint(FULL * np.asarray(kernel(np.array([cosine])), dtype=float))[0])


def worst_radius(
    data: Sequence[Example], products: np.ndarray, kernel: Kernel, weights: Sequence[int], threat: Threat, change: float
) -> int:
    """The largest radius in the relaxation, bins and all, by trying every number of changes."""
    far = (SCALE * change + math.sqrt(2) + 2**-10) * math.sqrt(longest_of(data))
    moved, labels = math.ceil(far / 256), np.array([label for _, label in data])
    steps = np.trunc(products / 256).astype(int)
    low = (steps + 65536) // BIN * BIN - 65536
    exact = [sum(weight(kernel, step) for step in steps[labels == label]) for label in (0, 1)]
    label = int(weights[1] * exact[1] > weights[0] * exact[0])
    lightest = sorted((weight(kernel, at - moved) for at in low[labels == label]), reverse=True)
    heaviest = sum(weight(kernel, at + BIN - 1 + moved) for at in low[labels != label])
    for radius in range(len(data) + 3):
        for inserted, deleted in splits(threat, radius):
            mine = weights[label] * sum(lightest[deleted:])
            theirs = weights[1 - label] * (heaviest + inserted * FULL)
            if mine < theirs or (mine == theirs and label == 1):
                return radius - 1
    return SEARCH_LIMIT


def rows_of(points: np.ndarray) -> np.ndarray:
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    return np.rint(unit.astype(np.float32) * np.float32(SCALE)).astype(int)


def longest_of(data: Sequence[Example]) -> int:
    return int((rows_of(np.array([each for each, _ in data])) ** 2).sum(axis=1).max())


def random_data(random: np.random.Generator, size: int) -> list[Example]:
    """Labels go with the angle, but for a few."""
    places = random.integers(0, 9, size)
    return [DOMAIN[2 * at + int((at > 4) != (random.random() < 0.1))] for at in places]


@pytest.mark.parametrize("weights", [(1, 1), (2, 3)])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("threat", [*(each for each in Threat if each not in (Threat.LABELS, Threat.FEATURES))])
def test_radii_of_moved_inputs_are_those_of_the_worst_weights(
    threat: Threat, kernel: Kernel, weights: tuple[int, int]
) -> None:
    random, found = np.random.default_rng(3), []
    rule = KernelRule(class_weights=weights)
    for _ in range(12):
        data, angle = random_data(random, 9), float(random.uniform(0, np.pi))
        here = np.array([[np.cos(angle), np.sin(angle)]])
        votes = voted(data, here, kernel=kernel, moving_inputs=True, class_weights=weights)
        products = rows_of(np.array([each for each, _ in data])) @ rows_of(here)[0]
        for change in (0.001, 0.05, 0.2):
            radius = int(rule.decide_moved(votes, threat, change).radius[0])
            assert radius == worst_radius(data, products, kernel, weights, threat, change)
            found.append(radius)
    assert min(found) == -1
    assert len(set(found)) > 2


# --- Inputs that really move ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("threat", [*(each for each in Threat if each is not Threat.FEATURES)])
def test_no_poisoning_and_no_move_together_change_a_certified_label(threat: Threat, kernel: Kernel) -> None:
    random = np.random.default_rng(list(Threat).index(threat) + 5)
    certified, broken = 0, 0
    for _ in range(10):
        data = random_data(random, 8)
        angle, change = float(random.uniform(0, np.pi)), float(random.choice([0.01, 0.05, 0.2]))
        here = np.array([[np.cos(angle), np.sin(angle)]])
        votes = voted(data, here, kernel=kernel, moving_inputs=True)
        found = KernelRule().decide_moved(votes, threat, change)
        radius, label = int(found.radius[0]), int(found.label[0])
        for other in poisoned(data, threat, min(radius, 1)) if radius >= 0 else ():
            labels = voted(other, moved_to(angle, change), kernel=kernel, own=False).counts.argmax(axis=1)
            assert set(labels.tolist()) == {label}
        certified += radius > 0
        elsewhere = voted(data, moved_to(angle, 1.5), kernel=kernel, own=False).counts.argmax(axis=1)
        broken += set(elsewhere.tolist()) != {label}
    assert certified
    assert broken


# --- Properties, and the auditor --------------------------------------------------------------------------------------

CHANGES = (0.0, 0.03, 0.1)


def some_data() -> tuple[Any, Any]:
    random = np.random.default_rng(7)
    labels, asked = random.integers(0, 3, 150), random.integers(0, 3, 20)
    centres = 3 * np.eye(6)
    return (random.normal(size=(150, 6)) + centres[labels], labels), random.normal(size=(20, 6)) + centres[asked]


def trained(**options: Any) -> Votes:
    given = {"kernel": Exponential(0.4, full=0.8), "features": "none", "classes": 3, "num_train": 150}
    return KernelVote(**{**given, "moving_inputs": True, **options}).train(*some_data())


@pytest.mark.parametrize("weights", [None, (2, 1, 5)])
@pytest.mark.parametrize("threat", Threat)
def test_radii_fall_as_inputs_move_farther_and_start_from_those_of_inputs_that_stay(
    threat: Threat, weights: tuple[int, ...] | None
) -> None:
    votes, rule = trained(class_weights=weights), KernelRule(class_weights=weights)
    stays = rule.decide(votes, threat)
    found = [rule.decide_moved(votes, threat, change) for change in (0.0, 1e-9, 0.01, 0.03, 0.1, 0.2, 4.0)]
    assert (found[0].radius == stays.radius).all()
    for nearer, farther in pairwise(found):
        assert (nearer.label == farther.label).all()
        assert (nearer.radius >= farther.radius).all()
    assert (found[-1].radius == -1).all()
    assert len({each.radius.sum() for each in found}) > 4


@pytest.mark.parametrize("weights", [None, (2, 1, 5)])
@pytest.mark.parametrize("threat", Threat)
def test_the_auditor_confirms_inputs_that_move_and_nothing_larger(
    threat: Threat, weights: tuple[int, ...] | None
) -> None:
    votes, rule = trained(class_weights=weights), KernelRule(class_weights=weights)
    for change in (1e-9, 0.02, 0.1):
        found = rule.decide_moved(votes, threat, change)
        evidence = {name: votes.evidence[name] for name in (*rule.reads(threat), *rule.reads_moved(threat))}
        claim = Claim(votes.mechanism, rule.name, threat, found.label, found.radius, votes.counts)
        claim = replace(claim, options={"class_weights": weights}, evidence=evidence, input_change=change)
        assert not recheck(claim).any()
        assert recheck(replace(claim, radius=found.radius + 1))[found.radius < SEARCH_LIMIT].all()
        assert recheck(replace(claim, label=(found.label + 1) % 3)).all()


def test_verify_checks_every_change_of_the_input(tmp_path: Path) -> None:
    certificate = certify(trained(), threat=Threat.EDIT, input_change=CHANGES)
    assert certificate.frontier is not None
    assert certificate.frontier.radius[1].max() > 0
    certificate.save(path := tmp_path / "certificate.json")
    found = verify(path)
    assert found.valid, found.checks

    def more(content: dict[str, Any]) -> None:
        content["frontier"][1]["radius"][0] += 1
        content["frontier"][1]["status"][0] = "certified"

    refused = verify(forged(path, more))
    assert [check.name for check in refused.checks if not check.passed] == ["labels and radii, input change 0.03"]


def test_nothing_else_changes_with_what_inputs_that_move_need(tmp_path: Path) -> None:
    plain, more = trained(moving_inputs=False), trained()
    assert plain.mechanism.to_dict() == {"type": "kernel-sum", "full_weight": FULL}
    assert set(plain.evidence) == {"own"}
    assert (plain.counts == more.counts).all()
    assert (plain.evidence["own"] == more.evidence["own"]).all()
    assert (certify(plain).radius == certify(more).radius).all()
    more.save(tmp_path / "votes.npz")
    assert Votes.load(tmp_path / "votes.npz").mechanism == more.mechanism
    assert mechanism_from_dict(json.loads(json.dumps(more.mechanism.to_dict()))) == more.mechanism


# --- What is refused --------------------------------------------------------------------------------------------------


class Falling:
    """A kernel of which the weight falls where the cosine rises."""

    def __call__(self, cosine: np.ndarray) -> np.ndarray:
        return (1 - cosine) / 2

    def to_dict(self) -> dict[str, Any]:
        return {"name": "falling"}


def test_votes_without_what_inputs_that_move_need_say_how_to_get_it() -> None:
    with pytest.raises(ConfigError, match="train again with --moving-inputs"):
        certify(trained(moving_inputs=False), input_change=0.1)
    votes = trained()
    with pytest.raises(ConfigError, match="train again with --moving-inputs"):
        certify(replace(votes, mechanism=KernelSum(FULL)), input_change=0.1)


def test_kernels_that_fall_are_refused() -> None:
    with pytest.raises(ConfigError, match="falls where the cosine rises"):
        trained(kernel=Falling())
    assert trained(kernel=Falling(), moving_inputs=False).examples == 20


@pytest.mark.parametrize("thresholds", [[1, 2], [3, 2, 1], [0.5, 1.0, 2.0], [-70000, 0, 1], [0, 1, 70000], "abc"])
def test_thresholds_that_make_no_sense_are_refused(thresholds: Any) -> None:
    with pytest.raises(ConfigError, match="Expected thresholds"):
        KernelSum(3, thresholds)


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        (BINS, lambda values: values[:, :, ::-1]),
        (BINS, lambda values: values[:, :, :-1]),
        (BINS, lambda values: values + 1),
        (LENGTHS, lambda values: values[:, :3]),
    ],
)
def test_evidence_that_contradicts_the_votes_is_refused(name: str, spoil: Any) -> None:
    votes = trained()
    wrong = replace(votes, evidence={**votes.evidence, name: spoil(votes.evidence[name])})
    with pytest.raises(ConfigError, match="moved_"):
        certify(wrong, input_change=0.1)
    rule = KernelRule()
    label = rule.decide(votes, Threat.ADD).label
    claim = Claim(votes.mechanism, rule.name, Threat.ADD, label, np.zeros(20, int), votes.counts)
    with pytest.raises(ArtifactError):
        recheck(replace(claim, evidence=wrong.evidence, input_change=0.1))


def test_bins_hold_every_example_once() -> None:
    votes = trained()
    labels = some_data()[0][1]
    for label, row in product(range(3), range(20)):
        assert votes.evidence[BINS][row, label].sum() == (labels == label).sum()
