"""Whatever speaks of a radius says what it counts: the units, by the name that the user gave them."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from rival_votes import RIVALS
from test_cli import refused, run, run_json

from mithridate import Certificate, SampledGaussian, Subsampled, Votes, certify, verify
from mithridate.certifying.certification import default_threat
from mithridate.certifying.planning import plan
from mithridate.cli import main
from mithridate.comparing.entry import Entry
from mithridate.comparing.result import Comparison
from mithridate.comparing.running import compare
from mithridate.core.conditions import Size, conditions_of
from mithridate.core.mechanism import Threat
from mithridate.core.units import EXAMPLES, Unit, UnitWords
from mithridate.data.examples import Examples
from mithridate.data.partition import split_by_hash
from mithridate.data.units import Units
from mithridate.defences import defence
from mithridate.defences.automatic import named
from mithridate.defences.partitions import Partitioned
from mithridate.defences.statistical import statistical_dp
from mithridate.errors import ConfigError
from mithridate.recipes.choosing import choose
from mithridate.reporting import Report
from mithridate.training.order import compose

UNIT = Unit("vendor", 1000)
PRIVATE = SampledGaussian(3.0, 0.01, 200)
HOSTILE = "<script>alert(1)</script>"
LONG = "w" * 80
# What a sentence says that counts single examples. What a vendor holds, and what encoders compare, are examples still.
COUNTS_EXAMPLES = re.compile(
    r"training examples?\b|\bexamples? (were|was|may have been|added|removed|inserted|in my data)|declare num_train|"
    r"\b(an|one|each|every|changed|same|\d[\d,]*) examples?\b(?! does)|\bsingle change\b|\bone change\b|"
    r"rows that one party|changes are\b|(add|edit|remove|replace|difference):? examples",
    re.IGNORECASE,
)
# Smoothing cannot certify units.
KNOWN = {name: rival for name, rival in RIVALS.items() if "smoothing" not in name}


def check_words(text: str, unit: Unit = UNIT) -> None:
    """Require a text that speaks of units and counts no examples."""
    line = " ".join(text.split())
    assert unit.one in line
    found = COUNTS_EXAMPLES.search(line)
    assert found is None, line[max(found.start() - 80, 0) : found.end() + 80]


def private_votes(unit: Unit | None = UNIT, **more: Any) -> Votes:
    counts = [[1000, 0], [900, 100], [520, 480], [30, 970]]
    return replace(Votes.from_counts(counts, mechanism=PRIVATE, labels=[0, 0, 1, 1]), unit=unit, **more)


def votes_of(name: str, unit: Unit | None = UNIT) -> Votes:
    return replace(KNOWN[name].votes, unit=unit)


def certificates() -> dict[str, Certificate]:
    known = {name: certify(votes_of(name), method=rival.method) for name, rival in KNOWN.items()}
    kept = replace(private_votes(), mechanism=Subsampled(0.5, PRIVATE))
    cut = private_votes(size=Size.of(1000), unit=Unit("vendor", 1000))
    return {**known, "fdp": certify(private_votes()), "kept": certify(kept), "cut": certify(cut)}


CERTIFICATES = certificates()


class Texts(HTMLParser):
    """All that a page shows, and what is in its scripts; it must have no script of anybody else."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.shown: list[str] = []
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] not in ("script", "style"):
            self.shown.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.shown)


# --- every rendering of a certificate ---------------------------------------------------------------------------------


def test_the_words_to_look_for_are_there_without_units() -> None:
    certificate = certify(private_votes(None, size=Size.of(1000)))
    for text in (certificate.report(methods=()).html(), certificate.report(methods=()).markdown()):
        assert COUNTS_EXAMPLES.search(text)
        assert "vendor" not in text
    for rival in KNOWN.values():
        assert COUNTS_EXAMPLES.search(Report.of(certify(rival.votes, method=rival.method)).markdown())


