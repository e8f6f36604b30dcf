"""Comparisons: who leads where against plain counting, what is marked and how, sharing, resuming, and bad input."""

import itertools
import json
import re
from dataclasses import replace
from functools import cache
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from defence_doubles import (
    LABELS,
    POINTS,
    TEST,
    TRAIN,
    Fake,
    FakeBagging,
    FakeMean,
    failing,
    kernel,
    labels_only,
    parts,
    private,
)
from hypothesis import given
from hypothesis import strategies as st

import mithridate
from mithridate import RDP, Certificate, ConfigError, Status, Threat, Votes, certify, verify
from mithridate.comparing.entry import Entry, certificate_file, covers
from mithridate.comparing.result import Comparison, Stretch, axis_ticks
from mithridate.comparing.running import compare
from mithridate.core.conditions import classes_read_off
from mithridate.core.mechanism import SEARCH_LIMIT
from mithridate.defences.partitions import Partitioned
from mithridate.defences.smoothing import FeatureNoiseRule, NoisyFeatures
from mithridate.reporting.comparison import COLOURS, DASHES

DATA = (TRAIN, TEST)
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '<script>alert(1)</script> "& | `x` ${title}'


@pytest.fixture(autouse=True)
def _forget() -> None:
    Fake.trained.clear()
    Fake.seen.clear()


@cache
def _certificate() -> Certificate:
    return certify(Votes.from_counts([[2, 1]], mechanism=Partitioned(3)))


def made_up(radius: list[int], name: str = "dpa", right: list[bool] | None = None, **changes: Any) -> Entry:
    """An entry with given radii, of labels that are all right unless said otherwise, and all different ones.

    So the baseline is one point.
    """
    points = len(radius)
    truth = np.arange(points)
    label = truth if right is None else np.where(right, truth, (truth + 1) % points)
    counts = np.zeros((points, max(points, 2)), dtype=np.int64)
    counts[truth, label] = 3
    certificate = replace(
        _certificate(),
        votes=Votes.from_counts(counts, mechanism=Partitioned(3), labels=truth),
        radius=np.array(radius),
        label=label,
        status=np.where(np.array(radius) < 0, Status.NOT_SEPARATED.value, Status.CERTIFIED.value),
        **changes,
    )
    return Entry(name.upper(), name, certificate, Threat.SYMMETRIC_DIFFERENCE, 1.0, 1.0)


def comparison_of(*radii: list[int], names: str = "abcdefgh") -> Comparison:
    entries = tuple(made_up(radius, name) for radius, name in zip(radii, names, strict=False))
    return Comparison(entries, Threat.SYMMETRIC_DIFFERENCE, np.arange(len(radii[0])))


@cache
def all_kinds() -> Comparison:
    """One entry of every kind that a chart tells apart."""
    unsound = private("rdp-paper")
    object.__setattr__(unsound, "rule", lambda: RDP("paper"))
    methods = [parts(), kernel(), private(), labels_only(), private("statistical-dp", FakeMean), unsound]
    return compare(methods, DATA)


# --- who leads where ------------------------------------------------------------------------------------------------

several = st.lists(st.lists(st.integers(-1, 12), min_size=6, max_size=6), min_size=1, max_size=4)


def shares_at(comparison: Comparison, radius: int) -> dict[str, int]:
    """By plain counting."""
    counts = {}
    for entry in comparison.ranked:
        assert entry.certificate is not None
        right = entry.certificate.label == entry.certificate.votes.labels
        counts[entry.name] = sum(
            bool(ok) and own >= radius for own, ok in zip(entry.certificate.radius.tolist(), right, strict=True)
        )
    return counts


@given(several, st.sampled_from([0.0, 0.1, 0.2, 0.4]))
def test_crossings_are_what_plain_counting_gives(radii: list[list[int]], tolerance: float) -> None:
    comparison = comparison_of(*radii)
    stretches = comparison.crossings(tolerance)
    table = [shares_at(comparison, radius) for radius in range(15)]
    leads = [
        {name for name, count in row.items() if count > 1 and count >= max(row.values()) - tolerance * 6 - 1e-9}
        for row in table
    ]
    # They follow each other without a gap, from 0 to the last radius at which more is certified than one: the baseline.
    last = max(sorted(own)[-2] for own in radii)
    assert [stretch.first for stretch in stretches] == [0, *(s.last + 1 for s in stretches[:-1])][: len(stretches)]
    assert (stretches[-1].last if stretches else -1) == last
    # Whoever is named leads all the way, and nobody who does is left out.
    for stretch in stretches:
        inside = leads[stretch.first : stretch.last + 1]
        assert set(stretch.names) == set.intersection(*inside)
        assert stretch.names
    # No division into fewer stretches exists: the least number for each prefix, by dynamic programming.
    least = [0] + [99] * (last + 1)
    for end in range(1, last + 2):
        for start in range(end):
            if set.intersection(*leads[start:end]):
                least[end] = min(least[end], least[start] + 1)
    assert len(stretches) == least[last + 1]


