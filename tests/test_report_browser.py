"""The page in a real browser: it opens in silence, moves with the slider, sorts, searches, and runs nothing foreign."""

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mithridate import ADP, Certificate, SampledGaussian, Status, Votes, certify
from mithridate._text import percent
from mithridate.core.certificate import Curve, is_correct
from mithridate.core.input_change import Frontier
from mithridate.reporting import Report
from mithridate.reporting import report as summary
from mithridate.reporting import sentences as words
from mithridate.reporting.report_page import readout

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright for Python is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.more,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium; `make browser` installs it"),
]

POINTS = 130
NAMES = ["<script>alert(1)</script>", "dog & cat", "ünïcode"]
WIDE = {"width": 1200, "height": 900}
PHONE = {"width": 375, "height": 740}


def _certificate(points: int) -> Certificate:
    random = np.random.default_rng(11)
    top = random.integers(330, 1001, points)
    counts = np.stack([top, (1000 - top) // 2, 1000 - top - (1000 - top) // 2], axis=1)
    counts = np.stack([random.permutation(row) for row in counts])
    mechanism = SampledGaussian(3.0, 0.001, 1000)
    votes = Votes.from_counts(counts, mechanism=mechanism, labels=random.integers(0, 3, points))
    radius = np.where(top < 400, -1, (top - 400) // 3)  # made up: the browser does not mind
    status = np.where(radius < 0, Status.NOT_SEPARATED.value, Status.CERTIFIED.value)
    return replace(certify(votes, method=ADP()), radius=radius, status=status)


@pytest.fixture(scope="module")
def report() -> Report:
    images = np.random.default_rng(0).integers(0, 256, (POINTS, 8, 8), dtype=np.uint8)
    return _certificate(POINTS).report(
        methods=(ADP(1e-6),),
        class_names=NAMES,
        pictures=images,
        title=NAMES[0],
        certificate_path="certificate.json",
    )


@pytest.fixture(scope="module")
def address(report: Report, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    report.write(path)
    return path.as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


Opener = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any, address: str) -> Iterator[Opener]:
    """Opens a page that must stay silent: no errors, no messages, no dialogs, no request but for the file itself."""
    heard: list[str] = []
    contexts: list[Any] = []

    def opened(url: str = address, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": WIDE, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(300_000)  # a busy machine takes long
        page.on("console", lambda message: heard.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: heard.append(f"error: {error}"))
        page.on("request", lambda request: heard.append(f"request: {request.url}") if request.url != url else None)

        def dismiss(dialog: Any) -> None:
            heard.append(f"dialog: {dialog.message}")
            dialog.dismiss()

        page.on("dialog", dismiss)
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [sound for sound in heard if not sound.startswith("request: data:")] == []


def _column(page: Any, header: str) -> list[str]:
    """What the rows show below a header."""
    names = [text.strip() for text in page.locator("#points-table thead th").all_inner_texts()]
    return page.evaluate(
        "(at) => [...document.querySelectorAll('#rows tr')].map((row) => row.cells[at].textContent)",
        names.index(header),
    )


def _wait_for_radius(page: Any, radius: int) -> None:
    sync_api.expect(page.locator("#radius-value")).to_have_text(f"{radius:,}")


def _set_slider(page: Any, radius: int) -> None:
    page.locator("#radius").fill(str(radius))
    _wait_for_radius(page, radius)


def _overflow(page: Any) -> int:
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def test_opens_in_silence_with_the_headline(open_page: Opener, report: Report) -> None:
    page = open_page()
    assert " ".join(page.locator("h1").inner_text().split()) == report.headline
    assert page.locator("#curve-chart path.line").count() == 2
    baseline = words.baseline(report.certificate)
    assert baseline is not None
    assert page.locator("#curve-chart path.baseline").count() == 1
    assert page.locator("#curve-chart .baseline-name").text_content() == f"baseline {baseline.share:.1%}"
    assert f"Baseline: always saying '{NAMES[baseline.label]}'" in page.locator(".legend").inner_text()
    assert page.locator("#radii-chart rect").count() > 5


def test_the_slider_moves_the_numbers(open_page: Opener, report: Report) -> None:
    page = open_page()
    seen = set()
    for radius in (0, 7, 150, report.axis_limit):
        _set_slider(page, radius)
        assert page.locator("#readout").inner_text() == readout(report, radius)
        seen.add(page.locator("#curve-chart .marker").get_attribute("d"))
        correct = is_correct(report.certificate)
        for row in summary.per_class(report.certificate):
            members = np.asarray(report.certificate.votes.labels) == row.label
            reached = int((members & np.asarray(correct) & (report.certificate.radius >= radius)).sum())
            cell = page.locator(f"[data-class='{row.label}']").inner_text()
            assert cell == percent(reached, row.points)
        assert page.locator("#classes [data-radius]").inner_text() == f"{radius:,}"
    assert len(seen) == 4


def test_the_slider_listens_to_the_keyboard(open_page: Opener) -> None:
    page = open_page()
    _set_slider(page, 10)
    page.locator("#radius").focus()
    page.keyboard.press("ArrowRight")
    _wait_for_radius(page, 11)
    page.keyboard.press("Home")
    _wait_for_radius(page, 0)
    assert "radius 0" in page.locator("#radius").get_attribute("aria-valuetext")


def test_a_click_on_the_chart_sets_the_radius(open_page: Opener, report: Report) -> None:
    page = open_page()
    box = page.locator("#curve-chart svg").bounding_box()
    page.locator("#curve-chart svg").click(position={"x": box["width"] - 13, "y": 50})
    _wait_for_radius(page, report.axis_limit)


def test_the_table_sorts_by_every_header(open_page: Opener, report: Report) -> None:
    page = open_page()
    certificate = report.certificate
    order = summary.least_certain_first(certificate)
    assert _column(page, "point") == [str(i) for i in order[:50]]
    assert page.locator("th[aria-sort]").inner_text() == "radius"
    page.locator("#most").click()
    assert _column(page, "point") == [str(i) for i in order[::-1][:50]]
    page.get_by_role("button", name="point", exact=True).click()
    assert _column(page, "point") == [str(i) for i in range(50)]
    page.get_by_role("button", name="point", exact=True).click()
    assert _column(page, "point") == [str(i) for i in range(POINTS - 1, POINTS - 51, -1)]
    assert page.locator("th[aria-sort='descending']").inner_text() == "point"
    for header, values in (
        ("votes for the label", summary.top_share(certificate)),
        ("label", certificate.label),
        ("true label", np.asarray(certificate.votes.labels)),
    ):
        page.get_by_role("button", name=header, exact=True).click()
        shown = [int(point) for point in _column(page, "point")]
        assert values[shown].tolist() == np.sort(values)[:50].tolist()
    page.locator("#least").click()
    assert page.locator("#least").get_attribute("aria-pressed") == "true"
    assert _column(page, "point") == [str(i) for i in order[:50]]


def test_pages_turn(open_page: Opener, report: Report) -> None:
    page = open_page()
    order = summary.least_certain_first(report.certificate)
    assert page.locator("#previous").is_disabled()
    page.locator("#next").click()
    assert page.locator("#page").inner_text() == f"51 to 100 of {POINTS}"
    assert _column(page, "point") == [str(i) for i in order[50:100]]
    page.locator("#last").click()
    assert page.locator("#page").inner_text() == f"101 to {POINTS} of {POINTS}"
    assert page.locator("#next").is_disabled()


def test_search_and_filter(open_page: Opener, report: Report) -> None:
    page = open_page()
    certificate = report.certificate
    labels, truth = certificate.label, np.asarray(certificate.votes.labels)
    expected = {"wrong": labels != truth, "abstained": certificate.radius < 0}
    expected["certified-wrong"] = expected["wrong"] & ~expected["abstained"]
    for option, mask in expected.items():
        page.locator("#show").select_option(option)
        assert page.locator("#found").inner_text() == f"{mask.sum()} of {POINTS} points."
    page.locator("#show").select_option("all")
    page.locator("#query").fill("DOG &")
    assert page.locator("#found").inner_text().startswith(f"{((labels == 1) | (truth == 1)).sum()} of")
    page.locator("#query").fill("#77")
    assert _column(page, "point") == ["77"]
    page.locator("#query").fill("not certified")
    assert page.locator("#found").inner_text().startswith(f"{(certificate.radius < 0).sum()} of")
    page.locator("#query").fill("nothing like it")
    assert page.locator("#page").inner_text() == "No point fits."
    assert page.locator("#rows tr").count() == 0


def test_a_class_called_script_is_text(open_page: Opener) -> None:
    page = open_page()
    page.locator("#query").fill(NAMES[0])
    assert NAMES[0] in _column(page, "label") + _column(page, "true label")
    assert page.locator("#classes tbody th").first.inner_text() == NAMES[0]
    assert page.title() == NAMES[0]
    assert page.evaluate("document.scripts.length") == 2


# --- names of points, long names ------------------------------------------------------------------------------------

LONG = "a very long name, " * 20
POINT_NAMES = [f"row {i}" for i in range(POINTS - 3)] + ["<script>alert(3)</script>", LONG, "holiday photo.PNG"]


@pytest.fixture(scope="module")
def named_address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("named") / "report.html"
    names = ["7", LONG, "x" * 300]
    _certificate(POINTS).report(methods=(), class_names=names, point_names=POINT_NAMES).write(path)
    return path.as_uri()


def _found(page: Any, query: str) -> list[str]:
    page.locator("#query").fill(query)
    return _column(page, "name")


def test_points_are_shown_and_found_by_their_names(open_page: Opener, named_address: str) -> None:
    page = open_page(named_address)
    shown = [int(point) for point in _column(page, "point")]
    assert _column(page, "name") == [POINT_NAMES[i] for i in shown]
    assert _found(page, "HOLIDAY .png") == ["holiday photo.PNG"]
    assert _found(page, "Row 7") == ["row 7"]  # though 7 is a class as well
    assert sorted(_found(page, "row 12")) == ["row 12"]
    assert sorted(_found(page, "ow 11")) == sorted(name for name in POINT_NAMES if "11" in name)
    assert _found(page, "<script>") == ["<script>alert(3)</script>"]
    assert page.evaluate("document.scripts.length") == 2
    page.locator("#query").fill("7")  # a class, and part of many names
    assert set(_column(page, "label")) | set(_column(page, "true label")) > {"7"}
    pairs = zip(_column(page, "label"), _column(page, "true label"), strict=True)
    assert all("7" in pair for pair in pairs)


def test_names_sort_as_people_count(open_page: Opener, named_address: str) -> None:
    page = open_page(named_address)
    page.get_by_role("button", name="name", exact=True).click()
    names = _column(page, "name")
    rows = [name for name in names if name.startswith("row ")]
    assert rows == [f"row {i}" for i in range(len(rows))]
    assert len(rows) >= 47
    page.get_by_role("button", name="name", exact=True).click()
    assert _column(page, "name")[0] == f"row {POINTS - 4}"


def test_without_names_there_is_no_such_column(open_page: Opener) -> None:
    page = open_page()
    assert page.locator("button[data-key=name]").count() == 0
    assert page.locator("#query").get_attribute("placeholder") == "class, status or #index"


@pytest.mark.parametrize(("viewport", "lines"), [(WIDE, 2), (PHONE, 3)])
def test_long_names_take_few_lines_and_show_all_where_pointed_at(
    open_page: Opener, named_address: str, viewport: dict[str, int], lines: int
) -> None:
    page = open_page(named_address, viewport=viewport)
    assert _overflow(page) == 0
    line = page.evaluate("parseFloat(getComputedStyle(document.querySelector('#rows td')).lineHeight)")
    for rows in ("#rows tr", ".classes tbody tr"):
        heights = page.evaluate(f"[...document.querySelectorAll('{rows}')].map((row) => row.offsetHeight)")
        assert max(heights) < (lines + 1) * line  # a line for the room above and below
    titles = page.evaluate("[...document.querySelectorAll('.classes .clip')].map((name) => name.title)")
    assert titles == ["7", LONG, "x" * 300]
    page.locator("#query").fill(f"#{POINT_NAMES.index(LONG)}")
    assert page.locator("#rows .name .clip").get_attribute("title") == LONG
    cut = page.evaluate(
        "(() => { const e = document.querySelector('#rows .name .clip'); return e.scrollHeight > e.clientHeight; })()"
    )
    assert cut


def test_pictures_are_shown(open_page: Opener) -> None:
    page = open_page()
    sizes = page.evaluate("[...document.querySelectorAll('#rows img')].map((i) => [i.naturalWidth, i.naturalHeight])")
    assert sizes == [[8, 8]] * 50


def test_injected_scripts_do_not_run(browser: Any, report: Report, tmp_path: Path) -> None:
    """Were an escape ever missed, the policy of the page would still stop the script."""
    path = tmp_path / "report.html"
    injected = "<script>window.ran = 1</script><img src=x onerror='window.ran = 2'>"
    path.write_text(report.html().replace("</main>", f"{injected}</main>"), encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector("#rows tr")
    assert page.evaluate("window.ran") is None
    page.close()


def _luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast_in_both_schemes(open_page: Opener, scheme: str) -> None:
    page = open_page(color_scheme=scheme)
    look = "(s) => { const e = document.querySelector(s); return getComputedStyle(e).%s; }"
    paper = _luminance(page.evaluate(look % "backgroundColor", "body"))
    assert (paper < 0.1) == (scheme == "dark")
    for selector in ("body", "h1", "h1 .confidence", ".note", "summary", ".figures dt", ".wrong", ".bar nav a", "th"):
        text = _luminance(page.evaluate(look % "color", selector))
        contrast = (max(text, paper) + 0.05) / (min(text, paper) + 0.05)
        assert contrast >= 4.5, selector
    for text in (".name-0", ".name-1", "#curve-chart text"):
        fill = _luminance(page.evaluate(look % "fill", text))
        assert (max(fill, paper) + 0.05) / (min(fill, paper) + 0.05) >= 4.5, text


def test_the_button_turns_light_into_dark_and_back(open_page: Opener) -> None:
    page = open_page(color_scheme="light")
    look = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(look)
    page.locator("#theme").click()
    assert _luminance(page.evaluate(look)) < 0.1
    assert page.locator("#theme").get_attribute("aria-pressed") == "true"
    page.locator("#theme").click()
    assert page.evaluate(look) == light


def test_a_phone_needs_no_sideways_scrolling(open_page: Opener) -> None:
    page = open_page(viewport=PHONE)
    assert _overflow(page) == 0
    for details in page.locator("summary").all():
        details.click()
    assert _overflow(page) == 0
    assert page.locator("#curve-chart svg").bounding_box()["width"] <= PHONE["width"]


def test_print_drops_the_controls_and_is_light(open_page: Opener) -> None:
    page = open_page(color_scheme="dark")
    page.emulate_media(media="print")
    for gone in (".dial", ".controls", "#next", "#theme", ".bar nav"):
        assert not page.locator(gone).is_visible(), gone
    for kept in ("h1", "#curve-chart svg", "#points-table", "#assumed", ".command"):
        assert page.locator(kept).is_visible(), kept
    assert _luminance(page.evaluate("getComputedStyle(document.body).backgroundColor")) > 0.9


def test_the_keyboard_reaches_everything(open_page: Opener) -> None:
    page = open_page()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.locator(".skip").bounding_box()["x"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    reached: list[str] = []
    for _ in range(60):
        page.keyboard.press("Tab")
        outlined = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.dataset.key || ''"))
        assert outlined != "none", reached[-1]
        if reached[-1] == "last":
            break
    assert {"radius", "query", "show", "least", "most", "index", "status", "next", "last"} <= set(reached)
    page.locator("button[data-key=index]").focus()
    page.keyboard.press("Enter")
    assert _column(page, "point")[0] == "0"


def test_names_for_screen_readers(open_page: Opener) -> None:
    page = open_page()
    for chart in ("#curve-chart svg", "#radii-chart svg"):
        assert page.locator(chart).get_attribute("role") == "img"
        assert page.locator(chart).get_attribute("aria-label")
        assert page.locator(f"{chart} desc").text_content()
    nameless = page.evaluate(
        """[...document.querySelectorAll('input, select, button')].filter((e) =>
           !e.labels?.length && !e.textContent.trim() && !e.getAttribute('aria-label')).length"""
    )
    assert nameless == 0
    assert page.locator("main").count() == page.locator("header").count() == page.locator("footer").count() == 1
    assert page.locator("h1").count() == 1


def test_without_scripts_the_page_still_reports(open_page: Opener, report: Report) -> None:
    page = open_page(java_script_enabled=False)
    assert " ".join(page.locator("h1").inner_text().split()) == report.headline
    assert page.locator("#curve-chart svg").is_visible()
    assert page.locator(".classes").is_visible()
    assert page.locator("noscript p").is_visible()
    assert not page.locator("#radius").is_visible()


# --- inputs that change, too ----------------------------------------------------------------------------------------

LENGTHS = tuple(at / 20 for at in range(24))


@pytest.fixture(scope="module")
def moved() -> Report:
    plain = _certificate(POINTS)
    radius = np.stack([np.maximum(plain.radius - 9 * at, -1) for at in range(len(LENGTHS))])
    status = np.where(radius < 0, Status.INPUT_CHANGE.value, Status.CERTIFIED.value)
    certificate = replace(plain, status=status[0], frontier=Frontier(LENGTHS, "pixels", radius, status))
    return certificate.report(methods=(), class_names=NAMES, point_names=[f"photo {i}.png" for i in range(POINTS)])


@pytest.fixture(scope="module")
def moved_address(moved: Report, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("moved") / "report.html"
    moved.write(path)
    return path.as_uri()


def test_the_slider_moves_the_lines_of_changed_inputs(open_page: Opener, moved: Report, moved_address: str) -> None:
    page = open_page(moved_address)
    assert " ".join(page.locator("h1").inner_text().split()) == moved.headline
    assert page.locator("#frontier-chart path.line").count() == 8
    chosen = words.evenly(len(LENGTHS), 8)
    for radius in (0, 90, moved.axis_limit):
        _set_slider(page, radius)
        sync_api.expect(page.locator("#frontier-lines [data-radius]")).to_have_text(f"{radius:,}")
        shown = page.locator("#frontier [data-line]").all_inner_texts()
        curves = [Curve.of(moved.moved[at]) for at in chosen]
        assert shown == [percent(int(curve.at(curve.shown, radius)), POINTS) for curve in curves]


def test_a_prediction_has_a_radius_for_every_change_that_is_drawn(
    open_page: Opener, moved: Report, moved_address: str
) -> None:
    page = open_page(moved_address)
    at = words.evenly(len(LENGTHS), 8)[2]
    header = f"radius at {LENGTHS[at]:g}"
    page.get_by_role("button", name=header, exact=True).click()
    page.get_by_role("button", name=header, exact=True).click()  # the largest first
    points = [int(point) for point in _column(page, "point")]
    assert moved.certificate.frontier is not None
    radii = moved.certificate.frontier.radius[at]
    assert radii[points].tolist() == np.sort(radii)[::-1][:50].tolist()
    assert _column(page, header) == [f"{radius:,}" if radius >= 0 else "\u2013none" for radius in radii[points]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_cell_of_the_map_can_be_read(open_page: Opener, moved_address: str, scheme: str) -> None:
    page = open_page(moved_address, color_scheme=scheme)
    colours = page.evaluate(
        """() => [...Array(11).keys()].map((shade) => {
          const cell = document.querySelector('.heat td');
          cell.className = `heat-${shade}`;
          const look = getComputedStyle(cell);
          return [look.backgroundColor, look.color];
        })"""
    )
    assert len({below for below, _ in colours}) == 11
    for pair in colours:
        low, high = sorted(map(_luminance, pair))
        assert (high + 0.05) / (low + 0.05) >= 4.5, pair
    paper = _luminance(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    strokes = page.evaluate(
        "[...document.querySelectorAll('#frontier-chart path.line')].map((e) => getComputedStyle(e).stroke)"
    )
    assert len(set(strokes)) == 8
    for stroke in map(_luminance, strokes):
        assert (max(stroke, paper) + 0.05) / (min(stroke, paper) + 0.05) >= 3


def test_a_phone_shows_the_whole_map(open_page: Opener, moved_address: str) -> None:
    page = open_page(moved_address, viewport=PHONE)
    assert _overflow(page) == 0
    fits = "(e) => e.scrollWidth <= e.clientWidth"
    assert page.locator(".scroll:has(.heat)").evaluate(fits)
    for cell in page.locator(".heat td:visible, .heat th:visible").all():
        assert cell.evaluate(fits)
    assert not page.locator("#points .scroll").evaluate(fits)  # that is what the shadow at its edge says
    assert "gradient" in page.locator("#points .scroll").evaluate("(e) => getComputedStyle(e).backgroundImage")
    page.locator("#frontier summary").click()
    assert _overflow(page) == 0


def test_a_notebook_frame_runs_the_page(open_page: Opener, report: Report, tmp_path: Path) -> None:
    path = tmp_path / "notebook.html"
    path.write_text(f"<!DOCTYPE html><title>notebook</title>{report._repr_html_()}", encoding="utf-8")
    page = open_page(path.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("#rows tr").first.wait_for()
    frame.locator("#radius").fill("3")
    # The page draws in a frame of animation, which a busy computer gives late.
    sync_api.expect(frame.locator("#readout")).to_have_text(re.compile("^At r = 3:"))


def test_a_hundred_thousand_points_do_not_freeze_it(open_page: Opener, tmp_path: Path) -> None:
    path = tmp_path / "large.html"
    _certificate(100_000).report(methods=()).write(path)
    page = open_page(path.as_uri())
    assert page.locator("#rows tr").count() == 50
    assert page.locator("#page").inner_text() == "1 to 50 of 100,000"
    spent = page.evaluate(
        """() => {
          const since = performance.now();
          document.querySelector('button[data-key=share]').click();
          document.getElementById('query').value = '2';
          document.getElementById('query').dispatchEvent(new Event('input'));
          return performance.now() - since;
        }"""
    )
    # Far above what it takes (a fifth of a second), far below what a person would call frozen.
    assert spent < 5000
