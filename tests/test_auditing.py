"""Audits from beginning to end: sound methods hold, one that claims too much does not, and nothing is done twice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audit_doubles import BROKEN_KEYS, CONTROL_KEYS, KEYS, TARGET_KEYS, as_json, blobs, digits, too_sure
from test_cli import run

from mithridate import Audit, audit, certify
from mithridate.attacking import attacks, judging, search
from mithridate.attacking.poison import Poison
from mithridate.attacking.retraining import Pipeline
from mithridate.core.units import Unit
from mithridate.defences import defence, names
from mithridate.errors import ConfigError, NumericalError
from mithridate.training.order import RuntimeOptions, compose

NEAREST = ("nearest-neighbours", {"neighbours": 15})
TABLE = "a,b,c,d,e,kind\n"


def found(name: str, constants: dict[str, Any], data: Any, **asked: Any) -> Audit:
    training, test = data
    return audit(defence(name, **constants), training, test, **{"targets": 3, "minutes": None, **asked})


# --- what is true is not broken, and what is false is -----------------------------------------------------------------

# Every constant is declared here that makes an audit of digits quick; the rest is as users get it.
_PRIVATE = {
    "instances": 300, "noise_multiplier": 10.0, "sample_rate": 0.1, "steps": 20, "max_grad_norm": 1.0,
    "learning_rate": 1.0, "model": "linear", "average_iterates": True,
}  # fmt: skip
_SMOOTHING = {"instances": 200, "steps": 20}
_PARTS = {"partitions": 20}
_SPREAD = {"partitions": 10, "spread": 2}
QUICK: dict[str, dict[str, Any]] = {
    "fdp": _PRIVATE, "rdp": _PRIVATE, "rdp-standard": _PRIVATE, "adp": _PRIVATE,
    "bagging": {"instances": 200, "draws": 20, "steps": 20},
    "dpa": _PARTS, "run-off-election": _PARTS,
    "finite-aggregation": _SPREAD, "run-off-finite-aggregation": _SPREAD,
    "label-smoothing": {**_SMOOTHING, "flip_prob": 0.05}, "feature-smoothing": {**_SMOOTHING, "max_change": 0.5},
    "nearest-neighbours": {}, "kernel-vote": {}, "ridge": {},
}  # fmt: skip
# The paper's rule is refuted by design, and the statistical bound claims nothing about single predictions.
_APART = ("rdp-paper", "statistical-dp")
# Other claims about the votes that are audited as fdp.
_SAME = ("rdp", "rdp-standard", "adp")


@pytest.mark.more
@pytest.mark.parametrize("name", QUICK)
def test_no_claim_about_digits_is_broken_and_the_control_is(name: str) -> None:
    quick: dict[str, Any] = {"targets": 2} if name not in _SAME else {"targets": 1, "attacks": ["copies"]}
    audited = found(name, QUICK[name], digits(1397 if QUICK[name] is _PRIVATE else 300, 40), **quick)
    assert audited.violations == ()
    assert audited.finished
    if name not in ("label-smoothing", "feature-smoothing", "finite-aggregation", *_SAME):
        assert audited.claims > 20
        assert audited.control.has_power
        assert audited.exit_status == 0


def test_every_method_is_audited() -> None:
    assert {*QUICK, *_APART} == set(names())


@pytest.mark.parametrize(("name", "constants"), [NEAREST, ("kernel-vote", {})])
def test_methods_that_are_exact_flip_at_one_change_more_than_certified(name: str, constants: dict[str, Any]) -> None:
    audited = found(name, constants, digits())
    assert (audited.exit_status, audited.violations) == (0, ())
    assert audited.claims > 100
    assert [target.flipped_at for target in audited.targets] == [target.radius + 1 for target in audited.targets]


def test_a_method_that_claims_too_much_is_found_out_and_what_broke_it_can_be_used_again(tmp_path: Path) -> None:
    training, test = blobs()
    with too_sure() as kind:
        audited = audit(kind(), training, test, targets=2, minutes=None, out=tmp_path)
        assert audited.exit_status == 1
        said = json.loads((tmp_path / "audit.json").read_text())
        assert len(said["violations"]) == len(audited.violations) > 0
        for one in said["violations"]:
            assert BROKEN_KEYS <= set(one)
            assert one["budget"] <= one["radius"]
        # As docs/audit.md says.
        one = said["violations"][0]
        poison = Poison.load(tmp_path / one["file"])
        assert poison.cost(audited.threat, training) == one["budget"]
        votes = compose(kind(), poison.applied(training), test).run()
        assert votes.counts[one["input"]].argmax() != one["label"]


def _generous(more: int) -> Any:
    """Claims that are larger by so much than those of the rule."""
    sound = judging.Claims.of

    def claimed(*given: Any, **others: Any) -> judging.Claims:
        claims = sound(*given, **others)
        return replace(claims, radius=claims.radius + more, strict=claims.strict + more)

    return claimed


def test_one_change_too_much_is_found_in_an_exact_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging.Claims, "of", _generous(1))
    audited = found(*NEAREST, digits())
    assert audited.exit_status == 1
    assert {each.input for each in audited.violations} >= {target.input for target in audited.targets}


def test_every_broken_claim_has_the_poison_that_broke_it(tmp_path: Path) -> None:
    training, test = blobs()
    with too_sure() as kind:
        audited = audit(kind(), training, test, targets=6, minutes=None, out=tmp_path)
    assert len({each.poison.digest() for each in audited.violations}) > 1
    for each in audited.violations:
        assert Poison.load(tmp_path / str(each.file)).digest() == each.poison.digest()


def test_what_could_not_be_judged_in_the_time_is_no_good_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random method whose claims look broken in the search, and no time to judge them."""
    seen = search.AuditSearch._verdict

    def late(self: Any, key: str, *given: Any, **more: Any) -> Any:
        if key.startswith("judged"):
            raise search._OutOfTimeError
        return seen(self, key, *given, **more)

    monkeypatch.setattr(search.AuditSearch, "_verdict", late)
    monkeypatch.setattr(judging.Claims, "of", _generous(60))
    audited = found("bagging", {"instances": 40, "draws": 10, "steps": 5}, blobs(), attacks=["copies"], targets=1)
    assert audited.violations == ()
    assert audited.unjudged > 0
    assert not audited.finished
    assert audited.exit_status == 3
    assert "could not be judged" in audited.headline


