"""The report: its numbers against plain counting, its words against the certificate, its files against bad input."""

import base64
import hashlib
import io
import itertools
import json
import re
import struct
import subprocess
import sys
import zlib
from dataclasses import replace
from fractions import Fraction
from functools import cache
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import UndefinedError
from rival_votes import CLAIMS, EXACT, RIVALS
from scipy import stats
from test_certificate import scored_votes

from mithridate import (
    ADP,
    FDP,
    RDP,
    ArtifactError,
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
from mithridate._text import percent, printable, shortened
from mithridate.certifying import advice
from mithridate.certifying.advice import advise
from mithridate.core.certificate import Curve, cautions, confidence, guaranteed_failure_prob, round_ticks
from mithridate.core.conditions import Size, Statement
from mithridate.core.units import EXAMPLES
from mithridate.defences.bagging import Bagged
from mithridate.defences.neighbours import NearestExamples
from mithridate.defences.partitions import MajorityRule
from mithridate.defences.smoothing import FeatureNoiseRule, NoisyFeatures, NoisyLabels
from mithridate.reporting import FORMATS, Report, rendering, report_page
from mithridate.reporting import report as summary
from mithridate.reporting import sentences as words
from mithridate.reporting.report_page import key_figures, packed

GAUSSIAN = SampledGaussian(20.0, 1.0, 4)
HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "a|b\n# c & \u2028 ${title} $policy"]


@cache
def _certificate() -> Certificate:
    return certify(Votes.from_counts([[60, 40, 0]], mechanism=GAUSSIAN))


def made_up(
    radius: list[int], *, label: list[int] | None = None, truth: list[int] | None = None, **changes: Any
) -> Certificate:
    """A certificate with given radii, for arithmetic on them and words about them."""
    points = len(radius)
    votes = Votes.from_counts([[60, 30, 10]] * points, mechanism=GAUSSIAN, labels=truth)
    values = {
        "votes": votes,
        "radius": np.array(radius),
        "label": np.arange(points) % 3 if label is None else np.array(label),
        "status": np.where(np.array(radius) < 0, Status.NOT_SEPARATED.value, Status.CERTIFIED.value),
    }
    return replace(_certificate(), **{**values, **changes})


def some_report(**options: Any) -> Report:
    random = np.random.default_rng(3)
    radius = random.integers(-1, 30, 200).tolist()
    label, truth = random.integers(0, 3, 200).tolist(), random.integers(0, 3, 200).tolist()
    return made_up(radius, label=label, truth=truth).report(**{"methods": (), **options})


def weaknesses(certificate: Certificate) -> list[str]:
    """What a report says of weak votes, after the searches that it takes."""
    return words.weaknesses(certificate, advise(certificate, methods=()))


