"""No accuracy without its baseline, no praise for a constant answer, and no label that is taken for another one."""

import inspect
import json
import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_cli import run, run_json

from mithridate import Certificate, CertifiedClassifier, ConfigError, SampledGaussian, Threat, Votes, certify, plan
from mithridate.cli._shared import new_parser
from mithridate.comparing.entry import Entry
from mithridate.comparing.result import Comparison
from mithridate.comparing.running import compare
from mithridate.core.labels import single_label
from mithridate.data import Examples
from mithridate.defences import defence, names
from mithridate.defences.partitions import Partitioned
from mithridate.recipes.choosing import choose
from mithridate.reporting import sentences as words
from mithridate.training.order import Order

GAUSSIAN = SampledGaussian(20.0, 1.0, 4)
NAMED = {"source": {"declaration": None, "class_names": ["no", "yes"]}}
# 9 of 100 test labels are "yes"; 100 of 100 predictions are "no", and all instances agree.
RARE = np.array([0] * 91 + [1] * 9)


def always_no(truth: Any = RARE, **changes: Any) -> Votes:
    counts = np.array([[1000, 0]] * len(truth))
    return Votes(**{"counts": counts, "mechanism": GAUSSIAN, "labels": np.array(truth), "recipe": NAMED, **changes})


def by_parts(label: Any, truth: Any, radius: int, name: str) -> Entry:
    """A method without randomness that certifies every prediction to the same radius."""
    counts = np.zeros((len(truth), 2), dtype=np.int64)
    counts[np.arange(len(truth)), label] = 2 * radius + 1
    votes = Votes(counts, Partitioned(2 * radius + 1), labels=np.array(truth), recipe=NAMED)
    return Entry(name, name, certify(votes), Threat.SYMMETRIC_DIFFERENCE, 0.0, 0.0)


# --- the numbers ----------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=40))
def test_the_summary_is_what_plain_counting_gives(rows: list[tuple[int, int, int]]) -> None:
    lead, label, truth = (np.array(column) for column in zip(*rows, strict=True))
    counts = np.zeros((len(rows), 3), dtype=np.int64)
    counts[np.arange(len(rows)), label] = 7 + lead
    counts[np.arange(len(rows)), (label + 1) % 3] = 6 - lead
    certificate = certify(Votes.from_counts(counts, mechanism=Partitioned(13)))
    summary = certificate.summary(truth, [0, 1, 3, 6])
    classes = sorted(set(truth.tolist()))
    assert summary["baseline"] == max(Counter(truth.tolist()).values()) / len(rows)
    for radius in (0, 1, 3, 6):
        hits = (certificate.label == truth) & (certificate.radius >= radius)
        mean = sum(Fraction(int(hits[truth == c].sum()), int((truth == c).sum())) for c in classes) / len(classes)
        assert summary["certified_balanced_accuracy"][str(radius)] == pytest.approx(float(mean), abs=1e-12)
        assert certificate.balanced_accuracy(truth, radius)[0] == pytest.approx(float(mean), abs=1e-12)
    assert list(summary["certified_balanced_accuracy"]) == list(summary["certified_accuracy"])


@pytest.mark.parametrize(
    ("rare", "total", "expected"),
    [(0, 2, True), (1, 2, False), (1, 99, False), (1, 100, True), (2, 199, False), (2, 200, True), (0, 1, False)],
)
def test_one_label_is_99_of_100_and_not_fewer(rare: int, total: int, expected: bool) -> None:
    predictions = np.array([1] * rare + [0] * (total - rare))
    assert (single_label(predictions) is not None) is expected
    counts = np.where(predictions[:, None] == [0, 1], 1000, 0)
    certificate = certify(Votes.from_counts(counts, mechanism=GAUSSIAN))
    assert certificate.summary()["single_label"] is expected
    assert ("the same label" in words.headline(certificate).text) is expected


