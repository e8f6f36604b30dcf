"""The page of an audit: what it says is what the audit holds, whatever names and texts hold, and no more than that."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from mithridate.attacking.poison import Poison
from mithridate.attacking.result import Audit, Broken, Control, Shown, Target, Used
from mithridate.core.conditions import Statement
from mithridate.core.mechanism import SEARCH_LIMIT, Threat
from mithridate.core.units import Unit
from mithridate.data.examples import Examples
from mithridate.data.units import Units
from mithridate.reporting import audit as page_of_audit
from mithridate.reporting.audit import AuditReport, draw_flipped, draw_radii
from mithridate.reporting.rendering import Chart, ChartText, Path

HOSTILE = '<script>alert(1)</script> "& | `x` ${title}'
SVG = "{http://www.w3.org/2000/svg}"
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (8, 1, 6, 6), dtype=np.uint8)
Y = np.array([0, 1, 0, 1, 0, 1, 0, 1])
DRAWN = Examples(IMAGES, Y)


class _Page(HTMLParser):
    """Tags, the text of the body, and tables by their section."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("th", "td"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = "" if tag == self.inside else self.inside
        if tag == "table":
            self.tables.append([])

    def handle_data(self, data: str) -> None:
        if self.inside == "style":
            return
        self.words.append(data)
        if self.tables and self.tables[-1] and self.tables[-1][-1]:
            self.tables[-1][-1][-1] += data

    @property
    def text(self) -> str:
        """All words, one space between them."""
        return " ".join(" ".join(self.words).split())

    @property
    def ids(self) -> set[str | None]:
        """Where a link of the page can lead."""
        return {attributes.get("id") for _, attributes in self.tags}

    def table(self, first: str, second: str) -> list[list[str]]:
        """The rows of the only table whose header begins with these names."""
        (found,) = [rows for rows in self.tables if rows and rows[0][:2] == [first, second]]
        return [[" ".join(cell.split()) for cell in row] for row in found[1:]]


def page(audit: Audit) -> _Page:
    return _Page(AuditReport(audit).html())


def inserted(x: Any, y: Any, units: Any = None) -> Poison:
    return Poison.inserting(np.asarray(x), np.asarray(y), units)


COPIES = inserted(IMAGES[[0] * 5], [1] * 5)


def target(number: int, radius: int, flipped_at: int | None, **more: Any) -> Target:
    values = {
        "label": 0,
        "rival": 1,
        "attack": None if flipped_at is None else "copies",
        "tried": flipped_at or 9 * radius,
    }
    return Target(**{"input": number, "radius": radius, "flipped_at": flipped_at, "poison": COPIES, **values, **more})


TARGETS = (target(0, 4, 8), target(1, 10, 25), target(2, 6, 40), target(3, 7, None))
SOUND = tuple(each.radius for each in TARGETS)


def broken(**more: Any) -> Broken:
    said = {
        "input": 2,
        "label": 0,
        "radius": 6,
        "budget": 5,
        "attack": "copies",
        "seed": "ab" * 32,
        "votes": (100.0, 412.0),
    }
    return Broken(**{**said, "p": 2.5e-9, "poison": COPIES, "file": "broken/copies-2-5.npz", **more})


def made_up(**more: Any) -> Audit:
    """An audit of a private learner, with four targets of which one was not flipped."""
    said: dict[str, Any] = {
        "method": "fdp",
        "title": "f-DP on votes",
        "threat": Threat.SYMMETRIC_DIFFERENCE,
        "failure_prob": 0.001,
        "unit": None,
        "inputs": 4,
        "claims": 1234,
        "retrainings": 56,
        "violations": (),
        "excused": (),
        "conditional": (),
        "control": Control("rdp-paper", 4321, 7),
        "targets": TARGETS,
        "triggered": (),
        "used": (Used("copies", "copies of the input", "the input and its runner-up", 1043, 3),),
        "rules": {"adp": (1, 2, 1, 2), "fdp": SOUND},
        "finished": True,
        "seconds": 75.0,
        "pictures": Shown(DRAWN, DRAWN),
    }
    return Audit(**{**said, **more})


