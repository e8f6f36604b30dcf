"""The benchmark on real data: what it refuses to read, how files are read, its arithmetic, and its page."""

import hashlib
import importlib
import io
import json
import subprocess
import tarfile
import zipfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mithridate.core.mechanism import Threat
from mithridate.data import Category, Date, Number, Text
from mithridate.defences import defence

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _benchmarks_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.fixture
def real() -> Any:
    return importlib.import_module("real")


@pytest.fixture
def real_sets() -> Any:
    return importlib.import_module("real_sets")


@pytest.fixture
def real_page() -> Any:
    return importlib.import_module("real_page")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def zipped(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return made.getvalue()


def tarred(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, data in files.items():
            about = tarfile.TarInfo(name)
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))
    return made.getvalue()


# --- packages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("file", "pack"), [("made-1.whl", zipped), ("made-1.zip", zipped), ("made-1.tar.gz", tarred)])
def test_files_of_a_package_are_those_of_their_checksums(real_sets: Any, tmp_path: Path, file: str, pack: Any) -> None:
    data = pack({"made/a.csv": b"1,2\n", "made/b.csv": b"3,4\n"})
    (tmp_path / file).write_bytes(data)
    package = real_sets.Package("made", "1", file, sha256(data), "MIT")
    wanted = {"made/b.csv": sha256(b"3,4\n"), "made/a.csv": sha256(b"1,2\n")}
    assert real_sets.contents(package, wanted, tmp_path) == [b"3,4\n", b"1,2\n"]
    with pytest.raises(ValueError, match=r"made/a.csv in made-1.* has the checksum .*fetch it again"):
        real_sets.contents(package, {"made/a.csv": sha256(b"1,3\n")}, tmp_path)
    (tmp_path / file).write_bytes(data + b"\0")
    with pytest.raises(ValueError, match=r"made-1.* is not the file that was measured"):
        real_sets.contents(package, wanted, tmp_path)


def test_a_missing_package_is_asked_of_pip_with_its_hash(
    real_sets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[list[str], str]] = []

    def run(command: list[str], check: bool) -> None:
        asked.append((command, Path(command[-1]).read_text()))

    monkeypatch.setattr(subprocess, "run", run)
    package = real_sets.Package("made", "1", "made-1.zip", "ab" * 32, "MIT")
    with pytest.raises(FileNotFoundError, match="put that file into"):
        real_sets.contents(package, {}, tmp_path)
    [(command, wanted)] = asked
    assert {"download", "--no-deps", "--require-hashes"} <= set(command)
    assert wanted == f"made==1 --hash=sha256:{'ab' * 32}\n"


def test_everything_is_pinned_and_nothing_is_a_pickle(real_sets: Any) -> None:
    sums = [package.sha256 for package in real_sets.PACKAGES.values()]
    for found in real_sets.SETS.values():
        assert found.package in real_sets.PACKAGES
        assert not [file for file in found.files if file.endswith((".pkl", ".pickle", ".xz"))]
        sums += found.files.values()
    assert all(len(one) == 64 and set(one) <= set("0123456789abcdef") for one in sums)
    kinds = [found.is_text for found in real_sets.SETS.values()]
    assert kinds.count(False) >= 8
    assert kinds.count(True) >= 4


def test_weights_are_at_least_those_of_the_largest_class_and_bounded(real_sets: Any) -> None:
    for found in real_sets.SETS.values():
        assert min(found.weights.values()) == 4
        assert max(found.weights.values()) <= 4 * 16**0.75


# --- formats --------------------------------------------------------------------------------------------------------


def test_csv(real_sets: Any) -> None:
    frame = real_sets._csv([b"5, x, 1\n?, y, 0\n"], "a b c", drop="c")
    assert list(frame.columns) == ["a", "b"]
    assert frame["a"].isna().tolist() == [False, True]
    assert frame["b"].tolist() == ["x", "y"]


def test_keel(real_sets: Any) -> None:
    frame = real_sets._keel("a class")([b"@relation x\n@data\n1, yes\n\n<null>, no\n"])
    assert frame["class"].tolist() == ["yes", "no"]
    assert frame["a"].isna().tolist() == [False, True]


