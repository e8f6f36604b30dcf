"""Reports of certificates that cover a change of the input as well: curves, map, tables and words, and none without."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html import unescape
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_report import HOSTILE, _Page, made_up, some_report

from mithridate import ADP, Certificate, SampledGaussian, Status, Votes, certify
from mithridate._text import percent
from mithridate.core.input_change import Frontier, InputNoise
from mithridate.reporting import Report, frontier_page
from mithridate.reporting import sentences as words

CHANGES = (0.0, 0.1, 0.25, 0.5)
ROWS = ((9, 8, 8, 5, 3, 0), (7, 6, 4, 2, -1, -1), (2, 1, 0, -1, -1, -1), (-1, -1, -1, -1, -1, -1))
TRUTH = [0, 1, 2, 0, 1, 0]  # the last label is wrong
IN_WORDS = "in pixel values divided by 255"


def moving(
    changes: Sequence[float] = CHANGES,
    rows: Sequence[Sequence[int]] = ROWS,
    *,
    truth: list[int] | None = TRUTH,
    of: str = "pixels",
    **options: Any,
) -> Certificate:
    """A certificate with given radii for every change of the input."""
    radius = np.array(rows)
    status = np.where(radius < 0, Status.INPUT_CHANGE.value, Status.CERTIFIED.value)
    frontier = Frontier(tuple(changes), of, radius, status)
    plain = made_up(radius[0].tolist(), truth=truth, **options)
    return replace(plain, status=status[0], frontier=frontier)


def report_of(certificate: Certificate, **options: Any) -> Report:
    return certificate.report(methods=(), **options)


def _text(report: Report, format: str) -> str:
    if format == "md":
        return re.sub(r"\\(.)", r"\1", report.markdown())
    return " ".join("".join(_Page(report.html()).text).split())


def _sections(report: Report) -> list[str]:
    return [str(attributes.get("id")) for tag, attributes in _Page(report.html()).tags if tag == "section"]


# --- none without a frontier ------------------------------------------------------------------------------------------


def test_without_a_frontier_nothing_speaks_of_changed_inputs() -> None:
    report = some_report()
    page = report.html()
    assert "frontier" not in page.split("<script>")[0]
    assert "heat" not in page.split("<script>")[0]
    assert "frontier" not in json.loads(_Page(page).scripts[1])
    assert "input changes" not in page + report.markdown()
    content = report.to_dict()
    assert "frontier" not in content
    assert "frontier" not in content["points"]
    assert "input_change" not in content["claim"]
    assert words.not_covered(report.certificate)[1].startswith("Changed test inputs. Nothing is said")


def test_one_change_is_said_and_needs_no_curves_of_its_own() -> None:
    report = report_of(moving([0.25], [[7, 6, 4, 2, -1, -1]]))
    assert "frontier" not in _sections(report)
    assert f"the input was changed by a Euclidean length of up to 0.25, {IN_WORDS}" in report.headline
    for format in ("html", "md"):
        text = _text(report, format)
        assert report.headline in text.replace(" ;", ";")
        assert f"Together with any change of the input of Euclidean length up to 0.25, {IN_WORDS}." in text
    assert "input changed by up to 0.25" in report.svg()
    assert "where the input changes by up to 0.25" in report.html()


# --- curves, map and tables -------------------------------------------------------------------------------------------


def test_a_line_and_a_row_for_every_change() -> None:
    report = report_of(moving())
    assert "frontier" in _sections(report)
    data = json.loads(_Page(report.html()).scripts[1])["frontier"]
    assert [line["name"] for line in data["lines"]] == ["0", "0.1", "0.25", "0.5"]
    for line, curve in zip(data["lines"], report.moved_curves, strict=True):
        assert (line["radius"], line["shown"]) == (curve.radius.tolist(), curve.shown.tolist())
    assert len({line["look"] for line in data["lines"]}) == 4
    header, rows = frontier_page.table(report)
    assert header == ["change of the input, up to", *(f"r\u00a0=\u00a0{radius}" for radius in range(10))]
    assert [row[0] for row in rows] == ["0", "0.1", "0.25", "0.5"]
    for row, radii in zip(rows, ROWS, strict=True):
        # The last label is wrong.
        assert row[1:] == [percent(sum(own >= radius for own in radii[:-1]), len(radii)) for radius in range(10)]


def test_the_map_has_the_numbers_of_the_table_rounded_down() -> None:
    report = report_of(moving())
    (heat,) = re.findall(r'<table class="heat".*?</table>', report.html(), flags=re.DOTALL)
    cells = re.findall(r'<td class="heat-(\d+)[^"]*">([^<]*)</td>', heat)
    _, rows = frontier_page.table(report)
    assert len(cells) == sum(len(row) - 1 for row in rows)
    for (shade, text), share in zip(cells, [cell for row in rows for cell in row[1:]], strict=True):
        exact = float(share.rstrip("%"))
        assert text == f"{int(exact)}%"
        assert abs(int(shade) - exact / 10) < 1


@given(st.integers(1, 10**5), st.data())
def test_whole_percents_are_never_more_than_the_share(total: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, total))
    text = frontier_page.whole_percent(count, total)
    assert (text == "0%") == (count == 0)
    assert (text == "100%") == (count == total)
    stated = 0 if text == "<1%" else int(text.rstrip("%"))
    assert 0 <= 100 * count / total - stated < 1


def test_without_true_labels_it_is_what_is_certified() -> None:
    report = report_of(moving(truth=None))
    text = _text(report, "html")
    assert "Certified share, by radius and change of the input" in text
    assert "correct and certified" not in text.split("When the input changes, too")[1].split("Every prediction")[0]
    assert frontier_page.table(report)[1][0][1] == "100.0%"
    assert report.to_dict()["frontier"]["curves"][0]["right"] is None


def test_of_many_changes_eight_are_drawn_and_the_table_has_all() -> None:
    changes = tuple(float(change) for change in np.linspace(0, 2, 41))
    rows = [[max(40 - at - point, -1) for point in range(10)] for at in range(41)]
    report = report_of(moving(changes, rows, truth=None))
    html = report.html()
    data = json.loads(_Page(html).scripts[1])["frontier"]
    assert len(data["lines"]) == 8
    assert (data["lines"][0]["name"], data["lines"][-1]["name"]) == ("0", "2")
    assert "Of 41 lengths, 8 are drawn" in html
    assert len(frontier_page.table(report)[1]) == 41
    heat = html.split('<table class="heat"')[1].split("</table>")[0]
    assert heat.count("<tr>") == 1 + 16
    assert 'class="wide"' in heat  # what a phone leaves out
    drawn = ElementTree.fromstring(frontier_page.draw(report).svg(alone=True))
    lines = [path for path in drawn.iter() if str(path.get("class")).startswith("line step-")]
    assert len(lines) == 8
    assert len({path.get("color") for path in lines}) == 8


@given(st.integers(1, 100), st.integers(2, 20))
def test_evenly_keeps_both_ends(count: int, most: int) -> None:
    found = words.evenly(count, most)
    assert (found[0], found[-1]) == (0, count - 1)
    assert len(found) == min(count, most)


def test_the_chart_is_described() -> None:
    described = frontier_page.description(report_of(moving()))
    assert "Input changed by up to 0: 83.3% at radius 0" in described
    assert "Input changed by up to 0.5: none." in described
    assert "Baseline" in described


# --- single predictions -----------------------------------------------------------------------------------------------


def test_every_prediction_has_its_radii() -> None:
    report = report_of(moving())
    data = json.loads(_Page(report.html()).scripts[1])
    assert data["frontier"]["columns"] == ["moved-1", "moved-2", "moved-3"]
    assert {"moved-1", "moved-2", "moved-3"} <= data["columns"].keys()
    buttons = [attributes.get("data-key") for tag, attributes in _Page(report.html()).tags if tag == "button"]
    assert [key for key in buttons if key and key.startswith("moved")] == ["moved-1", "moved-2", "moved-3"]
    text = _text(report, "html")
    assert "radius at 0.1" in text
    assert "a dash says that nothing is certified" in text
    found = report.to_dict()["points"]["frontier"]
    assert [row["input_change"] for row in found] == list(CHANGES)
    assert [tuple(row["radius"]) for row in found] == list(ROWS)
    assert found[1]["status"][-1] == "input_change"


# --- words ------------------------------------------------------------------------------------------------------------


def test_the_headline_says_what_the_same_predictions_withstand_beside_a_change_of_the_input() -> None:
    rows = [[20] * 10, [12] * 9 + [-1], [3] * 5 + [-1] * 5]
    report = report_of(moving((0, 0.1, 0.25), rows, truth=None))
    assert "All 10 predictions would stay the same if up to 20 training examples" in report.headline
    assert "or if" not in report.headline  # of none it is so for all 10
    rows = [[20] * 9 + [-1], [12] * 9 + [-1], [3] * 5 + [-1] * 5]
    found = report_of(moving((0, 0.1, 0.25), rows, truth=None)).headline
    assert found.startswith("9 of 10 predictions would stay the same if up to 20 training examples were added or")
    assert (
        f"removed, or if up to 12 were and the input was changed by a Euclidean length of up to 0.1, {IN_WORDS};"
        in (found)
    )


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(-1, 30), st.integers(-1, 30)), min_size=1, max_size=30),
)
def test_as_many_as_it_says_withstand_both(points: list[tuple[int, int, int]]) -> None:
    rows = [list(row) for row in zip(*points, strict=True)]
    certificate = moving((0, 0.1, 0.25), rows, truth=None)
    found = words.headline(certificate)
    said = re.search(r"or if (?:up to (\d+) were|(one) was|(none) were) and .* of up to ([\d.]+), in", found.text)
    if said is None:
        return
    radius = int(said[1] or (1 if said[2] else 0))
    row = rows[(0.1, 0.25).index(float(said[4])) + 1]
    both = sum(first >= found.radius and second >= radius for first, second in zip(rows[0], row, strict=True))
    share = {"9 of 10": 0.9, "Half of": 0.5}.get(found.text[:7], found.reached / len(points))
    assert both >= share * len(points)


def test_a_change_that_always_goes_along_is_in_every_claim() -> None:
    lost = moving([0.5], [[-1] * 6])
    assert words.headline(lost).text.startswith(
        f"Nothing is certified where the input may change by a Euclidean length of up to 0.5, {IN_WORDS}: the votes"
    )
    still = words.headline(moving([0.5], [[0] * 6], truth=None)).text
    assert (
        f"on this very data, also where the input may change by a Euclidean length of up to 0.5, {IN_WORDS};" in still
    )
    claim = words.precise_claim(moving([0.5], [[3] * 6]))
    assert f"and the input was changed by a Euclidean length of up to 0.5, {IN_WORDS}." in claim


@pytest.mark.parametrize(
    ("of", "in_words"), [("values", "as they were given"), ("features", "by which examples are compared")]
)
def test_it_is_said_in_what_changes_are_measured(of: str, in_words: str) -> None:
    report = report_of(moving(of=of))
    for format in ("html", "md"):
        assert in_words in _text(report, format)
    content = report.to_dict()
    assert content["frontier"]["input_change_of"] == of
    assert content["frontier"]["in_words"].endswith(in_words)
    assert content["claim"]["input_change"] == 0


def test_how_far_half_of_the_predictions_reach() -> None:
    (sentence,) = words.moved_further(moving())
    assert sentence == (
        "If the input changes by up to a given length: half of the predictions are correct and certified to r = 8 at "
        f"0, r = 4 at 0.1 and r = 0 at 0.25; at 0.5, fewer are. Lengths are Euclidean, {IN_WORDS}."
    )
    (one,) = words.moved_further(moving((0, 1), [[3], [-1]], truth=None))
    assert "the one prediction is certified to r = 3 at 0; at 1, it is not." in one
    (none,) = words.moved_further(moving((1, 2), [[-1, -1], [-1, -1]], truth=None))
    assert "at 1 and 2, fewer than half of the predictions are certified." in none


def test_labels_that_may_change_with_the_input_alone_are_counted_and_explained() -> None:
    report = report_of(moving())
    (sentence,) = words.may_move_alone(report.certificate)
    assert (
        sentence == f"{Status.INPUT_CHANGE.sentence} This is so for 2 of 6 predictions at 0.1, 3 at 0.25 and 6 at 0.5."
    )
    for format in ("html", "md"):
        assert sentence in _text(report, format)
    own = report_of(moving([0.1, 0.25], ROWS[1:3]))
    assert "2 of 6 predictions: the label may change with the input alone" in _text(own, "html")
    assert "the 2 that are not certified because their labels may change with the input alone." in own.html()
    assert not any("too close" in warning for warning in own.warnings)


def test_noise_is_the_remedy_where_there_is_some() -> None:
    certificate = moving([0.1, 0.25], ROWS[1:3])
    assert not any("--input-noise" in sentence for sentence in report_of(certificate).warnings)
    noisy = replace(certificate, votes=replace(certificate.votes, input_noise=InputNoise(0.2, "pixels")))
    assert any("--input-noise above 0.2" in sentence for sentence in report_of(noisy).warnings)


def test_what_is_not_covered_begins_beyond_the_largest_change() -> None:
    said = " ".join(words.not_covered(moving()))
    assert f"more than 0.5, as a Euclidean length {IN_WORDS}" in said
    assert "Changed test inputs" not in said


def test_methods_are_compared_for_inputs_that_stay_as_they_are_only() -> None:
    plain = Votes.from_counts([[1000, 0], [900, 100]], mechanism=SampledGaussian(20.0, 1.0, 4))
    votes = replace(plain, input_noise=InputNoise(1.0))
    still = certify(votes, input_change=[0, 0.1])
    assert still.radius.tolist() == certify(votes).radius.tolist()
    assert [other.method for other in still.report(methods=(ADP(),)).advice.others] == [ADP()]
    moved = certify(votes, input_change=[0.1, 0.2])
    assert moved.report().advice.others == moved.report().advice.left_out == ()
    (reason,) = moved.report(methods=(ADP(),)).advice.left_out
    assert "left out: methods are compared for inputs that stay as they are." in reason


# --- escaping ---------------------------------------------------------------------------------------------------------


def test_everything_from_users_is_text_here_too() -> None:
    certificate = replace(moving(), assumptions=(HOSTILE[0],))
    report = report_of(certificate, class_names=HOSTILE, title=HOSTILE[1])
    page = _Page(report.html())
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert not any(tag == "img" for tag, _ in page.tags)
    assert not any(name.startswith("on") or name == "style" for _, attributes in page.tags for name in attributes)
    section = report.html().split('<section id="frontier"')[1].split("</section>")[0]
    assert "<script" not in section
    assert HOSTILE[0] in unescape(section)  # the commonest label, in the legend
    for block in re.findall(r"(?:^\|.*\n)+", report.markdown(), flags=re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1
