"""Every defence through every door: command line, Python, estimator and comparison give the same votes and claims."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import mithridate
from mithridate import CertifiedClassifier, Threat, Votes, compare, verify
from mithridate.cli import main
from mithridate.core.conditions import conditions_of
from mithridate.defences import defence, names, predict
from mithridate.training import run_directory

# Names are a contract.
METHODS = (
    "fdp", "rdp", "rdp-paper", "rdp-standard", "adp", "statistical-dp", "bagging", "dpa", "finite-aggregation",
    "run-off-election", "run-off-finite-aggregation", "label-smoothing", "feature-smoothing", "nearest-neighbours",
    "kernel-vote", "ridge",
)  # fmt: skip
_PRIVATE: dict[str, Any] = {"instances": 40, "noise_multiplier": 6.0, "sample_rate": 0.2, "steps": 5}
_PLAIN: dict[str, Any] = {"steps": 15, "batch_size": 20}
CONSTANTS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(METHODS[:6], _PRIVATE),
    "bagging": {**_PLAIN, "instances": 40},
    "dpa": _PLAIN,
    "run-off-election": _PLAIN,
    "finite-aggregation": {**_PLAIN, "spread": 2},
    "run-off-finite-aggregation": {**_PLAIN, "spread": 2},
    "label-smoothing": {"steps": 40, "batch_size": 60, "instances": 100},
    "feature-smoothing": {**_PLAIN, "instances": 40, "noise": 0.3, "max_change": 0.1},
    "nearest-neighbours": {},
    "kernel-vote": {},
    "ridge": {},
}
# Whose constants follow the number of examples where they are left open.
SIZED = (*METHODS[:10], "run-off-finite-aggregation", "nearest-neighbours", "ridge")

Pair = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]


def blobs(count: int, seed: int) -> Pair:
    """Three clouds of points that a child could tell apart."""
    draws = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    corners = np.array([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]])
    return (corners[labels] + 0.3 * draws.standard_normal((count, 3))).astype(np.float32), labels


TRAINING, TEST = blobs(180, seed=1), blobs(30, seed=2)
# Few models certify little, which an estimator says.
pytestmark = [pytest.mark.more, pytest.mark.filterwarnings("ignore::UserWarning")]


@pytest.fixture(autouse=True)
def same_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One seed for all doors, as if the operating system had drawn it."""
    monkeypatch.setattr(run_directory, "new_root_seed", lambda: bytes(range(32)))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with the data in it."""
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "train.npz", x=TRAINING[0], y=TRAINING[1])
    np.savez(tmp_path / "test.npz", x=TEST[0], y=TEST[1])
    return tmp_path


def project(method: str, **constants: Any) -> Path:
    """A project file that names a method with its constants."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in constants.items()]
    text = f'run_dir = "run"\n[data]\ntrain = "train.npz"\ntest = "test.npz"\n[train]\nmethod = "{method}"\n'
    path = Path("project.toml")
    path.write_text(text + "\n".join(lines) + "\n")
    return path


def by_file(method: str) -> Votes:
    """`mithridate train PROJECT`, all constants in the file."""
    assert main(["train", str(project(method, device="cpu", **CONSTANTS[method])), "--json"]) == 0
    return Votes.load("run/votes.npz")


def by_flags(method: str) -> Votes:
    """`mithridate train --method NAME --constants`."""
    flags = [word for name, value in CONSTANTS[method].items() for word in (f"--{name.replace('_', '-')}", str(value))]
    files = ["--train", "train.npz", "--test", "test.npz", "--run-dir", "flags", "--device", "cpu"]
    assert main(["train", *files, "--method", method, *flags, "--json"]) == 0
    return Votes.load("flags/votes.npz")


def by_object(method: str) -> Votes:
    """`defence(...).train(...)`."""
    return defence(method, **CONSTANTS[method]).train(TRAINING, TEST, device="cpu")


def by_estimator(method: str) -> Votes:
    """`CertifiedClassifier(method=...).fit(...)`, which votes when it is asked."""
    fitted = CertifiedClassifier(method, **CONSTANTS[method], device="cpu").fit(*TRAINING)
    return fitted.votes(*TEST)


def by_comparison(method: str) -> Votes:
    """`compare([...])`, whose runs are ordinary run directories."""
    found = compare({"it": defence(method, **CONSTANTS[method])}, (TRAINING, TEST), run_dir="comparison", device="cpu")
    assert not found.failed
    assert found.entries[0].run_dir is not None
    return Votes.load(Path(found.entries[0].run_dir) / "votes.npz")