def test_orange(real_sets: Any) -> None:
    header = b"Author\tMore\tText\nd\tc\ts\nclass\t\tmeta\n"
    rows = b'A\t1\t"two\twords"\nB\t2\t \nC\t3\tthree\nshort\nA\t4\tfour\n'
    frame = real_sets._orange("Author", "Text", only="A B")([header + rows])
    assert frame["text"].tolist() == ["two\twords", "four"]  # of B and C nothing, of a short line neither
    assert frame["label"].tolist() == ["A", "A"]


def test_ratings(real_sets: Any) -> None:
    kinds = real_sets._SNIPPETS
    inner = tarred(
        {f"hutto_ICWSM_2014/{kind}_GroundTruth.txt": f"1\t{score}\tcaf\xe9\n2\t-1\n".encode("latin-1")
         for kind, score in zip(kinds, (1.5, -0.5, 2.0, 0.0), strict=True)}
    )  # fmt: skip
    genre = real_sets._genre([inner])
    assert genre["label"].tolist() == list(kinds)
    assert set(genre["text"]) == {"café"}
    assert real_sets._tweets([inner])["label"].tolist() == ["positive"]


def test_lines_that_are_there_twice_are_read_once(real_sets: Any) -> None:
    frame = real_sets._chinese(["坏\n坏\n\n".encode(), "好\n".encode()])
    assert list(map(tuple, frame.to_numpy())) == [("坏", "neg"), ("好", "pos")]


def test_declarations(real_sets: Any) -> None:
    words = "a: 0 10; b?: 0 100 log; c: date 2013 2016; d: text 8; *: category"
    assert real_sets._columns(words, ["d", "b1", "a", "c", "other"]) == [
        Text("d", 8),
        Number("b1", 0.0, 100.0, scale="log"),
        Number("a", 0.0, 10.0),
        Date("c", 2013, 2016, time=True),
        Category("other"),
    ]
    assert real_sets._columns("a: 0 1", ["b"]) == []  # what is not declared is not used


def test_every_declaration_can_be_read(real_sets: Any) -> None:
    for name, found in real_sets.SETS.items():
        header = [pattern for line in found.columns.split(";") for pattern in line.partition(":")[0].split()]
        table = real_sets.declared(name, [*header, found.label])
        assert table.label == found.label
        assert len(table.columns) == max(1, len(header)), name


# --- splits and scores ----------------------------------------------------------------------------------------------

CLASSES = 3


def frame_of(rows: int, seed: int = 0) -> pd.DataFrame:
    """Two columns that tell the label more often than not."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, rows)
    near = labels + random.normal(0, 0.6, rows)
    return pd.DataFrame({"a": near, "b": random.random(rows), "label": [f"class {label}" for label in labels]})


@pytest.fixture
def made(real: Any, real_sets: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with the package of a small set, which is the only one."""
    data = frame_of(300).to_csv(index=False).encode()
    archive = zipped({"made.csv": data})
    (tmp_path / "made-1.zip").write_bytes(archive)
    package = real_sets.Package("made", "1", "made-1.zip", sha256(archive), "MIT")
    weights = {f"class {label}": 4 + label for label in range(CLASSES)}
    one = real_sets.Real("a made set", "made", {"made.csv": sha256(data)}, real_sets._csv, "label", weights, "a: -3 5")
    monkeypatch.setattr(real_sets, "PACKAGES", {"made": package})
    for module in (real, real_sets):
        monkeypatch.setattr(module, "SETS", {"made": one})
    return tmp_path


def task_of(real: Any, folder: Path, rows: int | None = None, split: int = 0) -> Any:
    return real.Task.of("made", real.load("made", folder), split, rows)


def test_splits_do_not_overlap_and_follow_their_number(real: Any, made: Path) -> None:
    frame = real.load("made", made)
    assert list(frame.columns) == ["a", "label"]
    first, again, other, less = (
        real.Task.of("made", frame, split, rows) for split, rows in ((0, None), (0, None), (1, None), (0, 70))
    )
    assert (len(first.train), len(first.test), len(less.train), len(less.test)) == (210, 90, 70, 30)
    assert not set(first.train["a"]) & set(first.test["a"])
    pd.testing.assert_frame_equal(first.train, again.train)
    assert not first.train.equals(other.train)
    assert set(less.test["a"]) <= set(first.test["a"])