def test_a_search_that_sees_other_votes_than_a_run_from_the_start_ends_the_audit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = Pipeline.poisoned

    def wrong(self: Any, clean: Any, poison: Poison, *given: Any, **more: Any) -> Any:
        votes = right(self, clean, poison, *given, **more)
        return replace(votes, counts=np.roll(votes.counts, 1, axis=1)) if not len(poison.y) else votes

    monkeypatch.setattr(Pipeline, "poisoned", wrong)
    with pytest.raises(NumericalError, match="gives other votes on the same poisoned data"):
        found("kernel-vote", {}, digits())


def test_the_paper_s_rule_is_no_control_of_itself() -> None:
    constants = {**_PRIVATE, "instances": 30, "steps": 3}
    audited = found("rdp-paper", constants, blobs(), attacks=["copies"], budgets=["1"], targets=1)
    assert audited.control.method != "rdp-paper"


def test_of_sources_whole_ones_are_changed() -> None:
    audited = found(*NEAREST, blobs(vendors=40))
    assert (audited.violations, audited.unit) == ((), Unit("vendor", 40))
    assert "sources" in {each.name for each in audited.used}


# --- it resumes, within its time --------------------------------------------------------------------------------------


class _Stopped(Exception):
    pass


def test_an_audit_that_is_interrupted_comes_to_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[bytes] = []
    applied = Poison.applied

    def counted(poison: Poison, clean: Any) -> Any:
        trained.append(poison.digest().encode())
        return applied(poison, clean)

    monkeypatch.setattr(Poison, "applied", counted)
    whole = found(*NEAREST, digits(), out=tmp_path / "whole")
    count = len(trained)

    def stop(line: str) -> None:
        if line.startswith("target 2"):
            raise _Stopped

    trained.clear()
    with pytest.raises(_Stopped):
        found(*NEAREST, digits(), out=tmp_path / "halves", progress=stop)
    assert 0 < len(trained) < count
    again = found(*NEAREST, digits(), out=tmp_path / "halves")
    assert as_json(again) == as_json(whole)
    assert len(trained) == count  # nothing was trained twice