@pytest.mark.parametrize("name", CERTIFICATES)
def test_reports_speak_of_units(name: str) -> None:
    certificate = CERTIFICATES[name]
    assert certificate.threat is Threat.EDIT
    report = certificate.report(methods=None if name == "fdp" else ())
    check_words(repr(certificate))
    check_words(Texts(report.html()).text)
    check_words(report.markdown())
    check_words(" ".join(ElementTree.fromstring(report.svg()).itertext()))
    check_words(json.dumps({key: value for key, value in report.to_dict().items() if key != "provenance"}))
    assert "vendors inserted, deleted or changed" in report.svg()
    assert report.to_dict()["claim"]["unit"] == {"name": "vendor", "count": 1000}


@pytest.mark.parametrize("name", CERTIFICATES)
def test_mechanisms_run_on_units(name: str) -> None:
    votes = CERTIFICATES[name].votes
    check_words(votes.mechanism.in_words(votes.unit_words))
    assert not COUNTS_EXAMPLES.search(repr(votes))
    assert not COUNTS_EXAMPLES.search(f"{votes.tally} {votes.voters.remedy} {votes.voters.in_full}")


@pytest.mark.parametrize("name", CERTIFICATES)
def test_an_audit_speaks_of_units(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "certificate.json"
    CERTIFICATES[name].save(path)
    outcome = verify(path)
    assert outcome.valid, outcome.checks
    assert outcome.to_dict()["unit"] == {"name": "vendor", "count": 1000}
    check_words(repr(outcome))
    said = run(capsys, "verify", path)
    assert said.code == 0
    check_words(said.out)
    assert json.loads(run(capsys, "verify", path, "--json").out)["unit"] == {"name": "vendor", "count": 1000}


@pytest.mark.parametrize("threat", Threat)
def test_every_threat_has_words_for_units(threat: Threat) -> None:
    words = UNIT.words
    for said in (threat.of(words), threat.changes_of(words, 1), threat.changes_of(words, 7), threat.counts(words)):
        check_words(said)
    assert threat.changes_of(words, 1).startswith("one vendor was ")
    assert threat.changes_of(words, 1234).startswith("up to 1,234 vendors were ")
    assert threat.of(EXAMPLES) == threat.in_words
    certificate = certify(votes_of("dpa"), threat=threat)
    check_words(Report.of(certificate).markdown())


def test_threats_differ_in_words() -> None:
    assert len({threat.of(UNIT.words) for threat in Threat}) == len(Threat)
    assert len({threat.counts(UNIT.words) for threat in Threat}) == len(Threat)


def test_numbers_tables_and_files_name_the_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    votes = private_votes()
    certificate = certify(votes)
    assert certificate.summary()["unit"] == {"name": "vendor", "count": 1000}
    assert certificate.to_dict()["unit"] == {"name": "vendor", "count": 1000}
    assert certificate.to_frame()["unit"].tolist() == ["vendor"] * 4
    assert "unit" not in certify(private_votes(None)).to_frame()
    assert "unit" not in certify(private_votes(None)).summary()
    votes.save(tmp_path / "votes.npz")
    flags = ("certify", tmp_path / "votes.npz", "--csv", tmp_path / "p.csv", "--out", tmp_path / "c.json")
    check_words(run(capsys, *flags).out)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "p.csv").read_text())))
    assert [row["unit"] for row in rows] == ["vendor"] * 4
    assert [int(row["radius"]) for row in rows] == certificate.radius.tolist()
    assert run_json(capsys, *flags)["unit"] == {"name": "vendor", "count": 1000}
    assert json.loads((tmp_path / "c.json").read_text())["unit"] == {"name": "vendor", "count": 1000}
    check_words(run(capsys, "report", tmp_path / "c.json").out)


def test_merged_votes_name_the_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        private_votes(run_ids=(name,)).save(tmp_path / f"{name}.npz")
    files = (tmp_path / "one.npz", tmp_path / "two.npz")
    merged = json.loads(run(capsys, "merge", *files, "-o", tmp_path / "both.npz", "--json").out)
    assert merged["unit"] == {"name": "vendor", "count": 1000}
    private_votes(None, run_ids=("three",)).save(tmp_path / "three.npz")
    assert "what a unit is" in refused(capsys, "merge", files[0], tmp_path / "three.npz", "-o", tmp_path / "no.npz")