points = st.lists(st.tuples(st.integers(-1, 12), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=60)


# --- numbers --------------------------------------------------------------------------------------------------------


@given(points)
def test_curve_counts_what_certificate_accuracy_counts(rows: list[tuple[int, int, int]]) -> None:
    radius, label, truth = (list(column) for column in zip(*rows, strict=True))
    certificate = made_up(radius, label=label, truth=truth)
    curve = Curve.of(certificate)
    radii = np.arange(15)
    assert curve.right is not None
    np.testing.assert_allclose(curve.at(curve.right, radii) / len(rows), certificate.accuracy(truth, radii))
    certified = [sum(own >= r for own in radius) for r in radii]
    np.testing.assert_array_equal(curve.at(curve.certified, radii), certified)
    np.testing.assert_array_equal(curve.shown, curve.right)


def test_without_true_labels_the_curve_shows_what_is_certified() -> None:
    curve = Curve.of(made_up([-1, 0, 4, 4]))
    assert curve.right is None
    assert (curve.radius.tolist(), curve.shown.tolist()) == ([0, 4], [3, 2])
    assert curve.at(curve.shown, [0, 1, 4, 5]).tolist() == [3, 2, 2, 0]


@given(points)
def test_band_is_the_clopper_pearson_interval(rows: list[tuple[int, int, int]]) -> None:
    radius, label, truth = (list(column) for column in zip(*rows, strict=True))
    curve = Curve.of(made_up(radius, label=label, truth=truth))
    lower, upper = curve.band()
    hits, total = curve.shown, curve.total
    expected_lower = np.where(hits == 0, 0.0, stats.beta.ppf(0.025, np.maximum(hits, 1), total - hits + 1))
    expected_upper = np.where(hits == total, 1.0, stats.beta.ppf(0.975, hits + 1, np.maximum(total - hits, 1)))
    np.testing.assert_allclose(lower, expected_lower, atol=1e-9)
    np.testing.assert_allclose(upper, expected_upper, atol=1e-9)


@given(points, st.integers(1, 300))
def test_histogram_counts_every_point_once(rows: list[tuple[int, int, int]], stretch: int) -> None:
    radius, label, truth = (list(column) for column in zip(*rows, strict=True))
    radius = [r if r < 0 else r * stretch for r in radius]
    histogram = summary.Histogram.of(made_up(radius, label=label, truth=truth), max(max(radius), 1))
    for start, right, wrong in zip(histogram.start, histogram.right, histogram.wrong, strict=True):
        inside = [start <= r < start + histogram.width for r in radius]
        assert right == sum(i and own == true for i, own, true in zip(inside, label, truth, strict=True))
        assert wrong == sum(i and own != true for i, own, true in zip(inside, label, truth, strict=True))
    assert histogram.beyond == 0
    assert len(histogram.start) <= 40


@given(points, st.booleans())
def test_per_class_is_what_plain_counting_gives(rows: list[tuple[int, int, int]], known: bool) -> None:
    radius, label, truth = (list(column) for column in zip(*rows, strict=True))
    found = summary.per_class(made_up(radius, label=label, truth=truth if known else None))
    group = truth if known else label
    assert [row.label for row in found] == sorted(set(group))
    for row in found:
        members = [i for i, of in enumerate(group) if of == row.label]
        assert row.points == len(members)
        assert row.right == (sum(label[i] == truth[i] for i in members) if known else None)
        assert row.abstained == [radius[i] for i in members].count(-1)
        own = [-1 if known and label[i] != truth[i] else radius[i] for i in members]  # only what is correct counts
        reached_by_half = [r for r in range(-1, 13) if 2 * sum(o >= r for o in own) >= len(own)]
        assert row.median_radius == max(reached_by_half)


def test_top_share_is_the_share_of_votes_or_the_mean_score() -> None:
    votes = Votes.from_counts([[60, 40], [10, 90]], mechanism=GAUSSIAN, score_sums=[[55.0, 45.0], [30.0, 70.0]])
    assert summary.top_share(certify(votes)).tolist() == [0.6, 0.9]
    scores = certify(replace(votes, score_squares=np.array([[40.0, 30.0], [20.0, 60.0]])), on="scores")
    assert summary.top_share(scores).tolist() == [0.55, 0.7]


def test_points_at_the_limit_of_the_search_do_not_stretch_the_axis() -> None:
    status = np.array([Status.CERTIFIED.value, Status.SEARCH_LIMIT.value])
    assert summary.axis_limit((made_up([7, 1 << 20], status=status),)) == 7
    assert summary.axis_limit((made_up([1 << 20], status=status[1:]),)) == 1 << 20
    assert summary.axis_limit((made_up([-1, -1]),)) == 1
    assert summary.axis_limit((made_up([3]), made_up([9]))) == 9


@given(st.integers(1, 1 << 21), st.integers(1, 20))
def test_ticks_are_round_few_and_inside(limit: int, parts: int) -> None:
    ticks = round_ticks(limit, parts)
    assert ticks[0] == 0
    assert ticks[-1] <= limit
    assert len(ticks) <= parts + 1
    assert len({b - a for a, b in itertools.pairwise(ticks)}) <= 1


# --- words ----------------------------------------------------------------------------------------------------------


def _claimed_share(text: str, total: int) -> Fraction:
    if "All " in text or "all " in text.split(";")[0] or "oth predictions" in text or "one prediction" in text:
        return Fraction(1)
    if "9 of 10 predictions" in text:
        return Fraction(9, 10)
    if "alf of the predictions" in text:
        return Fraction(1, 2)
    found = re.search(r"([\d,]+) of ([\d,]+) predictions", text)
    assert found, text
    assert int(found[2].replace(",", "")) == total
    return Fraction(int(found[1].replace(",", "")), total)


def _claimed_radius(text: str) -> int:
    found = re.search(r"up to ([\d,]+) training (examples|labels|inputs) were", text)
    return int(found[1].replace(",", "")) if found else int("if one training " in text)


@given(
    st.lists(st.integers(-1, 2000), min_size=1, max_size=40) | st.lists(st.integers(-1, 2), min_size=1, max_size=40),
    st.sampled_from(list(Threat)),
    st.sampled_from(list(Scope)),
    st.sampled_from(["winner", "simultaneous", "anytime", "simuem", "pointwise"]),
    st.sampled_from([FDP(), ADP(), RDP("paper")]),
)
def test_the_claim_of_the_headline_is_satisfied(
    radius: list[int], threat: Threat, scope: Scope, bounds: str, method: Any
) -> None:
    certificate = made_up(radius, threat=threat, scope=scope, bounds=bounds, method=method)
    found = words.headline(certificate)
    if max(radius) < 0:
        assert "Nothing is certified" in found.text
        return
    claimed, share = _claimed_radius(found.text), _claimed_share(found.text, len(radius))
    assert claimed == found.radius
    reached = sum(r >= claimed for r in radius)
    assert reached == found.reached
    assert Fraction(reached, len(radius)) >= share > 0
    assert ("No prediction is certified against a change" in found.text) == (max(radius) == 0)
    assert found.text.startswith("Not a guarantee") == (method == RDP("paper") and claimed > 0)


@given(st.lists(st.integers(-1, 9), min_size=10, max_size=40))
def test_the_headline_names_the_largest_radius_of_its_rule(radius: list[int]) -> None:
    found = words.headline(made_up(radius))

    def reached(r: int) -> int:
        return sum(own >= r for own in radius)

    if 10 * reached(1) >= 9 * len(radius):
        assert 10 * reached(found.radius) >= 9 * len(radius) > 10 * reached(found.radius + 1)
    elif 2 * reached(1) >= len(radius):
        assert 2 * reached(found.radius) >= len(radius) > 2 * reached(found.radius + 1)
    else:
        assert found.radius == min(max(radius), 1)


def test_headline_of_the_contract() -> None:
    found = words.headline(made_up([120] * 9 + [-1]))
    assert found.text == (
        "9 of 10 predictions would stay the same if up to 120 training examples were added or removed; "
        "each of these claims holds with 99.9% confidence."
    )


@pytest.mark.parametrize(
    ("threat", "what", "happened"),
    [
        (Threat.SYMMETRIC_DIFFERENCE, "example", "added or removed"),
        (Threat.ADD, "example", "added"),
        (Threat.REMOVE, "example", "removed"),
        (Threat.REPLACE, "example", "changed"),
        (Threat.EDIT, "example", "inserted, deleted or changed"),
        (Threat.LABELS, "label", "changed"),
        (Threat.FEATURES, "input", "changed by at most the declared distance"),
    ],
)
def test_the_headline_says_what_may_change(threat: Threat, what: str, happened: str) -> None:
    assert f"if up to 5 training {what}s were {happened};" in words.headline(made_up([5] * 20, threat=threat)).text
    assert f"if one training {what} was {happened};" in words.headline(made_up([1] * 20, threat=threat)).text


@given(
    st.floats(1e-12, 0.999),
    st.sampled_from(list(Scope)),
    st.sampled_from(["winner", "simultaneous", "anytime", "simuem", "pointwise"]),
)
def test_the_stated_confidence_is_never_more_than_the_bounds_give(
    probability: float, scope: Scope, bounds: str
) -> None:
    certificate = made_up([5] * 20, failure_prob=probability, scope=scope, bounds=bounds)
    text = confidence(certificate)
    failing = Fraction(probability) * (Fraction(5, 3) if bounds == "simuem" else 1)  # 1 + 2 / 3 classes
    if bounds == "pointwise" or failing >= 1:
        assert "nominal and not guaranteed" in text
        return
    assert ("together" in text or "any of" in text) == (scope is Scope.ALL)
    slack = 1 + Fraction(1, 10**12)  # the product of two doubles
    if "confidence" in text:
        stated = 1 - Fraction(re.findall(r"([\d.]+)%", text)[0]) / 100
        assert failing <= stated * slack
        assert stated <= failing * Fraction(101, 100)
    else:
        assert failing <= Fraction(re.findall(r"at most ([^\s,]+)", text)[0]) * Fraction(11, 10)


@given(st.integers(1, 10**6), st.data())
def test_percent_says_all_and_none_only_where_it_is_so(total: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, total))
    text = percent(count, total)
    assert (text == "100.0%") == (count == total)
    assert (text == "0.0%") == (count == 0)
    assert abs(float(text.strip("<>%")) - 100 * count / total) <= 0.1


