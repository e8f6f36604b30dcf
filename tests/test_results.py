"""docs/results.md: every number is what the raw votes give, and the raw files are what they should be."""

import importlib
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from mithridate import RDP, Votes, certify
from mithridate.core.mechanism import SampledGaussian
from mithridate.core.votes import read_votes
from mithridate.defences.bagging import Bagged
from mithridate.defences.partitions import Partitioned
from mithridate.projects import read_comparison, read_project
from mithridate.recipes import presets
from mithridate.training.config import TrainConfig

pytestmark = pytest.mark.more
ROOT = Path(__file__).parents[1]
EXPERIMENTS = ROOT / "experiments"
ALL = sorted(EXPERIMENTS.glob("*/raw/*.npz"))
# What counts neighbours keeps labels and radii: its votes are too large.
RADII = [path for path in ALL if "nearest-neighbours" in path.stem]
RAW = [path for path in ALL if path not in RADII]
PAGE = ROOT / "docs" / "results.md"
MEBIBYTE = 1 << 20

# Names and addresses that hold digits; any other digit outside of generated blocks would be a result typed by hand.
_NAMES = ("LeNet-5", "ResNet-18", "CIFAR-10", "AAAI 2023", "aaai2023")
_BLOCK = re.compile(r"<!-- ([a-z ]+) -->\n(.*?)<!-- end of \1 -->", re.DOTALL)
# Sections of other experiments, with tests of their own.
_ELSEWHERE = {"scaling"}

raw = pytest.mark.parametrize("path", RAW, ids=[path.stem for path in RAW])


@pytest.fixture(scope="module", autouse=True)
def _experiments_can_be_imported() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXPERIMENTS))
        yield


def module(name: str) -> ModuleType:
    return importlib.import_module(name)


@cache
def everything() -> tuple[list[Any], dict[str, str]]:
    return module("figures").everything()


# --- the page -------------------------------------------------------------------------------------------------------


def blocks_of(page: Path) -> dict[str, str]:
    return {name: text.strip() for name, text in _BLOCK.findall(page.read_text(encoding="utf-8"))}


def test_every_number_of_the_page_comes_from_the_raw_votes() -> None:
    """What `make figures` would write is what stands there, on every page that has a block."""
    figures = module("figures")
    _, wanted = everything()
    shown = blocks_of(PAGE)
    assert shown.keys() - _ELSEWHERE == wanted.keys() - {"summary", "encoder summary"}  # for the first page
    assert {"headline", "summary", "encoder summary"} <= blocks_of(ROOT / "README.md").keys()
    for page in figures.PAGES:
        for name, text in blocks_of(page).items():
            if name in wanted:
                assert text == wanted[name].strip(), f"{page.name}: {name} is out of date; run `make figures`"


def test_prose_holds_no_numbers() -> None:
    prose = _BLOCK.sub("", PAGE.read_text(encoding="utf-8"))
    for name in _NAMES:
        prose = prose.replace(name, "")
    assert not re.findall(r".*\d.*", prose)


def test_figures_are_those_of_the_raw_votes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need: pip install -e '.[report]'")
    figures = module("figures")
    drawn, _ = everything()
    assert {path.stem for path in figures.FIGURES.glob("*.svg")} >= {figure.name for figure in drawn}
    for figure in drawn:
        figures.draw(figure, tmp_path / "figure.svg")
        assert_same_drawing(tmp_path / "figure.svg", figures.FIGURES / f"{figure.name}.svg")


def assert_same_drawing(one: Path, other: Path) -> None:
    """Equal but for what another machine may round differently."""
    texts = [path.read_text(encoding="utf-8") for path in (one, other)]
    number = re.compile(r"\d+\.\d+")
    assert number.sub("", texts[0]) == number.sub("", texts[1]), f"{other.name} is out of date; run `make figures`"
    values = [np.array([float(found) for found in number.findall(text)]) for text in texts]
    np.testing.assert_allclose(
        values[0], values[1], atol=0.05, err_msg=f"{other.name} is out of date; run `make figures`"
    )