def test_labels_of_the_votes_are_taken_where_none_are_given() -> None:
    certificate = certify(always_no())
    names = np.array(["no", "yes"])[RARE]
    assert certificate.summary() == certificate.summary(names)
    assert certificate.accuracy(None, [0, 5]).tolist() == certificate.accuracy(names, [0, 5]).tolist() == [0.91, 0.91]
    with pytest.raises(ConfigError, match="carry no true labels"):
        certify(always_no(labels=None)).accuracy(None, 0)


# --- a classifier that always says no -------------------------------------------------------------------------------


def test_a_constant_answer_is_called_so_on_the_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "votes.npz"
    always_no().save(path)
    summary = run_json(capsys, "certify", path, "--radii", "0,10")["summary"]
    assert (summary["single_label"], summary["baseline"]) == (True, 0.91)
    assert summary["certified_accuracy"] == {"0": 0.91, "10": 0.91}
    assert summary["certified_balanced_accuracy"] == {"0": 0.5, "10": 0.5}
    out = run(capsys, "certify", path).out
    assert out.startswith("All 100 predictions are the same label, 'no'.\nAlways saying 'no' is correct on 91.0% (the ")
    assert "100.00%" not in out
    assert "At no radius is more correct and certified than the baseline of 91.0%." in " ".join(out.split())


def test_a_constant_answer_is_called_so_in_every_report() -> None:
    report = certify(always_no()).report()
    assert report.headline.startswith(
        "All 100 predictions are the same label, 'no'. Always saying 'no' is correct on 91.0% (the baseline). 9 of 10 "
        "predictions are correct and certified to stay the same if up to "
    )
    content = json.loads(report.rendered("json"))
    assert content["headline"]["text"] == report.headline
    assert content["headline"]["reached"] == 91
    assert content["summary"].items() >= {"single_label": True, "baseline": 0.91, "accuracy": 0.91}.items()
    assert content["summary"]["certified_balanced_accuracy"]["0"] == 0.5
    yes = content["per_class"][1]
    assert (yes["points"], yes["right"], yes["median_radius"]) == (9, 0, -1)
    assert "| baseline: always 'no' | 91.0% |" in report.markdown()
    assert "Baseline: always saying 'no' is correct on 91.0%." in report.markdown()
    assert "baseline: always 'no'</dt><dd>91.0%" in unescape(report.html())
    assert any("At no radius is more correct" in sentence for sentence in report.warnings)


def test_headlines_count_what_is_correct_and_certified() -> None:
    """Everything is certified, and half of it wrongly."""
    counts = np.array([[1000, 0], [0, 1000]] * 20)
    certificate = certify(Votes.from_counts(counts, mechanism=GAUSSIAN, labels=[0] * 40))
    found = words.headline(certificate)
    assert found.text.startswith("Half of the predictions are correct and certified to stay the same if up to ")
    assert "(baseline: 100.0%); each of these claims" in found.text
    assert found.reached == 20
    wrong = words.headline(certify(Votes.from_counts(counts[:2], mechanism=GAUSSIAN, labels=[1, 0])))
    assert (wrong.text, wrong.reached) == ("No correct prediction is certified (baseline: 50.0%).", 0)


@pytest.mark.parametrize(("truth", "share"), [(RARE, 0.91), ([0, 1] * 50, 0.5), ([0] * 100, 1.0)])
def test_every_chart_has_the_line_of_the_baseline(truth: Any, share: float) -> None:
    report = certify(always_no(truth)).report(methods=())
    comparison = Comparison((by_parts(truth, truth, 5, "a"),), Threat.SYMMETRIC_DIFFERENCE, np.array(truth))
    for svg in (report.svg(), comparison.svg()):
        drawn = ElementTree.fromstring(svg)
        grid = {
            text.text: float(text.get("y", ""))
            for text in drawn.iter("{http://www.w3.org/2000/svg}text")
            if re.fullmatch(r"\d+%", text.text or "")
        }
        (line,) = [path for path in drawn.iter() if path.get("class") == "baseline"]
        (name,) = [text for text in drawn.iter() if text.get("class") == "baseline-name"]
        found = re.match(r"M[\d.]+ ([\d.]+)H", line.get("d", ""))
        assert found
        height = grid["0%"] + (grid["100%"] - grid["0%"]) * share - 4  # labels stand 4 below their lines
        assert float(found[1]) == pytest.approx(height, abs=0.1)
        assert name.text == f"baseline {share:.1%}"
    page = json.loads(re.findall(r'id="report-data">(.*?)</script>', report.html())[0])
    assert page["baseline"] == {"share": share, "label": f"baseline {share:.1%}"}
    assert "baseline" not in certify(always_no(truth, labels=None)).report(methods=()).svg()