@given(several, st.lists(st.integers(0, 14), min_size=1, unique=True))
def test_best_and_table_are_what_plain_counting_gives(radii: list[list[int]], shown: list[int]) -> None:
    comparison, shown = comparison_of(*radii), sorted(shown)
    table = comparison.table(shown)
    for place, radius in enumerate(shown):
        counts = shares_at(comparison, radius)
        assert {name: row[place] for name, row in table.items()} == pytest.approx(
            {name: count / 6 for name, count in counts.items()}
        )
        top = max(counts.values())
        expected = tuple(name for name, count in counts.items() if count == top > 1)
        assert comparison.best(shown)[place] == expected


def test_wrong_labels_count_for_nobody() -> None:
    high, low = made_up([9, 9, 9, 9, 9], "a", [False, False, True, False, True]), made_up([2, 2, 2, -1, -1], "b")
    comparison = Comparison((high, low), Threat.SYMMETRIC_DIFFERENCE, np.arange(5))
    assert comparison.crossings() == (Stretch(0, 2, ("b",)), Stretch(3, 9, ("a",)))


@pytest.mark.parametrize(
    ("radii", "sentence"),
    [
        (
            [[47] * 9 + [47], [310] * 8 + [-1] * 2],
            "a certifies the most correct predictions up to r = 47, b from 48 to 310",
        ),
        ([[5, 5], [2, 2]], "a certifies the most correct predictions at every radius up to r = 5"),
        ([[0, 0, 0], [3, 3, -1]], "a certifies the most correct predictions at r = 0, b from 1 to 3"),
        ([[3, 3], [3, 3]], "a and b certify the most correct predictions at every radius up to r = 3"),
        ([[1, 1], [2, 2], [0, 0]], "b certifies the most correct predictions at every radius up to r = 2"),
        ([[1200, 1200], [4, 4]], "a certifies the most correct predictions at every radius up to r = 1,200"),
        ([[4, -1, 4], [4, 3, 4]], "b certifies the most correct predictions at every radius up to r = 4"),
    ],
)
def test_the_headline_says_who_leads_where(radii: list[list[int]], sentence: str) -> None:
    share = f"{100 / len(radii[0]):.1f}%"
    assert comparison_of(*radii).headline == f"{sentence}. Beyond that, none is above the baseline of {share}."


@pytest.mark.parametrize("radii", [[[-1, -1], [-1, -1]], [[9, -1], [-1, 300]]])
def test_nobody_leads_where_nobody_beats_the_baseline(radii: list[list[int]]) -> None:
    comparison = comparison_of(*radii)
    assert comparison.headline == (
        "No method certifies more correct predictions than the baseline: always saying '0' is correct on 50.0% of the "
        "test points, at every radius."
    )
    assert comparison.best([0, 9]) == [(), ()]
    assert comparison.crossings() == comparison.leaders[0] == ()
    assert paths(comparison.svg(), "leader") == []


def test_one_method_alone_is_not_ranked_against_nobody() -> None:
    headline = comparison_of([4, 7, 7]).headline
    assert headline.startswith("a certifies more correct predictions than the baseline up to r = 7; no other")


def test_many_crossings_are_summed_up_and_the_difference_is_named() -> None:
    """Two curves that change the lead at every radius, by one point in 200."""
    first, second = [], []
    for step in range(0, 98, 2):
        first += [step, step, step + 1, step + 1]
        second += [step, step + 1, step + 1, step + 1] if step % 4 else [step, step, step, step + 1]
    comparison = comparison_of(first, second)
    assert len(comparison.crossings()) > 5
    stretches, tolerance = comparison.leaders
    assert len(stretches) <= 5
    assert 0 < tolerance <= 0.05
    assert f"(differences of up to {100 * tolerance:g} percentage point" in comparison.headline


@pytest.mark.parametrize(
    ("own", "asked", "expected"),
    [
        (Threat.EDIT, Threat.REPLACE, True),
        (Threat.EDIT, Threat.SYMMETRIC_DIFFERENCE, True),
        (Threat.SYMMETRIC_DIFFERENCE, Threat.ADD, True),
        (Threat.SYMMETRIC_DIFFERENCE, Threat.REPLACE, False),
        (Threat.REPLACE, Threat.LABELS, True),
        (Threat.REPLACE, Threat.REMOVE, False),
        (Threat.LABELS, Threat.REPLACE, False),
        (Threat.LABELS, Threat.FEATURES, False),
        (Threat.FEATURES, Threat.FEATURES, True),
    ],
)
def test_which_threat_covers_which(own: Threat, asked: Threat, expected: bool) -> None:
    assert covers(own, asked) is expected


def test_ticks_increase_and_stay_inside() -> None:
    for limit in (1, 3, 9, 47, 310, 2000, 90_000, SEARCH_LIMIT):
        for logarithmic in (False, True):
            ticks = axis_ticks(limit, 8, logarithmic=logarithmic)
            assert ticks == sorted(set(ticks))
            assert ticks[0] == 0
            assert limit / 10 < ticks[-1] <= limit
            assert 2 <= len(ticks) <= 14


# --- what is compared with what -------------------------------------------------------------------------------------


