"""What is claimed of all predictions together, against every set of parts and every vote of spoiled models."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_cli import run, run_json
from test_partitions import histogram, largest
from test_verification import forge

from mithridate import Certificate, SampledGaussian, Threat, Votes, certify, verify
from mithridate.auditing import together
from mithridate.certifying import collective
from mithridate.core.conditions import Size
from mithridate.core.units import Unit
from mithridate.defences.partitions import (
    MajorityRule,
    Partitioned,
    Parts,
    RunOffRule,
    SpreadPartitions,
    SpreadParts,
    SpreadRule,
)
from mithridate.errors import ArtifactError, MithridateError, UnsupportedMechanismError
from mithridate.training import task

Rows = Sequence[Sequence[int]]


def votes_of(rows: Any, classes: int, **more: Any) -> Votes:
    table = np.array(rows)
    return Votes(
        histogram(table.tolist(), classes), Partitioned(table.shape[1]), evidence={"predictions": table}, **more
    )


def changed(rows: Rows, classes: int, spoiled: Sequence[int], weights: Sequence[int]) -> int:
    """How many inputs a set of spoiled models can change: on each, the votes of all its models are tried."""
    found = 0
    for row in rows:
        before = largest([weight * list(row).count(label) for label, weight in enumerate(weights)])
        for new in product(range(classes), repeat=len(spoiled)):
            after = list(row)
            for model, vote in zip(spoiled, new, strict=True):
                after[model] = vote
            if largest([weight * after.count(label) for label, weight in enumerate(weights)]) != before:
                found += 1
                break
    return found


def truth(rows: Rows, classes: int, touched: int, weights: Sequence[int] | None = None) -> int:
    models = len(rows[0])
    sets = combinations(range(models), min(touched, models))
    return max(changed(rows, classes, spoiled, weights or [1] * classes) for spoiled in sets)


def tables(largest_table: int = 5) -> st.SearchStrategy[tuple[Rows, int]]:
    """Votes of up to 5 models that mostly agree."""

    @st.composite
    def drawn(draw: st.DrawFn) -> tuple[Rows, int]:
        classes, models = draw(st.integers(2, 3)), draw(st.integers(1, 5))
        row = st.lists(st.sampled_from([0, 0, 1, classes - 1]), min_size=models, max_size=models)
        return draw(st.lists(row, min_size=1, max_size=largest_table)), classes

    return drawn()


def relaxed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try no set of parts: what is left is the bound by multipliers."""
    monkeypatch.setattr(collective, "_MOST_PAIRS", 0)


@given(tables(), st.integers(1, 2))
def test_small_cases_are_exact(table: tuple[Rows, int], touched: int) -> None:
    rows, classes = table
    found = certify(votes_of(rows, classes), collective=[touched]).collective
    assert found is not None
    assert not found.proofs
    assert found.most_changed == {touched: truth(rows, classes, touched)}


@given(tables(), st.integers(1, 2))
def test_multipliers_bound_every_attack_and_never_more_than_single_radii(table: tuple[Rows, int], touched: int) -> None:
    rows, classes = table
    with pytest.MonkeyPatch.context() as monkeypatch:
        relaxed(monkeypatch)
        certificate = certify(votes_of(rows, classes), collective=[touched])
    assert certificate.collective is not None
    most = certificate.collective.most_changed[touched]
    assert truth(rows, classes, touched) <= most <= int((certificate.radius < touched).sum())


@given(tables(3), st.lists(st.integers(1, 4), min_size=3, max_size=3), st.integers(1, 2), st.booleans())
def test_class_weights_are_exact_too(
    table: tuple[Rows, int], weights: list[int], touched: int, by_multipliers: bool
) -> None:
    rows, classes = table
    rule = MajorityRule(class_weights=tuple(weights[:classes]))
    with pytest.MonkeyPatch.context() as monkeypatch:
        if by_multipliers:
            relaxed(monkeypatch)
        found = certify(votes_of(rows, classes), method=rule, collective=[touched]).collective
    assert found is not None
    expected = truth(rows, classes, touched, weights[:classes])
    assert found.most_changed[touched] >= expected if by_multipliers else found.most_changed[touched] == expected