WITHOUT = made_up(targets=(), rules={"fdp": ()}, used=(), pictures=None)
EVERYTHING = made_up(
    title=HOSTILE,
    method=HOSTILE,
    rules={HOSTILE: SOUND, "rdp-paper": (SEARCH_LIMIT,) * 4},
    violations=(broken(attack=HOSTILE, file=HOSTILE),),
    excused=(broken(input=1),),
    conditional=(broken(input=4),),
    triggered=(target(4, 3, None, of=0), target(5, 3, 9, of=2, attack=HOSTILE)),
    used=(Used(HOSTILE, HOSTILE, HOSTILE, 1, 1),),
    notes=(HOSTILE,),
    assumptions=(HOSTILE, Statement(HOSTILE, "seed-known")),
    label_names=(HOSTILE, HOSTILE),
    control=Control(HOSTILE, 5, 0),
    finished=False,
)
MADE = {"plain": made_up(), "nothing": WITHOUT, "everything": EVERYTHING}


# --- any page ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MADE)
def test_a_page_stands_alone_and_runs_nothing(name: str) -> None:
    text = AuditReport(MADE[name]).html()
    found = _Page(text)
    assert not {"script", "iframe", "object", "form", "base"} & {tag for tag, _ in found.tags}
    assert not [key for _, attributes in found.tags for key in attributes if key.startswith("on") or key == "style"]
    sources = [attributes["src"] for _, attributes in found.tags if "src" in attributes]
    links = [attributes["href"] or "" for _, attributes in found.tags if "href" in attributes]
    assert all(source is not None and source.startswith("data:image/png;base64,") for source in sources)
    assert all(link.startswith(("#", "data:")) for link in links)
    assert {link[1:] for link in links if link.startswith("#")} <= found.ids
    assert "//" not in re.sub(r"xmlns=\"\S+\"|base64,[^\"]+", "", text)


@pytest.mark.parametrize("name", MADE)
def test_it_never_calls_a_prediction_robust(name: str) -> None:
    found = page(MADE[name])
    assert MADE[name].meaning in found.text
    rest = found.text.replace(MADE[name].meaning, "").lower()
    assert not re.search(r"robust|withst|\bsafe\b|secure|up to the attack|resist", rest)


@pytest.mark.parametrize("name", MADE)
def test_every_row_has_a_cell_under_every_heading(name: str) -> None:
    tables = [rows for rows in page(MADE[name]).tables if rows]
    assert tables or name == "nothing"
    for rows in tables:
        assert len({len(row) for row in rows}) == 1


def test_whatever_names_hold_is_text() -> None:
    text = AuditReport(EVERYTHING).html()
    assert "<script" not in text
    assert "alert(1)" in page(EVERYTHING).text
    for draw in (draw_radii, draw_flipped):
        ElementTree.fromstring(draw(EVERYTHING).svg())


def test_a_notebook_shows_it_in_a_frame_that_may_do_nothing() -> None:
    ((_, attributes),) = _Page(AuditReport(EVERYTHING)._repr_html_()).tags
    assert attributes["sandbox"] == ""
    assert attributes["srcdoc"] == AuditReport(EVERYTHING).html()
    assert attributes["title"] == f"Audit by attack: {HOSTILE}"


# --- the beginning ----------------------------------------------------------------------------------------------------


def test_the_beginning_says_what_was_claimed_and_checked() -> None:
    found = page(made_up())
    said = "Audit by attack: f-DP on votes " + made_up().headline
    assert said in found.text
    assert "r counts training examples added or removed. 4 inputs were predicted" in found.text
    assert "may fail with probability 0.001" in found.text
    assert "one flip" not in found.text
    assert not [attributes for tag, attributes in found.tags if tag == "aside"]