def test_a_private_audit_that_resumes_keeps_its_run(tmp_path: Path) -> None:
    constants = {**_PRIVATE, "instances": 20, "steps": 3}
    small = {"attacks": ["copies"], "budgets": ["2"], "targets": 1, "out": tmp_path}
    first = found("fdp", constants, blobs(), **small)
    assert as_json(found("fdp", constants, blobs(), **small)) == as_json(first)


def test_time_that_is_over_leaves_what_was_found(tmp_path: Path) -> None:
    audited = found(*NEAREST, digits(), minutes=1e-6, out=tmp_path)
    assert not audited.finished
    assert not json.loads((tmp_path / "audit.json").read_text())["finished"]
    assert found(*NEAREST, digits(), minutes=None, out=tmp_path).finished


def test_a_run_that_cannot_be_audited_leaves_the_folder_free(tmp_path: Path) -> None:
    training, test = digits()
    method = defence(NEAREST[0], **NEAREST[1])
    compose(method, training, test).run(RuntimeOptions(run_dir=tmp_path / "run"))
    with pytest.raises(ConfigError, match="was not trained on this training data"):
        found(*NEAREST, (training.part(slice(0, 299)), test), run_dir=tmp_path / "run", out=tmp_path / "audit")
    assert found(*NEAREST, digits(), run_dir=tmp_path / "run", out=tmp_path / "audit", targets=1).finished


def test_another_audit_needs_another_folder(tmp_path: Path) -> None:
    found(*NEAREST, digits(), targets=1, out=tmp_path)
    with pytest.raises(ConfigError, match="belongs to another audit"):
        found(*NEAREST, digits(), targets=2, out=tmp_path)


# --- when nothing follows ---------------------------------------------------------------------------------------------


def test_where_no_attack_fits_nothing_follows() -> None:
    audited = found(*NEAREST, digits(), threat="remove", attacks=["copies"])
    assert audited.exit_status == 3
    assert any("nothing was tried" in note for note in audited.notes)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"targets": 0}, "targets to be a whole number of at least 1"),
        ({"budgets": ["many"]}, "numbers of changes"),
        ({"budgets": []}, "at least one budget"),
        ({"attacks": ["copy"]}, "no attack 'copy'.*did you mean 'copies'"),
        ({"attacks": []}, "at least one attack"),
        ({"failure_prob": 1.5}, "failure_prob"),
        ({"minutes": -1}, "minutes"),
        ({"threat": "everything"}, "threat"),
        ({"run_dir": "nowhere"}, "nowhere"),
    ],
)
def test_what_cannot_be_asked_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(Exception, match=said) as caught:
        found(*NEAREST, digits(), **asked)
    assert type(caught.value).__module__ == "mithridate.errors"


# --- the search -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 20])
def test_targets_are_taken_from_everywhere(count: int) -> None:
    order = search._spread(count)
    assert sorted(order) == list(range(count))
    assert order[:2] == list(range(count))[:1] + list(range(count))[1:][-1:]


def test_every_set_checks_all_inputs_whose_radius_covers_it() -> None:
    training, test = digits()
    audited = found(*NEAREST, (training, test), attacks=["copies"], budgets=["1"], targets=1)
    method = defence(NEAREST[0], **NEAREST[1])
    radius = certify(method.train(training, test)).radius
    tried = sum(each.retrainings for each in audited.used)
    # One target at its radius and at a budget of 1, and what breaks the controls lies beyond most radii.
    assert (radius >= 1).sum() <= audited.claims <= tried * (radius >= 1).sum()


# --- at the command line ----------------------------------------------------------------------------------------------


@pytest.fixture
def flowers(tmp_path: Path) -> Path:
    training, test = blobs()
    for name, data in (("train", training), ("test", test)):
        assert data.y is not None
        rows = [",".join([*map(str, x), "xyz"[y]]) for x, y in zip(data.x.tolist(), data.y.tolist(), strict=True)]
        (tmp_path / f"{name}.csv").write_text(TABLE + "\n".join(rows) + "\n")
    columns = "".join(f'\n[[data.columns]]\nname = "{name}"\nkind = "number"\nlow = -9\nhigh = 9\n' for name in "abcde")
    (tmp_path / "flowers.toml").write_text(
        'run_dir = "run"\n[data]\nkind = "table"\ntrain = "train.csv"\ntest = "test.csv"\nlabel = "kind"\n'
        f'classes = ["x", "y", "z"]\n{columns}\n[train]\nmethod = "dpa"\npartitions = 20\nsteps = 30\n'
    )
    return tmp_path / "flowers.toml"