def test_the_same_votes_give_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need: pip install -e '.[report]'")
    figures = module("figures")
    line = figures.Line("line", lambda radii: np.exp(-radii / 10.0), 30, "#0072b2")
    figure = figures.Figure("figure", "A curve", (figures.Panel("Panel", (line,)),))
    for name in ("one.svg", "two.svg"):
        figures.draw(figure, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_filling_leaves_the_rest_of_a_page_alone() -> None:
    page = "a\n<!-- one -->\nold\n<!-- end of one -->\nb\n<!-- beyond -->\nkept\n<!-- end of beyond -->\n"
    filled = module("figures").filled(page, {"one": "new \\1\n", "other": "nowhere\n"})
    assert filled == page.replace("old", "\nnew \\1\n")
    assert module("figures").filled(filled, {"one": "new \\1\n"}) == filled


# --- raw files ------------------------------------------------------------------------------------------------------


@raw
def test_a_raw_file_is_small_and_complete(path: Path) -> None:
    assert path.stat().st_size < MEBIBYTE
    votes, note = Votes.load(path), json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    assert votes.labels is not None
    assert note["name"] == path.stem
    assert note["instances"] == votes.instances
    assert note["seconds"] > 0
    assert {"device", "torch", "python", "mithridate"} <= note.keys()
    assert note["assumptions"] == list(votes.assumptions)


@raw
def test_no_raw_file_holds_a_seed(path: Path) -> None:
    """A certificate holds over randomness that nobody knows; a note may say in words that the seeds are gone."""
    with np.load(path, allow_pickle=False) as file:
        header = json.loads(str(file["mithridate"]))
        assert not [name for name in file.files if "seed" in name]
    for values in (header, json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))):
        for name, value in entries(values):
            assert "seed" not in name or (isinstance(value, str) and not re.search(r"\d", value))


def entries(values: Any) -> Iterator[tuple[str, Any]]:
    """All names in nested values, with what they name."""
    if isinstance(values, dict):
        yield from values.items()
        values = list(values.values())
    if isinstance(values, list):
        for value in values:
            yield from entries(value)


@raw
def test_a_raw_file_ran_what_its_configuration_says(path: Path) -> None:
    votes, own = Votes.load(path), path.parents[1] / f"{path.stem}.toml"
    if own.exists():
        project = read_project(own)
        options = project.options
        assert set(project.assumptions) <= set(votes.assumptions)
        assert project.assumptions or "recipe" in options  # a preset says by itself how it was chosen
        if "recipe" in options:
            options = {**presets.preset(options["recipe"]).options(options["num_train"]), **options}
        constants = {name: value for name, value in options.items() if name in TrainConfig.__dataclass_fields__}
        assert votes.mechanism == TrainConfig(**constants).mechanism
        assert votes.recipe is not None
        trained = votes.recipe["config"]
        # A run may have been ended before all of its instances were trained, and can be looked at all the same.
        wanted = {name: value for name, value in constants.items() if name != "instances"}
        assert {name: tuple(t) if isinstance(t := trained[name], list) else t for name in wanted} == wanted
    elif found := re.fullmatch(r"(.+)-(bagging|dpa)-(\d+)", path.stem):
        file = read_comparison(path.parents[1] / f"{found[1]}-baselines.toml")
        size = "draws" if found[2] == "bagging" else "partitions"
        assert int(found[3]) in [one[size] for one in file.methods if one["name"] == found[2]]
        assert set() < set(file.data.assumptions) <= set(votes.assumptions)
        assert isinstance(votes.mechanism, Bagged | Partitioned)
        assert found[3] == str(votes.mechanism.draws if isinstance(votes.mechanism, Bagged) else votes.instances)
    else:
        pytest.skip("a run without a configuration of its own")