@pytest.mark.parametrize("n", [99, 100, 101, 538, 700, 1000, 1001, 2900, 4504, 5000])
def test_radii_are_the_smallest_whole_numbers_of_at_least_a_share(real: Any, n: int) -> None:
    task = real.Task("made", 0, frame_of(n), frame_of(1))
    shares = [Fraction(1, 1000), Fraction(1, 200), Fraction(1, 100)]
    assert task.radii == [0, *(next(r for r in range(1, n) if Fraction(r, n) >= share) for share in shares)]


@pytest.mark.parametrize("method", ["auto", "nearest-neighbours weighted", "kernel-vote"])
def test_scores_by_hand(real: Any, made: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    certificates: list[Any] = []
    certify = real.certify
    monkeypatch.setattr(real, "certify", lambda *a, **kw: certificates.append(certify(*a, **kw)) or certificates[-1])
    task = task_of(real, made)
    record = real.certified(task, method, {})
    [found] = certificates
    truth = [int(label.removeprefix("class ")) for label in task.test["label"]]
    for place, radius in enumerate(task.radii):
        fine = [int(a) == b and r >= radius for a, b, r in zip(found.label, truth, found.radius, strict=True)]
        of_class = [[ok for ok, b in zip(fine, truth, strict=True) if b == label] for label in range(CLASSES)]
        assert record["accuracy"][place] == pytest.approx(sum(fine) / len(fine), abs=1e-4)
        assert record["balanced"][place] == pytest.approx(sum(sum(c) / len(c) for c in of_class) / CLASSES, abs=1e-4)
    correct = sorted(int(r) for a, b, r in zip(found.label, truth, found.radius, strict=True) if a == b and r >= 0)
    middle = (correct[(len(correct) - 1) // 2] + correct[len(correct) // 2]) / 2
    assert record["median"] == pytest.approx(middle / 210, abs=1e-5)
    assert found.votes.mechanism.threat is Threat.SYMMETRIC_DIFFERENCE


def test_run_off_elections_are_those_of_the_product(real: Any, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real.learners.LearnerMachine, "rehearse", lambda machine: None)
    task, kept = task_of(real, made), {}
    real.certified(task, "dpa logistic", kept)
    record = real.certified(task, "run-off-election logistic", kept)
    own = defence("run-off-election", learner="logistic", num_train=210, classes=CLASSES)
    order = real.compose(own, *task.examples(task.table))
    found = real.certify(order.run(), method=own.rule(), threat=Threat.SYMMETRIC_DIFFERENCE)
    assert {**record, "chosen": ""} == {"chosen": "", **real.scores(found, task)}


@pytest.mark.more  # processes or forests, for seconds
def test_baseline_and_plain(real: Any, made: Path) -> None:
    task = task_of(real, made)
    commonest = task.train["label"].value_counts().idxmax()
    assert real.baseline(task)["accuracy"] == pytest.approx((task.test["label"] == commonest).mean(), abs=1e-4)
    assert real.baseline(task)["balanced"] == pytest.approx(1 / 3)
    found = real.plain(task)["classifiers"]
    assert len(found) == 3
    assert all(0.5 < each["accuracy"] < 0.9 for each in found.values())  # of 3 classes with much noise


def test_learners_go_where_they_can_learn(real: Any, real_sets: Any) -> None:
    table, text, few = (real_sets.SETS[name] for name in ("letter", "newsgroups", "adult"))
    assert real.suits("dpa extra-trees", table)
    assert not real.suits("dpa extra-trees", text)
    assert real.suits("dpa complement-naive-bayes", text)
    assert not real.suits("dpa complement-naive-bayes", table)
    assert real.suits("run-off-election logistic", table)
    assert not real.suits("run-off-election logistic", few)


@pytest.mark.more  # processes or forests, for seconds
def test_short_cuts_change_no_vote(real: Any, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name in ((real.learners.LearnerMachine, "rehearse"), (real.words.HashedWords, "_rows")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # put back afterwards
    monkeypatch.setattr(real.learners, "_SECONDS_ALONE", real.learners._SECONDS_ALONE)
    encoder = real.words.HashedWords()
    texts = ["one two", "three", "one two", "", "four five six"]
    task = task_of(real, made)
    dense, sparse = encoder.transform(texts), encoder.compared(texts).toarray()
    votes = real.certified(task, "dpa logistic", {})
    real.without_repeats()
    for some in ([2, 1], [0, 1, 2, 3, 4], [4, 3]):  # some are known by then, and some are not
        own = [texts[place] for place in some]
        np.testing.assert_array_equal(encoder.transform(own), dense[some])
        np.testing.assert_array_equal(encoder.compared(own).toarray(), sparse[some])
        assert encoder.compared(own).has_sorted_indices
    assert real.certified(task, "dpa logistic", {}) == votes


# --- resuming -------------------------------------------------------------------------------------------------------


def test_what_was_measured_is_not_measured_again(real: Any, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = made / "results" / "out.jsonl"
    methods = ["baseline", "nearest-neighbours", "kernel-vote"]
    real.run(["made"], methods[:2], [0], None, made, out)
    first = out.read_text()
    assert [json.loads(line)["method"] for line in first.splitlines()] == methods[:2]
    out.write_text(first[:-20])  # the last line was cut off
    real.run(["made"], methods, [0, 1], None, made, out)
    found = real.records(out)
    assert [(record["split"], record["method"]) for record in found] == [
        (0, "baseline"), (0, "nearest-neighbours"), (0, "kernel-vote"), *((1, method) for method in methods)
    ]  # fmt: skip
    before = out.read_bytes()
    capsys.readouterr()
    real.run(["made"], methods, [0, 1], None, made, out)
    assert out.read_bytes() == before
    assert not capsys.readouterr().out


def test_what_a_method_refuses_is_recorded(real: Any, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(real.METHODS, "too many", real.Recipe("dpa", {"learner": "logistic", "partitions": 10_000}))
    real.run(["made"], ["too many"], [0], None, made, made / "out.jsonl")
    [record] = real.records(made / "out.jsonl")
    assert "use fewer partitions" in record["refused"]
    monkeypatch.setitem(real.METHODS, "too many", real.Recipe("kernel-vote"))  # mended, and so measured
    real.run(["made"], ["too many"], [0], None, made, made / "out.jsonl")
    assert ["refused" in record for record in real.records(made / "out.jsonl")] == [True, False]


@pytest.mark.parametrize("arguments", [["--sets", "nothing"], ["--methods", "magic"], ["--splits", "x"]])
def test_bad_arguments(
    real: Any, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["real.py", *arguments])
    with pytest.raises(SystemExit, match="2"):
        real.main()
    assert arguments[1] in capsys.readouterr().err


# --- the page -------------------------------------------------------------------------------------------------------


def test_the_page_says_what_the_results_say(real_page: Any) -> None:
    """What `python benchmarks/real_page.py` would write is what stands there."""
    text = real_page.PAGE.read_text(encoding="utf-8")
    assert real_page.page(text, real_page.blocks(real_page.everything())) == text, "run: make figures"


def imagined() -> list[dict[str, Any]]:
    """Two splits of a set of 1,000 examples whose baseline is .5 and whose best plain classifier has .8 on average."""
    made: list[dict[str, Any]] = []
    for split in (0, 1):
        about = {"set": "pima", "split": split, "rows": None, "n": 1000, "test": 100}
        made.append({**about, "method": "baseline", "accuracy": 0.5, "balanced": 0.5})
        scores = {"one": 0.75 + 0.1 * split, "other": 0.7, "third": 0.76}
        plain = {name: {"accuracy": score, "balanced": 0.6} for name, score in scores.items()}
        made.append({**about, "method": "plain", "classifiers": plain})
        found = {"balanced": [0.55] * 4, "median": 0.004 + 0.002 * split, "chosen": "some neighbours"}
        # Of the gain of .3 the two keep .23 and .07 on average.
        curve = [0.72 + 0.1 * split, 0.73, 0.57 + 0.04 * split, 0.1]
        made.append({**about, "method": "auto", "accuracy": curve, **found})
    about = {"set": "pima", "split": 1, "rows": None, "n": 1000, "test": 100}
    found = {"accuracy": [0.83, 0.7, 0.65, 0.2], "balanced": [0.61] * 4, "median": 0.01, "chosen": "DPA"}
    made.append({**about, "method": "dpa logistic", **found})
    made.append({**about, "method": "kernel-vote", **found, "accuracy": [0.9] * 4, "median": 0.0049})
    made.append({**about, "method": "bagging logistic", "refused": "No."})
    made.insert(0, {**about, "method": "dpa logistic", "refused": "Not yet."})
    return made


def found_in(real_page: Any, tmp_path: Path, records: list[dict[str, Any]]) -> Any:
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return real_page.everything(path)


def cells(table: str, start: str) -> list[str]:
    [line] = [line for line in table.splitlines() if line.startswith(f"| {start} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_aims_by_hand(real_page: Any, tmp_path: Path) -> None:
    sets = found_in(real_page, tmp_path, imagined())
    table = real_page.aims(sets, "accuracy")
    # Best plain .80, auto .77; .23 of .3 is above two thirds, and .09 of .3 below one third; median radius .005.
    assert cells(table, "auto") == ["1 of 1", "1 of 1", "1 of 1", "0 of 1", "1 of 1"]
    # On its own split plain has .85 and a gain of .35: .83 is near, .20 too little, .15 enough.
    assert cells(table, "dpa logistic") == ["1 of 1", "1 of 1", "0 of 1", "1 of 1", "1 of 1"]
    # Accurate, but its radii are too small to count.
    assert cells(table, "kernel-vote") == ["0 of 1"] * 5
    assert cells(table, "any of these") == ["1 of 1"] * 5
    # Of balanced accuracy the gain is .1; .05 of it is too far from plain, too little at first and enough later.
    assert cells(real_page.aims(sets, "balanced"), "auto") == ["0 of 1", "1 of 1", "0 of 1", "1 of 1", "1 of 1"]


def test_distance_of_the_default_flow_by_hand(real_page: Any, tmp_path: Path) -> None:
    table = real_page.default(found_in(real_page, tmp_path, imagined()))
    # On split 1, which both have: .83 - .82, nothing, .65 - .61, .2 - .1; what does not count is left out.
    assert cells(table, "median distance to the best") == [".010", ".000", ".040", ".100"]
    assert cells(table, "sets within .01 of the best") == ["1 of 1", "1 of 1", "0 of 1", "0 of 1"]


def test_rows_of_a_set(real_page: Any, tmp_path: Path) -> None:
    text = real_page.every_set(found_in(real_page, tmp_path, imagined()))
    assert "| r = 0 | r = 1 | r = 5 | r = 10 | median radius |" in text
    assert cells(text, "plain one")[0] == "**.800 ± .071**"
    assert cells(text, "plain third")[0] == ".760 ± .000"
    auto = cells(text, "auto: some neighbours")
    assert auto[:5] == [".770 ± .071", ".730 ± .000", ".590 ± .028", ".100 ± .000", "5 (0.5%)"]
    assert auto[-1] == "2"
    assert cells(text, "dpa logistic")[:5] == [".830", ".700", ".650", ".200", "10 (1.0%)"]
    assert "`bagging logistic` refused: No." in text
    assert "Not yet." not in text


def test_results_of_several_sizes_are_no_table(real_page: Any, tmp_path: Path) -> None:
    records = imagined()
    with pytest.raises(ValueError, match="several values of --rows"):
        found_in(real_page, tmp_path, [*records, {**records[0], "rows": 100}])


def test_a_page_without_its_marks_is_refused(real_page: Any) -> None:
    assert real_page.page("a\n<!-- x -->\nold\n<!-- end of x -->\nb\n", {"x": "new"}) == (
        "a\n<!-- x -->\nnew\n<!-- end of x -->\nb\n"
    )
    with pytest.raises(ValueError, match="has the marks"):
        real_page.page("a\n", {"x": "new"})
