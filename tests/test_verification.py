"""The audit: right certificates are confirmed, wrong ones are not, however well their hash fits."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rival_votes import CLAIMS, EXACT, RIVALS
from test_certificate import scored_votes

from mithridate import (
    ADP,
    FDP,
    RDP,
    ArtifactError,
    Certificate,
    SampledGaussian,
    Scope,
    Status,
    Subsampled,
    Threat,
    Votes,
    certify,
    verify,
)
from mithridate._io.artifacts import read_hashed, write_hashed
from mithridate.accounting import curve_store
from mithridate.accounting.curve_store import CurveStore
from mithridate.accounting.privacy_loss import ErrorBudget, TradeoffCurve
from mithridate.auditing import private_routes
from mithridate.auditing.exact_curves import TOLERANCE, ExactTradeoff, PrivateTraining
from mithridate.auditing.routes import Limits, differences
from mithridate.core.certificate import SCHEMA

THREATS = list(Threat)
GAUSSIAN = SampledGaussian(30.0, 1.0, 4)
SAMPLED = SampledGaussian(2.0, 0.1, 20)
SUBSAMPLED = Subsampled(0.5, SampledGaussian(4.0, 0.5, 4))
COUNTS = [[200, 0, 0], [30, 160, 10], [90, 80, 30]]
METHODS = [FDP(), RDP(), RDP("mixture", complement=True), RDP("paper"), RDP("standard"), ADP()]


def failed(certificate: Certificate, path: Path) -> set[str]:
    """Names of the checks that fail when the certificate is written, with a right hash, and verified."""
    certificate.save(path)
    outcome = verify(path)
    assert outcome.valid == all(check.passed for check in outcome.checks)
    return {check.name for check in outcome.checks if not check.passed}


def forge(certificate: Certificate, path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Write the certificate with its content changed and a hash that fits the change."""
    certificate.save(path)
    content = read_hashed(path, SCHEMA)
    for key in ("schema", "size", "sha256"):
        content.pop(key)
    change(content)
    write_hashed(path, SCHEMA, content)


def _update(content: dict[str, Any], change: dict[str, Any]) -> None:
    """Change what a certificate says, or what it says of its votes."""
    for key, value in change.items():
        (content["votes"] if key.startswith("votes.") else content)[key.removeprefix("votes.")] = value


def _drop(content: dict[str, Any], key: str) -> None:
    (content["votes"] if key.startswith("votes.") else content).pop(key.removeprefix("votes."))


# --- right certificates ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threat", THREATS)
@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize("mechanism", [SAMPLED, SUBSAMPLED], ids=["sampled", "subsampled"])
def test_right_certificates_are_confirmed(tmp_path: Path, mechanism: Any, method: Any, threat: Threat) -> None:
    if isinstance(mechanism, Subsampled) and method == RDP("paper"):
        pytest.skip("the paper's rule is not defined there")
    certificate = certify(Votes.from_counts(COUNTS, mechanism=mechanism), method=method, threat=threat)
    assert certificate.radius[0] >= (0 if method == ADP() else 1)
    certificate.save(tmp_path / "c.json")
    outcome = verify(tmp_path / "c.json")
    assert outcome.valid, outcome.checks
    assert [check.name for check in outcome.checks] == [
        "file unchanged",
        "conditions",
        "assumptions",
        "labels",
        "confidence bounds",
        "statuses",
        "radii",
    ]


@pytest.mark.parametrize("mechanism", [GAUSSIAN, SampledGaussian(1.5, 0.2, 1), SampledGaussian(0.6, 0.01, 50)], ids=str)
@pytest.mark.parametrize("bounds", ["winner", "simultaneous", "anytime", "simuem", "pointwise"])
@pytest.mark.parametrize("scope", list(Scope))
def test_right_certificates_with_other_bounds_are_confirmed(
    tmp_path: Path, mechanism: SampledGaussian, bounds: str, scope: Scope
) -> None:
    votes = Votes.from_counts(COUNTS, mechanism=mechanism)
    assert failed(certify(votes, bounds=bounds, scope=scope, failure_prob=0.01), tmp_path / "c.json") == set()