@pytest.mark.parametrize("path", RADII, ids=[path.stem for path in RADII])
def test_kept_radii_are_those_of_a_configuration(path: Path) -> None:
    assert path.stat().st_size < MEBIBYTE
    note = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    with np.load(path, allow_pickle=False) as file:
        label, radius, y = (file[name] for name in ("label", "radius", "y"))
    assert label.shape == radius.shape == y.shape == (10_000,)
    assert np.mean(label == y) == note["accuracy"]
    data, numbers = re.fullmatch(r"(.+)-nearest-neighbours-([\d-]+)", path.stem).groups()  # pyright: ignore[reportOptionalMemberAccess]
    neighbours = [int(number) for number in numbers.split("-")]
    file = read_comparison(path.parents[1] / f"best-{data}.toml")
    asked = [(one["neighbours"], one.get("leads")) for one in file.methods]
    assert set() < set(file.data.assumptions) <= set(note["assumptions"])
    used = note["mechanism"]["neighbours"], note["mechanism"].get("leads")
    assert used in asked
    assert used[0] == (neighbours if len(neighbours) > 1 else neighbours[0])
    assert -1 <= radius.min()
    # As many of the most voters would have to be replaced, each a change of two.
    assert radius.max() <= neighbours[0] // 2


def test_raw_files_together_are_small() -> None:
    assert sum(path.stat().st_size for path in ALL) < 20 * MEBIBYTE


# --- sources ----------------------------------------------------------------------------------------------------------

OF_SOURCES = sorted((EXPERIMENTS / "sources").glob("re*/*.npz"))


@pytest.mark.parametrize("path", OF_SOURCES, ids=[path.stem for path in OF_SOURCES])
def test_a_note_of_sources_says_what_its_radii_give(path: Path) -> None:
    note = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    with np.load(path, allow_pickle=False) as raw:
        radius = raw["radius"]
    assert radius.min() >= -1
    assert note["threat"] == "edit"
    assert note["median"] == int(np.floor(np.median(radius)))
    for asked, share in note["accuracy"].items():
        assert share == pytest.approx(np.mean(radius >= int(asked)), abs=6e-5)
    assert path.stat().st_size < MEBIBYTE // 10


def test_images_are_dealt_as_the_arrangements_say() -> None:
    dealt = module("sources.arrangements")
    labels = np.random.default_rng(5).permutation(np.arange(60_000) % 10)
    of_source = {way: dealt._NUMBERS[way](labels, dealt.SOURCES) for way in dealt.ARRANGEMENTS}
    for way, numbers in of_source.items():
        assert sorted(set(numbers.tolist())) == list(range(dealt.SOURCES)), way
    for way in ("random", "two-classes"):
        assert set(np.bincount(of_source[way]).tolist()) == {60}
    classes = [len(set(labels[of_source["two-classes"] == number].tolist())) for number in range(dealt.SOURCES)]
    assert max(classes) <= 4
    assert np.mean(np.array(classes) == 2) > 0.8
    sizes = np.bincount(of_source["power-law"])
    assert (np.diff(sizes) <= 1).all()  # in the order of ranks, up to rounding
    assert sizes[0] / sizes[9] == pytest.approx(10, rel=0.02)
    assert len(set(labels[of_source["power-law"] == 0].tolist())) == 10


# --- the paper's rules ----------------------------------------------------------------------------------------------

# See test_paper.py.
REAL = ROOT / "tests" / "golden" / "mnist-lenet5-sigma3.npz"
MNIST = SampledGaussian(3.0, 0.001, 1000)


@cache
def real_votes() -> Votes:
    return read_votes(REAL, mechanism=MNIST, labels_key="y")


def test_rdp_by_the_papers_rules() -> None:
    """Median 141 and maximum 147, the published maximum, from votes of the paper's settings; and its accuracies."""
    found = module("aaai2023.results").Certified(module("aaai2023.paper_rules").radii(real_votes(), "rdp", on="votes"))
    assert (found.median, found.largest) == (141, 147)
    assert found.accuracy([0, 50, 100, 140, 200]) == pytest.approx([0.8793, 0.797, 0.678, 0.505, 0], abs=5e-4)


def test_adp_by_the_papers_rules_has_the_published_maximum() -> None:
    assert module("aaai2023.paper_rules").radii(real_votes(), "adp", on="votes").max() == 44