def test_who_controls_names_is_said_and_is_no_condition(tmp_path: Path) -> None:
    certificate = certify(private_votes())
    said = [each for each in certificate.assumptions if "a thousand accounts is a thousand vendors" in each]
    assert len(said) == 1
    assert not conditions_of(said)
    assert not certificate.conditional
    silent = replace(certificate, assumptions=tuple(each for each in certificate.assumptions if each not in said))
    silent.save(tmp_path / "silent.json")
    assert [each.name for each in verify(tmp_path / "silent.json").checks if not each.passed] == ["assumptions"]
    assert "a thousand accounts" not in " ".join(certify(private_votes(None)).assumptions)


def test_a_radius_that_ends_with_the_size_step_asks_for_the_number_of_units() -> None:
    certificate = certify(private_votes(size=Size.of(680), unit=Unit("vendor", 680)))
    assert (certificate.status == "size_limit").any()
    assert "declare num_units" in repr(certificate)
    text = certificate.report(methods=()).markdown().replace("\\", "")
    assert "a number of vendors that nobody declared; declare num_units" in text


# --- names that mean harm ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [HOSTILE, LONG, "=1+1", "[red]x[/]", "a{b}%s$c$", 'say "no"', "two\nlines\x1b[2J"])
def test_whatever_a_unit_is_called_it_is_shown_as_text(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    votes = private_votes(Unit(name, 1000))
    certificate = certify(votes)
    report, called = certificate.report(methods=()), votes.unit_words.many
    page = report.html()
    assert "<script>alert" not in page
    texts = Texts(page)
    assert texts.tags.count("script") == 2
    assert " ".join(called.split()) in " ".join(texts.text.split())
    for text in ElementTree.fromstring(report.svg()).iter("{http://www.w3.org/2000/svg}text"):
        assert len("".join(text.itertext())) < 80  # it has to fit below the axis
    assert "<script>" not in report.markdown()
    assert json.loads(json.dumps(report.to_dict()))["claim"]["unit"]["name"] == name
    certificate.save(tmp_path / "c.json")
    assert Certificate.load(tmp_path / "c.json") == certificate
    assert verify(tmp_path / "c.json").valid
    votes.save(tmp_path / "votes.npz")
    said = run(capsys, "certify", tmp_path / "votes.npz", "--csv", tmp_path / "p.csv")
    assert said.code == 0
    assert "\x1b" not in said.out
    assert re.sub(r"\s", "", called) in re.sub(r"\s", "", said.out)  # lines end where the screen does
    rows = list(csv.DictReader(io.StringIO((tmp_path / "p.csv").read_text())))
    assert [row["unit"].removeprefix("'") for row in rows] == [votes.unit_words.one] * 4
    assert not any(row["unit"].startswith("=") for row in rows)
    axes = certificate.plot()
    assert len(axes.get_xlabel()) < 80
    axes.figure.canvas.draw()  # or matplotlib would look for formulas


@pytest.mark.parametrize("name", [HOSTILE, LONG])
def test_comparisons_show_names_as_text(name: str) -> None:
    page = _comparison(Unit(name, 1000)).html()
    assert "<script>" not in page
    assert name in Texts(page).text


# --- plans ------------------------------------------------------------------------------------------------------------

MECHANISM = ["--noise-multiplier", "20", "--sample-rate", "1", "--steps", "4"]
PLAN = ["plan", *MECHANISM, "--instances", "200", "--classes", "3"]


def test_plans_speak_of_units(capsys: pytest.CaptureFixture[str]) -> None:
    units = ("--unit", "vendor", "--num-units", "1000")
    content = run_json(capsys, *PLAN, *units)
    assert (content["unit"], content["threat"]) == ({"name": "vendor", "count": 1000}, "edit")
    assert "needed_examples" not in content
    assert content["needed_units"] == run_json(capsys, *PLAN)["needed_examples"]
    assert content["radius_by_top_share"] == run_json(capsys, *PLAN, "--threat", "edit")["radius_by_top_share"]
    said = run(capsys, *PLAN, *units, "--radius", "3").out
    check_words(said)
    assert "radius (vendors)" in said
    assert "a radius of 3 vendors" in " ".join(said.split())
    check_words(repr(plan(SampledGaussian(20.0, 1.0, 4), instances=200, classes=3, unit=UNIT)))
    assert "unit" not in run_json(capsys, *PLAN)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--unit", "vendor"], "the number of vendors"),
        (["--num-units", "5"], "--unit NAME"),
        (["--unit", "vendor", "--num-units", "10", "--radius", "12"], "12 is above the number of vendors (10)"),
        (["--unit", "", "--num-units", "10"], "name of a unit"),
        (["--unit", "vendor", "--num-units", "0"], "at least 1"),
    ],
)
def test_plans_of_units_that_make_no_sense(capsys: pytest.CaptureFixture[str], flags: list[str], says: str) -> None:
    assert says in refused(capsys, *PLAN, *flags)


