"""`gate`: shares compared in whole numbers, conditions that nobody allowed, and what a service for CI reads."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_cli import refused, run

from mithridate import RDP, Certificate, ConfigError, Gate, SampledGaussian, Status, Votes, certify, gate
from mithridate.cli._shared import new_parser
from mithridate.core.conditions import IDS, Statement, classes_read_off
from mithridate.core.input_change import Frontier
from mithridate.core.mechanism import SEARCH_LIMIT
from mithridate.core.units import Unit
from mithridate.defences.partitions import Partitioned
from mithridate.errors import ArtifactError

ROOT = Path(__file__).parents[1]
GAUSSIAN = SampledGaussian(20.0, 1.0, 4)
WORKFLOW = ROOT / "examples" / "gate" / "poisoning-gate.yml"
WANTED = ["--certified-accuracy", "0.5", "--at", "2"]
BASE = certify(Votes.from_counts([[60, 40, 0]], mechanism=GAUSSIAN))
HOSTILE = "<b>&\"'\x1b[2J\ufffe"


def claimed(radius: npt.ArrayLike, label: npt.ArrayLike, truth: npt.ArrayLike, **votes: Any) -> Certificate:
    """A certificate with these claims, whatever its votes are."""
    radii, labels = np.array(radius), np.array(label)
    counted = Votes.from_counts([[60, 40, 0]] * len(radii), mechanism=GAUSSIAN, labels=truth)
    status = np.where(radii < 0, Status.NOT_SEPARATED.value, Status.CERTIFIED.value)
    return replace(BASE, votes=replace(counted, **votes), label=labels, radius=radii, status=status)


def correct_on(count: int, total: int, **votes: Any) -> Certificate:
    """Correct, with radius 5, on so many of all."""
    return claimed([5] * total, [0] * count + [1] * (total - count), [0] * total, **votes)


def conditional(*statements: str) -> Certificate:
    found = correct_on(4, 4, assumptions=statements)
    return replace(found, assumptions=statements)


def names_of_failed(outcome: Gate) -> list[str]:
    return [check.name for check in outcome.checks if not check.passed]


# --- shares ---------------------------------------------------------------------------------------------------------

PREDICTIONS = st.lists(st.tuples(st.integers(-1, 4), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=40)


def slow_share(predictions: list[tuple[int, int, int]], at: int, *, balanced: bool) -> Fraction:
    """One prediction after the other."""
    by_class: dict[int, list[bool]] = defaultdict(list)
    for radius, label, truth in predictions:
        by_class[truth if balanced else 0].append(label == truth and radius >= at)
    shares = [Fraction(sum(held), len(held)) for held in by_class.values()]
    return sum(shares, Fraction(0)) / len(shares)


@given(predictions=PREDICTIONS, at=st.integers(0, 5), balanced=st.booleans(), decimals=st.integers(1, 12))
def test_a_share_passes_exactly_where_it_is_large_enough(
    predictions: list[tuple[int, int, int]], at: int, balanced: bool, decimals: int
) -> None:
    certificate = claimed(*zip(*predictions, strict=True))
    share = slow_share(predictions, at, balanced=balanced)
    below = Decimal(int(share * 10**decimals)).scaleb(-decimals)
    above = below + Decimal(1).scaleb(-decimals)
    for wanted in (below, above):
        if wanted <= 1:
            outcome = gate(certificate, certified_accuracy=wanted, at=at, balanced=balanced)
            assert outcome.passed is outcome.checks[0].passed is (share >= Fraction(wanted))
            assert outcome.checks[0].got == float(share)


def test_no_rounding_decides() -> None:
    """By double precision 0.29 of 100 are 28.999999999999996, and a tenth three times is more than 0.3."""
    certificates = {count: correct_on(count, 100) for count in range(101)}
    for count in range(1, 101):
        for wanted in (count / 100, f"{count / 100}", np.float64(count / 100)):
            assert gate(certificates[count], certified_accuracy=wanted, at=5).passed, wanted
            assert not gate(certificates[count - 1], certified_accuracy=wanted, at=5).passed, wanted
    assert gate(correct_on(800, 1000), certified_accuracy="0.80", at=5).passed
    assert not gate(correct_on(799, 1000), certified_accuracy="0.80", at=5).passed


def test_what_is_shown_of_a_share_is_never_rounded_up_to_what_is_wanted() -> None:
    (check, *_) = gate(correct_on(9999, 10000), certified_accuracy=1, at=0).checks
    assert check.detail.startswith("0.9999 on 10,000 test inputs; wanted 1")
    assert check.got == 0.9999


def test_a_radius_counts_from_itself_on() -> None:
    for at, passed in ((0, True), (5, True), (6, False), (SEARCH_LIMIT, False)):
        assert gate(correct_on(4, 4), certified_accuracy=1, at=at).passed is passed


def test_several_shares_are_all_wanted() -> None:
    found = claimed([9, 9, 1, -1], [0] * 4, [0] * 4)
    assert gate(found, certified_accuracy=[0.75, 0.5], at=[1, 9]).passed
    outcome = gate(found, certified_accuracy=["0.75", "0.51"], at=[1, 9])
    assert names_of_failed(outcome) == ["certified accuracy at 9"]
    assert repr(outcome) == "Gate of 5 checks: not passed: certified accuracy at 9"


def test_inputs_that_move() -> None:
    found = correct_on(2, 2)
    radius = np.array([[5, 5], [5, 1]])
    status = np.full((2, 2), Status.CERTIFIED.value)
    moving = replace(found, frontier=Frontier((0.0, 0.5), "pixels", radius, status))
    assert gate(moving, certified_accuracy=1, at=2).passed
    outcome = gate(moving, certified_accuracy=1, at=2, input_change=0.5)
    assert names_of_failed(outcome) == ["certified accuracy at 2, input change 0.5"]
    with pytest.raises(ConfigError, match=r"inputs that move by 0\.3; it knows 0, 0\.5"):
        gate(moving, certified_accuracy=1, at=2, input_change=0.3)


def test_units_are_named_and_not_exceeded() -> None:
    found = correct_on(4, 4, unit=Unit("vendor", 10))
    outcome = gate(found, certified_accuracy=1, at=5)
    assert outcome.checks[0].name == "certified accuracy at 5 vendors"
    assert outcome.to_dict()["unit"] == {"name": "vendor", "count": 10}
    with pytest.raises(ConfigError, match="Expected at of at most 10, the number of vendors, got 11"):
        gate(found, certified_accuracy=1, at=11)


def test_where_the_size_step_cuts_radii_it_says_what_to_declare() -> None:
    found = correct_on(4, 4)
    found = replace(found, status=np.full(4, Status.SIZE_LIMIT.value))
    assert "declare num_train" in gate(found, certified_accuracy=1, at=6).checks[0].detail
    assert "num_train" not in gate(found, certified_accuracy=1, at=5).checks[0].detail


# --- what else weakens a certificate ----------------------------------------------------------------------------------


def test_a_condition_fails_unless_it_is_allowed() -> None:
    found = conditional("The weather is fine.", classes_read_off(3), Statement("The seed was given.", "seed-known"))
    for allowed, passed in (
        ((), False),
        (("class-list",), False),
        (("seed-known", "class-list"), True),
        (("proposed-schema",), False),
        (IDS, True),
    ):
        outcome = gate(found, certified_accuracy=1, at=0, allow_conditional=allowed)
        assert outcome.passed is passed, allowed
        check = next(check for check in outcome.checks if check.name == "conditions")
        assert (check.wanted, check.got) == (tuple(allowed), ("class-list", "seed-known"))
        # Of what fails, it says which it is and what lifts it.
        for each in found.conditions:
            assert (str(each) in check.detail) is (each.id not in allowed)
            assert (str(each.remedy) in check.detail) is (each.id not in allowed)
        assert [each["id"] for each in outcome.to_dict()["conditions"]] == ["class-list", "seed-known"]


def test_what_is_allowed_need_not_be_there() -> None:
    assert gate(correct_on(1, 1), certified_accuracy=1, at=0, allow_conditional=["seed-known"]).passed


@pytest.mark.parametrize("claim", [{"method": RDP("paper")}, {"bounds": "pointwise"}])
def test_what_is_no_guarantee_fails(claim: dict[str, Any]) -> None:
    found = certify(Votes.from_counts([[200, 0]], mechanism=GAUSSIAN, labels=[0]), **claim)
    outcome = gate(found, certified_accuracy=1, at=0)
    assert names_of_failed(outcome) == ["guarantee"]
    assert "for a guarantee" in next(each.detail for each in outcome.checks if not each.passed)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three of four correct and certified to 2 or more, in a file and in the directory of a run."""
    monkeypatch.chdir(tmp_path)
    votes = Votes.from_counts([[200, 0], [0, 200], [200, 0], [0, 200]], mechanism=GAUSSIAN, labels=[0, 1, 0, 0])
    certificate = certify(votes)
    assert certificate.radius.min() >= 2
    certificate.save("c.json")
    Path("run").mkdir()
    votes.save("run/votes.npz")
    certificate.save("run/certificate.json")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--certified-accuracy", "80", "--at", "2"], "Expected --certified-accuracy as a share from 0 to 1, such as"),
        (["--certified-accuracy", "80%", "--at", "2"], "got '80%'"),
        (["--certified-accuracy", "nan", "--at", "2"], "got 'nan'"),
        (["--certified-accuracy", "inf", "--at", "2"], "got 'inf'"),
        (["--certified-accuracy=-0.1", "--at", "2"], "got '-0.1'"),
        (["--certified-accuracy", "1e-999999999", "--at", "2"], "got '1e-999999999'"),
        (["--certified-accuracy", "0e999999999", "--at", "2"], "got '0e999999999'"),
        (["--certified-accuracy", "", "--at", "2"], "got ''"),
        (["--certified-accuracy", "0.8", "--at", "-1"], "Expected --at as a whole number from 0 to 1,048,576, the"),
        (["--certified-accuracy", "0.8", "--at", "1048577"], "got 1048577"),
        ([*WANTED, "--at", "3"], "Expected --at to name one radius for each --certified-accuracy, got 2 for 1."),
        (
            [*WANTED, "--allow-conditional", "seed-knwn"],
            "no condition 'seed-knwn' to allow; did you mean 'seed-known'?",
        ),
        ([*WANTED, "--allow-conditional", "all"], "expected one of class-list, proposed-schema"),
        ([*WANTED, "--input-change", "0.5"], "inputs that move by 0.5; it knows none"),
        ([*WANTED, "--input-change", "nan"], "inputs that move by nan; it knows none"),
        ([*WANTED, "--junit", "c.json"], "Cannot write c.json: it is read from."),
        ([*WANTED, "--junit", "none/g.xml"], "there is no folder none"),
    ],
)
def test_bad_flags(capsys: pytest.CaptureFixture[str], here: Path, words: list[str], says: str) -> None:
    before = Path("c.json").read_bytes()
    assert says in refused(capsys, "gate", "c.json", *words)
    assert Path("c.json").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--certified-accuracy", "0.8", "--at", "2.5"], "argument --at: invalid int value: '2.5'"),
        (["--certified-accuracy", "0.8"], "the following arguments are required: --at"),
        (["--at", "2"], "the following arguments are required: --certified-accuracy"),
        ([*WANTED, "--allow-conditional", "seed-known,"], "expected ids such as class-list,seed-known"),
    ],
)
def test_flags_that_the_parser_refuses(
    capsys: pytest.CaptureFixture[str], here: Path, words: list[str], says: str
) -> None:
    outcome = run(capsys, "gate", "c.json", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert says in outcome.err


@pytest.mark.parametrize(
    ("value", "at"),
    [(True, 0), (None, 0), ([], []), ({}, 0), (b"0.8", 0), (0.8, True), (0.8, 1.0), (0.8, "1"), (0.8, None), ([1], [])],
)
def test_bad_arguments(value: Any, at: Any) -> None:
    with pytest.raises(ConfigError, match=r"Expected (at|certified_accuracy)"):
        gate(correct_on(1, 1), certified_accuracy=value, at=at)


def test_one_id_is_no_list_of_letters() -> None:
    with pytest.raises(ConfigError, match="allow_conditional as a list of ids, got 'seed-known'"):
        gate(correct_on(1, 1), certified_accuracy=1, at=0, allow_conditional="seed-known")


def test_files_that_are_no_certificate(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    data = Path("c.json").read_bytes()
    assert "not a mithridate.certificate file" in refused(capsys, "gate", "run/votes.npz", *WANTED)
    assert "no file" in refused(capsys, "gate", "none.json", *WANTED)
    Path("c.json").write_bytes(data.replace(b'"winner"', b'"vinner"'))
    assert "was changed after it was written" in refused(capsys, "gate", "c.json", *WANTED, "--json")
    Path("c.json").write_bytes(data[:-20])
    assert "truncated" in refused(capsys, "gate", "c.json", *WANTED, "--junit", "g.xml")
    assert not Path("g.xml").exists()


def test_a_certificate_without_true_labels(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    certify(Votes.from_counts([[200, 0]], mechanism=GAUSSIAN)).save("unlabelled.json")
    assert "--labels-key NAME" in refused(capsys, "gate", "unlabelled.json", *WANTED)


def test_claims_that_cannot_be() -> None:
    with pytest.raises(ArtifactError, match="run mithridate verify"):
        gate(claimed([SEARCH_LIMIT + 1], [0], [0]), certified_accuracy=1, at=0)


def test_a_run_is_judged_by_its_own_certificate(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    assert run(capsys, "gate", "run", *WANTED).code == 0
    assert "is read from" in refused(capsys, "gate", "run", *WANTED, "--junit", "run/certificate.json")
    other = Votes.from_counts([[199, 1]] * 4, mechanism=GAUSSIAN, labels=[0] * 4)
    other.save("run/votes.npz")
    assert "the run was trained otherwise since" in refused(capsys, "gate", "run", *WANTED)
    Path("run/certificate.json").unlink()
    assert "mithridate certify run" in refused(capsys, "gate", "run", *WANTED)


# --- what programs read -----------------------------------------------------------------------------------------------


def test_the_object_and_the_exit_status(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    for share, passed in (("0.75", True), ("0.76", False)):
        outcome = run(capsys, "gate", "c.json", "--certified-accuracy", share, "--at", "2", "--json")
        assert (outcome.code, outcome.err, outcome.out.count("\n")) == (0 if passed else 1, "", 1)
        content = json.loads(outcome.out)
        assert content["passed"] is passed
        assert content["conditional"] is False
        assert all(check.keys() == {"name", "wanted", "got", "passed"} for check in content["checks"])
        assert content["checks"] == [
            {"name": "certified accuracy at 2", "wanted": float(share), "got": 0.75, "passed": passed},
            {"name": "conditions", "wanted": [], "got": [], "passed": True},
            {"name": "guarantee", "wanted": True, "got": True, "passed": True},
            {"name": "failure probability", "wanted": 0.05, "got": 0.001, "passed": True},
        ]
        people = run(capsys, "gate", "c.json", "--certified-accuracy", share, "--at", "2")
        assert people.code == outcome.code
        assert people.out.startswith(f"{'✓' if passed else '✗'} certified accuracy at 2: 0.75 on 4 test inputs; wanted")
        assert people.out.endswith("The gate is passed.\n" if passed else "The gate is NOT passed.\n")


def test_the_balanced_share(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    """Two of three in one class, and all of the other: five sixths on average, of all three quarters."""
    outcome = run(capsys, "gate", "c.json", "--certified-accuracy", "0.83", "--at", "2", "--balanced", "--json")
    assert outcome.code == 0
    assert json.loads(outcome.out)["checks"][0]["got"] == float(Fraction(5, 6))


def test_conditions_are_allowed_by_one_flag_or_several(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    votes = Votes.from_counts([[200, 0]], mechanism=GAUSSIAN, labels=[0])
    said = (classes_read_off(2), Statement("The seed was given.", "seed-known"))
    certify(replace(votes, assumptions=said)).save("conditional.json")
    typed = ["gate", "conditional.json", *WANTED, "--allow-conditional"]
    assert run(capsys, *typed, "class-list, seed-known").code == 0
    assert run(capsys, *typed, "class-list", "--allow-conditional", "seed-known").code == 0
    outcome = run(capsys, *typed, "class-list")
    assert outcome.code == 1
    assert "Or allow it: seed-known." in " ".join(outcome.out.split())
    assert outcome.out.splitlines()[-1].startswith("Conditional on class-list and seed-known.")


def test_junit_is_what_parsers_take(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    flags = ["--certified-accuracy", "0.75", "--at", "2", "--certified-accuracy", "0.9", "--at", "2"]
    assert run(capsys, "gate", "c.json", *flags, "--junit", "g.xml", "--json").code == 1
    root = ElementTree.parse("g.xml").getroot()
    assert root.tag == "testsuites"
    (suite,) = root
    for each in (root, suite):
        assert (each.get("tests"), each.get("failures"), each.get("errors")) == ("5", "1", "0")
        assert float(each.get("time", "")) >= 0
    assert [case.tag for case in suite] == ["testcase"] * 5
    assert [len(case.findall("failure")) for case in suite] == [0, 1, 0, 0, 0]
    assert all(case.get("name") and case.get("classname") for case in suite)
    failure = suite[1].find("failure")
    assert failure is not None
    assert failure.get("message") == failure.text == "0.75 on 4 test inputs; wanted 0.9"


def test_names_of_strangers_stay_text_in_junit() -> None:
    found = correct_on(1, 4, unit=Unit(HOSTILE, 10))
    text = gate(found, certified_accuracy=1, at=5).to_junit(name=f"{HOSTILE}\ud800")
    (suite,) = ElementTree.fromstring(text.encode())
    assert "<b>" not in text
    assert suite.get("name") == "<b>&\"'\\x1b[2J\\ufffe\\ud800"
    assert len(suite.findall(".//failure")) == 1


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert "mithridate gate certificate.json --certified-accuracy 0.80 --at 20" in run(capsys, "gate", "--help").out


@pytest.mark.more
def test_a_gate_starts_without_what_it_does_not_need(here: Path) -> None:
    code = f"""
import sys
from mithridate.cli import main
status = main(["gate", sys.argv[1], *{WANTED}, "--junit", sys.argv[2]])
heavy = {{"torch", "ray", "matplotlib", "sklearn", "pandas", "jinja2", "scipy.stats", "mithridate.defences"}}
sys.exit(status or ", ".join(heavy & set(sys.modules)) or None)
"""
    words = [sys.executable, "-c", code, str(here / "c.json"), str(here / "g.xml")]
    outcome = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert outcome.returncode == 0, outcome.stderr


# --- the example ------------------------------------------------------------------------------------------------------


def steps_of(text: str) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load(text)["jobs"]["gate"]["steps"]


def test_the_workflow_runs_commands_that_there_are(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    """On a certificate that is good enough, step by step; and its result is where the last step looks for it."""
    lines = [shlex.split(step["run"]) for step in steps_of(WORKFLOW.read_text(encoding="utf-8")) if "run" in step]
    commands = [words[1:] for words in lines if words[0] == "mithridate"]
    assert [words[0] for words in commands] == ["verify", "gate"]
    certify(Votes(np.array([[50, 0]]), Partitioned(50), labels=np.array([0]))).save("certificate.json")
    for words in commands:
        assert callable(new_parser().parse_args(words).run)
        outcome = run(capsys, *words)
        assert outcome.code == 0, outcome
    upload = steps_of(WORKFLOW.read_text(encoding="utf-8"))[-1]
    assert upload["if"] == "always()"
    assert Path(upload["with"]["path"]).is_file()


def test_the_page_shows_the_workflow_as_it_is() -> None:
    page = (ROOT / "docs" / "gate.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```yaml\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert shown == WORKFLOW.read_text(encoding="utf-8")


# --- what a weaker claim looks like -----------------------------------------------------------------------------------


def test_a_claim_that_may_well_fail_does_not_pass() -> None:
    votes = Votes.from_counts([[60, 40]], mechanism=GAUSSIAN, labels=[0])
    found = certify(votes, failure_prob=0.5)
    assert found.radius[0] >= 1  # which 60 of 100 votes are not worth at the usual probability
    assert names_of_failed(gate(found, certified_accuracy=1, at=1)) == ["failure probability"]
    assert gate(found, certified_accuracy=1, at=1, max_failure_prob=0.5).passed
    with pytest.raises(ConfigError, match="max_failure_prob"):
        gate(found, certified_accuracy=1, at=1, max_failure_prob=2)


def test_the_threat_is_said_and_can_be_wanted() -> None:
    votes = Votes.from_counts([[200, 0]], mechanism=GAUSSIAN, labels=[0])
    found = certify(votes, threat="add")
    outcome = gate(found, certified_accuracy=1, at=0)
    assert (outcome.passed, outcome.to_dict()["threat"], outcome.to_dict()["failure_prob"]) == (True, "add", 0.001)
    refused_by = gate(found, certified_accuracy=1, at=0, threat="symmetric-difference")
    assert names_of_failed(refused_by) == ["threat"]
    assert gate(found, certified_accuracy=1, at=0, threat="add").passed
    with pytest.raises(ConfigError, match="threat"):
        gate(found, certified_accuracy=1, at=0, threat="all")


@pytest.mark.parametrize("later", [[1, 1], None])
def test_a_certificate_with_true_labels_that_the_run_no_longer_has_is_refused(tmp_path: Path, later: Any) -> None:
    votes = Votes.from_counts([[200, 0], [0, 200]], mechanism=GAUSSIAN, labels=[0, 1])
    certify(votes).save(tmp_path / "certificate.json")
    replace(votes, labels=None if later is None else np.array(later)).save(tmp_path / "votes.npz")
    with pytest.raises(ArtifactError, match="not of the votes beside it"):
        gate(tmp_path, certified_accuracy=0.5, at=0)
    (tmp_path / "votes.npz").unlink()
    with pytest.raises(ArtifactError, match=r"There is no votes\.npz"):
        gate(tmp_path, certified_accuracy=0.5, at=0)