def test_a_claim_about_bounded_moves_is_ranked_against_none() -> None:
    """Moves of up to 0.01, moves of up to 0.5 and any changes of inputs are three different threats."""
    votes = Votes.from_counts(parts(40).counts, mechanism=NoisyFeatures(1.0), labels=LABELS)
    for distance in (0.01, 0.5):
        claim = certify(votes, method=FeatureNoiseRule(distance))
        entry = Entry("smoothing", "feature-smoothing", claim, Threat.FEATURES, 0.0, 0.0)
        assert not entry.ranked
        assert f"up to {distance:g} only" in " ".join(entry.warnings)


def test_bagging_is_matched_with_what_certifies_predictions() -> None:
    with pytest.raises(ConfigError, match="needs another method"):
        compare([private("statistical-dp", FakeMean), FakeBagging()], DATA, match=0)


def test_what_the_user_assumes_is_in_every_certificate() -> None:
    said = "The number of parts was found on this data."
    comparison = compare([parts(), private()], DATA, assumptions=[said])
    assert [entry.assumptions.count(said) for entry in comparison.entries] == [1, 1]
    with pytest.raises(ConfigError, match="assumptions as a list of sentences"):
        compare([parts()], DATA, assumptions=said)


def test_entries_certify_what_their_defence_does_by_itself() -> None:
    comparison = compare([parts(), private()], DATA, threat="remove", failure_prob=0.01, scope="all")
    for entry, defence in zip(comparison.entries, (parts(), private()), strict=True):
        votes = Votes(defence.counts, defence.mechanism, labels=LABELS)
        alone = certify(votes, threat="remove", failure_prob=0.01, scope="all")
        assert entry.certificate is not None
        np.testing.assert_array_equal(entry.certificate.radius, alone.radius)
        np.testing.assert_allclose(entry.accuracy([0, 3, 9]), alone.accuracy(LABELS, [0, 3, 9]))
        assert entry.threat is Threat.REMOVE
        assert entry.ranked
    assert [entry.failure_prob for entry in comparison.entries] == [0.0, 0.01]


def test_another_threat_a_mean_and_an_unsound_rule_are_shown_and_never_win() -> None:
    comparison = all_kinds()
    by_name = {entry.name: entry for entry in comparison.entries}
    assert [entry.name for entry in comparison.ranked] == ["dpa", "kernel-vote", "fdp"]
    named = {name for stretch in comparison.crossings() for name in stretch.names}
    assert named <= {"dpa", "kernel-vote", "fdp"}
    # They would win: the rule is that they must not.
    assert by_name["rdp-paper"].accuracy(0) >= by_name["fdp"].accuracy(0)
    assert by_name["label-smoothing"].threat is Threat.LABELS
    sentences = " ".join(comparison.findings[1:])
    assert "label-smoothing: certifies label flips only; not comparable with the others." in sentences
    assert "statistical-dp: not per prediction" in sentences
    assert "rdp-paper: no guarantee" in sentences
    assert any("not valid for DP-SGD" in note for note in by_name["rdp-paper"].notes)


@pytest.mark.parametrize("threat", list(Threat))
def test_every_threat_can_be_compared_and_shown(threat: Threat) -> None:
    comparison = compare([parts(), private(), labels_only(), FakeBagging()], DATA, threat=threat)
    assert comparison.failed == ()
    assert comparison.threat is threat
    by_name = {entry.name: entry for entry in comparison.entries}
    assert by_name["label-smoothing"].ranked is (threat is Threat.LABELS)
    assert by_name["dpa"].threat is by_name["fdp"].threat is by_name["bagging"].threat is threat
    for text in (Page(comparison.html()).text, comparison.markdown().replace("\\", "")):
        assert threat.in_words in text
    ElementTree.fromstring(comparison.svg())


def test_a_stronger_threat_is_comparable_and_said_to_be_so() -> None:
    strong = parts(name="strong", threats=(Threat.EDIT,))
    entry = compare([strong, kernel()], DATA).entries[0]
    assert entry.threat is Threat.EDIT
    assert entry.ranked
    assert any("Certifies more than was asked for" in note for note in entry.notes)
    weak = compare([replace(strong, threats=(Threat.ADD,)), kernel()], DATA).entries[0]
    assert not weak.ranked
    assert "certifies another threat, add" in weak.notes[0].lower()


def test_equal_recipes_share_votes() -> None:
    comparison = compare([private("fdp"), private("adp"), parts()], DATA)
    assert Fake.trained == ["fdp", "dpa"]
    assert comparison.entries[1].notes == ("Certified from the votes of fdp.",)


def test_the_same_method_twice_gets_a_number() -> None:
    comparison = compare([parts(41), parts(21), parts(11)], DATA)
    assert [entry.name for entry in comparison.entries] == ["dpa", "dpa-2", "dpa-3"]