def test_unsound_and_nominal_certificates_carry_a_caution() -> None:
    assert "not valid for DP-SGD" in cautions(made_up([5], method=RDP("paper")))[0]
    assert "nominal" in cautions(made_up([5], bounds="pointwise"))[0]
    assert "(1 + 2 / classes)" in cautions(made_up([5], bounds="simuem"))[0]
    assert cautions(made_up([5])) == []


def test_too_few_instances_name_the_knob() -> None:
    few = certify(Votes.from_counts([[3, 0]], mechanism=GAUSSIAN))
    assert few.radius.tolist() == [-1]
    assert len(weaknesses(few)) == 1
    assert "not even unanimous votes" in weaknesses(few)[0]
    advised = int(re.findall(r"train a new run with --instances (\d+) or more", weaknesses(few)[0])[0])
    assert certify(Votes.from_counts([[advised, 0]], mechanism=GAUSSIAN)).radius[0] >= 0


def test_how_many_instances_are_enough_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    few = certify(Votes.from_counts([[3, 0]], mechanism=GAUSSIAN))
    monkeypatch.setattr(advice, "_radius_at_unanimity", lambda _, instances: -1 if instances == 3 else None)
    assert "train a new run with many more --instances." in weaknesses(few)[0]


def test_unanimous_votes_are_said_to_be_limited_by_the_instances() -> None:
    certificate = certify(Votes.from_counts([[1000, 0], [0, 1000], [900, 100]], mechanism=GAUSSIAN))
    more = certify(Votes.from_counts([[4000, 0]], mechanism=GAUSSIAN))
    (sentence,) = weaknesses(certificate)
    assert sentence.startswith("On 2 of 3 predictions all 1,000 instances agree")
    assert f"no more than a radius of {certificate.radius[0]};" in sentence
    assert f"4,000 that agree would show {more.radius[0]} (train a new run with --instances 4000)." in sentence


def test_more_instances_are_not_advised_where_they_would_not_help() -> None:
    certificate = certify(Votes.from_counts([[1000, 0]] * 3, mechanism=SampledGaussian(0.3, 1.0, 100)))
    assert certificate.radius.tolist() == [0, 0, 0]
    (sentence,) = weaknesses(certificate)
    assert "--noise-multiplier" in sentence


def test_more_instances_are_not_advised_beyond_the_size_step() -> None:
    """All 1,000 instances agree, and the size of the data alone ends the radius: no number of them shows more."""
    votes = Votes.from_counts([[1000, 0]], mechanism=GAUSSIAN)
    free, capped = certify(votes), certify(replace(votes, size=Size(1000, 995, 1006)))
    assert free.radius[0] > capped.radius[0] == 5
    assert any("instances agree" in sentence for sentence in weaknesses(free))
    assert weaknesses(capped) == []


def test_abstentions_and_little_privacy_name_the_knobs() -> None:
    assert "2 of 3 predictions are not certified" in weaknesses(made_up([-1, -1, 9]))[0]
    (sentence,) = weaknesses(made_up([0, 0, 9]))
    assert "--noise-multiplier" in sentence
    assert weaknesses(made_up([5, 6, 7])) == []


@pytest.mark.parametrize(
    ("radius", "start"),
    [
        ([5], "The one prediction would stay the same"),
        ([5, 5], "Both predictions would stay the same"),
        ([5, -1], "1 of 2 predictions would stay the same"),
        ([5, 5, 5], "All 3 predictions would stay the same"),
    ],
)
def test_few_predictions_are_counted_as_people_do(radius: list[int], start: str) -> None:
    assert words.headline(made_up(radius)).text.startswith(start)
    zero = words.headline(made_up([min(r, 0) for r in radius])).text
    assert f"for {start[0].lower()}{start[1:].removesuffix(' would stay the same')} the label" in zero


@pytest.mark.parametrize("scope", list(Scope))
def test_one_prediction_makes_one_claim(scope: Scope) -> None:
    assert confidence(made_up([5], scope=scope)) == "this claim holds with 99.9% confidence"
    tiny = confidence(made_up([5], scope=scope, failure_prob=1e-9))
    assert tiny == "this claim fails with probability at most 1e-09"
    assert "these claims" in confidence(made_up([5, 5], scope=scope))


def test_sentences_about_one_prediction_are_in_the_singular() -> None:
    limit = np.array([Status.SEARCH_LIMIT.value])
    assert words.limits(made_up([1 << 20], status=limit))[0].startswith(
        "The one prediction: the label is certified to the largest"
    )
    assert words.limits(made_up([1 << 20, 3], status=np.append(limit, Status.CERTIFIED.value)))[0].startswith(
        "1 of 2 predictions: the label is certified to the largest"
    )
    assert weaknesses(made_up([-1]))[0].startswith("The one prediction is not certified at all: its leading")
    assert weaknesses(made_up([-1, -1]))[0].startswith("Both predictions are not certified at all: their leading")
    for radius in ([-1], [0], [3], [1 << 20]):
        for format in ("html", "md", "svg"):
            text = made_up(radius).report(methods=()).rendered(format).decode()
            assert not re.search(r"\b(?<!of )1 (predictions|points)\b|\ball [12] predictions", text, re.IGNORECASE)


def test_advice_says_which_command_takes_the_flag() -> None:
    advice = [
        *weaknesses(certify(Votes.from_counts([[1000, 0], [510, 490]], mechanism=GAUSSIAN))),
        *weaknesses(certify(Votes.from_counts([[3, 0]], mechanism=GAUSSIAN))),
        *weaknesses(made_up([0, 0, 9])),
    ]
    assert len(advice) == 4
    for sentence in advice:
        assert re.search(r"[Tt]rain (a new run )?with ", sentence), sentence
        assert "(--instances)" not in sentence