def test_the_command_leaves_a_page_and_json(flowers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run(capsys, "audit", flowers, "--targets", "2", "--json")
    assert outcome.code == 0, outcome.err
    said = json.loads(outcome.out)
    assert KEYS <= set(said)
    assert CONTROL_KEYS <= set(said["control"])
    assert all(TARGET_KEYS <= set(target) for target in said["targets"])
    assert said["violations"] == []
    assert said["claims"] > 0
    assert said["finished"]
    assert said["control"]["has_power"]
    folder = flowers.parent / "flowers-audit-dpa"
    assert json.loads((folder / "audit.json").read_text())["claims"] == said["claims"]
    assert "<html" in (folder / "audit.html").read_text()


def test_what_broke_a_claim_breaks_it_again_as_the_documentation_says(
    flowers: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[1] / "docs" / "audit.md").read_text()
    recipe = page.split("## Reproducing a broken claim")[1].split("```")[1]
    monkeypatch.chdir(flowers.parent)
    head, _, _ = flowers.read_text().partition("[train]")
    with too_sure():
        flowers.write_text(head + '[train]\nmethod = "too-sure"\n')
        assert run(capsys, "audit", flowers, "--targets", "1", "-o", "flowers-audit").code == 1
        values: dict[str, Any] = {}
        exec(recipe, values)
    assert values["votes"].counts[values["violation"]["input"]].tolist() == values["violation"]["votes"]
    assert values["violation"]["votes"][values["violation"]["label"]] < max(values["violation"]["votes"])


def test_a_run_is_audited_by_its_folder(flowers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = flowers.parent / "run"
    assert run(capsys, "train", flowers, "--run-dir", folder).code == 0
    outcome = run(capsys, "audit", folder, "--targets", "1", "--attacks", "crafted,copies")
    assert outcome.code == 0, outcome.err
    assert "none is broken" in " ".join(outcome.out.split())
    assert (flowers.parent / "run-audit" / "audit.json").exists()


def test_another_method_leaves_out_what_it_has_no_use_for(flowers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run(capsys, "audit", flowers, "--method", "nearest-neighbours", "--targets", "1")
    assert outcome.code == 0, outcome.err
    said = " ".join(outcome.out.split())
    assert "nearest-neighbours has no use for partitions, steps" in said
    assert (flowers.parent / "flowers-audit-nearest-neighbours" / "audit.html").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--attacks", "copy"), "no attack 'copy'"),
        (("--budgets", "many"), "numbers of changes"),
        (("--targets", "0"), "targets"),
        (("--method", "statistical-dp"), "claims nothing about single predictions"),
    ],
)
def test_bad_input_is_answered(
    flowers: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], said: str
) -> None:
    outcome = run(capsys, "audit", flowers, *more)
    assert outcome.code == 2
    assert said in " ".join(outcome.err.split())
    assert "Traceback" not in outcome.err


def test_a_run_of_other_data_is_refused(flowers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = flowers.parent / "run"
    assert run(capsys, "train", flowers, "--run-dir", folder).code == 0
    table = flowers.parent / "train.csv"
    table.write_text("\n".join(table.read_text().splitlines()[:-1]) + "\n")
    outcome = run(capsys, "audit", folder)
    assert outcome.code == 2
    assert "was not trained on this training data" in " ".join(outcome.err.split())


def test_the_units_of_a_run_are_its_own(flowers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = flowers.parent / "run"
    assert run(capsys, "train", flowers, "--run-dir", folder).code == 0
    outcome = run(capsys, "audit", folder, "--unit", "vendor")
    assert outcome.code == 2
    assert "A run has its units" in outcome.err


def test_there_is_an_attack_for_every_name() -> None:
    assert set(attacks.NAMES) == {*attacks.ATTACKS, attacks.BOUNDARY}
    assert all(np.char.str_len(each.knows) > 0 for each in attacks.ATTACKS.values())
