"""The scaling benchmark: its counts by hand, its arithmetic, what it refuses, and that the page is made from it."""

import importlib
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the benchmark trains: pip install -e '.[train]'")
import torch
from torch import nn

pytestmark = pytest.mark.more
ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results.md"


@pytest.fixture
def scaling(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("scaling")


@pytest.fixture
def folder(scaling: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the benchmark reads results from."""
    monkeypatch.setattr(scaling, "RESULTS", tmp_path)
    return tmp_path


def imagined(scaling: Any, kind: str = "cuda") -> dict[str, Any]:
    """Results of every case, at a speed of 2,000 examples in a millisecond and start-up that takes a tenth."""
    cases: list[dict[str, Any]] = []
    for case in scaling.CASES[kind]:
        steps_s = case.instances * case.steps * case.batch / 2e6
        figures = {
            "parameters": sum(parameter.numel() for parameter in scaling.KINDS[case.model].build().parameters()),
            "precision": "tf32",
            "seconds": steps_s / 0.9,
            "start_s": steps_s / 9,
            "model_steps_per_s": case.instances * case.steps / (steps_s / 0.9),
            "examples_per_s": 0.9 * 2e6,
            "device_peak_gib": 5.0,
            "host_growth_gib": None,
            "power_w": 500.0,
            "joule_per_model_step": 500.0 * case.batch / (0.9 * 2e6),
        }
        cases.append({**scaling.described(case), **figures})
    facts = {"kind": kind, "device": "Imagined", "torch": "2", "python": "3"}
    return {**facts, "cases": cases, "skipped": []}


# --- floating-point operations --------------------------------------------------------------------------------------


def test_the_operations_of_a_linear_model_by_hand(scaling: Any) -> None:
    # 154 x 10 multiplications forward and as many for the weights; rows and errors have 154 and 10 numbers.
    assert scaling.training_flops(scaling.layers_of("linear")) == 2 * (2 * 1540 + 164)


def test_the_operations_of_lenet5_by_hand(scaling: Any) -> None:
    forward = {"first": 25 * 6 * 24**2, "second": 150 * 16 * 8**2, "units": 256 * 120 + 120 * 84 + 84 * 10}
    # Both convolutions have so many positions that forming the gradient costs less than Gram matrices.
    assert 25 * 6 * 24**2 < 24**4 * (25 + 6)
    assert 150 * 16 * 8**2 < 8**4 * (150 + 16)
    norms = forward["first"] + forward["second"] + (256 + 120) + (120 + 84) + (84 + 10)
    by_hand = 2 * (3 * sum(forward.values()) - forward["first"] + norms)
    layers = scaling.layers_of("lenet5")
    assert scaling.training_flops(layers) == by_hand == 1_998_388
    assert scaling.forward_flops(layers) == 2 * 281_640


def test_the_count_agrees_with_the_other_benchmark_but_for_norms(scaling: Any) -> None:
    train = importlib.import_module("train")
    for name in ("lenet5", "opa-tut", "resnet18"):
        kind, layers = scaling.KINDS[name], scaling.layers_of(name)
        without_norms = scaling.training_flops(layers) - 2 * sum(layer.norm_macs for layer in layers)
        assert without_norms == train.flops_per_model_step(kind.build(), kind.shape, 1)


def test_few_positions_take_gram_matrices(scaling: Any) -> None:
    assert scaling.Product(features=4608, outputs=512, positions=16).norm_macs == 16**2 * (4608 + 512)


def test_the_layers_of_a_module_come_in_order_with_their_positions(scaling: Any) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(4 * 16, 5))
    assert scaling.products_of(module, (3, 8, 8)) == [scaling.Product(27, 4, 16), scaling.Product(64, 5, 1)]


def test_resnet50_is_that_of_the_literature(scaling: Any) -> None:
    assert scaling.resnet50_parameters() == 25_557_032
    layers = scaling.resnet50_products()
    assert len(layers) == 1 + 3 * (3 + 4 + 6 + 3) + 4 + 1
    assert sum(layer.macs for layer in layers) == 4_089_184_256


def test_wider_networks_have_about_four_times_the_parameters(scaling: Any) -> None:
    sizes = [sum(p.numel() for p in scaling.KINDS[name].build().parameters()) for name in ("lenet5-x2", "lenet5-x4")]
    plain = sum(p.numel() for p in scaling.wider_lenet5(1).build().parameters())
    assert plain == 44_426
    assert sizes == [pytest.approx(4 * plain, rel=0.02), pytest.approx(16 * plain, rel=0.03)]


# --- measuring ------------------------------------------------------------------------------------------------------


def test_a_case_is_measured(scaling: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scaling.EFFORT, "cpu", scaling.Effort(0.0, 2, math.inf))
    case = scaling.Case(("instances",), "linear", instances=3, examples=500, batch=20, steps=4)
    figures = scaling.measure(case, torch.device("cpu"))
    assert figures["parameters"] == 1540
    assert len(figures["runs"]) == 2
    assert figures["model_steps_per_s"] * figures["seconds"] == pytest.approx(3 * 4)
    assert figures["examples_per_s"] == pytest.approx(20 * figures["model_steps_per_s"])
    assert figures["start_s"] > 0
    assert figures["power_w"] is figures["joule_per_model_step"] is figures["device_peak_gib"] is None
    json.dumps(figures)


def test_what_does_not_fit_or_fails_is_skipped_and_says_why(scaling: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first, long, broken = (
        scaling.Case(("examples",), "linear", 2, 100 + more, 10, 1, guess)
        for more, guess in ((0, 0.0), (1, 1e9), (2, 0.0))
    )
    monkeypatch.setitem(scaling.CASES, "cpu", (first, long, broken))

    def measure(case: Any, *_: Any) -> dict[str, Any]:
        if case is broken:
            raise torch.OutOfMemoryError("no room\nfor this")
        return {**scaling.described(case), "seconds": 1.0}

    monkeypatch.setattr(scaling, "measure", measure)
    result = scaling.measure_all(torch.device("cpu"), 100.0, None)
    assert [case["examples"] for case in result["cases"]] == [100]
    assert [case["why"] for case in result["skipped"]] == ["did not fit into 100 s", "OutOfMemoryError: no room"]
    assert scaling.measure_all(torch.device("cpu"), 100.0, "parameters")["cases"] == []


def test_random_data_has_the_shape_of_the_network(scaling: Any) -> None:
    rows = scaling.random_data(scaling.KINDS["linear"], 25, distinct=10)
    assert rows.inputs.shape == (25, 154)
    assert (rows.inputs**2).sum(axis=1) == pytest.approx(1.0, abs=1e-5)
    assert (rows.inputs[20:] == rows.inputs[:5]).all()
    images = scaling.random_data(scaling.KINDS["resnet18"], 4)
    assert images.inputs.shape == (4, 3, 32, 32)
    assert 0 <= images.inputs.min() < images.inputs.max() <= 1


def test_power_is_the_mean_without_the_first_second(scaling: Any) -> None:
    meter = scaling.PowerMeter(torch.device("cpu"))
    meter._samples = [(0.5, 900.0), (1.0, 100.0), (1.5, 200.0), (2.0, 300.0), (2.5, 900.0)]
    assert meter.mean_watts(0.0, 2.0) == 200.0
    assert meter.mean_watts(0.6, 2.0) is None  # two samples are no mean


def test_every_case_is_a_case_of_some_group_once(scaling: Any) -> None:
    for cases in scaling.CASES.values():
        keys = [scaling.key_of(scaling.described(case)) for case in cases]
        assert len(set(keys)) == len(keys)
        assert {group for case in cases for group in case.groups} == set(scaling.GROUPS)


# --- estimates ------------------------------------------------------------------------------------------------------


def test_the_arithmetic_of_a_million_examples(scaling: Any) -> None:
    text = scaling.million_examples(imagined(scaling))
    # An example takes half a microsecond. 1,000 instances x 20 steps x 450 examples, and the start of all of them.
    cells = row(text, "linear, equal A | 1,000")
    assert cells[2:4] == ["450", "20"]
    assert cells[5] == "5.00 s"  # 4.5 s, and a tenth of the whole for initial weights
    assert cells[6] == "2.50 kJ"
    assert row(text, "LeNet-5, one pass | 10,000")[3] == "16,667"
    assert int(cells[4].replace(",", "")) > 16 * 464  # the radius at 60,000 examples, docs/recipes.md


def test_the_arithmetic_of_imagenet(scaling: Any) -> None:
    result = imagined(scaling)
    small = scaling.training_flops(scaling.layers_of("resnet18"))
    large = scaling.training_flops(scaling.resnet50_products())
    # ResNet-18 takes half a microsecond an example, and ResNet-50 as much longer as it has more operations.
    hours = 90 * 1_281_167 * 0.5e-6 * large / small / 3600
    cells = row(scaling.imagenet_network(result), "1,000 | 4,096")
    assert cells[2] == f"{math.ceil(90 * 1_281_167 / 4096):,}"
    assert float(cells[4].replace(",", "")) == pytest.approx(1000 * hours, rel=0.01)
    assert float(cells[5].removesuffix(" kWh")) == pytest.approx(1000 * hours * 0.5, rel=0.01)


def test_the_arithmetic_of_frozen_features(scaling: Any) -> None:
    cells = row(scaling.imagenet_features(imagined(scaling)), "1,000 | 1,281,167")
    steps = 1000 * 100 * 1_281_167 * 0.5e-6  # 100 steps of the whole set, by the recipe for rows
    assert float(cells[5].removesuffix(" h")) == pytest.approx(steps / 3600, rel=0.01)


def row(text: str, start: str) -> list[str]:
    lines = [line for line in text.splitlines() if line.startswith(f"| {start} |")]
    assert lines, start
    return [cell.strip() for cell in lines[0].strip("|").split("|")]


def test_few_instances_do_not_stand_for_many(scaling: Any) -> None:
    result = imagined(scaling)
    few = next(case for case in result["cases"] if case["model"] == "lenet5" and case["instances"] == 100)
    few["seconds"] *= 100
    assert scaling.slowest(result, "lenet5", 60, 1000) is not few
    assert scaling.slowest(result, "lenet5", 60) is few


def test_without_a_figure_there_is_no_estimate(scaling: Any) -> None:
    result = imagined(scaling)
    result["cases"] = [case for case in result["cases"] if case["model"] != "resnet18"]
    text = scaling.estimates(result)
    assert text.count("not estimated, since resnet18 at an expected batch of 256 was not measured") == 2
    assert "LeNet-5, one pass" in text
    assert "Not estimated" in scaling.estimates(None)


def test_without_power_there_is_no_energy(scaling: Any) -> None:
    result = imagined(scaling)
    for case in result["cases"]:
        case.update(power_w=None, joule_per_model_step=None)
    assert "J a model-step" not in scaling.tables(result)
    assert row(scaling.estimates(result), "linear, equal A | 1,000")[6] == "not measured"


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (12345.6, "12,300"), (1.2345, "1.23"), (0.012345, "0.0123"), (99.96, "100"), (1.5e-6, "1.50e-06")],
)
def test_numbers_have_three_digits(scaling: Any, number: float, shown: str) -> None:
    assert scaling.rounded(number) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(119, "119 s"), (150, "2.50 min"), (7200, "2.00 h"), (2e5, "2.31 days")]
)
def test_durations(scaling: Any, seconds: float, shown: str) -> None:
    assert scaling.duration(seconds) == shown


@pytest.mark.parametrize(
    ("joules", "shown"), [(5, "5.00 J"), (2e4, "20.0 kJ"), (7.2e6, "2.00 kWh"), (3.6e9, "1.00 MWh")]
)
def test_energies(scaling: Any, joules: float, shown: str) -> None:
    assert scaling.energy_in_words(joules) == shown


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "colours"], "invalid choice"),
        (["--device", "abacus"], "invalid choice"),
        (["--seconds", "0"], "--seconds must be above 0"),
        (["--seconds", "nan"], "--seconds must be above 0"),
        (["--device", "cpu", "--out", "nowhere/at/all.json"], "make it first"),
    ],
)
def test_bad_arguments(scaling: Any, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        scaling.main(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu(scaling: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        scaling.main(["--device", "cuda"])
    assert "use --device cpu" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["{", "[]", '{"kind": "cpu"}'])
def test_a_damaged_file(scaling: Any, tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scaling-x.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="make it again"):
        scaling.read(path)
    with pytest.raises(SystemExit, match="2"):
        scaling.main(["--device", "cpu", "--out", str(path)])
    assert "make it again" in capsys.readouterr().err
    assert path.read_text() == content


def test_results_of_one_machine_are_merged_and_others_refused(scaling: Any) -> None:
    before, after = imagined(scaling), imagined(scaling)
    before["cases"], before["skipped"] = before["cases"][:2], [{**case, "why": "time"} for case in before["cases"][2:4]]
    after["cases"] = [{**after["cases"][1], "seconds": 7.0}, after["cases"][2]]
    both = scaling.merged(before, after)
    assert [case["seconds"] for case in both["cases"]][1] == 7.0
    assert len(both["cases"]) == 3
    assert len(both["skipped"]) == 1
    with pytest.raises(ValueError, match="another device"):
        scaling.merged(before, {**after, "device": "Another"})


# --- the page -------------------------------------------------------------------------------------------------------


def test_the_page_is_written_between_its_markers_only(scaling: Any, folder: Path) -> None:
    (folder / "scaling-x.json").write_text(json.dumps(imagined(scaling)))
    page = folder / "page.md"
    assert "nothing was written" in scaling.write_page(page)
    assert not page.exists()
    page.write_text("# Results\n")
    assert "add them" in scaling.write_page(page)
    assert page.read_text() == "# Results\n"
    page.write_text(f"# Results\n\n{scaling.BEGIN}\nold\n{scaling.END}\n\nThe end.\n")
    assert "Wrote" in scaling.write_page(page)
    assert page.read_text() == f"# Results\n\n{scaling.section()}\nThe end.\n"
    scaling.write_page(page)
    assert page.read_text().count(scaling.section()) == 1


def test_what_was_skipped_is_on_the_page(scaling: Any, folder: Path) -> None:
    result = imagined(scaling)
    most = max(range(len(result["cases"])), key=lambda place: result["cases"][place]["instances"])
    result["skipped"] = [{**result["cases"].pop(most), "why": "did not fit into 150 s"}]
    (folder / "scaling-x.json").write_text(json.dumps(result))
    words = " ".join(scaling.section().split())
    assert "Not run: linear with 100,000 instances of 60,000 examples (did not fit into 150 s)." in words


def test_paragraphs_are_wrapped_and_tables_are_not(scaling: Any, folder: Path) -> None:
    (folder / "scaling-x.json").write_text(json.dumps(imagined(scaling)))
    prose = [line for line in scaling.section().splitlines() if not line.startswith("|")]
    assert max(map(len, prose)) <= 120
    assert not [line for line in prose if re.match(r"([-+*#>]|\d+[.)]) ", line)]  # what Markdown would take for a list


def test_every_measured_figure_is_in_the_section(scaling: Any) -> None:
    section = scaling.section()
    results = scaling.read_all()
    assert results
    for result in results:
        for case in result["cases"]:
            assert (
                f" {scaling.rounded(case['model_steps_per_s'])} | {scaling.rounded(case['examples_per_s'])} |"
                in section
            )
            assert case["model_steps_per_s"] == pytest.approx(case["instances"] * case["steps"] / case["seconds"])


def test_the_page_says_what_the_results_say_and_says_it_once(scaling: Any) -> None:
    """What `python benchmarks/scaling.py --page` would write is what stands there, and no figure stands elsewhere."""
    if not PAGE.exists():
        pytest.skip("docs/results.md was not written yet")
    text, section = PAGE.read_text(encoding="utf-8"), scaling.section()
    assert text.count(section) == 1, "run: python benchmarks/scaling.py --page"
    elsewhere = set(re.findall(r"[\d.,]*\d", text.replace(section, "")))
    speeds = {scaling.rounded(case["examples_per_s"]) for result in scaling.read_all() for case in result["cases"]}
    long = {speed for speed in speeds if len(speed) >= 6}  # shorter numbers occur by chance
    assert long
    assert not long & elsewhere