@pytest.mark.parametrize("by_multipliers", [False, True])
@pytest.mark.parametrize("offsets", [(0, 1), (1, 4)])
def test_overlapping_parts_are_never_undercounted(
    monkeypatch: pytest.MonkeyPatch, offsets: tuple[int, ...], by_multipliers: bool
) -> None:
    if by_multipliers:
        relaxed(monkeypatch)
    mechanism, random = SpreadPartitions(3, offsets), np.random.default_rng(4)
    for _ in range(6):
        rows = random.choice(3, (8, 6), p=[0.6, 0.3, 0.1]).tolist()
        votes = Votes(histogram(rows, 3), mechanism, evidence={"predictions": np.array(rows)})
        found = certify(votes, collective=[1, 2]).collective
        assert found is not None
        for radius in (1, 2):
            spoiled = [
                sorted({(bucket + offset) % 6 for bucket in buckets for offset in offsets})
                for buckets in combinations(range(6), radius)
            ]
            assert max(changed(rows, 3, each, [1, 1, 1]) for each in spoiled) <= found.most_changed[radius]


def test_an_attack_reaches_the_number_which_single_radii_miss() -> None:
    # 0 has two votes and each rival one: only a part that votes for 0 takes both votes that a rival needs. The two of
    # each input are neighbours in a circle of five, so one part serves two of the five inputs.
    rows = [[[0, 0, 1, 2, 3][(part - shift) % 5] for part in range(5)] for shift in range(5)]
    certificate = certify(votes_of(rows, 4), collective=[1, 2])
    assert certificate.radius.tolist() == [0] * 5
    assert certificate.collective is not None
    assert certificate.collective.most_changed == {1: 2, 2: 5}
    assert [changed(rows, 4, [part], [1] * 4) for part in range(5)] == [2] * 5


def many(inputs: int = 300, models: int = 40, seed: int = 0) -> Votes:
    random = np.random.default_rng(seed)
    shares = random.dirichlet([0.5] * 5, size=inputs)
    return votes_of([random.choice(5, models, p=each) for each in shares], 5)


def test_it_grows_with_the_radius_and_beats_single_radii() -> None:
    certificate = certify(many(150), collective=range(1, 12))
    assert certificate.collective is not None
    most = list(certificate.collective.most_changed.values())
    alone = [int((certificate.radius < radius).sum()) for radius in range(1, 12)]
    assert most == sorted(most)
    assert all(one <= other for one, other in zip(most, alone, strict=True))
    assert sum(most[:6]) < 0.9 * sum(alone[:6])


def test_attacks_on_many_inputs_stay_below() -> None:
    votes, random = many(), np.random.default_rng(1)
    found = certify(votes, collective=[3]).collective
    assert found is not None
    predictions, best = votes.evidence["predictions"].astype(int), 0
    label = votes.counts.argmax(axis=1)
    for _ in range(300):
        spoiled = random.choice(40, 3, replace=False)
        left = votes.counts - (predictions[:, spoiled, None] == np.arange(5)).sum(axis=1)
        rivals = [left + 3 * (np.arange(5) == rival) for rival in range(5)]
        best = max(best, int(np.any([each.argmax(axis=1) != label for each in rivals], axis=0).sum()))
    assert 0.5 * found.most_changed[3] < best <= found.most_changed[3]