# --- comparisons ----------------------------------------------------------------------------------------------------


def test_a_constant_answer_wins_nothing() -> None:
    """It is certified far beyond a method that tells the classes apart."""
    better = np.where(np.arange(100) < 97, RARE, 1 - RARE)  # 97 of 100
    constant, able = by_parts(np.zeros(100, int), RARE, 300, "constant"), by_parts(better, RARE, 20, "able")
    comparison = Comparison((constant, able), Threat.SYMMETRIC_DIFFERENCE, RARE)
    assert comparison.best([0, 20, 21, 300]) == [("able",), ("able",), (), ()]
    assert comparison.headline == (
        "able certifies the most correct predictions at every radius up to r = 20. Beyond that, none is above the "
        "baseline of 91.0%."
    )
    content = comparison.to_dict()
    assert content["baseline"] == 0.91
    assert [stretch["last"] for stretch in content["crossings"]] == [20]
    by_name = {method["name"]: method for method in content["methods"]}
    assert by_name["constant"]["single_label"] is True
    assert by_name["able"]["single_label"] is False
    radii = [str(radius) for radius in comparison.radii]
    assert by_name["constant"]["certified_balanced_accuracy"] == dict.fromkeys(radii, 0.5)
    assert by_name["able"]["certified_balanced_accuracy"]["0"] == pytest.approx((1 + 6 / 9) / 2)
    remark = "constant says one label, 'no', on all 100 test points."
    assert remark in comparison.findings
    for text in (comparison.markdown(), comparison.html()):
        assert "baseline" in text
        assert "none" in text


def test_a_single_label_that_leads_by_a_hair_is_called_so_first() -> None:
    hair = np.where(np.arange(100) == 99, 1, 0)  # one more is correct than the baseline
    comparison = Comparison((by_parts(hair, RARE, 9, "hair"),), Threat.SYMMETRIC_DIFFERENCE, RARE)
    assert comparison.headline.startswith("hair says one label, 'no', on 99 of 100 test points. hair certifies more")


def test_a_comparison_knows_its_baseline_and_classes(tmp_path: Path) -> None:
    points = np.array([[-1.0, -1.0], [1.0, 1.0]] * 20)
    labels = np.array([0, 1] * 20)
    data = (Examples(points, labels, ("no", "yes")), Examples(points[:5], labels[:5], ("no", "yes")))
    comparison = compare(["kernel-vote", "nearest-neighbours"], data, run_dir=tmp_path)
    assert comparison.to_dict()["baseline"] == 3 / 5
    for entry in comparison.entries:
        assert entry.certificate is not None
        assert entry.certificate.votes.class_names == ("no", "yes")
        names = np.array(["no", "yes"])[labels[:5]]
        np.testing.assert_array_equal(entry.certificate.accuracy(names, [0, 1]), entry.accuracy([0, 1]))


# --- labels by their names ------------------------------------------------------------------------------------------


def test_names_travel_with_votes_and_certificates(tmp_path: Path) -> None:
    votes = always_no(labels=None)
    votes.save(tmp_path / "votes.npz")
    certify(votes).save(tmp_path / "certificate.json")
    names = np.array(["no", "yes"])[RARE]
    for certificate in (certify(Votes.load(tmp_path / "votes.npz")), Certificate.load(tmp_path / "certificate.json")):
        assert certificate.votes.class_names == ("no", "yes")
        for given_as in (names, names.tolist(), names.astype(object)):
            assert certificate.accuracy(given_as, [0]).tolist() == [0.91]
        assert certificate.to_dict(names)["summary"]["baseline"] == 0.91