def test_a_second_call_trains_nothing_and_finds_runs_of_other_names(tmp_path: Path) -> None:
    first = compare([private("fdp"), parts()], DATA, run_dir=tmp_path / "runs")
    assert Fake.trained == ["fdp", "dpa"]
    folders = sorted(path.name for path in (tmp_path / "runs").iterdir() if path.is_dir())
    assert re.fullmatch(r"dpa-[0-9a-f]{8} fdp-[0-9a-f]{8}", " ".join(folders))
    again = compare([private("adp"), parts()], DATA, run_dir=tmp_path / "runs")
    assert Fake.trained == ["fdp", "dpa"]
    for one, other in zip(first.entries, again.entries, strict=True):
        assert one.certificate is not None
        assert other.certificate is not None
        assert one.certificate.equals(other.certificate)
        # Training took what it took then; finding it finished is not training.
        assert other.training_seconds == pytest.approx(one.training_seconds, abs=6e-4)


def test_a_method_that_fails_does_not_take_the_others_along(tmp_path: Path) -> None:
    comparison = compare([parts(), failing(), kernel()], DATA)
    assert [entry.name for entry in comparison.entries] == ["dpa", "kernel-vote"]
    assert comparison.failed == (("finite-aggregation", "There is no such thing; leave it out."),)
    for text in (comparison.markdown(), unescape(comparison.html()), json.dumps(comparison.to_dict())):
        assert "There is no such thing; leave it out." in text
    with pytest.raises(ConfigError, match=r"No method came to a result; finite-aggregation: There is no such thing"):
        compare([failing()], DATA)


def test_an_interruption_is_not_a_failure() -> None:
    with pytest.raises(KeyboardInterrupt):
        compare([parts(), replace(failing(), fails=KeyboardInterrupt())], DATA)


def test_progress_names_every_stage() -> None:
    seen: list[tuple[str, ...]] = []

    def watch(title: str, stage: str) -> Any:
        seen.append((title, stage))
        return lambda done, total: seen.append((title, stage, f"{done}/{total}"))

    compare([parts()], DATA, progress=watch)
    title = "DPA, 41 partitions"
    assert seen[:4] == [
        (title, "training"),
        (title, "training", "1/2"),
        (title, "training", "2/2"),
        (title, "certifying"),
    ]


# --- bagging as good as another method ------------------------------------------------------------------------------


def test_match_chooses_the_draws_that_certify_as_much_at_zero() -> None:
    """Of 40 points, bagging with k draws has ceil(0.4 k) right; the kernel vote has 30, so k is 74 or 75."""
    comparison = compare([FakeBagging(), parts(), kernel()], DATA, match=0, match_with="kernel-vote")
    entry = comparison.entries[0]
    assert entry.name == "bagging"
    assert entry.certificate is not None
    draws = entry.certificate.votes.mechanism.to_dict()["draws"]
    assert draws in (73, 74, 75)
    assert entry.title == f"bagging, {draws} draws"
    assert float(entry.accuracy(0)) == float(comparison.entries[2].accuracy(0)) == 0.75
    assert Fake.trained[0] == "kernel-vote"
    assert Fake.trained.count("bagging") <= 8
    assert any(f"{draws} draws were chosen to match kernel-vote" in note for note in entry.notes)
    assumed = [sentence for sentence in entry.certificate.assumptions if "number of draws" in sentence]
    assert len(assumed) == 1
    assert "public and fixed" in assumed[0]
    assert str(draws) in assumed[0]