def test_a_tighter_method_is_named() -> None:
    votes = Votes.from_counts([[1000, 0], [950, 50]], mechanism=GAUSSIAN)
    weak = certify(votes, method=ADP()).report(methods=(FDP(),))
    assert any("Certify with --method fdp" in warning for warning in weak.warnings)
    strong = certify(votes).report(methods=(ADP(),))
    assert not any("--method" in warning for warning in strong.warnings)


def test_a_curve_that_goes_on_beyond_the_axis_is_not_drawn_to_an_end() -> None:
    status = np.array([Status.CERTIFIED.value, Status.SEARCH_LIMIT.value])
    report = made_up([7, 1 << 20], status=status).report(methods=())
    described = report_page.description(report)
    assert "50.0% beyond 7" in described
    assert "none beyond" not in described
    whole = report_page.description(made_up([7, 9]).report(methods=()))
    assert "none beyond 9" in whole
    assert ("largest radius, or more", f"{1 << 20:,}") in key_figures(report)


def test_radii_that_end_early_are_explained() -> None:
    status = np.array([Status.NUMERICAL.value, Status.SEARCH_LIMIT.value, Status.CERTIFIED.value])
    sentences = words.limits(made_up([3, 1 << 20, 4], status=status))
    assert [sentence.startswith("1 of 3 predictions") for sentence in sentences] == [True, True]


@pytest.mark.parametrize("status", list(Status))
def test_every_status_has_words(status: Status) -> None:
    report = made_up([3, 4], status=np.array([status.value] * 2)).report(methods=())
    early = status not in (Status.CERTIFIED, Status.NOT_SEPARATED)
    (sentence,) = words.limits(report.certificate) or [""]
    assert sentence.lower() == (f"both predictions: {status.sentence}".lower() if early else "")
    statuses = json.loads(_Page(report.html()).scripts[1])["statuses"]
    assert len(set(statuses)) == len(Status)


# --- what a report holds --------------------------------------------------------------------------------------------


def test_other_methods_certify_the_same_claim() -> None:
    votes = Votes.from_counts([[1000, 0], [900, 100]], mechanism=GAUSSIAN, labels=[0, 1])
    own = certify(votes, threat="replace", failure_prob=0.01, scope="all", bounds="simuem")
    report = own.report()
    assert report.certificate is own
    assert [other.method for other in report.advice.others] == [ADP(), RDP("mixture", complement=True)]
    for other in report.advice.others:
        direct = certify(votes, method=other.method, threat="replace", failure_prob=0.01, scope="all", bounds="simuem")
        assert other == direct


def test_a_method_that_cannot_account_is_left_out_with_its_reason() -> None:
    votes = Votes.from_counts([[1000, 0]], mechanism=Subsampled(0.5, GAUSSIAN))
    report = certify(votes).report(methods=(RDP("paper"), RDP("mixture"), ADP()))
    assert len(report.advice.others) + len(report.advice.left_out) == 3
    assert report.advice.left_out
    assert all("is left out" in sentence for sentence in report.advice.left_out)
    assert unescape(report.advice.left_out[0]) in unescape(report.html())


@pytest.mark.more
def test_a_method_that_goes_too_far_is_left_out_and_it_is_said() -> None:
    """By the radii that would have to be tried: 4,096 for RDP here, and no more than 128 for ADP."""
    certificate = certify(Votes.from_counts([[1000, 0]], mechanism=SampledGaussian(3.0, 1e-5, 1000)), method=ADP())
    assert certify(certificate.votes, method=RDP("mixture", complement=True), threat="add").radius[0] > 2048
    report = certificate.report(methods=(ADP(1e-6), RDP("mixture", complement=True)))
    assert [other.method for other in report.advice.others] == [ADP(1e-6)]
    (sentence,) = report.advice.left_out
    assert "certifies beyond r = 2,048" in sentence
    assert sentence in unescape(report.html())
    assert sentence in report.markdown().replace("\\", "")


@pytest.mark.parametrize("seconds_per_look", [0.0, 1e6])
def test_what_a_report_holds_does_not_depend_on_the_clock(
    monkeypatch: pytest.MonkeyPatch, seconds_per_look: float
) -> None:
    """On a machine so busy that an hour passes between any two looks at the clock, the report is the same."""
    votes = Votes.from_counts([[1000, 0], [900, 100]], mechanism=GAUSSIAN, labels=[0, 1])
    expected = certify(votes).report().to_dict()
    ticks = itertools.count()
    for clock in ("monotonic", "perf_counter", "time", "process_time"):
        monkeypatch.setattr(f"time.{clock}", lambda: seconds_per_look * next(ticks))
    assert certify(votes).report().to_dict() == expected
    assert len(expected["curves"]) == 3


def test_to_dict_is_plain_json_and_holds_every_point() -> None:
    report = some_report()
    content = json.loads(report.rendered("json"), parse_constant=pytest.fail)
    assert content["schema"] == "mithridate.report/1"
    assert content["points"]["radius"] == report.certificate.radius.tolist()
    assert content["points"]["true_label"] == np.asarray(report.certificate.votes.labels).tolist()
    assert content["headline"]["text"] == report.headline
    assert content["summary"]["accuracy"] == np.mean(report.certificate.label == report.certificate.votes.labels)
    assert content["assumptions"] == list(report.certificate.assumptions)
    assert sum(row["points"] for row in content["per_class"]) == content["examples"]


def test_class_names_come_from_the_argument_then_the_recipe_then_numbers() -> None:
    certificate = made_up([3])
    recipe = {"source": {"declaration": None, "class_names": ["cat", "dog", "cow"]}}
    recorded = replace(certificate, votes=replace(certificate.votes, recipe=recipe))
    assert certificate.report(methods=()).class_names == ("0", "1", "2")
    assert recorded.report(methods=()).class_names == ("cat", "dog", "cow")
    assert recorded.report(methods=(), class_names=["a", "b", "c"]).class_names == ("a", "b", "c")
    for source in (None, [], {"class_names": None}, {"class_names": "cat"}, {"class_names": ["cat"]}):
        other = replace(certificate, votes=replace(certificate.votes, recipe={"source": source}))
        assert other.report(methods=()).class_names == ("0", "1", "2")
    with pytest.raises(ConfigError, match="a name for each of the 3 classes"):
        certificate.report(methods=(), class_names=["a"])