@pytest.mark.filterwarnings("ignore:Certificates will be weak")
@pytest.mark.parametrize("kinds", [("no", "yes"), (3, 7), (False, True), (1.0, 2.0)])
def test_a_classifier_is_measured_by_the_labels_it_was_given(kinds: tuple[Any, Any]) -> None:
    points = np.array([[-1.0, -0.9], [1.0, 0.9]] * 30)
    y = np.array(kinds * 30)
    certificate = CertifiedClassifier(instances=60, device="cpu", random_state=0).fit(points, y).certify(points[:10])
    assert certificate.accuracy(y[:10], [0]).tolist() == [1.0]
    assert certificate.accuracy(y[[1, *range(1, 10)]], [0]).tolist() == [0.9]
    with pytest.raises(ConfigError, match="none of the classes"):
        certificate.accuracy(["maybe"] * 10, 0)
    with pytest.raises(ConfigError, match="not positions"):
        certificate.accuracy([0, 1] * 5, 0)


@pytest.mark.parametrize(
    ("names", "good", "bad"),
    [
        (None, [0, 1, 2], [["a", "b", "c"], [0.0, 1.0, 2.0], [0, 1, 3], [-1, 0, 1], [True, False, True], [None] * 3]),
        (["0", "1", "2"], [0, 1, 2], [["a"] * 3, [0.0, 1.0, 2.0], [3, 0, 0]]),
        (["0", "1", "2"], ["0", "1", "2"], [["00", "1", "2"]]),
        (["1", "2", "0"], ["1", "2", "0"], [[0, 1, 2]]),
        ([5, 6, 7], [5, 6, 7], [["5", "6", "7"], [5.0, 6.0, 7.0], [0, 1, 2]]),
        ([0.5, 1.0, 2.0], [0.5, 1, 2.0], [["0.5"] * 3, [0, 1, 2], [True] * 3]),
        # What is no list of names, one for each class, is none.
        (["a", "b"], [0, 1, 2], [["a", "b", "a"]]),
        (["a", "a", "b"], [0, 1, 2], [["a", "b", "a"]]),
        (["a", 1, None], [0, 1, 2], [["a"] * 3]),
        ("abc", [0, 1, 2], [["a", "b", "c"]]),
    ],
)
def test_labels_are_those_of_the_classes_or_refused(names: Any, good: list[Any], bad: list[list[Any]]) -> None:
    votes = Votes(np.diag([100, 100, 100]), GAUSSIAN, recipe={"source": {"class_names": names}})
    assert votes.positions(good).tolist() == [0, 1, 2]
    for labels in bad:
        for method in (certify(votes).accuracy, certify(votes).balanced_accuracy):
            with pytest.raises(ConfigError):
                method(labels, [0])
        with pytest.raises(ConfigError):
            certify(votes).to_dict(labels)


# --- the same defaults on every road --------------------------------------------------------------------------------

POINTS = np.random.default_rng(0).normal(size=(137, 3))
LABELS = (POINTS[:, 0] > 0).astype(np.int64)
COMPLETE = {"noise_multiplier": 4.0, "sample_rate": 0.3, "steps": 5, "max_grad_norm": 0.7, "learning_rate": 1.0}