def test_of_a_function_of_the_data_one_flip_would_be_a_bug() -> None:
    found = page(made_up(failure_prob=0.0))
    assert "one flip within a certified radius would be a bug" in found.text
    assert "may fail" not in found.text
    assert "Training draws nothing at random" in found.text
    assert "randomness of training" not in found.text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"violations": (broken(),)}, "1 certified claim of f-DP on votes is false"),
        ({"violations": (broken(), broken())}, "2 certified claims of f-DP on votes are false"),
        ({"control": Control("rdp-paper", 9, 0)}, "this audit has no power"),
        ({"finished": False}, "The audit did not finish"),
        ({"assumptions": (Statement("The seed is 3.", "seed-known"),)}, "Conditional on seed-known. The seed is 3."),
    ],
)
def test_a_warning_comes_before_the_numbers(changes: dict[str, Any], said: str) -> None:
    text = AuditReport(made_up(**changes)).html()
    warning = text[text.index("<aside") : text.index("</aside>")]
    assert said in _Page(warning).text


def test_a_condition_that_the_threat_lifts_is_no_warning() -> None:
    changes: dict[str, Any] = {"threat": Threat.FEATURES, "assumptions": (Statement("2 classes.", "class-list"),)}
    found = page(made_up(**changes))
    assert "Conditional on" not in found.text
    assert "2 classes." in found.text


# --- certified radius and best attack ---------------------------------------------------------------------------------


def bars(audit: Audit) -> dict[str, tuple[float, str]]:
    """Where each bar of the first chart ends, and its colour, by the text above it."""
    root = ElementTree.fromstring(draw_radii(audit).svg())
    names = [each for each in root.iter(f"{SVG}text") if "row" in each.get("class", "")]
    areas = [each for each in root.iter(f"{SVG}path") if each.get("fill") == "currentColor"]
    drawn = [each for each in areas if "arrow" not in each.get("class", "")]
    ends = [max(float(x) for x in re.findall(r"[MHL]([\d.]+)", each.get("d", ""))) for each in drawn]
    return {name.text or "": (end, area.get("class", "")) for name, end, area in zip(names, ends, drawn, strict=True)}


def ends_of(chart: Chart) -> float:
    return max(x for shape in chart.shapes if isinstance(shape, Path) for x, _ in shape.points)


def test_a_bar_is_as_long_as_the_median_radius() -> None:
    found = bars(made_up())
    assert list(found) == ["fdp: 6", "adp: 1"]  # that of the audit comes first
    (own, css), (other, other_css) = found.values()
    assert (css, other_css) == ("own", "other")
    assert own - 8 == pytest.approx(6 * (other - 8), abs=0.5)


def test_the_numbers_stand_beside_the_chart() -> None:
    rows = page(made_up()).table("rule", "median radius (changes)")
    # What flips the targets is 8, 25, 40 and more than was tried: the lower of the two in the middle is 25.
    # And over the radii 2, 2.5 and 6.67; of the other rule 8, 12.5 and 40.
    assert rows == [["fdp", "6", "2.50", "0 of 4"], ["adp", "1", "12.50", "0 of 4"]]
    assert "best attack: 25" in page(made_up()).text


def test_targets_that_did_not_flip_are_beyond_all_that_was_tried() -> None:
    stubborn = (target(0, 4, 8), target(1, 10, None), target(2, 6, None))
    audit = made_up(targets=stubborn, rules={"fdp": (4, 10, 6)})
    found = page(audit)
    assert "Fewer than half of the 3 targets were flipped" in found.text
    assert "best attack:" not in found.text
    assert found.table("rule", "median radius (changes)") == [["fdp", "6", "unknown", "0 of 3"]]