def test_points_are_called_by_their_names() -> None:
    names = [f"row {i}" for i in range(199)] + [HOSTILE[0]]
    for called in (names, tuple(names), np.array(names)):
        report = some_report(point_names=called)
        assert report.to_dict()["points"]["name"] == names
        page = _Page(report.html())
        assert json.loads(page.scripts[1])["pointNames"] == names
        assert [tag for tag, _ in page.tags].count("script") == 2
        assert "a name, a class or a status" in "".join(page.text)
    assert "name" not in some_report().to_dict()["points"]
    assert json.loads(_Page(some_report().html()).scripts[1])["pointNames"] is None


@pytest.mark.parametrize("names", [[], ["a"], ["a", "b", "c"], "ab", np.array([["a"], ["b"]])])
def test_names_that_do_not_fit_the_points_are_refused(names: Any) -> None:
    with pytest.raises(ConfigError, match=r"names? (of the|for each of 2) points"):
        made_up([1, 2]).report(methods=(), point_names=names)


def test_a_condition_is_said_first_and_in_the_headline() -> None:
    condition = Statement("The classes were read off.", "class-list")
    report = made_up([5], method=RDP("paper"), assumptions=("Another one.", condition)).report(methods=())
    assert report.headline.startswith("Conditional on class-list (declare classes). Not a guarantee")
    first = f"Conditional on class-list. The classes were read off. {condition.remedy}"
    assert report.warnings[0] == first
    assert len(report.warnings) > 1
    assert f"<h2>Worth knowing</h2><ul><li>{escape(first)}</li>" in report.html()
    assert "Conditional on class-list" in report.html().split("</h1>")[0]
    values = report.to_dict()
    assert values["warnings"][0] == first
    assert (values["conditional"], [each["id"] for each in values["conditions"]]) == (True, ["class-list"])
    assert f"## Worth knowing\n\n- {first}" in report.markdown()


def test_without_conditions_none_is_said() -> None:
    report = made_up([5], assumptions=("Another one.",)).report(methods=())
    assert "onditional" not in report.headline + report.html() + report.markdown()
    assert (report.to_dict()["conditional"], report.to_dict()["conditions"]) == (False, [])


def test_certificates_on_scores_are_reported_as_such() -> None:
    certificate = certify(scored_votes(mechanism=GAUSSIAN), on="scores")
    report = certificate.report(methods=(ADP(),))
    assert report.advice.others[0] == certify(certificate.votes, on="scores", method=ADP())
    assert "mean score of the label" in report.html()
    assert "votes for the label" not in report.html()


@pytest.mark.parametrize(("label", "radius"), [(3, 1), (-1, 1), (0, -2), (0, (1 << 20) + 1)])
def test_what_no_search_could_find_is_refused(label: int, radius: int) -> None:
    with pytest.raises(ArtifactError, match="cannot be"):
        made_up([radius], label=[label]).report(methods=())


def test_odd_values_in_a_file_do_no_harm() -> None:
    odd = made_up([1], error_budget={"a": "much", "b": float("inf")}, versions={"x": 1}, assumptions=(7, "b"))
    report = odd.report(methods=())
    for format in ("html", "md", "json", "svg"):
        assert report.rendered(format)


# --- pictures -------------------------------------------------------------------------------------------------------


def _decoded(file: bytes) -> np.ndarray:
    """A reader of the plainest PNG files: one data chunk, no filters."""
    assert file[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(file):
        (size,) = struct.unpack(">I", file[at : at + 4])
        kind, content = file[at + 4 : at + 8], file[at + 8 : at + 8 + size]
        assert struct.unpack(">I", file[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + content)
        chunks[kind] = content
        at += 12 + size
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    channels = {0: 1, 2: 3, 6: 4}[colour]
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + width * channels)
    assert depth == 8
    assert not rows[:, 0].any()
    return np.moveaxis(rows[:, 1:].reshape(height, width, channels), -1, 0)


@pytest.mark.parametrize("shape", [(1, 5, 7), (3, 4, 4), (4, 2, 9)])
def test_png_files_hold_the_pixels(shape: tuple[int, ...]) -> None:
    picture = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.testing.assert_array_equal(_decoded(rendering.png(picture)), picture)


def test_large_pictures_are_averaged_down() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (3, 128, 100), dtype=np.uint8)
    small = rendering.reduced(picture)
    assert small.shape == (3, 64, 50)
    assert abs(float(small[1, 2, 3]) - picture[1, 4:6, 6:8].mean()) <= 0.5
    assert max(rendering.reduced(np.zeros((1, 1000, 3), dtype=np.uint8)).shape) <= 64


