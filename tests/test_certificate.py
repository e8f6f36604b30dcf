"""Certificates: the numbers of a report, the JSON of the contract, and files that say the same as the object."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rival_votes import CLAIMS, EXACT, RIVALS, method_of

from mithridate import (
    ADP,
    FDP,
    RDP,
    Certificate,
    ConfigError,
    SampledGaussian,
    Scope,
    Status,
    Subsampled,
    Threat,
    Votes,
    certify,
)
from mithridate.core.rule import ExactRule

GAUSSIAN = SampledGaussian(8.0, 1.0, 4)
CONTRACT = {
    "schema",
    "method",
    "threat",
    "failure_prob",
    "scope",
    "mechanism",
    "examples",
    "label",
    "radius",
    "status",
    "summary",
}
METHODS = [FDP(), RDP(), RDP("paper"), RDP("standard"), RDP("mixture", complement=True), ADP(), ADP(1e-7)]


def scored_votes(*, instances: int = 400, dtype: type = np.float64, mechanism: Any = GAUSSIAN, seed: int = 5) -> Votes:
    """Votes with score sums, squares and histograms: clear cases, a near tie, a clear case of another label."""
    rng = np.random.default_rng(seed)
    shapes = [[90.0, 5.0, 5.0], [60.0, 30.0, 10.0], [34.0, 33.0, 33.0], [2.0, 3.0, 95.0]]
    scores = np.stack([rng.dirichlet(shape, size=instances) for shape in shapes], axis=1)
    bins = np.minimum((scores * 32).astype(int), 31)
    return Votes.from_counts(
        (scores == scores.max(axis=2, keepdims=True)).sum(axis=0),
        mechanism=mechanism,
        score_sums=scores.sum(axis=0).astype(dtype),
        score_squares=(scores**2).sum(axis=0).astype(dtype),
        score_histograms=(bins[..., None] == np.arange(32)).sum(axis=0),
        labels=[0, 0, 1, 2],
    )


def made_up(radius: list[int], label: list[int] | None = None) -> Certificate:
    """A certificate with given radii, for arithmetic on them."""
    certificate = certify(Votes.from_counts([[60, 40, 0]] * len(radius), mechanism=GAUSSIAN))
    labels = np.zeros(len(radius), dtype=np.int64) if label is None else np.array(label)
    status = np.where(np.array(radius) < 0, Status.NOT_SEPARATED.value, Status.CERTIFIED.value)
    return replace(certificate, radius=np.array(radius), label=labels, status=status)


# --- numbers --------------------------------------------------------------------------------------------------------


def test_accuracy_counts_all_examples_and_needs_both_right_and_certified() -> None:
    certificate = made_up([10, 5, 0, -1, 7], [0, 1, 2, 0, 1])
    truth = [0, 1, 2, 0, 2]  # the fourth is right but abstained, the fifth certified but wrong
    assert certificate.accuracy(truth, [0, 1, 5, 6, 10, 11]).tolist() == [0.6, 0.4, 0.4, 0.2, 0.2, 0.0]
    assert certificate.accuracy(np.array(truth), 5).tolist() == [0.4]


@pytest.mark.parametrize("labels", [[0, 1], [[0, 1, 2]], [], 0, [0, 1, 2, 0]])
def test_accuracy_refuses_labels_that_do_not_fit(labels: Any) -> None:
    with pytest.raises(ConfigError, match="one true label for each of 3"):
        made_up([1, 2, 3]).accuracy(labels, [0])


@pytest.mark.parametrize("radii", [[-1], [0, -5], [float("nan")], -1])
def test_accuracy_refuses_radii_below_zero(radii: Any) -> None:
    """At -1 every abstention would count as certified."""
    with pytest.raises(ConfigError, match="radii of 0 or more"):
        made_up([-1, 2, 3]).accuracy([0, 0, 0], radii)


def test_summary() -> None:
    certificate = made_up([10, 5, 0, -1, 7, -1], [0, 1, 2, 0, 1, 0])
    assert certificate.summary() == {"median_radius": 2.5, "max_radius": 10, "abstained": 2, "single_label": False}
    summary = certificate.summary([0, 1, 2, 0, 2, 0], [0, 5, 100])
    assert summary == {
        "median_radius": 2.5,
        "max_radius": 10,
        "abstained": 2,
        "single_label": False,
        "baseline": 0.5,  # three of six are 0
        "median_radius_correct": -0.5,  # 10, 5, 0 and three that count as -1
        "certified_accuracy": {"0": 0.5, "5": 2 / 6, "100": 0.0},
        # Of the three 0, one is certified, to 10; of the one 1, it, to 5; of the two 2, one, to 0.
        "certified_balanced_accuracy": pytest.approx({"0": (1 / 3 + 1 + 1 / 2) / 3, "5": (1 / 3 + 1) / 3, "100": 0}),
    }
    assert made_up([-1, -1]).summary([0, 0])["certified_accuracy"] == {"0": 0.0}


@pytest.mark.parametrize("largest", [*range(-1, 30), 99, 100, 101, 215, 999, 1000, 4096, 99_999, 1 << 20])
def test_round_radii_start_at_zero_and_span_the_radii(largest: int) -> None:
    radii = made_up([-1, largest]).round_radii()
    assert radii[0] == 0
    assert radii == sorted(set(radii))
    assert len(radii) <= 8
    assert radii[-1] <= max(largest, 0)
    if largest > 0:
        assert largest - radii[-1] < radii[1]


# --- the contract's JSON ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_the_dictionary_has_the_keys_of_the_contract(method: Any) -> None:
    votes = Votes.from_counts([[200, 0, 0], [70, 100, 30], [80, 60, 60]], mechanism=GAUSSIAN)
    certificate = certify(votes, method=method, threat="remove", failure_prob=0.01, scope="all")
    content = certificate.to_dict([0, 0, 0], [0, 3])
    assert content.keys() >= CONTRACT
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert content["schema"] == "mithridate.certification/1"
    assert content["method"] == method.name
    assert (content["threat"], content["failure_prob"], content["scope"]) == ("remove", 0.01, "all")
    assert content["mechanism"] == {
        "type": "sampled-gaussian",
        "noise_multiplier": 8.0,
        "sample_rate": 1.0,
        "steps": 4,
    }
    assert content["examples"] == 3
    assert content["label"] == [0, 1, 0]
    assert content["radius"][2] == -1
    # Without sampling the paper's rule knows no limit: enlarging a sample rate of one changes nothing.
    certified = "search_limit" if method == RDP("paper") else "certified"
    assert content["status"] == [
        certified,
        certified if content["radius"][1] >= 0 else "not_separated",
        "not_separated",
    ]
    summary = content["summary"]
    always = {"median_radius", "max_radius", "abstained", "single_label"}
    measured = {"baseline", "median_radius_correct", "certified_accuracy", "certified_balanced_accuracy"}
    assert set(summary) == always | measured
    assert set(summary["certified_accuracy"]) == set(summary["certified_balanced_accuracy"]) == {"0", "3"}
    assert set(certificate.to_dict()["summary"]) == always


def test_the_dictionary_says_how_a_part_was_kept() -> None:
    certificate = certify(Votes.from_counts([[200, 0]], mechanism=Subsampled(0.5, GAUSSIAN)))
    assert certificate.to_dict()["mechanism"] == {
        "type": "subsampled-gaussian",
        "noise_multiplier": 8.0,
        "sample_rate": 1.0,
        "steps": 4,
        "keep": 0.5,
    }


def test_the_label_is_the_majority_also_where_nothing_is_certified() -> None:
    counts = [[10, 10, 0], [0, 10, 10], [5, 7, 8], [6, 7, 7], [0, 0, 20]]
    certificate = certify(Votes.from_counts(counts, mechanism=GAUSSIAN))
    assert certificate.label.tolist() == np.argmax(counts, axis=1).tolist()
    assert certificate.radius[:4].tolist() == [-1] * 4
    assert set(certificate.status[:4]) == {"not_separated"}


def test_every_status_has_a_sentence() -> None:
    sentences = [status.sentence for status in Status]
    assert len(set(sentences)) == len(Status)
    assert all(sentence.endswith(".") and sentence[0].isupper() for sentence in sentences)


# --- files ----------------------------------------------------------------------------------------------------------


def same_after_a_file(certificate: Certificate, path: Path) -> None:
    certificate.save(path)
    loaded = Certificate.load(path)
    assert loaded.equals(certificate)
    assert certificate.equals(loaded)
    assert loaded.to_dict() == certificate.to_dict()
    assert loaded.votes.equals(certificate.votes)
    assert loaded.method == certificate.method


@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize("threat", ["symmetric-difference", "add", "remove", "replace"])
def test_save_then_load_is_the_identity(tmp_path: Path, method: Any, threat: str) -> None:
    votes = Votes.from_counts([[200, 0], [60, 140], [110, 90]], mechanism=GAUSSIAN, labels=[0, 1, 1])
    same_after_a_file(certify(votes, method=method, threat=threat), tmp_path / "c.json")


@pytest.mark.parametrize("bounds", ["empirical-bernstein", "hoeffding", "betting", "histogram"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_save_then_load_is_the_identity_on_scores(tmp_path: Path, bounds: str, dtype: type) -> None:
    certificate = certify(scored_votes(dtype=dtype), on="scores", bounds=bounds, scope="all")
    assert certificate.radius[0] > 0
    same_after_a_file(certificate, tmp_path / "c.json")
    loaded = Certificate.load(tmp_path / "c.json")
    assert loaded.scope is Scope.ALL
    assert loaded.votes.score_sums is not None
    assert loaded.votes.score_sums.dtype == dtype


@pytest.mark.parametrize("bounds", ["winner", "simultaneous", "simuem", "pointwise"])
def test_save_then_load_is_the_identity_for_other_bounds_and_mechanisms(tmp_path: Path, bounds: str) -> None:
    votes = Votes(
        np.array([[200, 0], [60, 140]]), Subsampled(0.25, GAUSSIAN), data_fingerprint="sha256:ü", run_ids=("a", "b")
    )
    same_after_a_file(certify(votes, bounds=bounds, failure_prob=0.07), tmp_path / "c.json")


def test_which_instances_of_a_run_voted_and_who_trained_them_survives_a_file(tmp_path: Path) -> None:
    votes = replace(scored_votes(), run_ids=("a" * 32,), shards={"a" * 32: ((100, 500),)}, devices={"cpu": 9})
    certificate = certify(votes)
    certificate.save(tmp_path / "certificate.json")
    found = Certificate.load(tmp_path / "certificate.json")
    assert found.equals(certificate)
    assert (found.votes.shards, found.votes.devices) == (votes.shards, votes.devices)


def test_equals_sees_every_difference() -> None:
    votes = Votes.from_counts([[200, 0], [60, 140]], mechanism=GAUSSIAN)
    certificate = certify(votes)
    assert certificate.equals(certify(votes))
    changes: list[dict[str, Any]] = [
        {"votes": Votes.from_counts([[200, 0], [61, 139]], mechanism=GAUSSIAN)},
        {"label": 1 - certificate.label},
        {"radius": certificate.radius + 1},
        {"status": np.array(["certified", "numerical"])},
        {"method": RDP()},
        {"failure_prob": 0.002},
        {"scope": Scope.ALL},
        {"bounds": "simuem"},
        {"on": "scores"},
        {"assumptions": ()},
        {"versions": {}},
        {"error_budget": {}},
    ]
    for change in changes:
        assert not certificate.equals(replace(certificate, **change)), change


@pytest.mark.parametrize(("method", "kind"), [(RDP("paper"), "simultaneous"), (FDP(), "simuem"), (FDP(), "pointwise")])
def test_what_is_not_proved_is_stated(tmp_path: Path, method: Any, kind: str) -> None:
    votes = Votes.from_counts([[200, 0]], mechanism=GAUSSIAN)
    plain, marked = certify(votes), certify(votes, method=method, bounds=kind)
    assert len(marked.assumptions) == len(plain.assumptions) + 1
    marked.save(tmp_path / "c.json")
    assert Certificate.load(tmp_path / "c.json").assumptions == marked.assumptions
    assert marked.to_dict()["assumptions"] == list(marked.assumptions)


# --- other defences ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "threat"), CLAIMS)
def test_certificates_of_every_defence_come_back_from_their_files(tmp_path: Path, name: str, threat: Threat) -> None:
    certificate = RIVALS[name].certificate(threat)
    certificate.save(tmp_path / "certificate.json")
    loaded = Certificate.load(tmp_path / "certificate.json")
    assert loaded == certificate
    assert loaded.method == certificate.method
    assert loaded.method.name == method_of(name)
    needed = (
        loaded.method.reads(threat) if isinstance(loaded.method, ExactRule) else ()
    )  # and nothing that only makes a file large
    assert set(loaded.votes.evidence) == set(needed)
    for key in needed:
        assert np.array_equal(loaded.votes.evidence[key], RIVALS[name].votes.evidence[key])
    assert (loaded.failure_prob == 0, loaded.bounds == "exact") == ((name in EXACT),) * 2