def test_a_rule_without_a_limit_is_refuted_and_leaves_the_axis_as_it_is() -> None:
    paper = made_up(rules={"fdp": SOUND, "rdp-paper": (SEARCH_LIMIT, SEARCH_LIMIT, 15, SEARCH_LIMIT)})
    found = bars(paper)
    assert found["fdp: 6"][0] == pytest.approx(bars(made_up())["fdp: 6"][0])
    end, css = found["rdp-paper: no limit, refuted"]
    assert css == "refuted"
    chart = draw_radii(paper)
    assert end < ends_of(chart) <= chart.width
    shown = page(paper)
    assert "rdp-paper is refuted: its median radius is 1,000,000 changes or more, which is no limit" in shown.text
    assert "half of the targets flip at 25 or fewer: on 2 of 4 targets" in shown.text
    assert "It is the control." in shown.text
    assert "An arrow: the radius is beyond the end of the axis." in shown.text
    assert shown.table("rule", "median radius (changes)")[1] == ["rdp-paper (refuted)", "no limit", "below 1", "2 of 4"]


def test_a_rule_just_beyond_the_best_attack_is_refuted_without_an_arrow() -> None:
    audit = made_up(rules={"fdp": SOUND, "bold": (25,) * 4, "shy": (24,) * 4})
    found = bars(audit)
    assert found["bold: 25, refuted"][1] == "refuted"
    assert found["shy: 24"][1] == "other"
    shown = page(audit)
    assert "bold is refuted: its median radius is 25 changes while half of the targets flip at 25" in shown.text
    assert "shy is refuted" not in shown.text
    assert "An arrow" not in shown.text
    # A single target is no median, but it is counted.
    assert shown.table("rule", "median radius (changes)")[2] == ["shy", "24", "1.04", "1 of 4"]


@pytest.mark.parametrize("radius", [76, 5000, 999_999, SEARCH_LIMIT])
def test_a_radius_far_beyond_the_attack_is_clipped(radius: int) -> None:
    audit = made_up(rules={"fdp": SOUND, "far": (radius,) * 4})
    assert bars(audit)["fdp: 6"] == bars(made_up())["fdp: 6"]
    assert "An arrow" in page(audit).text


def test_no_limit_is_no_number_however_much_the_attacks_need() -> None:
    audit = made_up(targets=(target(0, 4, 600_000),), rules={"fdp": (4,), "far": (SEARCH_LIMIT,)})
    assert "An arrow" in page(audit).text


def test_a_radius_that_flips_is_refuted() -> None:
    audit = made_up(rules={"fdp": SOUND, "even": (8, 24, 39, 99)})
    assert page(audit).table("rule", "median radius (changes)")[1][3] == "1 of 4"


def test_nothing_certified_is_an_empty_bar() -> None:
    audit = made_up(rules={"fdp": SOUND, "none": (-1,) * 4})
    assert bars(audit)["none: nothing"][0] == 8


def test_radii_that_the_certificate_ends_sooner_are_told_apart() -> None:
    sooner = "the certificate ends some of them sooner"
    assert sooner not in page(made_up()).text
    assert sooner in page(made_up(rules={"fdp": (5, 10, 6, 7)})).text


# --- share flipped ----------------------------------------------------------------------------------------------------


def curve(audit: Audit) -> list[tuple[float, float]]:
    """The corners of the curve, as ratios and shares."""
    chart = draw_flipped(audit)
    (line,) = [shape for shape in chart.shapes if isinstance(shape, Path) and shape.css == "attack"]
    (mark,) = [shape for shape in chart.shapes if isinstance(shape, ChartText) and shape.text == "certified"]
    left = line.points[0][0]
    unit = mark.x - left
    floor, height = line.points[0][1], 216 - 28
    return [((x - left) / unit, (floor - y) / height) for x, y in line.points]


def test_the_curve_steps_where_targets_flip() -> None:
    found = curve(made_up())
    at = pytest.approx
    assert found[:3] == [at((0, 0)), at((2, 0)), at((2, 0.25))]
    assert found[3:5] == [at((2.5, 0.25)), at((2.5, 0.5))]
    assert found[5:7] == [at((40 / 6, 0.5)), at((40 / 6, 0.75))]
    assert found[-1] == at((7, 0.75))
    rows = page(made_up()).table("times the certified radius", "flipped")
    assert [row[0] for row in rows] == ["1", "1.1", "1.5", "2", "3", "4", "6", "7"]
    assert rows[0][1:] == ["0 of 4", "0.0%"]
    assert rows[3][1:] == ["1 of 4", "25.0%"]
    assert rows[-1][1:] == ["3 of 4", "75.0%"]
    assert "Within their certified radii, 0 of 4 targets flip. 1 did not flip" in page(made_up()).text