def test_the_least_and_most_certain_get_pictures_and_the_budget_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(0).integers(0, 256, (1000, 8, 8), dtype=np.uint8)
    radius = np.random.default_rng(1).permutation(1000)
    certificate = made_up(radius.tolist(), label=[0] * 1000, truth=[0] * 990 + [1] * 10)
    shown = certificate.report(methods=(), pictures=images).pictures
    order = np.argsort(radius)
    assert set(order[:100]) | set(order[-100:]) | set(range(990, 1000)) == set(shown)
    np.testing.assert_array_equal(_decoded(shown[int(order[0])])[0], images[order[0]])
    monkeypatch.setattr(rendering, "_BUDGET", 2000)
    few = certificate.report(methods=(), pictures=images).pictures
    assert sum(len(file) for file in few.values()) <= 2000
    assert {order[0], order[-1]} <= set(few)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((3, 4, 4), dtype=np.uint8), "one picture for each of 2 points"),
        (np.zeros((2, 4, 4)), "8-bit images"),
        (np.zeros((2, 4), dtype=np.uint8), "8-bit images"),
        (np.zeros((2, 5, 4, 3), dtype=np.uint8), "moveaxis"),
        (np.zeros((2, 2, 4, 4), dtype=np.uint8), "1, 3 or 4 channels"),
    ],
)
def test_pictures_that_do_not_fit_are_refused(images: np.ndarray, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made_up([1, 2]).report(methods=(), pictures=images)


# --- the page -------------------------------------------------------------------------------------------------------


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        (self.scripts if self.inside in ("script", "style") else self.text).append(data)


def hostile_report() -> Report:
    certificate = made_up([1, 5, 5, -1], label=[0, 1, 2, 0], truth=[0, 1, 1, 2])
    votes = replace(certificate.votes, recipe={"name": HOSTILE[0]}, run_ids=(HOSTILE[1],), data_fingerprint=HOSTILE[0])
    return replace(certificate, votes=votes, assumptions=(HOSTILE[0],), versions={"mithridate": HOSTILE[0]}).report(
        methods=(ADP(),),
        class_names=HOSTILE,
        title=HOSTILE[0] + HOSTILE[1],
        certificate_path=f"{HOSTILE[0]}.json",
    )


def test_everything_from_users_is_shown_as_text() -> None:
    page = _Page(hostile_report().html())
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert not any(tag == "img" for tag, _ in page.tags)
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    text = " ".join(page.text)
    for name in HOSTILE:
        assert name.split("\u2028")[0] in text
    assert "mithridate verify '<script>alert(1)</script>.json'" in text


def test_the_page_reaches_for_nothing_outside_itself() -> None:
    html = some_report(pictures=np.zeros((200, 4, 4), dtype=np.uint8)).html()
    addresses = set(re.findall(r"(?:https?:)?//[\w.]+", html.replace("http://www.w3.org/2000/svg", "")))
    assert not {address for address in addresses if address.startswith("http")}
    for tag, attributes in _Page(html).tags:
        assert tag not in ("iframe", "object", "embed", "base")
        for name in ("src", "href", "srcset", "action"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))


def test_the_policy_allows_this_style_and_this_script_only() -> None:
    page = _Page(some_report().html())
    (policy,) = [a["content"] for tag, a in page.tags if tag == "meta" and "http-equiv" in a]
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for content in (page.scripts[0], page.scripts[-1]):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_embedded_json_cannot_end_its_script(value: Any) -> None:
    text = rendering.environment().from_string("{{ value|tojson }}").render(value=value)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == value


@given(st.lists(st.integers(-1, 1 << 21), min_size=1) | st.lists(st.integers(0, 300), min_size=1))
def test_packed_numbers_come_back(values: list[int]) -> None:
    column = packed(np.array(values, dtype=np.int64))
    assert column is not None
    assert np.frombuffer(base64.b64decode(column["data"]), column["type"]).tolist() == values


def test_the_page_carries_every_point() -> None:
    report = some_report(class_names=HOSTILE)
    data = json.loads(_Page(report.html()).scripts[1])
    columns = {
        name: np.frombuffer(base64.b64decode(column["data"]), column["type"])
        for name, column in data["columns"].items()
    }
    np.testing.assert_array_equal(columns["radius"], report.certificate.radius)
    np.testing.assert_array_equal(columns["label"], report.certificate.label)
    np.testing.assert_array_equal(columns["truth"], np.asarray(report.certificate.votes.labels))
    assert data["names"] == [printable(name) for name in HOSTILE]


def test_without_scripts_the_page_holds_headline_curve_and_tables() -> None:
    report = some_report()
    page = _Page(report.html())
    assert report.headline in " ".join("".join(page.text).split())
    assert any(tag == "svg" and attributes.get("role") == "img" for tag, attributes in page.tags)
    assert [tag for tag, _ in page.tags].count("table") >= 3
    assert any(tag == "noscript" for tag, _ in page.tags)


@settings(max_examples=25)
@given(points, st.booleans())
def test_every_certificate_has_a_page(rows: list[tuple[int, int, int]], known: bool) -> None:
    radius, label, truth = (list(column) for column in zip(*rows, strict=True))
    report = made_up(radius, label=label, truth=truth if known else None).report(methods=())
    assert "</html>" in report.html()
    assert report.headline.split(";")[0][:20] in report.markdown()
    ElementTree.fromstring(report.svg())


def test_many_classes_are_cut_and_it_is_said() -> None:
    counts = np.zeros((500, 500), dtype=np.int64)
    counts[np.arange(500), np.arange(500)] = 50
    html = certify(Votes.from_counts(counts, mechanism=GAUSSIAN)).report(methods=()).html()
    assert "Of 500 classes, the 200 with most points are listed." in html
    assert html.count("data-class=") == 200


# --- other forms ----------------------------------------------------------------------------------------------------


def test_svg_is_well_formed_and_described() -> None:
    root = ElementTree.fromstring(hostile_report().svg())
    space = "{http://www.w3.org/2000/svg}"
    described = root.find(f"{space}desc")
    assert described is not None
    assert "none beyond 5" in str(described.text)
    assert root.attrib["role"] == "img"


def test_markdown_tables_keep_their_columns() -> None:
    text = hostile_report().markdown()
    prose = [line for line in text.splitlines() if not line.startswith("    ")]  # indented lines are code
    assert "<script>" not in "".join(prose).replace(r"\<", "")
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        bars = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(bars) == 1


def test_long_class_names_are_cut_where_nobody_can_point_at_them() -> None:
    names = ["x" * 300, "short", "a | b " * 50]
    report = some_report(class_names=names)
    text, svg = report.markdown(), report.svg()
    table = text.split("## Class by class")[1].split("##")[0]
    assert "| short |" in table
    assert max(len(line) for line in table.splitlines()) < 140
    assert table.count("… |") == 2
    assert names[0][:61] not in text + svg
    titles = [attributes.get("title") for tag, attributes in _Page(report.html()).tags if tag == "span"]
    assert set(names) <= set(titles)
    assert report.to_dict()["class_names"] == names


@given(st.text(max_size=80), st.integers(1, 40))
def test_shortened_names_fit_and_say_that_they_are_cut(name: str, length: int) -> None:
    short, line = shortened(name, length), " ".join(name.split())
    assert len(short) <= length
    assert short == line if len(line) <= length else short.endswith("…") and line.startswith(short[:-1])