@pytest.mark.parametrize("method", [FDP(), RDP(), ADP()], ids=repr)
@pytest.mark.parametrize("bounds", ["empirical-bernstein", "hoeffding", "betting", "histogram"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_right_certificates_on_scores_are_confirmed(tmp_path: Path, method: Any, bounds: str, dtype: type) -> None:
    votes = scored_votes(dtype=dtype, mechanism=SampledGaussian(30.0, 1.0, 4))
    certificate = certify(votes, method=method, on="scores", bounds=bounds, threat="remove")
    assert certificate.radius[0] > 0
    assert failed(certificate, tmp_path / "c.json") == set()


def test_nothing_certified_is_a_right_certificate(tmp_path: Path) -> None:
    certificate = certify(Votes.from_counts([[5, 4], [5, 4]], mechanism=SAMPLED))
    assert set(certificate.radius) == {-1}
    assert failed(certificate, tmp_path / "c.json") == set()


def test_a_radius_at_the_search_limit_is_confirmed(tmp_path: Path) -> None:
    certificate = certify(Votes.from_counts([[100, 0]], mechanism=SampledGaussian(1e9, 1.0, 1)), threat="add")
    assert certificate.status.tolist() == ["search_limit"]
    assert failed(certificate, tmp_path / "c.json") == set()


def test_smaller_claims_are_right_too(tmp_path: Path) -> None:
    certificate = certify(Votes.from_counts(COUNTS, mechanism=GAUSSIAN))
    assert (
        failed(replace(certificate, radius=certificate.radius - (certificate.radius > 0)), tmp_path / "c.json") == set()
    )


@pytest.mark.parametrize("chained", [0, 1 << 12], ids=["in blocks", "by chains"])
@pytest.mark.parametrize("at_once", [1, 1 << 20])
def test_either_way_through_the_splits_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chained: int, at_once: int
) -> None:
    certificate = certify(Votes.from_counts(COUNTS, mechanism=SAMPLED))
    monkeypatch.setattr("mithridate.auditing.private_routes._MOST_CHAINED", chained)
    monkeypatch.setattr("mithridate.auditing.private_routes._CHAINED_AT_ONCE", at_once)
    assert failed(certificate, tmp_path / "c.json") == set()
    assert failed(_one_more(certificate), tmp_path / "c.json") == {"radii"}


def test_no_split_of_the_changes_is_left_out() -> None:
    """Each split by its own curve, one after the other, against the route that puts them together."""
    mechanism, rng = SampledGaussian(1.0, 0.02, 40), np.random.default_rng(2)
    miss = rng.uniform(0.001, 0.4, 60)
    limits = Limits(1 - miss, miss, miss * rng.uniform(0.1, 1, 60))
    conditions = private_routes._Pairs(limits)
    training, found = PrivateTraining.of(mechanism.to_dict()), set[bool]()
    for radius in (1, 2, 3, 5, 8, 13):
        expected = np.ones(60, dtype=np.bool_)
        for split in differences(Threat.SYMMETRIC_DIFFERENCE, radius):
            curve = ExactTradeoff(1.0, 0.02, 40, *split)
            expected &= curve(limits.miss_upper) + curve(limits.rival_upper) < 1 - TOLERANCE
        route = private_routes._TradeoffRoute(training, Threat.SYMMETRIC_DIFFERENCE)
        assert route(radius, conditions).tolist() == expected.tolist()
        assert route._in_blocks(radius, conditions).tolist() == expected.tolist()
        found.update(expected.tolist())
    assert found == {False, True}


def test_lines_of_pure_splits_lie_above_the_curve_and_near_it() -> None:
    curve = ExactTradeoff(3.0, 0.001, 1000, 40, 0)
    pure = private_routes._PureSplits(lambda number: ExactTradeoff(3.0, 0.001, 1000, number, 0))
    assert pure.know(40)
    x = np.concatenate([np.geomspace(1e-9, 0.5, 300), 1 - np.geomspace(1e-9, 0.5, 300)])
    above = pure.at_most(np.array([40]), x[None])[0] - curve(x)
    assert above.min() > -1e-10
    assert above.max() < 1e-4
    assert np.array_equal(pure.at_most(np.array([0]), x[None])[0], x)


def test_progress_is_shown(tmp_path: Path) -> None:
    certificate = certify(Votes.from_counts(COUNTS, mechanism=GAUSSIAN))
    certificate.save(tmp_path / "c.json")
    calls: list[tuple[int, int]] = []
    verify(tmp_path / "c.json", progress=lambda done, total: calls.append((done, total)))
    distinct = len({radius for radius in certificate.radius.tolist() if radius > 0})
    assert calls == [(number + 1, distinct) for number in range(distinct)]


# --- wrong certificates whose hash is right -------------------------------------------------------------------------


def _one_more(certificate: Certificate) -> Certificate:
    return replace(certificate, radius=certificate.radius + (certificate.radius >= 0))


@pytest.mark.parametrize("threat", THREATS)
@pytest.mark.parametrize("mechanism", [GAUSSIAN, SAMPLED, SampledGaussian(1.5, 0.2, 1)], ids=str)
def test_one_more_is_too_much(tmp_path: Path, mechanism: SampledGaussian, threat: Threat) -> None:
    """The radius of f-DP is the largest: the exact curves refuse the next one, for every example."""
    certificate = certify(Votes.from_counts(COUNTS, mechanism=mechanism), threat=threat)
    for example in np.flatnonzero(certificate.radius >= 0):
        radius = certificate.radius.copy()
        radius[example] += 1
        assert failed(replace(certificate, radius=radius), tmp_path / "c.json") == {"radii"}


@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize("radius", [50, 1000])
def test_a_much_larger_radius_is_refused_without_a_crash(tmp_path: Path, method: Any, radius: int) -> None:
    certificate = certify(Votes.from_counts(COUNTS, mechanism=SAMPLED), method=method)
    wrong = replace(certificate, radius=np.array([radius, 0, -1]))
    assert "radii" in failed(wrong, tmp_path / "c.json")


def test_other_forgeries_are_refused(tmp_path: Path) -> None:
    votes = Votes.from_counts(COUNTS, mechanism=GAUSSIAN)
    certificate = certify(votes)
    assert certificate.radius.tolist()[2] == -1
    fewer = Votes.from_counts([[190, 10, 0], *COUNTS[1:]], mechanism=GAUSSIAN)
    other_winner = Votes.from_counts([[0, 200, 0], *COUNTS[1:]], mechanism=GAUSSIAN)
    noisier = Votes.from_counts(COUNTS, mechanism=SampledGaussian(29.0, 1.0, 4))
    forgeries: list[tuple[dict[str, Any], str]] = [
        ({"radius": certificate.radius + np.array([1, 0, 0])}, "radii"),
        ({"radius": np.array([0, 0, 0])}, "statuses"),
        ({"radius": np.array([-2, 0, -1])}, "statuses"),
        ({"radius": np.array([(1 << 20) + 1, 0, -1])}, "statuses"),
        ({"label": np.array([1, 1, 0])}, "labels"),
        ({"label": np.array([0, 1, 1])}, "labels"),
        ({"label": np.array([-3, 1, 0])}, "labels"),
        ({"label": np.array([0, 4, 0])}, "labels"),
        ({"status": np.array(["certified"] * 3)}, "statuses"),
        ({"status": np.array(["search_limit", "certified", "not_separated"])}, "statuses"),
        ({"status": np.array(["certified"] * 3), "radius": np.array([1, 1, 0])}, "statuses"),
        ({"votes": fewer}, "radii"),
        ({"votes": other_winner}, "labels"),
        ({"votes": noisier}, "radii"),
        ({"failure_prob": 1e-4}, "radii"),
        ({"failure_prob": 1e-300}, "statuses"),
        ({"scope": Scope.ALL}, "radii"),
        ({"threat": Threat.REPLACE}, "radii"),
        ({"method": RDP()}, "radii"),
        ({"method": ADP()}, "radii"),
        ({"assumptions": certificate.assumptions[:1]}, "assumptions"),
        ({"assumptions": ()}, "assumptions"),
    ]
    for change, check in forgeries:
        assert check in failed(replace(certificate, **change), tmp_path / "c.json"), change


@pytest.mark.parametrize(
    ("method", "bounds"), [(RDP("paper"), "simultaneous"), (FDP(), "simuem"), (FDP(), "pointwise")]
)
def test_leaving_out_what_is_not_proved_is_refused(tmp_path: Path, method: Any, bounds: str) -> None:
    certificate = certify(Votes.from_counts(COUNTS, mechanism=SAMPLED), method=method, bounds=bounds)
    plain = certify(Votes.from_counts(COUNTS, mechanism=SAMPLED)).assumptions
    assert failed(replace(certificate, assumptions=plain), tmp_path / "c.json") == {"assumptions"}


def test_calling_weak_bounds_strong_is_refused(tmp_path: Path) -> None:
    votes = Votes.from_counts(COUNTS, mechanism=SampledGaussian(300.0, 1.0, 4))
    order = ("pointwise", "simultaneous"), ("winner", "simultaneous"), ("winner", "anytime")
    for weak, strong in ((certify(votes, bounds=first), certify(votes, bounds=second)) for first, second in order):
        assert weak.radius[0] > strong.radius[0]
        forged = replace(weak, bounds=strong.bounds, assumptions=strong.assumptions)
        assert failed(forged, tmp_path / "c.json") == {"radii"}
    paper = certify(Votes.from_counts(COUNTS, mechanism=SAMPLED), method=RDP("paper"))
    assert failed(replace(paper, method=RDP("standard")), tmp_path / "c.json") == {"radii"}


@pytest.mark.parametrize("bounds", ["empirical-bernstein", "hoeffding", "betting", "histogram"])
def test_forged_scores_are_refused(tmp_path: Path, bounds: str) -> None:
    votes = scored_votes(mechanism=SampledGaussian(3000.0, 1.0, 4))
    certificate = certify(votes, on="scores", bounds=bounds, threat="add")
    assert certificate.radius[0] > 100
    larger = np.where(certificate.radius > 0, np.ceil(1.05 * certificate.radius), certificate.radius).astype(np.int64)
    assert "radii" in failed(replace(certificate, radius=larger), tmp_path / "c.json")
    assert "labels" in failed(replace(certificate, label=(certificate.label + 1) % 3), tmp_path / "c.json")


@pytest.mark.parametrize(
    "change",
    [
        {"on": "scores"},
        {"on": "logits"},
        {"bounds": "hoeffding"},
        {"bounds": None},
        {"failure_prob": 0.0},
        {"failure_prob": -1.0},
        {"failure_prob": 1.0},
        {"failure_prob": 1.5},
        {"failure_prob": "0.001"},
        {"failure_prob": None},
        {"failure_prob": True},
        {"scope": "most"},
        {"threat": "none"},
        {"threat": []},
        {"method": "magic"},
        {"method_options": {"group": "paper"}},
        {"method_options": None},
        {"votes.mechanism": []},
        {"votes.mechanism": {"type": "sampled-gaussian", "noise_multiplier": -1.0, "sample_rate": 1.0, "steps": 4}},
        {"assumptions": None},
        {"versions": 3},
        {"error_budget": "none"},
        {"votes.run_ids": 7},
        {"votes.arrays": {}},
        {"votes.arrays": 7},
        {"votes.arrays": {"counts": np.array(COUNTS), "votes": np.array(COUNTS)}},
        {"label": np.zeros(3)},
        {"radius": np.array([3.5, 0.0, -1.0])},
        {"radius": np.array([3, 0, -1])},
        {"radius": [3, 0]},
        {"radius": [3, 0, -1, 0]},
        {"radius": [3, True, -1]},
        {"radius": [3, 0.0, -1]},
        {"radius": [3, "0", -1]},
        {"radius": [3, None, -1]},
        {"radius": [10**30, 0, -1]},
        {"radius": "abc"},
        {"radius": None},
        {"label": [0, 1]},
        {"status": None},
        {"status": "certified"},
        {"status": ["certified", "certified"]},
        {"status": ["certified", "certified", "fine"]},
        {"status": ["certified", "certified", 0]},
        {"status": ["certified", "certified", []]},
        {"class": ["a", "b", "c"]},
        {"class": []},
        {"input_hash": ["0" * 64] * 2},
        {"input_hash": ["0" * 63, "0" * 64, "0" * 64]},
        {"input_hash": ["A" * 64] * 3},
        {"input_hash": "0" * 64},
        {"training": {}},
        {"training": {"fingerprint": "0" * 64, "examples": 0}},
        {"training": {"fingerprint": "0" * 64, "examples": 2.0}},
        {"training": {"fingerprint": "sha256", "examples": 2}},
        {"training": {"fingerprint": "0" * 64, "examples": 2, "radius": 9}},
        {"training": {"fingerprint": "0" * 64, "examples": 2, "features": 3}},
        {"votes.training": {"fingerprint": "0" * 64, "examples": 2}},
        {"votes.arrays": {"counts": np.array(COUNTS), "input_hashes": np.zeros((3, 32), np.uint8)}},
        {"issued": None},
        {"issued": "yesterday"},
        {"issued": "2026-02-30T00:00:00Z"},
        {"issued": "2026-02-03T00:00:00+01:00"},
        {"radii": [9, 9, 9]},
        {"certified_radius": 9},
        {"votes.radius": [9, 9, 9]},
        {"votes": {}},
        {"votes": None},
    ],
    ids=str,
)
def test_content_that_makes_no_sense_cannot_be_read(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "c.json"
    forge(certify(Votes.from_counts(COUNTS, mechanism=GAUSSIAN)), path, lambda content: _update(content, change))
    with pytest.raises(ArtifactError):
        verify(path)


CONTENT = (
    "issued versions training error_budget "
    "method method_options threat failure_prob scope on bounds assumptions label radius status votes votes.mechanism "
    "votes.data_fingerprint votes.run_ids votes.assumptions votes.recipe votes.arrays"
)


@pytest.mark.parametrize("key", CONTENT.split())
def test_missing_content_cannot_be_read(tmp_path: Path, key: str) -> None:
    path = tmp_path / "c.json"
    forge(certify(Votes.from_counts(COUNTS, mechanism=GAUSSIAN)), path, lambda content: _drop(content, key))
    with pytest.raises(ArtifactError):
        verify(path)


# --- the cache is never read ----------------------------------------------------------------------------------------


def test_a_falsified_cache_fools_certify_but_not_verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv("MITHRIDATE_CACHE", str(folder))
    votes = Votes.from_counts(COUNTS, mechanism=SAMPLED)
    honest = certify(votes, method=FDP(cached=False))
    harmless = TradeoffCurve(np.zeros(1), np.ones(1), ErrorBudget(0.0, 0.0, 0.0, 0.0))
    store = CurveStore(SAMPLED, folder)
    for changes in range(1, 65):
        store.put(changes, 0, harmless)
        store.put(0, changes, harmless)
    store.close()
    assert np.array_equal(certify(votes).radius, honest.radius)  # such curves are not believed
    # Who knows what is checked can write a file that passes, which stands for a check that passes anything.
    monkeypatch.setattr(curve_store, "check_plausible", lambda *_: None)
    for path in folder.iterdir():
        path.unlink()
    store.put(65, 0, harmless)
    store.close()
    fooled = certify(votes)
    assert (fooled.radius[:2] > 2 * honest.radius[:2]).all()
    assert failed(fooled, tmp_path / "c.json") == {"radii"}
    assert failed(honest, tmp_path / "c.json") == set()


def test_verify_does_not_even_open_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv("MITHRIDATE_CACHE", str(folder))
    certificates = [certify(Votes.from_counts(COUNTS, mechanism=SAMPLED), method=method) for method in METHODS]
    files = list(folder.iterdir())
    assert len(files) == 1
    files[0].write_bytes(b"garbage")

    def refuse(*_: Any) -> None:
        raise AssertionError("verify opened the curve cache")

    monkeypatch.setattr(CurveStore, "__init__", refuse)
    for certificate in certificates:
        assert failed(certificate, tmp_path / "c.json") == set()
    assert files[0].read_bytes() == b"garbage"


def test_the_outcome_is_plain_json(tmp_path: Path) -> None:
    certificate = certify(Votes.from_counts(COUNTS, mechanism=GAUSSIAN))
    certificate.save(tmp_path / "c.json")
    content = verify(tmp_path / "c.json").to_dict()
    assert content["schema"] == "mithridate.verification/1"
    assert content["valid"] is True
    assert all(set(check) == {"name", "passed", "detail"} for check in content["checks"])


# --- other defences -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "threat"), CLAIMS)
def test_certificates_of_every_defence_are_confirmed_and_larger_claims_are_not(
    tmp_path: Path, name: str, threat: Threat
) -> None:
    certificate = RIVALS[name].certificate(threat)
    assert failed(certificate, tmp_path / "c.json") == set()
    best = np.argmax(np.where(certificate.radius < 1 << 20, certificate.radius, -1))
    more = certificate.radius.copy()
    more[best] = 2 * more[best] + 20
    refused = failed(replace(certificate, radius=more), tmp_path / "c.json")
    assert refused == {"labels and radii" if name in EXACT else "radii"}


@pytest.mark.parametrize("name", EXACT)
def test_forged_functions_are_refused(tmp_path: Path, name: str) -> None:
    certificate = RIVALS[name].certificate()
    forgeries: list[tuple[dict[str, Any], str]] = [
        ({"label": np.roll(certificate.label, 1)}, "labels and radii"),
        ({"label": certificate.label - 1}, "labels and radii"),
        ({"label": certificate.label + 3}, "labels and radii"),
        ({"radius": certificate.radius - 9}, "labels and radii"),
        ({"status": np.full(4, Status.SEARCH_LIMIT.value)}, "labels and radii"),
        ({"status": np.full(4, Status.NOT_SEPARATED.value)}, "labels and radii"),
        (
            {"votes": replace(certificate.votes, counts=np.roll(certificate.votes.counts, 1, axis=1))},
            "labels and radii",
        ),
        ({"assumptions": ()}, "assumptions"),
    ]
    for change, check in forgeries:
        assert failed(replace(certificate, **change), tmp_path / "c.json") == {check}, change


@pytest.mark.parametrize("name", [name for name in EXACT if RIVALS[name].votes.evidence])
def test_forged_or_missing_evidence_is_refused(tmp_path: Path, name: str) -> None:
    certificate = RIVALS[name].certificate(Threat.REMOVE)
    ((key, array),) = certificate.votes.evidence.items()
    for forged in ({}, {key: array[:, :2]}, {key: array[::-1]}, {key: array.astype(np.int64) + 1}):
        votes = replace(certificate.votes, evidence=forged)
        assert failed(replace(certificate, votes=votes), tmp_path / "c.json") == {"labels and radii"}, forged


@pytest.mark.parametrize("name", EXACT)
def test_a_changed_byte_of_an_exact_certificate_is_seen(tmp_path: Path, name: str) -> None:
    path = tmp_path / "c.json"
    RIVALS[name].certificate().save(path)
    text = path.read_text()
    path.write_text(text.replace("symmetric-difference", "symmetric_difference", 1))
    outcome = verify(path)
    assert [check.name for check in outcome.checks if not check.passed] == ["file unchanged"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("dpa", {"failure_prob": 0.001}),
        ("dpa", {"bounds": "simultaneous"}),
        ("dpa", {"method": "fdp"}),
        ("dpa", {"method": "bagging"}),
        ("dpa", {"method_options": {"max_change": 1.0}}),
        ("dpa", {"votes.mechanism": {"type": "bagged", "num_train": 10, "draws": 2}}),
        ("dpa", {"votes.mechanism": {"type": "partitioned"}}),
        ("dpa", {"votes.mechanism": {"type": "partitioned", "partitions": 0}}),
        ("dpa", {"votes.mechanism": {"type": "partitioned", "partitions": 9, "extra": 1}}),
        ("bagging", {"failure_prob": 0.0}),
        ("bagging", {"bounds": "exact"}),
        ("bagging", {"method": "dpa"}),
        ("feature-smoothing", {"method_options": {}}),
        ("feature-smoothing", {"method_options": {"max_change": "far"}}),
        ("feature-smoothing", {"method_options": {"max_change": -1.0}}),
        ("kernel-vote", {"votes.mechanism": {"type": "partitioned", "partitions": 9}}),
    ],
)
def test_claims_that_do_not_fit_their_mechanism_cannot_be_read(
    tmp_path: Path, name: str, change: dict[str, Any]
) -> None:
    forge(RIVALS[name].certificate(), tmp_path / "c.json", lambda content: None)
    assert verify(tmp_path / "c.json").valid
    forge(RIVALS[name].certificate(), tmp_path / "c.json", lambda content: _update(content, change))
    with pytest.raises(ArtifactError):
        verify(tmp_path / "c.json")


# --- recipes --------------------------------------------------------------------------------------------------------


def _recipe_check(votes: Votes, path: Path) -> bool | None:
    """Whether the recipe passes, None where there is nothing to compare."""
    certify(votes).save(path)
    outcome = verify(path)
    found = {check.name: check.passed for check in outcome.checks}
    assert outcome.valid == found.get("recipe", True)
    return found.get("recipe")


def test_a_recipe_of_another_mechanism_is_refused(tmp_path: Path) -> None:
    votes = Votes.from_counts(COUNTS, mechanism=Subsampled(0.5, GAUSSIAN))
    config = {"noise_multiplier": GAUSSIAN.noise_multiplier, "sample_rate": GAUSSIAN.sample_rate, "keep": 0.5}
    path = tmp_path / "certificate.json"
    assert _recipe_check(votes, path) is None
    assert (
        _recipe_check(replace(votes, recipe={"config": {"learning_rate": 1.0, "noise_multiplier": None}}), path) is None
    )
    assert _recipe_check(replace(votes, recipe={"config": config}), path)
    for name in config:
        assert _recipe_check(replace(votes, recipe={"config": {**config, name: 0.123}}), path) is False


def test_the_recipes_of_trained_votes_are_those_of_their_mechanisms(tmp_path: Path) -> None:
    from mithridate.defences import defence

    rng = np.random.default_rng(3)
    data = rng.normal(size=(60, 4)).astype(np.float32), rng.integers(0, 3, 60)
    how: dict[str, Any] = {"model": "linear", "features": "none", "steps": 2}
    voters = [
        defence("bagging", instances=9, draws=7, **how),
        defence("dpa", partitions=5, **how),
        defence("label-smoothing", instances=9, flip_prob=0.2, **how),
        defence("nearest-neighbours", neighbours=[9, 5], leads=[2], features="none"),
    ]
    changed = ({"draws": 6}, {"partitions": 7}, {"flip_prob": 0.3}, {"neighbours": [9, 4]})
    for voter, change in zip(voters, changed, strict=True):
        path, votes = tmp_path / f"{voter.name}.json", voter.train(data, data)
        assert isinstance(votes.recipe, dict)
        for recipe, passes in ((votes.recipe, True), ({**votes.recipe, "config": change}, False)):
            certificate = voter.certify(replace(votes, recipe=recipe))
            assert isinstance(certificate, Certificate)
            certificate.save(path)
            assert {check.name: check.passed for check in verify(path).checks}["recipe"] == passes


def test_radii_beyond_any_curve_are_refused_without_a_traceback(tmp_path: Path) -> None:
    # So little noise that no curve is known but K <= 1, whoever is kept: nothing holds.
    votes = Votes.from_counts([[1000, 0, 0]], mechanism=Subsampled(0.9999, SampledGaussian(0.001, 0.5, 10)))
    forged = replace(certify(votes, threat=Threat.REMOVE), radius=np.array([3]))
    forged.save(tmp_path / "forged.json")
    checks = {check.name: check.passed for check in verify(tmp_path / "forged.json").checks}
    assert not checks["radii"]


@pytest.mark.parametrize("name", ["bagging", "label-smoothing", "feature-smoothing", "fdp"])
def test_radii_beyond_the_search_are_wrong_and_not_computed(tmp_path: Path, name: str) -> None:
    """A file may claim any number; sums over that many changes would fill the memory."""
    honest = certify(Votes.from_counts(COUNTS, mechanism=SAMPLED)) if name == "fdp" else RIVALS[name].certificate()
    forged = replace(honest, radius=np.where(honest.radius > 0, 10**18 + honest.radius, honest.radius))
    forged.save(tmp_path / "c.json")
    (check,) = (check for check in verify(tmp_path / "c.json").checks if check.name == "radii")
    assert not check.passed
    assert "do not hold" in check.detail