def test_the_time_of_matching_is_that_of_all_its_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each training takes one second more than the last, by a clock that only training moves."""
    clock = [0.0]
    run = Fake.run

    def slow(self: Fake, *arguments: Any) -> Votes:
        clock[0] += 1 + len(Fake.trained)
        return run(self, *arguments)

    monkeypatch.setattr(Fake, "run", slow)
    monkeypatch.setattr("mithridate.comparing.running.time.monotonic", lambda: clock[0])
    entry = compare([kernel(), FakeBagging()], DATA, match=0).entries[1]
    times = range(1, 1 + len(Fake.trained))
    assert len(times) > 2
    assert entry.training_seconds == sum(times) - 1  # the first is that of the kernel vote
    assert f"all {len(times) - 1} trainings" in entry.notes[-1]


def test_rows_can_be_named() -> None:
    comparison = compare({"few": parts(21), "many": parts(41)}, DATA)
    assert [entry.name for entry in comparison.entries] == ["few", "many"]
    assert certificate_file(comparison.entries[0]) == "certificates/few.json"


def test_the_device_may_be_any_that_has_a_name() -> None:
    for device in ("cpu", "auto", "cuda", "cuda:1", "mps"):
        assert compare([parts()], DATA, device=device).failed == ()


def test_match_ends_at_the_closest_number_where_none_is_equal() -> None:
    """All 40 points right needs more than 97 draws; no number of trainings beyond eight is spent on it."""
    comparison = compare([kernel(right=40), FakeBagging()], DATA, match=0)
    found = comparison.entries[1].certificate
    assert found is not None
    tried = Fake.trained.count("bagging")
    assert tried <= 8
    assert found.votes.mechanism.to_dict()["draws"] >= 90


@pytest.mark.parametrize(
    ("methods", "options", "message"),
    [
        ([parts()], {"match": 0}, "bagging, which is not among the methods"),
        ([FakeBagging()], {"match": 0}, "needs another method"),
        ([FakeBagging(), parts()], {"match": 3}, "Expected match to be 0"),
        ([FakeBagging(), parts()], {"match": 0, "match_with": "fdp"}, "Expected match_with to be one of dpa"),
        ([FakeBagging(), parts()], {"match_with": "dpa"}, "add match=0"),
    ],
)
def test_what_cannot_be_matched_is_refused_before_training(methods: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        compare(methods, DATA, **options)
    assert Fake.trained == []


# --- the chart ------------------------------------------------------------------------------------------------------


def paths(svg: str, kind: str) -> list[ElementTree.Element]:
    """The paths of a kind, in their order."""
    return [path for path in ElementTree.fromstring(svg).iter(f"{SVG}path") if kind in path.get("class", "").split()]


def curves(svg: str) -> dict[str, ElementTree.Element]:
    """The line of every entry, by name."""
    return {entry.name: path for entry, path in zip(all_kinds().entries, paths(svg, "curve"), strict=True)}


def test_lines_are_solid_dashed_dotted_by_what_they_claim() -> None:
    found = {name: path.get("stroke-dasharray") for name, path in curves(all_kinds().svg()).items()}
    assert found == {
        "dpa": None,
        "kernel-vote": None,
        "fdp": None,
        "label-smoothing": DASHES["other-threat"],
        "statistical-dp": DASHES["not-per-prediction"],
        "rdp-paper": DASHES["no-guarantee"],
    }
    assert len(set(DASHES.values())) == 4


def test_the_legend_says_what_sets_a_line_apart() -> None:
    root = ElementTree.fromstring(all_kinds().svg())
    rows = [text.text for text in root.iter(f"{SVG}text") if text.get("class") == "legend-text"]
    assert rows == [
        "dpa: DPA, 41 partitions",
        "kernel-vote: kernel vote",
        "fdp: fdp on votes",
        "label-smoothing: label smoothing (another threat: labels)",
        "statistical-dp: statistical-dp on votes (not per prediction)",
        "rdp-paper: rdp-paper on votes (no guarantee)",
    ]


def test_colours_and_marks_differ() -> None:
    methods = [parts(21 + 2 * number) for number in range(16)]
    svg = compare(methods, DATA).svg()
    marks = {path.get("color"): (outline(path), path.get("fill")) for path in paths(svg, "mark")}
    looks = [(path.get("color"), marks[path.get("color")]) for path in paths(svg, "curve")]
    assert len(set(looks)) == 16
    assert len({look for _, look in looks}) == 12  # five areas, full and hollow, and two crosses
    assert len({colour for colour, _ in looks}) == 16


def corners(path: ElementTree.Element) -> list[tuple[float, float]]:
    """The points of a path."""
    points: list[tuple[float, float]] = []
    for move, first, second in re.findall(r"([MLHV])([\d.]+)(?: ([\d.]+))?", path.get("d", "")):
        x, y = points[-1] if points else (0.0, 0.0)
        points.append({"H": (float(first), y), "V": (x, float(first))}.get(move) or (float(first), float(second)))
    return points


def outline(path: ElementTree.Element) -> tuple[tuple[int, int], ...]:
    """The shape of a mark, wherever it is; a round one has many corners."""
    (x, y), *rest = corners(path)
    return tuple((round(across - x), round(down - y)) for across, down in rest) if len(rest) < 10 else ()


def contrast_on_white(colour: str) -> float:
    """By the formula of WCAG 2."""
    parts_ = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts_]
    return 1.05 / (0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)


def test_colours_are_seen_on_white_and_have_twins_for_dark_pages() -> None:
    assert min(map(contrast_on_white, COLOURS)) >= 3
    html = comparison_of([1]).html()
    for which, colour in enumerate(COLOURS):
        own = re.findall(rf"--c{which}: (#\w{{6}});", html)
        assert own[0] == own[2] == colour  # on screen and in print
        assert own[1] != colour
        assert f".chart .c{which} {{" in html


def heights(path: ElementTree.Element) -> list[tuple[float, float]]:
    """The ends of the level parts of a step curve, with their heights."""
    points = corners(path)
    return [end for start, end in itertools.pairwise(points) if start[1] == end[1]]


def test_a_line_goes_through_the_shares_that_the_table_holds() -> None:
    """On a linear axis, radius r ends at the (r + 1)-th of the width; heights fall from 100% at the top."""
    comparison = comparison_of([0, 2, 2, 7], [7, 7, 7, 7])
    assert not comparison.is_logarithmic
    root = ElementTree.fromstring(comparison.svg())
    line = paths(comparison.svg(), "curve")[0]
    grid = [text for text in root.iter(f"{SVG}text") if (text.text or "") in ("0%", "100%")]
    bottom, top = (float(text.get("y", "0")) - 4 for text in grid)
    found = heights(line)
    assert [round((bottom - y) / (bottom - top), 3) for _, y in found] == [1.0, 0.75, 0.25]
    left = corners(line)[0][0]
    width = found[-1][0] - left
    assert [round((x - left) / width * 8) for x, _ in found] == [1, 3, 8]


def test_an_axis_by_powers_shows_methods_that_end_early() -> None:
    assert comparison_of([1, 2, 3], [900, 900, 1000]).is_logarithmic
    assert not comparison_of([100, 200, 300], [900, 900, 1000]).is_logarithmic
    text = "".join(ElementTree.fromstring(comparison_of([1, 2, 3], [900, 900, 1000]).svg()).itertext())
    assert "logarithmic" in text


def test_the_strip_shows_who_leads() -> None:
    comparison = comparison_of([47] * 10, [310] * 8 + [-1] * 2)
    strips, lines = paths(comparison.svg(), "leader"), paths(comparison.svg(), "crossing")
    assert len(strips) == 2
    assert len(lines) == 1
    assert corners(strips[1])[0][0] == corners(lines[0])[0][0]
    assert [strip.get("color") for strip in strips] == [COLOURS[0], COLOURS[1]]


def test_names_beside_lines_do_not_cover_each_other() -> None:
    methods = [parts(21 + 10 * number, name=f"method-{number}") for number in range(8)]
    root = ElementTree.fromstring(compare(methods, DATA).svg())
    names = [text for text in root.iter(f"{SVG}text") if "name" in text.get("class", "").split()]
    boxes = [(float(t.get("x", "0")), float(t.get("y", "0")), 7.4 * len(t.text or "")) for t in names]
    assert len(boxes) >= 4
    for i, (x, y, width) in enumerate(boxes):
        for other_x, other_y, other_width in boxes[i + 1 :]:
            apart = x + width <= other_x or other_x + other_width <= x or abs(y - other_y) >= 13
            assert apart


@pytest.mark.parametrize("radii", [[[-1, -1]], [[-1, -1], [0, 3]], [[SEARCH_LIMIT] * 2, [5, 2]], [[0]]])
def test_every_comparison_can_be_drawn(radii: list[list[int]]) -> None:
    comparison = comparison_of(*radii)
    ElementTree.fromstring(comparison.svg())
    assert comparison.html()
    assert comparison.markdown()
    json.dumps(comparison.to_dict(), allow_nan=False)


@pytest.mark.more
def test_a_curve_of_many_steps_stays_small() -> None:
    steps = np.random.default_rng(4).integers(0, 20_000, 10_000).tolist()
    assert len(comparison_of(steps, [1] * 10_000).svg()) < 60_000


# --- page, Markdown, JSON, files ------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Tags with their attributes, and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_says_who_leads_and_what_each_method_rests_on() -> None:
    comparison = all_kinds()
    page = Page(comparison.html())
    assert comparison.headline in page.text
    for sentence in (*comparison.findings, *comparison.notes):
        assert sentence in page.text
    for entry in comparison.entries:
        assert entry.threat.in_words in page.text
        if entry.certificate is not None:
            assert f"mithridate verify certificates/{entry.name}.json" in page.text
            assert all(sentence in page.text for sentence in entry.certificate.assumptions)
        assert all(sentence in page.text for sentence in entry.assumptions)
    assert "There is no probability of failure" in page.text
    assert "99.9% confidence" in page.text


def test_the_page_needs_nothing_from_outside_and_runs_nothing() -> None:
    html = all_kinds().html()
    page = Page(html)
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "img", "iframe", "object", "embed", "form"}
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes), tag
        for name in ("href", "src"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))
    assert not re.search(r"url\(|@import", html)


def test_text_of_users_is_escaped_everywhere() -> None:
    hostile = parts(name="dpa", title=HOSTILE)
    comparison = replace(compare([hostile, failing(HOSTILE)], DATA), title=HOSTILE)
    assert "<script>" not in comparison.html()
    assert HOSTILE in Page(comparison.html()).text
    svg = comparison.svg()
    assert "<script>" not in svg
    assert HOSTILE in "".join(ElementTree.fromstring(svg).itertext())
    assert "<script>" not in comparison.markdown()
    assert "<script>" not in comparison._repr_html_()
    assert json.loads(json.dumps(comparison.to_dict()))["title"] == HOSTILE


def table_rows(markdown: str) -> list[list[str]]:
    lines = [line for line in markdown.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_table_holds_shares_failure_probabilities_and_threats() -> None:
    comparison = replace(all_kinds(), asked_radii=(0, 5))
    rows = table_rows(comparison.markdown())
    assert rows[0] == ["method", "r = 0", "r = 5", "failure probability", "certified against", "training", "certifying"]
    by_name = {row[0].split(":")[0]: row for row in rows[2:]}
    for entry in comparison.entries:
        row = by_name[entry.name]
        shares = [float(cell.strip("%\\<>")) / 100 for cell in row[1:3]]
        assert shares == pytest.approx(entry.accuracy([0, 5]).tolist(), abs=1e-3)
        assert row[0].endswith("\\*") is not entry.ranked
        assert row[4] == entry.threat.value
    assert by_name["dpa"][3] == "none"
    assert by_name["fdp"][3] == "0.001"
    assert by_name["statistical-dp"][3] == "0.001, whole curve"


def test_json_has_a_schema_and_plain_values() -> None:
    comparison = all_kinds()
    content = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert content["schema"] == "mithridate.comparison/1"
    assert content["threat"] == "symmetric-difference"
    assert content["examples"] == POINTS
    assert [method["name"] for method in content["methods"]] == [entry.name for entry in comparison.entries]
    for method, entry in zip(content["methods"], comparison.entries, strict=True):
        assert list(method["certified_accuracy"]) == [str(radius) for radius in content["radii"]]
        if entry.curve is None:
            assert method["certificate"] is None
            assert method["bound"]["per_prediction"] is False
        else:
            assert method["curve"]["right"] == entry.curve.shown.tolist()
            assert method["assumptions"] == list(entry.outcome.assumptions)  # pyright: ignore[reportAttributeAccessIssue]
    assert [s["names"] for s in content["crossings"]] == [list(s.names) for s in comparison.crossings()]


def test_all_methods_have_the_same_keys_and_a_curve_that_promises_no_more() -> None:
    comparison = all_kinds()
    content = comparison.to_dict()
    assert len({tuple(sorted(method)) for method in content["methods"]}) == 1
    bound = next(method for method in content["methods"] if method["name"] == "statistical-dp")
    assert bound["method"] == {"name": "statistical-dp", "delta": 1e-5}
    assert bound["mechanism"]["type"] == "sampled-gaussian"
    assert bound["assumptions"][3:] == [classes_read_off(2)]
    shares = bound["certified_accuracy"].values()
    for right, share in zip(bound["curve"]["right"], shares, strict=True):
        assert right <= share * POINTS < right + 1


def test_no_confidence_is_claimed_where_there_is_no_guarantee() -> None:
    comparison = all_kinds()
    text = comparison.markdown().split("### rdp-paper")[1].split("\n## ")[0]
    assert "No guarantee" in text
    assert "no radius above 0 is guaranteed" in text
    assert "holds with" not in text
    card = comparison.html().split('id="method-rdp-paper"')[1].split("</article>")[0]
    assert "no radius above 0 is guaranteed" in card
    assert "confidence" not in card
    rows = {row[0].split(":")[0]: row for row in table_rows(comparison.markdown())}
    assert "not guaranteed" in rows["rdp-paper"]
    (values,) = [method for method in comparison.to_dict()["methods"] if method["name"] == "rdp-paper"]
    assert values["guarantee"] is False
    assert "no radius above 0 is guaranteed" in values["confidence"]
    assert "--method" not in " ".join(values["notes"])  # which `compare` does not have


def test_chart_and_table_say_the_same_about_a_bound() -> None:
    comparison = compare([private("statistical-dp", FakeMean)], DATA, radii=[0, 1, 2, 5, 10])
    described = next(ElementTree.fromstring(comparison.svg()).iter(f"{SVG}desc")).text or ""
    row = next(row for row in table_rows(comparison.markdown()) if row[0].startswith("statistical-dp"))
    cells = dict(zip(comparison.radii, row[1:6], strict=True))
    found = {int(radius): share for share, radius in re.findall(r"([\d.]+%) at (\d+)", described)}
    both = set(found) & set(cells)
    assert len(both) >= 2
    for radius in both:
        assert found[radius] == cells[radius]
        exact = float(comparison.entries[0].accuracy(radius))
        assert exact - 0.001 < float(found[radius].strip("%")) / 100 <= exact


def test_certificates_of_an_earlier_comparison_are_removed_and_nothing_else_is(tmp_path: Path) -> None:
    compare([parts(), private(), kernel()], DATA).write(tmp_path)
    certificates = tmp_path / "certificates"
    (certificates / "mine.json").write_text("{}")
    (certificates / "notes.txt").write_text("")
    compare([parts(), parts(21, name="run-off-election")], DATA).write(tmp_path)
    assert {path.name for path in certificates.iterdir()} == {
        "dpa.json", "run-off-election.json", "mine.json", "notes.txt",
    }  # fmt: skip


@pytest.mark.parametrize(
    "listed", ["../kept.json", "kept.json", "certificates/../kept.json", "certificates/deep/kept.json", None, 3]
)
def test_a_strange_list_removes_nothing(tmp_path: Path, listed: Any) -> None:
    (tmp_path / "out/certificates/deep").mkdir(parents=True)
    kept = [tmp_path / place / "kept.json" for place in (".", "out", "out/certificates/deep")]
    for path in kept:
        path.write_text("{}")
    old = {"schema": "mithridate.comparison/1", "methods": [{"certificate": listed}, "x"]}
    (tmp_path / "out/comparison.json").write_text(json.dumps(old))
    comparison_of([1, 2]).write(tmp_path / "out")
    assert all(path.exists() for path in kept)
    (tmp_path / "out/comparison.json").write_text("[" * 100_000)
    comparison_of([1, 2]).write(tmp_path / "out")


def test_everything_is_written_and_certificates_can_be_verified(tmp_path: Path) -> None:
    comparison = compare([parts(), private(), private("statistical-dp", FakeMean)], DATA)
    comparison.write(tmp_path / "new" / "folder")
    folder = tmp_path / "new" / "folder"
    assert sorted(path.name for path in folder.iterdir()) == [
        "certificates", "comparison.html", "comparison.json", "comparison.md", "comparison.svg",
    ]  # fmt: skip
    assert sorted(path.name for path in (folder / "certificates").iterdir()) == ["dpa.json", "fdp.json"]
    for name in ("dpa", "fdp"):
        assert verify(folder / f"certificates/{name}.json").valid
    assert json.loads((folder / "comparison.json").read_text(encoding="utf-8")) == comparison.to_dict()
    assert (folder / "comparison.svg").read_text(encoding="utf-8") == comparison.svg()


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(mithridate.ArtifactError, match="Cannot make the folder"):
        comparison_of([1, 2]).write(tmp_path / "file")


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("methods", "data", "options", "message"),
    [
        ([], DATA, {}, "There is nothing to compare"),
        ("fdp", DATA, {}, "Expected a list of methods"),
        (["dpaa"], DATA, {}, "did you mean 'dpa'?"),
        ([object()], DATA, {}, "Expected the name of a method or a defence"),
        ([FakeBagging], DATA, {}, "got the class FakeBagging; write FakeBagging()"),
        ((each for each in [parts()]), DATA, {}, "Expected a list of methods"),
        ([[parts()]], DATA, {}, "Expected the name of a method or a defence"),
        ({"a/b": parts()}, DATA, {}, "Expected names of letters"),
        ({3: parts()}, DATA, {}, "Expected names of letters"),
        ({}, DATA, {}, "There is nothing to compare"),
        ([parts()], DATA, {"device": "nope"}, "Expected device to be cpu"),
        ([parts()], DATA, {"device": "cuda:x"}, "Expected device to be cpu"),
        ([parts()], DATA, {"device": 3}, "Expected device to be cpu"),
        ([parts()], DATA, {"failure_prob": None}, "Expected failure_prob in (0, 1)"),
        ([parts()], DATA, {"scope": None}, "Expected scope to be one of"),
        ([parts()], (TRAIN, TEST[0]), {}, "needs the true labels of the test inputs"),
        ([parts()], (TRAIN, (TEST[0], None)), {}, "needs the true labels of the test inputs"),
        ([parts()], (TRAIN[0], TEST), {}, "Expected training data as a pair"),
        ([parts()], TRAIN[0], {}, "Expected data as a pair"),
        ([parts()], "no-such-data", {}, "Expected name to be one of digits"),
        ([parts()], DATA, {"radii": [0, 5, 5]}, "that increase"),
        ([parts()], DATA, {"radii": [5, 0]}, "that increase"),
        ([parts()], DATA, {"radii": []}, "that increase"),
        ([parts()], DATA, {"radii": [-1, 0]}, "0 or more"),
        ([parts()], DATA, {"radii": [0.5]}, "whole numbers"),
        ([parts()], DATA, {"radii": 7}, "whole numbers"),
        ([parts()], DATA, {"radii": [True]}, "whole numbers"),
        ([parts()], DATA, {"threat": "all"}, "Expected threat to be one of"),
        ([parts()], DATA, {"scope": "some"}, "Expected scope to be one of"),
        ([parts()], DATA, {"failure_prob": 0}, "Expected failure_prob in (0, 1)"),
    ],
)
def test_bad_input_is_one_clear_sentence(methods: Any, data: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        compare(methods, data, **options)
    assert "\n" not in str(caught.value)
    assert Fake.trained == []


def test_data_is_passed_on_with_its_source_and_assumptions() -> None:
    pytest.importorskip("sklearn")
    from mithridate.data.named import load_named

    training, test = load_named("digits")
    compare([parts()], (training, replace(test, x=test.x[:POINTS], y=LABELS)))
    assert Fake.seen[0].training.source["class_names"] == list("0123456789")
    assert Fake.seen[0].statements == training.assumptions
    compare([parts()], DATA)
    assert Fake.seen[1].training.class_names is None


# --- the real ones --------------------------------------------------------------------------------------------------


def test_real_defences_on_digits() -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("torch")
    from mithridate.defences import defence

    methods = [
        defence("fdp", instances=20, seconds=1),
        defence("statistical-dp", instances=20, seconds=1),
        defence("dpa", partitions=15, steps=10),
        defence("run-off-election", partitions=15, steps=10),
        defence("bagging", draws=40, instances=30, steps=10),
        defence("label-smoothing", instances=20, steps=5),
        defence("kernel-vote"),
        defence("nearest-neighbours", neighbours=50),
    ]
    comparison = mithridate.compare(methods, "digits", device="cpu")
    assert comparison.failed == ()
    assert len(comparison.entries) == 8
    by_name = {entry.name: entry for entry in comparison.entries}
    assert by_name["statistical-dp"].notes[-1] == "Certified from the votes of fdp."
    assert by_name["run-off-election"].notes[-1] == "Certified from the votes of dpa."
    assert [entry.name for entry in comparison.unranked] == ["statistical-dp", "label-smoothing"]
    assert float(by_name["kernel-vote"].accuracy(0)) > 0.8
    assert comparison.title == "Defences compared on digits"
    assert "certif" in comparison.headline
    ElementTree.fromstring(comparison.svg())