def test_a_plan_takes_its_constants_from_a_project_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "shops.toml"
    constants = (
        "instances = 200\nnoise_multiplier = 20.0\nsample_rate = 1.0\nsteps = 4\nclasses = 3\nnum_units = 1000\n"
    )
    file.write_text(f'[data]\ntrain = "shops.npz"\n[train]\nmethod = "fdp"\n{constants}')
    assert run_json(capsys, "plan", file, "--unit", "vendor") == run_json(
        capsys, *PLAN, "--method", "fdp", "--unit", "vendor", "--num-units", "1000"
    )
    fewer = run_json(capsys, "plan", file, "--unit", "vendor", "--instances", "150", "--num-units", "70")
    assert (fewer["instances"], fewer["unit"]["count"]) == (150, 70)
    file.write_text('[data]\ntrain = "shops.npz"\n[train]\nsteps = 4\n')
    missing = refused(capsys, "plan", file)
    assert "--noise-multiplier, --sample-rate, --instances, --classes" in missing
    assert "leaves open" in missing
    file.write_text('[data]\ntrain = "shops.npz"\n[train]\nmethod = "dpa"\n')
    assert "asks for dpa" in refused(capsys, "plan", file)
    assert "A plan needs --noise-multiplier" in refused(capsys, "plan")


def test_a_plan_by_a_recipe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mnist.toml"
    file.write_text('[train]\nrecipe = "mnist-strong"\n')
    content = run_json(capsys, "plan", file, "--classes", "10", "--instances", "100")
    assert content["mechanism"]["type"] == "sampled-gaussian"
    assert "unit" not in content


# --- comparisons ------------------------------------------------------------------------------------------------------


def _comparison(unit: Unit | None = UNIT) -> Comparison:
    private = certify(private_votes(unit), threat="edit")
    parts = Votes.from_counts([[9, 0], [6, 3], [5, 4], [2, 7]], mechanism=Partitioned(9), labels=[0, 0, 1, 1])
    found = certify(replace(parts, unit=unit), threat="edit")
    bound = statistical_dp(private.votes, threat="edit")
    outcomes = {"fdp": private, "dpa": found, "statistical-dp": bound}
    entries = (Entry(name, name, outcome, Threat.EDIT, 0.0, 0.0) for name, outcome in outcomes.items())
    return Comparison(tuple(entries), Threat.EDIT, np.array([0, 0, 1, 1]))


def test_comparisons_speak_of_units() -> None:
    comparison = _comparison()
    for text in (Texts(comparison.html()).text, comparison.markdown(), comparison.svg()):
        check_words(text)
    assert re.search(r"r = [\d,]+ vendors", comparison.headline)
    content = comparison.to_dict()
    assert content["unit"] == {"name": "vendor", "count": 1000}
    check_words(content["threat_in_words"])
    assert content["methods"][2]["bound"]["unit"] == {"name": "vendor", "count": 1000}
    assert "unit" not in _comparison(None).to_dict()


def test_a_comparison_is_of_one_kind_of_unit() -> None:
    entries = [_comparison(unit).entries[0] for unit in (UNIT, None, Unit("vendor", 999), Unit("site", 1000))]
    for other in entries[1:]:
        with pytest.raises(ConfigError, match="count different things"):
            Comparison((entries[0], other), Threat.EDIT, np.array([0, 0, 1, 1]))


# --- from data to a report --------------------------------------------------------------------------------------------


