"""Audits of claims about inputs that move: triggers are as long as they say, and what forgets inputs is found out."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audit_doubles import CONTROL_KEYS, TARGET_KEYS, as_json, digits
from test_audit_page import page
from test_cli import run
from test_input_noise import images, numbers

from mithridate import Audit, audit, certify
from mithridate.attacking import judging, search
from mithridate.attacking.judging import Claims
from mithridate.attacking.retraining import Pipeline
from mithridate.attacking.scene import Moved
from mithridate.attacking.triggers import DRIFT, PATCH, Ruler, moved_copies
from mithridate.core.mechanism import Threat
from mithridate.data.examples import Examples
from mithridate.defences import defence
from mithridate.errors import ConfigError, UnsupportedMechanismError
from mithridate.training.input_noise import NoisyInputs
from mithridate.training.order import RuntimeOptions, compose

NEAREST: dict[str, Any] = {"neighbours": 15, "moving_inputs": True}
# Quick to train; every constant is declared.
PRIVATE: dict[str, Any] = {
    "model": "linear", "features": "none", "instances": 100, "noise_multiplier": 8.0, "sample_rate": 0.2, "steps": 4,
    "max_grad_norm": 1.0, "learning_rate": 1.0, "num_train": 200, "classes": 2, "input_noise": 1.5,
}  # fmt: skip


def found(name: str, constants: dict[str, Any], data: Any, **asked: Any) -> Audit:
    training, test = data
    return audit(defence(name, **constants), training, test, **{"targets": 2, "minutes": None, **asked})


def rows(inputs: int = 20) -> tuple[Examples, Examples]:
    """Two classes that lie apart by less than the noise of `PRIVATE`."""
    return numbers(200, 1, apart=1.0), numbers(inputs, 2, apart=1.0)


# --- how long triggers are --------------------------------------------------------------------------------------------


def pieces(data: Any, name: str, **constants: Any) -> tuple[Examples, Examples, Ruler]:
    training, test = data
    order = compose(defence(name, **constants), training, test)
    return training, test, Ruler.of_method(order.defence, training)


LENGTHS = (0.1, 0.4, 1.6)


def checked(test: Examples, copies: Any, moved: list[Moved], true_lengths: Any, lengths: Any = LENGTHS) -> None:
    """Every copy is no longer than it says, that is just above the truth, and copies are of the lengths asked for."""
    assert len(copies) == len(moved) > 0
    assert copies.dtype == test.x.dtype
    for each, true in zip(moved, true_lengths, strict=True):
        assert 0 < true <= each.length <= true + 3e-6
        assert each.length <= max(lengths)
    for of, trigger in {(each.of, each.trigger) for each in moved}:
        own = [each.length for each in moved if (each.of, each.trigger) == (of, trigger)]
        assert own == sorted(set(own))


def test_triggers_on_images_are_no_longer_than_asked_after_rounding() -> None:
    data = images(80, 1), images(12, 2)
    training, test, ruler = pieces(data, "bagging", instances=5, draws=10, classes=2, num_train=80, input_noise=0.5)
    copies, moved = moved_copies(training, test, range(12), LENGTHS, ruler)
    # In whole numbers: the sum of squares over 255 squared.
    squares = [
        sum((int(a) - int(b)) ** 2 for a, b in zip(copy.ravel(), test.x[each.of].ravel(), strict=True))
        for copy, each in zip(copies, moved, strict=True)
    ]
    checked(test, copies, moved, [math.sqrt(square) / 255 for square in squares])
    for square, each in zip(squares, moved, strict=True):
        claimed = next(most for most in LENGTHS if each.length <= most)
        assert square <= (255 * claimed) ** 2
    assert {each.trigger for each in moved} == {PATCH, DRIFT}
    # A drift of 36 pixels can be as long as any of these, but for the rounding of each pixel.
    drifts = [each.length for each in moved if each.trigger == DRIFT]
    assert all(min(abs(length - most) for most in LENGTHS) < 6 * 0.5 / 255 * 2 for length in drifts)


def test_triggers_on_numbers_are_of_the_length_asked_for() -> None:
    training, test, ruler = pieces(rows(), "fdp", **PRIVATE)
    copies, moved = moved_copies(training, test, range(20), LENGTHS, ruler)
    far = [
        math.sqrt(math.fsum((float(a) - float(b)) ** 2 for a, b in zip(copy, test.x[each.of], strict=True)))
        for copy, each in zip(copies, moved, strict=True)
    ]
    checked(test, copies, moved, far)
    assert all(min(abs(length / most - 1) for most in LENGTHS) < 1e-3 for length in far)


@pytest.mark.parametrize("kind", ["rows", "images"])
def test_where_features_move_their_real_distance_counts(kind: str) -> None:
    data = rows(6) if kind == "rows" else digits(200, 6)
    lengths = (0.02, 0.1, 0.4)
    training, test, ruler = pieces(data, "nearest-neighbours", **NEAREST)
    copies, moved = moved_copies(training, test, range(6), lengths, ruler)
    encoder = ruler.defence.encoder

    def unit(x: Any) -> Any:
        row = np.asarray(x if encoder is None else encoder.transform(x[None]), dtype=np.longdouble).ravel()
        return row / np.sqrt((row**2).sum())

    far = [
        float(np.sqrt(((unit(copy) - unit(test.x[each.of])) ** 2).sum()))
        for copy, each in zip(copies, moved, strict=True)
    ]
    checked(test, copies, moved, far, lengths)
    assert ruler.of == "features"


def test_poison_carries_the_trigger_at_full_strength() -> None:
    training, test, ruler = pieces(rows(), "fdp", **PRIVATE)
    _, moved = moved_copies(training, test, [0], [0.1], ruler)
    means = [training.x[training.y == label].mean(axis=0, dtype=np.float64) for label in (0, 1)]
    near = int(np.argmin([np.linalg.norm(test.x[0] - mean) for mean in means]))
    (drift,) = [each for each in moved if each.trigger == DRIFT]
    step = drift.stamp(training.x[:3]) - training.x[:3]
    assert np.allclose(step, means[1 - near] - means[near], atol=1e-5)


# --- which claim is meant ---------------------------------------------------------------------------------------------


def frontier() -> Claims:
    """Of three inputs, for changes of 0.1 and 0.5."""
    label, radius = np.array([2, 1, 0]), np.array([9, 4, 0])
    moved, strict = np.array([[7, 4, -1], [3, -1, -1]]), np.array([[6, 2, -1], [1, -1, -1]])
    weights = np.ones(3, dtype=np.int64)
    return Claims(label, radius, radius, 0.01, "votes", weights, (0.1, 0.5), moved, strict)


def test_the_claim_is_that_of_the_smallest_certified_change_which_is_long_enough() -> None:
    of, lengths = np.array([0, 0, 0, 1, 1, 2]), [0.1, 0.100001, 0.51, 0.05, 0.5, 0.01]
    claims = frontier().of_moved(of, lengths)
    assert claims.label.tolist() == [2, 2, 2, 1, 1, 0]
    assert claims.radius.tolist() == [7, 3, -1, 4, -1, -1]
    assert claims.strict.tolist() == [6, 1, -1, 2, -1, -1]
    # What says that changes reach twice as far claims more, and never less.
    twice = frontier().of_moved(of, lengths, times=2)
    assert twice.radius.tolist() == [7, 7, 3, 4, -1, -1]
    assert [frontier().covering_change(length, 4) for length in (0.3, 2.0, 2.1)] == [0.1, 0.5, None]


def test_radii_are_those_of_the_certificate() -> None:
    data = rows()
    votes = defence("nearest-neighbours", **NEAREST).train(*data)
    claims = Claims.of(
        votes, defence("nearest-neighbours", **NEAREST).rule(), Threat.EDIT, 0.01, "votes", 1, (0.1, 0.3)
    )
    whole = certify(votes, threat="edit", input_change=[0.1, 0.3]).frontier
    assert whole is not None
    assert claims.frontier is not None
    assert claims.frontier.tolist() == whole.radius.tolist()
    assert claims.radius.tolist() == certify(votes, threat="edit").radius.tolist()


# --- sound certificates hold, and such that forget the input do not ---------------------------------------------------

_MOVED_KEYS = {"input_change", "input_moved_by", "trigger", "triggered_copy_of"}


@pytest.mark.parametrize(
    ("name", "constants"), [("nearest-neighbours", NEAREST), ("kernel-vote", {"moving_inputs": True})]
)
def test_exact_methods_keep_what_they_claim_of_inputs_that_move(name: str, constants: dict[str, Any]) -> None:
    audited = found(name, constants, rows(), input_change=[0.1, 0.0, 0.02])
    assert (audited.exit_status, audited.violations) == (0, ())
    said = audited.to_dict()
    assert (said["input_change"], said["input_change_of"]) == ([0.02, 0.1], "features")
    assert CONTROL_KEYS <= set(said["input_change_control"])
    assert all(row["claims"] > 20 and row["violations"] == 0 for row in said["frontier"])
    assert sum(row["claims"] for row in said["frontier"]) < said["claims"]
    moved = [each for each in said["targets"] if each["input_change"]]
    assert {each["input_change"] for each in moved} == {0.02, 0.1}
    for each in moved:
        assert {*_MOVED_KEYS, *TARGET_KEYS} <= set(each)
        assert each["input_moved_by"] <= each["input_change"]
        assert each["flipped_at"] is None or each["flipped_at"] > each["radius"]
    assert [each["input_change"] for each in said["targets"][: len(audited.targets)]] == [0.0] * len(audited.targets)


def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every radius with a change of the input is that without one."""
    sound = Claims.of.__func__  # pyright: ignore[reportFunctionMemberAccess]

    def claimed(*given: Any, **more: Any) -> Claims:
        claims = sound(Claims, *given, **more)
        if claims.frontier is None:
            return claims
        all_the_same = np.tile(claims.radius, (len(claims.changes), 1))
        return replace(claims, frontier=all_the_same, strict_frontier=np.tile(claims.strict, (len(claims.changes), 1)))

    monkeypatch.setattr(judging.Claims, "of", claimed)