def test_png_shows_the_chart_of_the_svg() -> None:
    """Halfway along the first level of the line, a dot of the PNG has the colour that the SVG names."""
    image = pytest.importorskip("matplotlib.image")
    report = made_up([4, 9, 9], truth=[0, 1, 0]).report(methods=(ADP(),))
    dots = image.imread(io.BytesIO(report.png()))
    (line,) = [path for path in ElementTree.fromstring(report.svg()).iter() if path.get("class") == "line line-0"]
    left, *moves = re.findall(r"[\d.]+", line.get("d", ""))
    height, *ends = map(float, moves[:2])
    dot = dots[round(2 * height), round(float(left) + ends[0])]  # two dots a pixel
    colour = str(line.get("color"))
    np.testing.assert_allclose(dot[:3], [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)], atol=0.01)
    assert dots.shape[:2] == (2 * 380, 2 * 760)


def test_png_without_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"mithridate\[report\]"):
        some_report().png()


@pytest.mark.parametrize("format", [f for f in FORMATS if f != "png"])
def test_write_takes_the_format_from_the_name_or_the_argument(tmp_path: Path, format: str) -> None:
    report = some_report()
    report.write(tmp_path / f"by-name.{format}")
    report.write(tmp_path / "by-argument", format=format)
    assert (tmp_path / f"by-name.{format}").read_bytes() == (tmp_path / "by-argument").read_bytes()
    assert (tmp_path / "by-argument").read_bytes() == report.rendered(format)


def test_a_name_or_a_format_that_says_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"end it in \.html"):
        some_report().write(tmp_path / "report")
    with pytest.raises(ConfigError, match="Expected format to be one of"):
        some_report().write(tmp_path / "report.html", format="pdf")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")

    def fail(_: Report) -> str:
        raise MemoryError

    monkeypatch.setattr(Report, "html", fail)
    with pytest.raises(MemoryError):
        some_report().write(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ArtifactError, match="Cannot write"):
        some_report().write(tmp_path / "missing" / "report.md")


def test_half_a_character_in_a_name_does_no_harm(tmp_path: Path) -> None:
    report = some_report(class_names=["\ud800", "b", "c"], title="\udfff")
    for format in ("html", "md", "json", "svg"):
        report.write(tmp_path / f"report.{format}")
        (tmp_path / f"report.{format}").read_text(encoding="utf-8")


def test_notebooks_get_the_page_in_a_frame_of_its_own() -> None:
    report = some_report(title=HOSTILE[1])
    frame = _Page(report._repr_html_())
    assert [tag for tag, _ in frame.tags] == ["iframe"]
    attributes = frame.tags[0][1]
    assert attributes["srcdoc"] == report.html()
    assert attributes["sandbox"] == "allow-scripts"
    shown = _Page(report.certificate._repr_html_()).tags[0][1]["srcdoc"]
    assert shown == report.certificate.report(methods=()).html()


def test_a_report_needs_neither_torch_nor_matplotlib_and_never_certifies() -> None:
    """And what certifies loads nothing that draws a page."""
    room = "import sys; from mithridate.reporting import Report, rendering, report_page; "
    heavy = ("torch", "matplotlib", "pandas", "jinja2", "PIL", "mithridate.certifying", "mithridate.auditing")
    below = "import sys, mithridate.certifying.certification, mithridate.comparing.running, mithridate.defences; "
    for code, unwanted in ((room, heavy), (below, ("mithridate.reporting", "jinja2", "matplotlib"))):
        code += f"print([name for name in {unwanted} if name in sys.modules])"
        outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert outcome.stdout.strip() == "[]"


def test_a_template_that_lacks_a_value_is_an_error_and_values_are_text() -> None:
    environment = rendering.environment()
    assert environment.from_string("{{ name }}").render(name=HOSTILE[0]) == escape(HOSTILE[0])
    with pytest.raises(UndefinedError, match="'nobody' is undefined"):
        environment.from_string("{{ nobody }}").render()


@pytest.mark.parametrize("failure_prob", [1.44e-9, 1.04e-7, 9.99e-7])
def test_a_tiny_failure_probability_is_never_rounded_down(failure_prob: float) -> None:
    votes = Votes.from_counts([[1000, 0], [900, 100]], mechanism=SampledGaussian(3.0, 0.001, 1000))
    said = confidence(certify(votes, failure_prob=failure_prob))
    assert float(said.rpartition(" ")[2]) >= failure_prob
    nominal = confidence(certify(votes, failure_prob=1e-6, bounds="pointwise"))
    assert "100%" not in nominal


# --- other defences -------------------------------------------------------------------------------------------------

NAMES = {
    "bagging": "bagging",
    "label-smoothing": "label smoothing",
    "feature-smoothing": "feature smoothing (distance at most 0.25)",
    "dpa": "DPA",
    "finite-aggregation": "Finite Aggregation",
    "run-off-election": "Run-Off Election",
    "run-off-finite-aggregation": "Run-Off Election on Finite Aggregation",
    "nearest-neighbours": "nearest neighbours",
    "nearest-neighbours at two scales": "nearest neighbours",
    "nearest-neighbours at two scales by label": "nearest neighbours",
    "kernel-vote": "kernel vote",
}
# What was done with the data, and who voted.
DONE = {
    "bagging": "each instance drew 20 times one of the 1,000 training examples",
    "label-smoothing": "each instance replaced every training label with chance 0.3 by another one of 3",
    "feature-smoothing": "each instance added noise of standard deviation 1.0 to every number of every training input",
    "dpa": "a model for each of 9 parts",
    "finite-aggregation": "10 models on parts that overlap; its content says which 2 of them see an example",
    "run-off-election": "a model for each of 9 parts",
    "run-off-finite-aggregation": "10 models on parts that overlap; its content says which 2 of them see an example",
    "nearest-neighbours": "the 5 training examples that are nearest to an input vote with their labels",
    "nearest-neighbours at two scales": "leads by fewer than 2 votes (3 over earlier labels), the 3 nearest decide",
    "nearest-neighbours at two scales by label": "than it needs (1 to 4; 1 more over earlier labels), the 3",
    "kernel-vote": "every training example votes for its label with a weight from 0 to 4",
}