@pytest.mark.filterwarnings("ignore:Certificates will be weak")
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("auto", {}),
        ("auto", {"radius": 4}),
        ("auto", {"private": True}),
        ("auto", {"instances": 7}),
        ("auto", {"steps": 9, "noise_multiplier": 3.0}),
        ("auto", {"model": "mlp"}),
        ("fdp", {}),
        ("fdp", {"max_grad_norm": 1.0}),
        ("fdp", {"features": "unit-norm", "learning_rate": 2.0}),
        ("fdp", COMPLETE),
        ("fdp", {**COMPLETE, "model": "linear"}),
        ("fdp", {**COMPLETE, "model": "mlp", "features": "unit-norm", "num_train": 137}),
        *((name, {}) for name in names() if name != "fdp"),
        ("dpa", {"partitions": 5, "steps": 3}),
        ("feature-smoothing", {"noise": 0.25, "features": "none"}),
        ("nearest-neighbours", {"neighbours": [9, 4], "leads": [3]}),
        ("kernel-vote", {"cosine": 0.5}),
        ("statistical-dp", {"delta": 1e-6, "instances": 9}),
    ],
)
def test_the_same_order_through_every_door(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, method: str, options: Any
) -> None:
    """By the command line, the estimator, Python and `compare`: the same defence, statements and size."""
    orders: list[Order] = []

    def instead(order: Order, runtime: Any = None) -> Any:
        orders.append(order)
        raise KeyboardInterrupt

    monkeypatch.setattr(Order, "run", instead)
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", x=POINTS, y=LABELS)
    lines = [f"{name} = {json.dumps(value)}" for name, value in {"method": method, "classes": 2, **options}.items()]
    Path("p.toml").write_text('[data]\ntrain = "data.npz"\ntest = "data.npz"\n[train]\n' + "\n".join(lines))
    assert run(capsys, "train", "p.toml", "--device", "cpu").code == 130
    wanted = ("radius", "private")
    constants = {name: value for name, value in options.items() if name not in wanted}
    parameters = inspect.signature(CertifiedClassifier).parameters
    by_name = CertifiedClassifier(method, **options) if parameters.keys() >= options.keys() else None
    pair, called = (POINTS, LABELS), ("0", "1")
    roads: list[Callable[[], Any]] = [] if by_name is None else [lambda: fit(by_name)]
    if method != "auto":
        one = defence(method, **constants)
        roads += [
            lambda: fit(CertifiedClassifier(one)),
            lambda: one.train(Examples(*pair, called), POINTS, device="cpu"),
            lambda: compare([one], (Examples(*pair, called), pair), device="cpu"),
        ]
    for road in roads:
        with pytest.raises(KeyboardInterrupt):
            road()
    assert len(orders) == 1 + len(roads)
    first = orders[0]
    for other in orders[1:]:
        assert other.choice == first.choice
        assert other.facts == first.facts
        assert (other.statements, other.size) == (first.statements, first.size)


def fit(estimator: CertifiedClassifier) -> Any:
    return estimator.set_params(classes=[0, 1], device="cpu").fit(POINTS, LABELS)


def _defaults(function: Any) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.items()
    return {name: each.default for name, each in parameters if each.default is not inspect.Parameter.empty}


def test_defaults_have_one_value_each() -> None:
    python = {
        "choose": _defaults(choose),
        "estimator": _defaults(CertifiedClassifier.__init__),
        "certify": _defaults(certify),
        "plan": _defaults(plan),
        "compare": _defaults(compare),
    }
    for name in ("model", "features", "failure_prob"):
        assert python["choose"][name] == python["estimator"][name], name
    # What is None there is left to the method, and by that to `choose` and `certify`.
    for name in ("instances", "noise_multiplier", "sample_rate", "steps", "max_grad_norm", "learning_rate", "threat"):
        assert python["estimator"][name] is None, name
    given_flags = {
        "certify": ["votes.npz"],
        "plan": "--noise-multiplier 1 --sample-rate 1 --steps 1 --instances 1 --classes 2".split(),
        "compare": ["c.toml"],
    }
    for command, flags in given_flags.items():
        arguments = vars(new_parser().parse_args([command, *flags]))
        for name, default in python[command].items():
            # What the command line leaves out is left to the function.
            if arguments.get(name) is not None and not callable(default):
                wanted = "winner" if name == "bounds" and default is None else default
                assert arguments[name] == wanted, (command, name)