def vendors(rows: int = 300, count: int = 50) -> tuple[Examples, tuple[Any, Any]]:
    random = np.random.default_rng(0)
    x, test = random.normal(size=(rows, 3)), random.normal(size=(20, 3))
    units = Units.of([f"v{row % count}" for row in range(rows)], "vendor")
    return Examples(x, (x[:, 0] > 0).astype(np.int64), ("no", "yes"), units=units), (test, (test[:, 0] > 0).astype(int))


def test_commands_on_a_run_of_units(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training, test = vendors()
    folder = tmp_path / "run"
    parts = defence("dpa", partitions=11, learner="logistic", classes=2)
    parts.train(training, test, run_dir=folder, keep_models=True)
    np.savez(tmp_path / "new.npz", x=test[0])
    unit = {"name": "vendor", "count": 50}
    for command in (("certify", folder), ("report", folder), ("verify", folder)):
        said = run(capsys, *command)
        assert said.code == 0
        check_words(said.out)
    predicted = run(capsys, "predict", folder, tmp_path / "new.npz", "--out", tmp_path / "p.csv")
    check_words(predicted.out)
    assert "certified to (vendors)" in " ".join(predicted.out.split())
    assert "vendor" in (tmp_path / "p.csv").read_text().splitlines()[1].split(",")
    content = run_json(capsys, "predict", folder, tmp_path / "new.npz")
    assert content["unit"] == unit
    assert {row["unit"] for row in content["predictions"]} == {"vendor"}
    assert run_json(capsys, "report", folder)["claim"]["unit"] == unit
    check_words((folder / "report.html").read_text())


def test_comparisons_of_units_certify_their_edit_unless_told_otherwise() -> None:
    training, test = vendors()
    methods = {"dpa": defence("dpa", partitions=11, learner="logistic", classes=2)}
    comparison = compare(methods, (training, test))
    assert comparison.threat is Threat.EDIT
    assert comparison.unit == Unit("vendor", 50)
    assert compare(methods, (training, test), threat="add").threat is Threat.ADD
    assert compare(methods, (replace(training, units=None), test)).threat is Threat.SYMMETRIC_DIFFERENCE


def test_bagging_is_matched_with_no_more_draws_than_there_are_units() -> None:
    training, test = vendors(rows=400, count=8)
    training = replace(training, y=np.arange(400) % 2)  # noise: the more draws, the better
    methods = {
        "dpa": defence("dpa", partitions=1, learner="logistic", classes=2),
        "bagging": defence("bagging", draws=1, instances=30, learner="logistic", classes=2),
    }
    comparison = compare(methods, (training, test), match=0)
    assert not comparison.failed
    found = comparison.entries[1].certificate
    assert found is not None
    assert found.votes.mechanism.to_dict()["draws"] <= 8


# --- what is chosen before training -----------------------------------------------------------------------------------


def test_recipes_speak_of_units() -> None:
    task: dict[str, Any] = {"num_train": 60, "classes": 3, "shape": (4,), "kind": "float"}
    recipe = choose(**task, unit="annotator")
    assert recipe.threat is Threat.EDIT
    said = recipe.in_words()
    check_words(said, Unit("annotator", 60))
    assert "an annotator enters a step" in said
    assert re.search(r"annotators inserted, deleted or changed where all instances agree", said)
    assert "declared as num_units" in said
    assert recipe.warnings
    plain = choose(**task)
    assert plain.threat is Threat.SYMMETRIC_DIFFERENCE
    assert recipe.reach == choose(**task, threat="edit").reach
    assert plain.config == recipe.config


@pytest.mark.parametrize(("number", "rows"), [(20, None), (20, 16), (60, 16)])
def test_so_many_units_would_do(number: int, rows: int | None) -> None:
    """A changed unit is one deleted and one inserted, so it takes more of them than of examples."""
    task: dict[str, Any] = {"classes": 2, "shape": (4,), "kind": "float", "instances": 300, "unit": "vendor"}
    few = choose(num_train=number, unit_rows=rows, **task)
    found = [re.search(r"([\d,]+) would do\), declared as num_units", each) for each in few.warnings]
    enough = [int(each[1].replace(",", "")) for each in found if each is not None]
    assert len(enough) == 1
    assert enough[0] > number
    share = 1.0 if few.reach[1.0] == 0 else 0.9
    assert few.reach[share] < 1 <= choose(num_train=enough[0], unit_rows=rows, **task).reach[share]


@pytest.mark.parametrize("radius", [None, 3, 9])
def test_the_choice_of_a_method_speaks_of_units(radius: int | None) -> None:
    training, test = vendors(rows=60, count=20)
    _, reason = named("auto", {"classes": 2}, radius=radius).pick(_facts(training, test))
    check_words(reason)


def _facts(training: Examples, test: Any) -> Any:
    return compose(defence("dpa", partitions=2, learner="logistic", classes=2), training, test).facts


# --- defaults and bounds ----------------------------------------------------------------------------------------------


def test_with_units_the_default_threat_is_their_edit() -> None:
    assert default_threat(private_votes()) is Threat.EDIT
    assert default_threat(private_votes(None)) is Threat.SYMMETRIC_DIFFERENCE
    assert statistical_dp(private_votes()).threat is Threat.EDIT
    assert statistical_dp(private_votes(None)).threat is Threat.SYMMETRIC_DIFFERENCE
    assert plan(PRIVATE, instances=100, classes=2, unit=UNIT).threat is Threat.EDIT
    assert plan(PRIVATE, instances=100, classes=2).threat is Threat.SYMMETRIC_DIFFERENCE


def test_a_bound_on_average_counts_a_changed_unit_as_one_deleted_and_one_inserted() -> None:
    bound, pure = statistical_dp(private_votes()), statistical_dp(private_votes(), threat="symmetric-difference")
    assert bound.published([0, 1, 2, 3]).tolist() == pure.published([0, 2, 4, 6]).tolist()
    # One of each is among the splits of two changes.
    assert (bound.accuracy([0, 1, 2, 3]) >= pure.accuracy([0, 2, 4, 6])).all()
    assert (bound.accuracy([1, 2, 3]) < pure.accuracy([1, 2, 3])).all()
    cut = statistical_dp(private_votes(Unit("vendor", 680), size=Size.of(680)))
    assert (cut.accuracy([10, 11]) > 0).tolist() == [True, False]


def test_words_for_examples_and_units() -> None:
    assert UnitWords.of(None) is EXAMPLES
    assert UnitWords.of("company").changes == "changed companies"
    assert UnitWords.of(LONG).short.many == "w" * 23 + "…"
    assert Unit("two\nlines", 1).one == "two lines"


def test_training_says_what_does_not_enter_of_large_units_and_whose_inputs_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    x, y = random.normal(size=(300, 3)), random.integers(0, 2, 300)
    np.savez("train.npz", x=x, y=y, unit=[f"v{n % 30}" for n in range(300)])
    Path("project.toml").write_text(
        '[data]\ntrain = "train.npz"\nunit = "vendor"\nholdout = 0.3\n\n'
        '[train]\nmethod = "nearest-neighbours"\nunit_cap = 4\n'
    )
    assert main(["train", "project.toml"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    train, test = split_by_hash(Examples(x, y, units=Units.of([f"v{n % 30}" for n in range(300)])), 0.3)
    assert train.units is not None
    assert test.units is not None
    left = len(train.units.names)
    assert f"The {len(test.x)} inputs are those of {len(test.units.names)} vendors." in said
    assert f"{left} vendors have more than 4 examples" in said
    assert f"{left * 6} do not (--unit-cap)" in said
    votes = Votes.load("runs/project/votes.npz")
    correct = float(np.mean(np.asarray(certify(votes).label) == votes.labels))
    assert f"The prediction is correct on {correct:.2%}" in said


def test_the_json_of_a_report_names_the_unit_where_every_other_output_does() -> None:
    votes = Votes.from_counts([[9, 1]], labels=[0], mechanism=Partitioned(10))
    assert certify(replace(votes, unit=Unit("vendor", 50))).report().to_dict()["unit"] == {
        "name": "vendor",
        "count": 50,
    }
    assert "unit" not in certify(votes).report().to_dict()