DOORS: tuple[Callable[[str], Votes], ...] = (by_file, by_flags, by_estimator, by_comparison)


def test_one_list_of_names_at_every_door() -> None:
    assert set(names()) == set(METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_all_doors_give_the_same_votes_under_the_same_conditions(
    method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = by_object(method)
    assert (expected.size is not None) == (method in SIZED)
    for door in DOORS:
        votes = door(method)
        assert votes.mechanism == expected.mechanism, door.__doc__
        assert np.array_equal(votes.counts, expected.counts), door.__doc__
        assert votes.size == expected.size, door.__doc__
        found, wanted = ({each.id for each in conditions_of(one.statements)} for one in (votes, expected))
        assert found == wanted == {"class-list"}, door.__doc__
        assert (votes.recipe or {})["defence"] == (expected.recipe or {})["defence"], door.__doc__
        assert (votes.recipe or {})["rule"] == (expected.recipe or {})["rule"], door.__doc__
    capsys.readouterr()


@pytest.mark.parametrize("method", METHODS)
def test_a_run_of_any_method_is_certified_predicted_reported_and_verified(
    method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    votes = by_file(method)
    assert main(["certify", "run", "--json"]) == 0
    rule = (votes.recipe or {})["rule"]["name"]
    certificate = mithridate.Certificate.load("run/certificate.json")
    assert certificate.method.name == rule
    assert (certificate.radius >= 1).mean() > 0.5
    assert main(["verify", "run/certificate.json", "--run", "run"]) == 0
    assert main(["report", "run", "--out", "report.html"]) == 0
    # The inputs of the run again: the very votes, and so the very labels and radii.
    assert main(["predict", "run", "test.npz", "--out", "predicted.json", "--device", "cpu"]) == 0
    predicted = mithridate.Certificate.load("predicted.json")
    assert np.array_equal(predicted.radius, certificate.radius)
    assert np.array_equal(predicted.label, certificate.label)
    assert verify("predicted.json").valid
    # Other inputs, without labels, through Python.
    others = predict("run", blobs(9, seed=3)[0], device="cpu")
    assert others.counts.shape == (9, 3)
    assert others.labels is None
    assert {each.id for each in conditions_of(others.statements)} == {"class-list"}
    capsys.readouterr()


@pytest.mark.parametrize("method", METHODS)
def test_an_estimator_of_any_method_fits_predicts_certifies_and_scores(method: str) -> None:
    names_of_labels = np.array(["ant", "bee", "cat"])
    fitted = CertifiedClassifier(defence(method, **CONSTANTS[method]), device="cpu")
    fitted.fit(TRAINING[0], names_of_labels[TRAINING[1]])
    truth = names_of_labels[TEST[1]]
    certificate = fitted.certify(TEST[0], truth)
    assert fitted.score(TEST[0], truth) > 0.9
    assert set(fitted.predict(TEST[0])) <= {"ant", "bee", "cat"}
    assert np.array_equal(fitted.classes_[certificate.label], fitted.predict(TEST[0]))
    shares = fitted.predict_proba(TEST[0])
    assert shares.shape == (30, 3)
    assert np.allclose(shares.sum(axis=1), 1)


def test_what_a_comparison_ranked_first_can_be_deployed(capsys: pytest.CaptureFixture[str]) -> None:
    methods = {"near": defence("nearest-neighbours"), "parts": defence("dpa", **_PLAIN)}
    found = compare(methods, (TRAINING, TEST), run_dir="comparison", device="cpu")
    first = next(entry for entry in found.entries if entry.name == found.leaders[0][0].names[0])
    assert first.run_dir is not None
    assert main(["certify", first.run_dir]) == 0
    assert main(["predict", first.run_dir, "test.npz", "--device", "cpu"]) == 0
    capsys.readouterr()


def test_methods_that_share_models_share_a_run_that_either_can_certify(capsys: pytest.CaptureFixture[str]) -> None:
    methods = [defence(name, **_PLAIN) for name in ("dpa", "run-off-election")]
    found = compare(methods, (TRAINING, TEST), run_dir="comparison", device="cpu")
    folders = {entry.run_dir for entry in found.entries}
    assert len(folders) == 1
    folder = str(folders.pop())
    assert main(["certify", folder, "--method", "run-off-election", "--out", "run-off.json"]) == 0
    assert mithridate.Certificate.load("run-off.json").method.name == "run-off-election"
    # The same comparison again finds its run, whichever method comes first.
    again = compare(methods[::-1], (TRAINING, TEST), run_dir="comparison", device="cpu")
    assert {entry.run_dir for entry in again.entries} == {folder}
    assert not again.failed
    capsys.readouterr()


# --- where nobody names a method ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "method", "reason"),
    [
        ([], "nearest-neighbours", "without any training"),
        (["--private", "--instances", "40"], "fdp", "must be private"),
        (["--instances", "40", "--steps", "5"], "fdp", "constants of private training"),
        (["--model", "linear", "--instances", "40"], "fdp", "a network is named"),
        (["--radius", "5"], "nearest-neighbours", "a radius of 5"),
        (["--radius", "100"], "kernel-vote", "a radius of 100 is much"),
        (["--model", "auto", "--features", "auto"], "nearest-neighbours", "without any training"),
    ],
)
def test_auto_decides_by_public_facts_and_prints_its_reason(
    flags: list[str], method: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--train", "train.npz", "--test", "test.npz", "--device", "cpu"]
    assert main(["train", *files, *flags]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"Method: {method}" in said
    assert reason in said
    assert (Votes.load("run/votes.npz").recipe or {})["defence"]["name"] == method


def test_auto_is_the_same_choice_at_all_doors(capsys: pytest.CaptureFixture[str]) -> None:
    fitted = CertifiedClassifier(radius=5).fit(*TRAINING)
    assert main(["train", "--train", "train.npz", "--test", "test.npz", "--radius", "5"]) == 0
    assert np.array_equal(fitted.votes(*TEST).counts, Votes.load("run/votes.npz").counts)
    capsys.readouterr()


def test_auto_never_looks_at_the_values_of_the_data() -> None:
    shuffled = TRAINING[0][::-1] * 7 + 1, TRAINING[1][::-1]
    choices = [CertifiedClassifier(radius=5).fit(*each).choice_.details for each in (TRAINING, shuffled)]
    assert choices[0] == choices[1]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--draws", "5"], "draws belongs to bagging"),
        (["--method", "dpa", "--noise-multiplier", "3"], "The method dpa has no option --noise-multiplier"),
        (["--method", "dpa", "--private"], "not private"),
        (["--method", "nearest-neighbours", "--shards", "0:1"], "no shards"),
        (["--method", "kernel-vote", "--prepare"], "leave --prepare"),
        (["--method", "nearest-neighbours", "--neighbours", "1000"], "ask for fewer"),
    ],
)
def test_what_does_not_go_together_is_refused_with_a_remedy(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--train", "train.npz", "--test", "test.npz", "--device", "cpu", *flags]) == 2
    said = capsys.readouterr()
    assert words in " ".join(said.err.split())
    assert "Traceback" not in said.err


def test_a_run_directory_is_never_taken_over_by_another_run(capsys: pytest.CaptureFixture[str]) -> None:
    by_file("nearest-neighbours")
    assert main(["train", str(project("nearest-neighbours", neighbours=7))]) == 2
    assert "another run" in " ".join(capsys.readouterr().err.split())
    assert main(["train", str(project("dpa", device="cpu", **_PLAIN))]) == 2
    assert main(["train", str(project("nearest-neighbours"))]) == 0  # the same again
    capsys.readouterr()


@pytest.mark.parametrize("damage", ["rows", "labels", "json", "missing"])
def test_a_damaged_run_of_examples_is_refused(damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    by_file("nearest-neighbours")
    with np.load("run/examples.npz") as kept:
        rows, labels = kept["rows"], kept["labels"]
    if damage == "rows":
        np.savez("run/examples.npz", rows=rows + 4000, labels=labels)
    elif damage == "labels":
        np.savez("run/examples.npz", rows=rows, labels=labels + 3)
    elif damage == "json":
        Path("run/run.json").write_text(Path("run/run.json").read_text().replace('"classes"', '"klasses"'))
    else:
        Path("run/examples.npz").unlink()
    assert main(["predict", "run", "test.npz"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_threats_are_those_of_the_method() -> None:
    assert defence("bagging").threats[0] is Threat.EDIT
    assert defence("label-smoothing").threats == (Threat.LABELS,)