@pytest.mark.parametrize(("flipped_at", "end"), [(4, 3), (12, 4), (399, 10), (None, 3)])
def test_the_axis_holds_what_it_can(flipped_at: int | None, end: int) -> None:
    audit = made_up(targets=(target(0, 4, flipped_at),), rules={"fdp": (4,)})
    assert curve(audit)[-1][0] == pytest.approx(end)
    assert ("beyond the axis" in page(audit).text) == (flipped_at == 399)


@pytest.mark.parametrize("flipped_at", [4, 8])
def test_a_flip_within_the_radius_stands_out(flipped_at: int) -> None:
    bad = made_up(targets=(*TARGETS, target(3, 8, flipped_at)), rules={"fdp": (*SOUND, 8)}, violations=(broken(),))
    assert ("refuted" in {shape.css for shape in draw_flipped(bad).shapes}) == (flipped_at < 8)
    assert "refuted" not in {shape.css for shape in draw_flipped(made_up()).shapes}
    found = page(bad)
    assert "Within their certified radii, 1 of 5 targets flip. The search saw these" in found.text
    assert [attributes for tag, attributes in found.tags if tag == "td" and attributes.get("class") == "number wrong"]


def test_without_targets_there_is_no_chart() -> None:
    found = page(WITHOUT)
    assert "svg" not in {tag for tag, _ in found.tags}
    assert found.text.count("No prediction was attacked") == 4  # once in the headline


# --- targets ----------------------------------------------------------------------------------------------------------


def rows_of_targets(audit: Audit) -> list[list[str]]:
    return page(audit).table("input", "label")


def test_the_table_of_targets() -> None:
    rows = rows_of_targets(made_up(label_names=("cat", "dog")))
    assert [row[:7] for row in rows] == [
        ["0", "cat", "dog", "4", "8", "2.00", "copies"],
        ["1", "cat", "dog", "10", "25", "2.50", "copies"],
        ["2", "cat", "dog", "6", "40", "6.67", "copies"],
        ["3", "cat", "dog", "7", "not by 63", "", ""],
    ]
    assert all(row[7] == "5 examples inserted dog dog dog" for row in rows)


def test_the_easiest_targets_come_first() -> None:
    targets = (target(0, 9, None), target(1, 8, 16), target(2, 3, None), target(3, 2, 4), target(1, 1, 9))
    rows = rows_of_targets(made_up(targets=targets, rules={}))
    assert [row[3] for row in rows] == ["2", "8", "1", "3", "9"]


def test_labels_without_names_are_numbers() -> None:
    odd = made_up(targets=(target(0, 4, 8, rival=7),), label_names=("cat",), rules={"fdp": (4,)})
    assert rows_of_targets(odd)[0][1:3] == ["cat", "7"]


def test_inputs_and_insertions_are_pictures_where_they_are_images() -> None:
    found = page(made_up())
    pictures = [attributes for tag, attributes in found.tags if tag == "img"]
    assert len(pictures) == 4 * (1 + 3)
    file = base64.b64decode((pictures[0]["src"] or "").partition(",")[2])
    assert file.startswith(b"\x89PNG")
    assert [each["alt"] for each in pictures[:2]] == ["the input", "example with label 1"]
    assert len({each["src"] for each in pictures}) == 4  # the inputs; what is inserted is a copy of the first