def test_a_certificate_that_forgets_the_input_is_found_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forgetful(monkeypatch)
    data = rows()
    audited = found("nearest-neighbours", NEAREST, data, input_change=1.2, out=tmp_path)
    assert audited.exit_status == 1
    moved = [each for each in audited.violations if each.move is not None and each.move.input_change == 1.2]
    assert moved
    assert len(moved) == len(audited.violations)  # of inputs as they are nothing false was said
    # The poison and the input that files hold break it again.
    one = next(each for each in json.loads((tmp_path / "audit.json").read_text())["violations"])
    poison = np.load(tmp_path / one["file"])
    assert (len(poison["deleted"]), len(poison["y"])) == (0, 0) or one["budget"] > 0
    with np.load(tmp_path / one["input_file"]) as file:
        x = file["x"]
    trained = defence("nearest-neighbours", neighbours=15)
    before, after = (
        trained.train(data[0], Examples(each, None)) for each in (data[1].x[[one["triggered_copy_of"]]], x)
    )
    assert before.counts[0].argmax() == one["label"]
    if one["budget"] == 0:
        assert after.counts[0].argmax() != one["label"]
    assert "broken, on" in audited.headline
    assert f"{one['triggered_copy_of']} with a " in page(audited).text


def fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer instances, and fewer tries against controls."""
    less = {"_SEARCHING": 32, "_JUDGING": 128, "_CONTROL_TARGETS": 1, "_BUDGETS_OF_CONTROLS": 1}
    for name, value in less.items():
        monkeypatch.setattr(search, name, value)


def quickly(monkeypatch: pytest.MonkeyPatch, change: float, **constants: Any) -> Audit:
    """One target, one budget, one attack, and few instances."""
    fewer(monkeypatch)
    asked: dict[str, Any] = {"attacks": ["backdoor"], "budgets": ["1"], "targets": 1}
    return found("fdp", {**PRIVATE, **constants}, rows(), input_change=change, **asked)


@pytest.mark.more
def test_a_random_method_that_forgets_the_input_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    forgetful(monkeypatch)
    audited = quickly(monkeypatch, 4.0, noise_multiplier=1.0, steps=10)
    assert audited.exit_status == 1
    assert {each.move.input_change for each in audited.violations if each.move is not None} == {4.0}
    assert all(each.p <= audited.failure_prob for each in audited.violations)


def test_noise_that_is_not_added_at_voting_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Votes agree more than they may, so that moves are certified which change labels."""
    monkeypatch.setattr(
        NoisyInputs, "seen_by", lambda self, *_: np.asarray(self.preparation(self.x.astype(np.float32), "test"))
    )
    audited = quickly(monkeypatch, 2.0, noise_multiplier=1.0, steps=10)
    assert audited.exit_status == 1
    assert {each.move.input_change for each in audited.violations if each.move is not None} == {2.0}