# --- whatever the floating point does -------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["nan", "infinite", "negative", "huge", "zero", "random"])
def test_wrong_multipliers_prove_less_and_nothing_false(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    relaxed(monkeypatch)
    values = {"nan": np.nan, "infinite": np.inf, "negative": -1e9, "huge": 1e30, "zero": 0.0}

    def broken(costs: Any, touched: int, multipliers: Any, spoiled: Any) -> Any:
        found = np.random.default_rng(0).random(len(costs)) if fault == "random" else np.full(len(costs), values[fault])
        return found, spoiled

    monkeypatch.setattr(collective, "_saddle", broken)
    random = np.random.default_rng(2)
    for _ in range(4):
        rows = random.choice(3, (6, 6), p=[0.6, 0.3, 0.1]).tolist()
        certificate = certify(votes_of(rows, 3), collective=[1, 2])
        assert certificate.collective is not None
        for radius, most in certificate.collective.most_changed.items():
            assert truth(rows, 3, radius) <= most <= int((certificate.radius < radius).sum())


def test_too_many_states_fall_back_on_multipliers(monkeypatch: pytest.MonkeyPatch) -> None:
    votes = many(20, 12)
    exact = certify(votes, collective=[2]).collective
    monkeypatch.setattr(collective, "_MOST_STATES", 5)
    bounded = certify(votes, collective=[2]).collective
    assert exact is not None
    assert bounded is not None
    assert not exact.proofs
    assert set(bounded.proofs) == {2}
    assert exact.most_changed[2] <= bounded.most_changed[2]


# --- what counts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threat", list(Threat))
def test_changed_examples_touch_two_parts_and_changed_units_one(threat: Threat) -> None:
    votes = many(60, 20)
    named = replace(votes, unit=Unit("vendor", 100))
    touched = {radius: threat.changes(radius) for radius in (1, 2, 3)}
    by_parts = certify(votes, collective=[1, 2, 3, 4, 6]).collective
    of_examples, of_units = (certify(each, threat=threat, collective=[1, 2, 3]).collective for each in (votes, named))
    assert by_parts is not None
    assert of_examples is not None
    assert of_units is not None
    assert of_examples.most_changed == {radius: by_parts.most_changed[touched[radius]] for radius in (1, 2, 3)}
    assert of_units.most_changed == {radius: by_parts.most_changed[radius] for radius in (1, 2, 3)}


def test_beyond_the_size_step_nothing_is_known(tmp_path: Path) -> None:
    votes = replace(many(60, 20), size=Size.of(136))
    certificate = certify(votes, collective=[1, 2, 3])
    assert certificate.collective is not None
    assert certificate.collective.most_changed[1] < 60
    assert [certificate.collective.most_changed[radius] for radius in (2, 3)] == [60, 60]
    certificate.save(tmp_path / "c.json")
    assert verify(tmp_path / "c.json").valid
    small = replace(certificate.collective, most_changed={**certificate.collective.most_changed, 2: 59})
    replace(certificate, collective=small).save(tmp_path / "c.json")
    assert not verify(tmp_path / "c.json").valid


def test_without_changes_that_reach_anything_nothing_changes() -> None:
    found = certify(votes_of([[0] * 20, [1] * 20], 2), collective=[1, 5]).collective
    assert found is not None
    assert found.most_changed == {1: 0, 5: 0}


PRIVATE = Votes.from_counts([[6, 4]], mechanism=SampledGaussian(3.0, 0.001, 1000))


@pytest.mark.parametrize(
    ("votes", "options", "message"),
    [
        (many(5), {"collective": []}, "radii from 1 to 1,048,576"),
        (many(5), {"collective": [0, 3]}, "radii from 1 to 1,048,576"),
        (many(5), {"collective": [1.5]}, "radii from 1 to 1,048,576"),
        (many(5), {"collective": [1 << 21]}, "radii from 1 to 1,048,576"),
        (many(5), {"collective": ["3"]}, "radii from 1 to 1,048,576"),
        (replace(many(5), evidence={}), {"collective": [1]}, "needs the evidence 'predictions'"),
        (
            replace(many(5), evidence={"predictions": np.zeros((5, 3), int)}),
            {"collective": [1]},
            "in the shape examples x 40",
        ),
        (
            replace(many(5), evidence={"predictions": np.zeros((5, 40), int)}),
            {"collective": [1]},
            "does not add up to the counts",
        ),
        (PRIVATE, {"collective": [1]}, "certifies each prediction by itself; leave collective out"),
    ],
)
def test_what_cannot_be_is_refused(votes: Votes, options: Any, message: str) -> None:
    with pytest.raises(MithridateError, match=message):
        certify(votes, **options)


def test_a_run_off_election_is_refused() -> None:
    with pytest.raises(UnsupportedMechanismError, match="run-off-election certifies each prediction by itself"):
        RunOffRule().decide_together(many(5), Threat.ADD, [1])
    with pytest.raises(UnsupportedMechanismError, match="is for votes of SpreadPartitions"):
        SpreadRule().decide_together(many(5), Threat.ADD, [1])


# --- as a file, and by another route --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    return certify(many(), collective=[1, 3, 8])


def test_a_file_holds_it_and_its_proof(tmp_path: Path, certificate: Certificate) -> None:
    assert certificate.collective is not None
    certificate.save(tmp_path / "c.json")
    again = Certificate.load(tmp_path / "c.json")
    assert again == certificate
    assert again.collective is not None
    for radius, proof in certificate.collective.proofs.items():
        assert np.array_equal(again.collective.proofs[radius], proof)
    assert again.to_dict()["collective"] == {str(r): most for r, most in certificate.collective.most_changed.items()}
    assert "collective" not in certify(many()).to_dict()
    assert replace(certificate, collective=None) != certificate


@pytest.mark.parametrize("by_multipliers", [False, True])
@pytest.mark.parametrize("kind", ["dpa", "weights", "spread"])
def test_right_claims_are_confirmed_and_forged_ones_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, by_multipliers: bool
) -> None:
    if by_multipliers:
        relaxed(monkeypatch)
    random = np.random.default_rng(3)
    rows = random.choice(3, (25, 12), p=[0.55, 0.3, 0.15])
    votes, rule = votes_of(rows, 3), MajorityRule(class_weights=(2, 3, 4)) if kind == "weights" else None
    if kind == "spread":
        votes = replace(votes, mechanism=SpreadPartitions(4, (0, 2, 5)))
    for radius in (1, 2, 3):
        found = certify(votes, method=rule, collective=[radius])
        assert found.collective is not None
        assert bool(found.collective.proofs) == by_multipliers
        found.save(tmp_path / "c.json")
        outcome = verify(tmp_path / "c.json")
        assert outcome.valid
        assert [check.name for check in outcome.checks][-1] == "together"
        most = found.collective.most_changed[radius]
        if most:
            forged = replace(found.collective, most_changed={radius: most - 1})
            replace(found, collective=forged).save(tmp_path / "c.json")
            outcome = verify(tmp_path / "c.json")
            assert [check.name for check in outcome.checks if not check.passed] == ["together"]