def test_pictures_stop_where_the_page_would_grow_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_of_audit, "_PICTURE_BYTES", 500)
    found = page(made_up())
    count = sum(tag == "img" for tag, _ in found.tags)
    assert 0 < count < 16
    assert "Some pictures are left out" in found.text
    assert found.text.count("left out,") == 1
    assert sum(row[0].count("left out") + row[7].count("left out") for row in rows_of_targets(made_up())) == 16 - count


def shown(x: Any, poison: Poison) -> list[str]:
    """How one target of these inputs is shown: the input, and what was changed."""
    examples = Examples(np.asarray(x), np.arange(len(x)) % 2)
    audit = made_up(targets=(target(0, 4, 8, poison=poison),), rules={"fdp": (4,)}, pictures=Shown(examples, examples))
    (row,) = rows_of_targets(audit)
    return [row[0], row[7]]


def test_texts_are_shortened_and_escaped() -> None:
    texts = np.array([HOSTILE, "long " * 100])
    found = shown(texts, inserted(texts[[1]], [1]))
    assert found[0] == f"0 {HOSTILE}"
    assert found[1].startswith("1 example inserted 1: long long")
    assert found[1].endswith("…")
    assert len(found[1]) < 120


def test_rows_are_a_few_numbers() -> None:
    rows = np.arange(16, dtype=np.float32).reshape(2, 8) / 8
    assert shown(rows, inserted(rows[[1]], [0])) == [
        "0 0, 0.125, 0.25, 0.375, 0.5, 0.625, …",
        "1 example inserted 0: 1, 1.125, 1.25, 1.375, 1.5, 1.625, …",
    ]
    # Bytes in rows are no image.
    flat = np.array([[1, 2], [3, 4]], dtype=np.uint8)
    assert shown(flat, inserted(flat[[1]], [0]))[0] == "0 1, 2"


def test_of_deletions_a_few_are_shown_with_their_own_labels() -> None:
    rows = np.arange(12, dtype=np.float64)[:, None]
    gone = Poison(np.array([1, 4, 7, 9]), rows[:0], np.zeros(0, dtype=np.int64))
    assert shown(rows, gone)[1] == "4 examples deleted 1: 1 0: 4 1: 7"


def test_as_many_deleted_as_inserted_are_changed() -> None:
    rows = np.arange(4, dtype=np.float64)[:, None]
    changed = Poison(np.array([1, 2]), rows[[1, 2]], np.array([0, 1]))
    assert shown(rows, changed)[1] == "2 examples changed 0: 1 1: 2"
    both = Poison(np.array([1, 2]), rows[[1]], np.array([0]))
    assert shown(rows, both)[1] == "2 examples deleted, 1 example inserted 0: 1"


def test_units_are_named() -> None:
    names = ("a", "a", HOSTILE, "b")
    training = Examples(np.arange(4.0)[:, None], np.array([0, 1, 0, 1]), units=Units.of(names, "vendor"))
    taken_over = Poison(np.array([0, 1]), training.x[:3], np.array([1, 1, 1]), ("a", "a", HOSTILE))
    deleted = Poison(np.array([3]), training.x[:0], np.zeros(0, dtype=np.int64), ())
    audit = made_up(
        unit=Unit("vendor", 3),
        targets=(target(0, 4, 8, poison=taken_over), target(1, 4, 9, poison=deleted)),
        rules={"fdp": (4, 4)},
        pictures=Shown(training, training),
    )
    found = page(audit)
    first, second = found.table("input", "label")
    assert first[7].startswith(f"2 examples deleted, 3 examples inserted; vendors: a, {HOSTILE} ")
    assert second[7].startswith("1 example deleted; vendors: b ")
    assert "r counts vendors added or removed" in found.text
    assert "certified to (vendors)" in found.text
    assert found.table("rule", "median radius (changed vendors)")


def test_an_audit_without_examples_still_has_its_table() -> None:
    targets = (target(2, 4, 8), target(3, 4, None, poison=None, tried=0))
    rows = rows_of_targets(made_up(pictures=None, targets=targets, rules={}))
    assert rows[0][0] == "2"
    assert rows[1][4:] == ["not tried", "", "", ""]