# Two classes that lie far apart, and models that agree: something is claimed at every one of these changes.
_APART = {**PRIVATE, "noise_multiplier": 4.0, "steps": 10, "input_noise": 0.7}
_BAGS = {"instances": 100, "draws": 20, "steps": 10, "input_noise": 0.7}


@pytest.mark.more
@pytest.mark.parametrize(("name", "constants"), [("fdp", _APART), ("bagging", _BAGS)])
def test_a_random_method_keeps_what_it_claims_of_inputs_that_move(
    name: str, constants: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fewer(monkeypatch)
    asked: dict[str, Any] = {"attacks": ["copies", "backdoor"], "budgets": ["1"], "targets": 1}
    # 16 times 0.5 is farther than any input is from the other side. Models and noise are drawn at random, and of the
    # first seven controls one found nothing: at that rate four in a row do so once in 2,400 times.
    for _ in range(4):
        audited = found(name, constants, (numbers(200, 1), numbers(20, 2)), input_change=[0.2, 0.5], **asked)
        assert audited.violations == ()
        assert all(each.claims > 0 for each in audited.frontier)
        assert audited.moved_control is not None
        if audited.moved_control.has_power:
            break
    else:
        pytest.fail("no control found what is false")


@pytest.mark.more
@pytest.mark.parametrize("keep", [False, True])
def test_runs_on_noisy_images_are_audited(tmp_path: Path, keep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims about inputs that move are those of the inputs, so that no models need be asked."""
    fewer(monkeypatch)
    data, run_dir = (images(200, 1), images(20, 2)), tmp_path / "run"
    method = defence("fdp", **{**_APART, "noise_multiplier": 2.0, "input_noise": 0.5})
    compose(method, *data).run(RuntimeOptions(run_dir=run_dir, keep_models=keep))
    asked: dict[str, Any] = {"attacks": ["backdoor"], "budgets": ["1"], "targets": 1, "minutes": None}
    audited = audit(method, *data, run_dir=run_dir, input_change=0.1, **asked)
    assert (audited.violations, audited.changes_of) == ((), "pixels")
    assert audited.frontier[0].claims > 0
    assert len(audited.triggered) == keep
    assert any("keeps no models" in note for note in audited.notes) != keep


# --- what is asked, and what is left ----------------------------------------------------------------------------------


def test_an_audit_of_inputs_as_they_are_says_what_it_said() -> None:
    constants = {"neighbours": 15}
    plain = found("nearest-neighbours", constants, rows())
    said = plain.to_dict()
    assert not {"input_change", "frontier", "input_change_of", "input_change_control"} & set(said)
    assert not any("input_change" in each for each in said["targets"] + said["triggered"])
    moved = found("nearest-neighbours", NEAREST, rows(), input_change=0.1)
    # Neither targets nor the claims about inputs as they are depend on it, and an unbounded trigger is tried as before.
    assert [each.to_dict() for each in plain.targets] == [
        {name: value for name, value in each.to_dict().items() if name != "input_change"} for each in moved.targets
    ]
    assert len(moved.triggered) == len(plain.triggered) == 1
    assert "Inputs that have moved" in page(moved).text
    assert "Inputs that have moved" not in page(plain).text


def test_it_resumes_to_the_same(tmp_path: Path) -> None:
    asked = {"input_change": [0.05, 0.3], "out": tmp_path}
    first = found("nearest-neighbours", NEAREST, rows(), **asked)
    assert as_json(found("nearest-neighbours", NEAREST, rows(), **asked)) == as_json(first)
    with pytest.raises(ConfigError, match="belongs to another audit"):
        found("nearest-neighbours", NEAREST, rows(), input_change=0.05, out=tmp_path)


@pytest.mark.parametrize(
    ("constants", "change", "said"),
    [
        ({"neighbours": 15}, 0.1, "add input_noise .* or moving_inputs"),
        (NEAREST, 0.0, "above 0"),
        (NEAREST, -0.1, "input_change"),
        (NEAREST, float("nan"), "input_change"),
        (NEAREST, [], "changes of the input"),
        (NEAREST, "0.1", "input_change"),
    ],
)
def test_what_cannot_be_asked_is_refused(constants: dict[str, Any], change: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        found("nearest-neighbours", constants, rows(), input_change=change)


@pytest.mark.parametrize("name", ["rdp", "dpa", "ridge"])
def test_methods_that_know_nothing_of_moves_are_refused_before_they_train(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pipeline, "clean", lambda *_: pytest.fail("it was trained"))
    with pytest.raises(UnsupportedMechanismError, match="leave input_change out"):
        found(name, PRIVATE if name == "rdp" else {}, rows(), input_change=0.1)


def test_where_nothing_is_certified_of_moves_nothing_follows() -> None:
    audited = found("nearest-neighbours", NEAREST, rows(), input_change=1.99)
    assert audited.exit_status == 3
    assert audited.violations == ()
    assert any("nothing is certified" in note for note in audited.notes)


# --- at the command line ----------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, data in zip(("train", "test"), rows(), strict=True):
        assert data.y is not None
        np.savez(tmp_path / f"{name}.npz", x=data.x, y=data.y)
    (tmp_path / "moves.toml").write_text(
        'run_dir = "run"\n[data]\nkind = "arrays"\ntrain = "train.npz"\ntest = "test.npz"\n'
        '[train]\nmethod = "nearest-neighbours"\nneighbours = 15\nmoving_inputs = true\nfeatures = "none"\n'
    )
    return tmp_path / "moves.toml"


@pytest.mark.parametrize("typed", [["0.05", "0.3"], ["0.05,0.3"]])
def test_the_command_attacks_before_and_beyond_the_frontier(
    project: Path, capsys: pytest.CaptureFixture[str], typed: list[str]
) -> None:
    outcome = run(capsys, "audit", project, "--targets", "2", "--json", "--input-change", *typed)
    assert outcome.code == 0, outcome.err
    said = json.loads(outcome.out)
    assert said["input_change"] == [0.05, 0.3]
    assert said["violations"] == []
    assert said["input_change_control"]["has_power"]
    assert "Inputs that have moved" in (project.parent / "moves-audit-nearest-neighbours" / "audit.html").read_text()


@pytest.mark.more
def test_digits_that_are_built_in_are_audited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    method = '[train]\nmethod = "nearest-neighbours"\nmoving_inputs = true\n'
    (tmp_path / "digits.toml").write_text(f'run_dir = "run"\n[data]\nname = "digits"\n{method}')
    asked = ("--targets", "1", "--attacks", "copies", "--budgets", "1x", "--json", "--input-change", "0.02")
    outcome = run(capsys, "audit", tmp_path / "digits.toml", *asked)
    assert outcome.code == 0, outcome.err
    said = json.loads(outcome.out)
    assert (said["input_change"], said["violations"]) == ([0.02], [])
    assert said["frontier"][0]["claims"] > 20


def test_a_run_is_audited_where_inputs_move(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "train", project, "--run-dir", project.parent / "run").code == 0
    outcome = run(capsys, "audit", project.parent / "run", "--targets", "1", "--input-change", "0.1")
    assert outcome.code == 0, outcome.err
    assert "in the features by which examples are compared" in " ".join(outcome.out.split())


@pytest.mark.parametrize(
    ("typed", "said"),
    [(["0.1,x"], "expected numbers of 0 or more"), (["-1"], "expected"), ([], "expected at least one argument")],
)
def test_bad_changes_are_answered(
    project: Path, capsys: pytest.CaptureFixture[str], typed: list[str], said: str
) -> None:
    outcome = run(capsys, "audit", project, "--input-change", *typed)
    assert outcome.code == 2
    assert said in " ".join(outcome.err.split())
    assert "Traceback" not in outcome.err