@pytest.mark.parametrize("change", ["none", "zero", "thresholds", "other"])
def test_a_proof_that_proves_less_is_not_enough(tmp_path: Path, certificate: Certificate, change: str) -> None:
    assert certificate.collective is not None
    proofs = {radius: proof.copy() for radius, proof in certificate.collective.proofs.items()}
    for proof in proofs.values():
        if change == "zero":
            proof[0] = 0
        elif change == "thresholds":
            proof[1] = 1 << 24
        elif change == "other":
            proof[:] = proof[:, ::-1]
    found = replace(certificate.collective, proofs={} if change == "none" else proofs)
    replace(certificate, collective=found).save(tmp_path / "c.json")
    together._MOST_STATES, most = 2_000, together._MOST_STATES
    try:
        assert not verify(tmp_path / "c.json").valid
    finally:
        together._MOST_STATES = most


def test_without_predictions_or_on_random_votes_it_is_not_believed(tmp_path: Path, certificate: Certificate) -> None:
    bare = replace(certificate.votes, evidence={})
    replace(certificate, votes=bare).save(tmp_path / "c.json")
    assert not verify(tmp_path / "c.json").valid
    replace(certify(PRIVATE), collective=certificate.collective).save(tmp_path / "c.json")
    with pytest.raises(ArtifactError):
        verify(tmp_path / "c.json")
    small = certify(votes_of([[0, 0, 0]], 2), collective=[1]).collective
    replace(certify(PRIVATE), collective=small).save(tmp_path / "c.json")
    assert not verify(tmp_path / "c.json").valid


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("collective", {}),
        ("collective", []),
        ("collective", {"0": 3}),
        ("collective", {"01": 3}),
        ("collective", {"-1": 3}),
        ("collective", {"1": 301}),
        ("collective", {"1": -1}),
        ("collective", {"1": True}),
        ("collective", {"1": 3.0}),
        ("collective", {"99999999": 3}),
        ("collective", None),
        ("collective_proof", None),
        ("collective_proof", {"2": {"dtype": "int64", "shape": [0], "data": ""}}),
        ("collective_proof", {"1": [1, 2]}),
    ],
)
def test_files_that_hold_something_else_are_refused(
    tmp_path: Path, certificate: Certificate, name: str, value: Any
) -> None:
    forge(certificate, tmp_path / "c.json", lambda content: content.update({name: value}))
    with pytest.raises(ArtifactError, match=r"cannot be understood|collective|array"):
        Certificate.load(tmp_path / "c.json")


# --- for people -----------------------------------------------------------------------------------------------------


def test_the_command_line_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    votes = many()
    votes.save(tmp_path / "v.npz")
    found = certify(votes, collective=[3, 8])
    assert found.collective is not None
    arguments = ["certify", tmp_path / "v.npz", "--collective", "3,8", "--out", tmp_path / "c.json"]
    assert run_json(capsys, *arguments)["collective"] == found.collective.to_dict()
    most, alone = found.collective.most_changed[3], int((found.radius < 3).sum())
    sentence = f"Together: at most {most} of 300 predictions would change if up to 3 training examples were added or"
    assert sentence in " ".join(run(capsys, *arguments).out.split())
    assert run_json(capsys, "verify", tmp_path / "c.json", "--run", tmp_path / "v.npz")["valid"]
    refused = run(capsys, "certify", tmp_path / "v.npz", "--collective", "0")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    page = Certificate.load(tmp_path / "c.json").report(methods=())
    assert f"were added or removed; by their own radii it could be {alone}." in page._repr_html_()
    assert "Together: at most" in page.markdown()


def test_trained_parts_keep_what_it_needs_while_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert task._evidence_of(Parts(10), 100) == ("predictions",)
    monkeypatch.setattr(task, "_MOST_PREDICTIONS", 999)
    assert task._evidence_of(Parts(10), 100) == ()
    assert task._evidence_of(SpreadParts(5, 2), 100) == ("predictions",)