def test_inputs_with_a_trigger_have_a_table_of_their_own() -> None:
    assert "triggered" not in page(made_up()).ids
    found = page(made_up(triggered=(target(4, 3, None, of=2), target(5, 3, 9, of=1))))
    assert "The certificate is that of the input with the trigger" in found.text
    tables = [rows[1:] for rows in found.tables if rows and rows[0][0] == "input"]
    assert [len(rows) for rows in tables] == [4, 2]
    assert [" ".join(row[0].split()) for row in tables[1]] == ["1", "2"]
    assert "attacks were aimed at 4 of them, and at 2 inputs with a trigger" in found.text


# --- attacks, broken claims, control ----------------------------------------------------------------------------------


def test_the_page_says_what_each_attack_knew() -> None:
    found = page(made_up())
    row = ["copies", "copies of the input", "the input and its runner-up", "1,043", "3"]
    assert found.table("attack", "what it does") == [row]
    assert "Every attacker knows the training data, the method with all its constants" in found.text
    assert "None knows the randomness of training" in found.text
    assert "No attack was made." in page(WITHOUT).text


def test_broken_claims_have_a_table_for_each_thing_that_follows() -> None:
    assert "broken" not in page(made_up()).ids
    audit = made_up(
        violations=(broken(),),
        excused=(broken(input=1, p=1e-5),),
        conditional=(broken(input=5, label=3, votes=(0.0, 1.5, 9000.0)),),
        triggered=(target(5, 3, None, of=2),),
        label_names=("cat", "dog"),
    )
    found = page(audit)
    assert {"broken", "violations", "excused", "conditional"} <= found.ids
    tables = [[[*row] for row in rows[1:]] for rows in found.tables if rows and rows[0][2] == "certified to"]
    row = ["2", "cat", "6", "5", "copies", "dog: 412, cat: 100", "2.5e-09", "broken/copies-2-5.npz"]
    assert tables[0] == [row]
    assert tables[1][0][0] == "1"
    assert tables[1][0][6] == "1.0e-05"
    assert tables[2][0][:6] == ["2 with a trigger", "3", "6", "5", "copies", "2: 9,000, dog: 1.5, cat: 0"]
    assert "there are no more broken ones than that allows" in found.text
    assert "The certificate is conditional" in found.text
    assert "root seed of the instances" in found.text


def test_only_tables_that_hold_something_are_there() -> None:
    found = page(made_up(conditional=(broken(),)))
    assert "conditional" in found.ids
    assert not {"violations", "excused"} & found.ids
    assert "aside" not in {tag for tag, _ in found.tags}


def test_a_function_of_the_data_that_breaks_is_a_fact() -> None:
    found = page(made_up(failure_prob=0.0, violations=(broken(seed=None, p=0.0, file=None),)))
    (row,) = [row for rows in found.tables if rows and rows[0][2:3] == ["certified to"] for row in rows[1:]]
    assert row[6:] == ["a fact", "not kept"]
    assert "The label is another one each time." in found.text
    assert "root seed" not in found.text


def test_the_control_says_whether_the_audit_can_find_anything() -> None:
    found = page(made_up())
    assert "control rdp-paper: the published rule for groups, which is known to be unsound" in found.text
    assert "claims checked 4,321 claims broken 7" in found.text
    assert found.text.count(made_up().control_words) == 2  # in the headline, and with the control
    weak = replace(made_up(), control=Control("twice the radii", 10, 0))
    assert page(weak).text.count("this audit has no power") == 3  # and in the warning
    assert "twice the radii: radii that are too large on purpose" in page(weak).text


def test_notes_and_assumptions_are_all_there() -> None:
    said = ("Radii end before the size step.", "The search was short.")
    found = page(made_up(notes=said, assumptions=("Training is honest.",)))
    assert all(each in found.text for each in (*said, "Training is honest."))
    assert "Nothing beyond what is said above." in page(made_up()).text