def test_votes_by_the_papers_rules_are_those_of_the_library() -> None:
    """Certifying the true label only is the same as counting wrong labels as -1."""
    votes = real_votes()
    assert votes.labels is not None
    few = Votes(votes.counts[:300], MNIST, labels=votes.labels[:300])
    expected = certify(few, method=RDP(group="paper"), bounds="pointwise")
    right = np.where(expected.label == few.labels, expected.radius, -1)
    np.testing.assert_array_equal(module("aaai2023.paper_rules").radii(few, "rdp", on="votes"), right)


def test_student_intervals_are_those_of_a_textbook() -> None:
    """Mean and standard error of three scores by hand, and 31.599, what t with 2 degrees exceeds with .0005."""
    scores = np.array([[0.95, 0.05], [0.96, 0.04], [0.97, 0.03]])
    votes = Votes(
        np.array([[3, 0], [0, 3]]),
        MNIST,
        labels=np.array([0, 0]),
        score_sums=np.stack([scores.sum(axis=0), scores.sum(axis=0)[::-1]]),
        score_squares=np.stack([(scores**2).sum(axis=0), (scores**2).sum(axis=0)[::-1]]),
    )
    found = module("aaai2023.paper_rules").student_bounds(votes)
    width = 31.599054576 * 0.01 / np.sqrt(3)
    assert found.top_lower == pytest.approx([0.96 - width, 0.0], abs=1e-6)
    # What the true label leaves is the most that a rival can have; the wrong point is not separated.
    assert found.rival_upper == pytest.approx([0.04 + width, 1.0], abs=1e-6)


def test_the_search_of_the_paper_ends() -> None:
    """Every radius holds; the paper's search stops where it stops."""
    rules = module("aaai2023.paper_rules")
    votes = Votes.from_counts([[10_000, 0]], mechanism=SampledGaussian(50.0, 0.001, 10), labels=[0])
    assert rules.radii(votes, "rdp", on="votes").tolist() == [rules.LARGEST_RADIUS]


# --- the evidence ---------------------------------------------------------------------------------------------------


def test_the_group_rule_is_exceeded() -> None:
    """The two counterexamples of theory.md, computed here by a plain threshold on the sum of all steps."""
    found = module("aaai2023.results")
    resnet = found.published_mechanism("cifar10-resnet18")
    assert found.allowed_by_paper(resnet, 13, 0.01) == pytest.approx(0.294, abs=5e-4)
    assert found.reached_by_attack(resnet, 13, 0.01) == pytest.approx(0.418, abs=5e-4)
    full = SampledGaussian(20.0, 1.0, 50)
    assert found.allowed_by_paper(full, 6, 0.01) == pytest.approx(0.0275, abs=5e-5)
    assert found.reached_by_attack(full, 6, 0.01) == pytest.approx(0.4188, abs=5e-5)


def test_bounds_that_the_paper_names_cannot_reach_its_radii() -> None:
    best = module("aaai2023.results").best_scores
    assert best(MNIST, instances=1000, bounds="hoeffding") == 92
    assert best(MNIST, instances=1000, bounds="empirical-bernstein") == 122


# --- text -----------------------------------------------------------------------------------------------------------


def test_a_run_that_is_not_there_is_said_not_to_have_been_run(tmp_path: Path) -> None:
    found = module("aaai2023.results").Results(tmp_path)
    tables = module("aaai2023.tables")
    assert "mnist-lenet5-sigma3" in tables.runs(found)
    assert tables.headline(found).count(tables.NOT_RUN) == 3 * len(module("aaai2023.results").ROWS)
    assert "sigma19" not in tables.resnet_sigma(found)
    assert list(module("figures").figures(found)) == []


def test_shares_are_never_rounded_up() -> None:
    share = module("aaai2023.tables").share
    assert [share(value) for value in (0.8793, 0.99999, 1.0, 0.29, 0.0)] == [
        ".8793",
        ".9999",
        "1.0000",
        ".2900",
        ".0000",
    ]