def _shown(report: Report, format: str) -> str:
    """The text of a report as a reader sees it, without markup."""
    text = report.rendered(format).decode()
    if format == "md":
        return re.sub(r"\\(.)", r"\1", text)
    if format == "html":
        text = text.split("<style>")[0] + text.split("</style>")[1].split('<script type="application/json"')[0]
    return unescape(re.sub(r"<[^>]*>", "", text))


@pytest.mark.parametrize(("name", "threat"), CLAIMS)
def test_every_defence_and_threat_has_a_report(name: str, threat: Threat) -> None:
    certificate = RIVALS[name].certificate(threat)
    report = certificate.report()
    assert report.advice.others == report.advice.left_out == ()
    assert (threat.changes_of(EXAMPLES, report.to_dict()["headline"]["radius"]) in report.headline) == (
        certificate.radius.max() > 0
    )
    for format in ("html", "md"):
        text = _shown(report, format)
        for sentence in (report.headline, threat.in_words, NAMES[name], DONE[name], RIVALS[name].voters):
            assert sentence in text, (format, sentence)
        assert all(sentence in text for sentence in (*certificate.assumptions, *words.not_covered(certificate)))
        assert not re.search(r"--noise-multiplier|--instances|DP-SGD|f-DP|RDP|ADP|same votes", text)
    svg = ElementTree.fromstring(report.svg())
    assert threat.counts(EXAMPLES) in "".join(svg.itertext())
    assert certificate.method.short_title in [element.text for element in svg.iter()]
    content = json.loads(report.rendered("json"))
    assert content["claim"]["method"] == NAMES[name]
    assert content["claim"]["sound"] is True
    assert content["provenance"]["mechanism"] == RIVALS[name].votes.mechanism.to_dict()


@pytest.mark.parametrize(("name", "threat"), CLAIMS)
def test_only_samples_have_a_confidence(name: str, threat: Threat) -> None:
    certificate = RIVALS[name].certificate(threat)
    report = certificate.report()
    text = _shown(report, "md")
    exact = name in EXACT
    assert ("confidence" in report.headline) != exact
    assert ("certain, given what is assumed" in report.headline) == (exact and certificate.radius.max() > 0)
    assert guaranteed_failure_prob(certificate) == (0.0 if exact else certificate.failure_prob)
    assert bool(re.search(r"knows the randomness|not know the randomness|0\.001|noise|instances", text)) != exact
    assert ("nothing is estimated" in text) == exact
    assert not any("More of them" in sentence for sentence in report.warnings) or not exact


@pytest.mark.parametrize("name", EXACT)
def test_a_function_of_the_data_that_withstands_nothing_claims_nothing(name: str) -> None:
    certificate = RIVALS[name].certificate()
    none = replace(certificate, radius=np.zeros_like(certificate.radius)).report()
    assert none.headline.startswith("No prediction is certified against a change of the training data")
    assert "certain," not in none.headline
    (advice,) = none.warnings
    assert advice.startswith("At least half of the certified predictions are not shown to withstand a single change")


def test_narrow_threats_say_what_they_leave_out() -> None:
    for name, threat in CLAIMS:
        said = words.not_covered(RIVALS[name].certificate(threat))[0]
        assert said.startswith("Anything but ") == (threat in (Threat.LABELS, Threat.FEATURES))


def test_the_share_of_weights_is_that_of_all_weights() -> None:
    certificate = RIVALS["kernel-vote"].certificate()
    assert certificate.votes.counts.tolist() == [[16, 0, 1], [2, 11, 0], [5, 1, 7], [0, 0, 0]]
    np.testing.assert_allclose(summary.top_share(certificate), [16 / 17, 11 / 13, 7 / 13, 0])
    page = certificate.report().html()
    assert "weight for the label" in page
    assert "votes for the label" not in page
    assert ("training examples voted, by weight", "all") in key_figures(certificate.report())


def test_one_voter_is_in_the_singular() -> None:
    votes = Votes(np.array([[1, 0]]), NearestExamples(1), evidence={"order": np.array([[0, 0]])})
    assert votes.tally == "1 neighbour"
    assert ("nearest training examples that voted", "1") in key_figures(certify(votes).report())


def test_a_run_off_says_how_it_picks_its_label() -> None:
    assert "that more of the 9 models prefer, of the two with most votes" in words.precise_claim(
        RIVALS["run-off-election"].certificate()
    )


def test_several_scales_say_who_decides() -> None:
    claim = words.precise_claim(RIVALS["nearest-neighbours at two scales"].certificate())
    assert "most votes among the 5 nearest training examples; where their label leads by fewer than 2 votes (3" in claim


def test_rules_of_one_mechanism_are_compared_where_asked_for() -> None:
    run_off = RIVALS["run-off-election"]
    report = run_off.certificate(Threat.REPLACE).report(methods=(MajorityRule(), FDP()))
    (other,) = report.advice.others
    assert other == certify(run_off.votes, method=MajorityRule(), threat="replace")
    assert report.advice.left_out[0].startswith("f-DP is left out: Votes of Partitioned are no random draws")
    assert "DPA" in report.svg()


@pytest.mark.parametrize("name", ["bagging", "label-smoothing", "feature-smoothing"])
def test_more_instances_are_asked_for_in_the_words_of_the_defence(name: str) -> None:
    rival = RIVALS[name]
    votes = replace(rival.votes, counts=rival.votes.counts[3:], labels=None)
    (sentence,) = weaknesses(certify(votes, method=rival.method))
    assert "The one prediction is not certified at all" in sentence
    assert "train a new run with instances = 4000" in sentence


@pytest.mark.parametrize(
    ("mechanism", "knob"),
    [(Bagged(10, 100), "fewer examples"), (NoisyLabels(0.001, 2), "flip_prob"), (NoisyFeatures(1e-3), "more noise")],
)
def test_little_smoothing_names_its_knob(mechanism: Any, knob: str) -> None:
    method = FeatureNoiseRule(1.0) if isinstance(mechanism, NoisyFeatures) else None
    certificate = certify(Votes.from_counts([[1000, 0], [960, 40]], mechanism=mechanism), method=method)
    assert certificate.radius.tolist() == [0, 0]
    assert knob in weaknesses(certificate)[-1]
    assert "--" not in weaknesses(certificate)[-1]
