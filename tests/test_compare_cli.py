"""`mithridate compare`: files, flags, what is printed and written, interruptions, and one sentence for bad input."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from defence_doubles import TEST, TRAIN, Fake, FakeBagging, failing, kernel, labels_only, parts, private
from test_cli import Outcome, run

import mithridate.defences
from mithridate import Certificate, verify
from mithridate.projects import read_comparison

EXAMPLE = Path(__file__).parents[1] / "examples" / "compare.toml"
FAKES = {
    "dpa": parts,
    "kernel-vote": kernel,
    "fdp": private,
    "label-smoothing": labels_only,
    "bagging": FakeBagging,
    "finite-aggregation": failing,
}
DATA = '[data]\ntrain = "train.npz"\ntest = "test.npz"\n'


def fake_defence(name: str, **options: Any) -> Any:
    if name == "dpa" and "partitions" in options:
        return parts(options["partitions"])
    if name not in FAKES or options:
        return real_defence(name, **options)  # which refuses with a hint
    return FAKES[name]()


real_defence = mithridate.defences.defence


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with data, and defences that are quick."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mithridate.projects.defence", fake_defence)
    np.savez(tmp_path / "train.npz", x=TRAIN[0], y=TRAIN[1])
    np.savez(tmp_path / "test.npz", x=TEST[0], y=TEST[1])
    np.savez(tmp_path / "inputs.npz", x=TEST[0])
    (tmp_path / "t.csv").write_text("size,kind\n1,a\n2,b\n")
    (tmp_path / "u.csv").write_text("size\n1\n2\n")
    Fake.trained.clear()
    return tmp_path


def config(text: str, data: str = DATA) -> Path:
    path = Path("c.toml")
    path.write_text(f"{text}\n{data}", encoding="utf-8")
    return path


CSV = """[data]
train = "t.csv"
test = "u.csv"
kind = "table"
label = "kind"
classes = ["a", "b"]
columns = [{ name = "size", kind = "number", low = 0.0, high = 9.0 }]
"""


def compared(capsys: pytest.CaptureFixture[str], *arguments: Any) -> dict[str, Any]:
    outcome = run(capsys, "compare", *arguments, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("\n") == 1
    return json.loads(outcome.out, parse_constant=pytest.fail)


# --- what comes out -------------------------------------------------------------------------------------------------


def test_names_and_tables_of_methods(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    plain = compared(capsys, config('out = "one"\nmethods = ["dpa", "kernel-vote"]'))
    assert [method["title"] for method in plain["methods"]] == ["DPA, 41 partitions", "kernel vote"]
    tables = '[[methods]]\nname = "dpa"\npartitions = 21\n[[methods]]\nname = "dpa"\n'
    second = compared(capsys, config('out = "two"', DATA + tables))
    assert [(m["name"], m["title"]) for m in second["methods"]] == [
        ("dpa", "DPA, 21 partitions"),
        ("dpa-2", "DPA, 41 partitions"),
    ]


def test_what_is_printed_and_written(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    outcome = run(capsys, "compare", config('radii = [0, 10]\nout = "o"\nmethods = ["dpa", "fdp", "label-smoothing"]'))
    assert outcome.code == 0, outcome.err
    content = json.loads((here / "o/comparison.json").read_text(encoding="utf-8"))
    text = " ".join(outcome.out.split())
    assert content["headline"] in text
    assert "label-smoothing: certifies label flips only; not comparable with the others." in text
    assert "comparison.html" in outcome.out
    rows = [line.split() for line in outcome.out.splitlines()]
    assert ["r", "=", "0", "10"] in rows
    for method in content["methods"]:
        shares = [f"{share:.1%}" for share in method["certified_accuracy"].values()]
        marked = [method["name"], *([] if method["ranked"] else ["*"]), *shares]
        assert marked in rows
    for name in ("dpa", "fdp", "label-smoothing"):
        assert verify(here / f"o/certificates/{name}.json").valid
    assert "mithridate: DPA, 41 partitions: training\n" in outcome.err
    for suffix in ("html", "md", "svg"):
        assert (here / f"o/comparison.{suffix}").stat().st_size > 1000


def test_a_wide_table_is_cut_into_parts_and_loses_nothing(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    radii = list(range(0, 60, 3))
    outcome = run(capsys, "compare", "--radii", ",".join(map(str, radii)), config('methods = ["dpa", "kernel-vote"]'))
    heads = [line.split()[2:] for line in outcome.out.splitlines() if line.startswith("r =")]
    assert [int(cell) for line in heads for cell in line] == radii
    assert "…" not in outcome.out
    assert max(map(len, outcome.out.splitlines()[:20])) <= 79


def test_flags_take_precedence_over_the_file(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    file = config('out = "o"\nradii = [0, 1]\nfailure_prob = 0.1\nthreat = "remove"\nmethods = ["fdp", "dpa"]')
    plain = compared(capsys, file)
    assert (plain["radii"], plain["threat"], plain["methods"][0]["failure_prob"]) == ([0, 1], "remove", 0.1)
    claim = ["--radii", "0,7", "--failure-prob", "0.01", "--threat", "add"]
    flags = ["--out", "p", "--methods", "kernel-vote,fdp", *claim]
    other = compared(capsys, *flags, file)
    assert (other["radii"], other["threat"], other["out"]) == ([0, 7], "add", "p")
    assert [method["name"] for method in other["methods"]] == ["kernel-vote", "fdp"]
    assert other["methods"][1]["failure_prob"] == 0.01
    assert (here / "p/certificates/fdp.json").exists()


def test_methods_chosen_by_flag_keep_the_options_of_the_file(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    tables = '[[methods]]\nname = "dpa"\npartitions = 21\n[[methods]]\nname = "fdp"\n'
    found = compared(capsys, "--methods", "dpa,kernel-vote", config("", DATA + tables))
    assert [method["title"] for method in found["methods"]] == ["DPA, 21 partitions", "kernel vote"]


def test_methods_are_chosen_by_the_names_of_their_rows(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    tables = "".join(f'[[methods]]\nname = "dpa"\npartitions = {count}\n' for count in (21, 31, 41))
    file = config('out = "o"', DATA + tables)
    found = compared(capsys, "--methods", "dpa-3,kernel-vote,dpa-2", file)
    assert [(method["name"], method["title"]) for method in found["methods"]] == [
        ("dpa-3", "DPA, 41 partitions"),
        ("kernel-vote", "kernel vote"),
        ("dpa-2", "DPA, 31 partitions"),
    ]
    assert (here / "o/certificates/dpa-3.json").exists()
    every = compared(capsys, "--methods", "dpa-2,dpa,dpa-2", file)
    assert [method["name"] for method in every["methods"]] == ["dpa-2", "dpa", "dpa-3"]


def test_scores_have_a_row_name(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mithridate.projects.defence", real_defence)
    tables = '[[methods]]\nname = "fdp"\n[[methods]]\nname = "fdp"\non = "scores"\n'
    file = read_comparison(config("", DATA + tables))
    assert list(file.defences()) == ["fdp", "fdp-scores"]
    (chosen,) = file.defences(["fdp-scores"]).items()
    assert (chosen[0], chosen[1].title) == ("fdp-scores", "f-DP on scores")


def test_fewer_methods_leave_no_old_certificates(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    file = config('out = "o"\nmethods = ["dpa", "kernel-vote", "fdp"]')
    compared(capsys, file)
    compared(capsys, "--methods", "dpa", file)
    assert [path.name for path in (here / "o/certificates").iterdir()] == ["dpa.json"]


def test_a_project_file_will_do(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    project = config('run_dir = "runs/c"', DATA + "[train]\ninstances = 7\n")
    refused(run(capsys, "compare", project), "or --methods fdp,dpa to the command.")
    outcome = run(capsys, "compare", "--methods", "dpa,kernel-vote", project)
    assert outcome.code == 0, outcome.err
    note = "Note: compare does not use run_dir and [train] of c.toml; `mithridate train` does."
    assert note in " ".join(outcome.out.split())
    assert (here / "comparisons/c/comparison.html").exists()
    assert not (here / "runs").exists()


def test_what_init_writes_can_be_compared(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    rows = "".join(f"{number},{'ab'[number % 2]}\n" for number in range(60))
    (here / "flowers.csv").write_text("size,kind\n" + rows)
    assert run(capsys, "init", "flowers.csv", "--label", "kind", "--out", "p.toml").code == 0
    file = read_comparison("p.toml")
    training, test = file.examples()
    assert test.y is not None
    assert len(training.x) + len(test.x) == 60
    assert file.notes


def test_the_same_command_trains_nothing_twice(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    file = config('methods = ["dpa", "fdp"]')
    first = compared(capsys, file)
    assert Fake.trained == ["dpa", "fdp"]
    assert first["out"] == "comparisons/c"
    certificates = {path.name: Certificate.load(path) for path in (here / "comparisons/c/certificates").iterdir()}
    compared(capsys, file)
    assert Fake.trained == ["dpa", "fdp"]
    again = {path.name: Certificate.load(path) for path in (here / "comparisons/c/certificates").iterdir()}
    assert again == certificates  # but for the times of issue


def test_bagging_is_matched(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    file = config('out = "o"\nmethods = ["dpa", "bagging", "kernel-vote"]')
    found = compared(capsys, "--match", "r=0", "--match-with", "kernel-vote", file)
    shares = {method["name"]: method["certified_accuracy"]["0"] for method in found["methods"]}
    assert shares["bagging"] == shares["kernel-vote"] == 0.75
    certificate = Certificate.load(here / "o/certificates/bagging.json")
    assert any("number of draws" in sentence for sentence in certificate.assumptions)
    outcome = run(capsys, "compare", "--match", "r=0", "--match-with", "kernel-vote", file)
    assert "draws were chosen to match kernel-vote at r = 0" in " ".join(outcome.out.split())


def test_the_file_may_say_match_as_the_flag_does(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    found = compared(capsys, config('out = "o"\nmatch = "r=0"\nmethods = ["kernel-vote", "bagging"]'))
    assert found["methods"][1]["certified_accuracy"]["0"] == 0.75


def test_a_method_that_fails_is_reported_and_the_rest_is_kept(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    outcome = run(capsys, "compare", config('out = "o"\nmethods = ["dpa", "finite-aggregation", "kernel-vote"]'))
    assert outcome.code == 2
    assert "mithridate: finite-aggregation came to no result: There is no such thing; leave it out.\n" in outcome.err
    assert (here / "o/certificates/dpa.json").exists()
    assert (here / "o/certificates/kernel-vote.json").exists()
    assert "came to no result" in (here / "o/comparison.md").read_text(encoding="utf-8")


def test_an_interruption_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = config('out = "o"\nmethods = ["dpa", "finite-aggregation"]')

    def interrupted(message: str = "") -> Fake:
        made = failing()
        object.__setattr__(made, "fails", KeyboardInterrupt())
        return made

    with monkeypatch.context() as patch:
        patch.setitem(FAKES, "finite-aggregation", interrupted)
        outcome = run(capsys, "compare", file)
    assert outcome.code == 130
    assert "interrupted; what is finished is kept in o/runs. The same command goes on from there." in outcome.err
    monkeypatch.setitem(FAKES, "finite-aggregation", lambda: parts(21, "finite-aggregation"))
    compared(capsys, file)
    assert Fake.trained == ["dpa", "finite-aggregation"]


def test_text_of_users_reaches_neither_terminal_nor_page_as_code(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    outcome = run(capsys, "compare", config('title = "<b>\\u001b[31m"\nout = "o"\nmethods = ["dpa"]'))
    assert outcome.code == 0
    assert "\x1b" not in outcome.out
    assert "<b>" not in (here / "o/comparison.html").read_text(encoding="utf-8")


def test_what_the_file_assumes_is_in_every_certificate(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    said = "The features were <b>tuned</b> here."
    content = compared(capsys, config(f'out = "o"\nmethods = ["dpa", "fdp"]\nassumptions = ["{said}"]'))
    assert [method["assumptions"].count(said) for method in content["methods"]] == [1, 1]
    for name in ("dpa", "fdp"):
        assert said in verify(here / f"o/certificates/{name}.json").assumptions
    page = (here / "o/comparison.html").read_text(encoding="utf-8")
    assert "<b>tuned" not in page
    assert "The features were &lt;b&gt;tuned" in page


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run(capsys, "compare", "--help")
    assert outcome.code == 0
    assert "mithridate compare --match r=0" in outcome.out
    assert all(name in outcome.out for name in mithridate.defences.names())


# --- bad input ------------------------------------------------------------------------------------------------------


def refused(outcome: Outcome, message: str) -> None:
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert "Traceback" not in outcome.err
    assert Fake.trained == []


@pytest.mark.parametrize(
    ("text", "data", "message"),
    [
        ("methods = [", DATA, "is not a comparison file in TOML"),
        ("", DATA, "There is nothing to compare"),
        ("methods = []", DATA, "There is nothing to compare"),
        ('methods = "fdp"', DATA, "Expected methods in c.toml as a list of names"),
        ("methods = [1]", DATA, "Expected methods in c.toml as a list of names"),
        ("", DATA + "[[methods]]\npartitions = 3", "needs the name of a method"),
        ("", DATA + "[[methods]]\nname = 3", "needs the name of a method"),
        ('methods = ["dpaa"]', DATA, "There is no method 'dpaa'; did you mean 'dpa'?"),
        ("", DATA + '[[methods]]\nname = "kernel-vote"\nwidht = 3', "did you mean 'width'?"),
        (
            "",
            DATA + '[[methods]]\nname = "dpa"\n[[methods]]\nname = "statistical-dp"\ndelta = 5.0',
            "Expected delta in (0, 1), got 5.0",
        ),
        ("", DATA + '[[methods]]\nname = "dpa"\n[[methods]]\nname = "fdp"\ninstances = 0', "Expected instances"),
        ('methods = ["dpa"]\nradius = [1]', DATA, "Nobody asks for 'radius' in c.toml; did you mean 'radii'?"),
        ('methods = ["dpa"]\nradii = [5, 1]', DATA, "that increase"),
        ('methods = ["dpa"]\nassumptions = "One."', DATA, "Expected assumptions in c.toml as a list of sentences"),
        ('methods = ["dpa"]\nradii = 3', DATA, "whole numbers"),
        ('methods = ["dpa"]\nthreat = "flood"', DATA, "Expected threat to be one of"),
        ('methods = ["dpa"]\nscope = "none"', DATA, "Expected scope to be one of"),
        ('methods = ["dpa"]\nfailure_prob = "small"', DATA, "Expected failure_prob in (0, 1)"),
        ('methods = ["dpa"]\nout = 3', DATA, "Expected out in c.toml to be text in quotes"),
        ('methods = ["dpa"]\nmatch = 0', DATA, "bagging, which is not among the methods"),
        ('methods = ["dpa", "bagging"]\nmatch = "r=3"', DATA, "Expected match to be 0"),
        ('methods = ["dpa", "bagging"]\nmatch = "zero"', DATA, "Expected match as r=0, got 'zero'"),
        ('methods = ["dpa"]\ndevice = "nope"', DATA, "Expected device to be cpu"),
        ('methods = ["dpa"]\ntrain = "train.npz"', DATA, "Expected [train] in c.toml to be a table"),
        ('methods = ["dpa"]', '[data]\nname = "mnist"\ndata_dir = "nowhere"', "which data_dir in [data] names"),
        ('methods = ["dpa"]', "", "Expected [data] of c.toml to have name"),
        ('methods = ["dpa"]\ndata = 3', "", "Expected [data] in c.toml to be a table"),
        ('methods = ["dpa"]', '[data]\nname = "letters"', "to be one of digits, mnist"),
        ('methods = ["dpa"]', '[data]\nname = "digits"\ntrain = "x"', "Nobody asks for 'train' beside name"),
        ('methods = ["dpa"]', "[data]\ntrain = 3", "to be a path in quotes"),
        ('methods = ["dpa"]', '[data]\ntrain = "no.npz"', "no.npz"),
        ('methods = ["dpa"]', '[data]\ntrain = "train.npz"\nholdout = 2', "Expected holdout in (0, 1)"),
        ('methods = ["dpa"]', '[data]\ntrain = "train.npz"\nlabel = "y"', "Expected kind in [data]"),
        ('methods = ["dpa"]', '[data]\ntrain = "train.npz"\ntest = "inputs.npz"', "inputs.npz has no labels"),
        (
            'methods = ["dpa"]',
            CSV,
            "u.csv has no labels, which a comparison needs; add the column 'kind', which [data]",
        ),
    ],
)
def test_mistakes_in_a_file_are_one_sentence(
    capsys: pytest.CaptureFixture[str], here: Path, text: str, data: str, message: str
) -> None:
    refused(run(capsys, "compare", config(text, data)), message)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--radii", "0,x"], "expected whole numbers"),
        (["--radii", "5,1"], "that increase"),
        (["--methods", "dpa,,fdp"], "expected names such as fdp,dpa"),
        (["--methods", "nothing"], "There is no method 'nothing'"),
        (["--match", "zero"], "expected r=0"),
        (["--match", "r=4"], "Expected --match to be 0"),
        (["--match-with", "dpa"], "add match=0"),
        (["--threat", "flood"], "there is no 'flood'; expected one of"),
        (["--failure-prob", "2"], "Expected --failure-prob"),
        (["--out", "c.toml"], "Cannot make the folder c.toml"),
    ],
)
def test_mistakes_in_flags_are_one_sentence(
    capsys: pytest.CaptureFixture[str], here: Path, flags: list[str], message: str
) -> None:
    refused(run(capsys, "compare", *flags, config('methods = ["dpa", "bagging"]')), message)


def test_a_missing_file_is_one_sentence(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    refused(run(capsys, "compare", "nowhere.toml"), "Cannot read nowhere.toml")


def test_a_folder_is_one_sentence(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    outcome = run(capsys, "compare", here)
    refused(outcome, "not a file but a folder")
    assert outcome.err.endswith("give one such as `mithridate compare --help` shows.\n")
    assert "init" not in outcome.err


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (
            "o/runs/x belongs to another run: the data differs. Use another run_dir (--run-dir) for this one.",
            "Use another --out (out = ...) for this one.",
        ),
        ("o/run.json is damaged (x); this run cannot go on. Use another run_dir.", "Use another --out (out = ...)."),
        ("Another process works in o; wait until it ends, or choose another run_dir.", "choose another --out (out"),
    ],
)
def test_remedies_are_those_of_this_command(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch, reason: str, said: str
) -> None:
    monkeypatch.setitem(FAKES, "finite-aggregation", lambda: failing(reason))
    for methods in ('["finite-aggregation"]', '["dpa", "finite-aggregation"]'):
        outcome = run(capsys, "compare", config(f'out = "o"\nmethods = {methods}'))
        assert outcome.code == 2
        assert said in outcome.err
        assert not re.search("run.dir", outcome.err)
    for suffix in ("md", "html"):
        assert not re.search("run.dir", (here / f"o/comparison.{suffix}").read_text(encoding="utf-8"))
    (failed,) = json.loads((here / "o/comparison.json").read_text(encoding="utf-8"))["failed"]
    assert said in str(failed)
    assert not re.search("run.dir", str(failed))


def test_other_data_in_the_same_folder_asks_for_another_one(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real thing: what training says, in the words of this command."""
    pytest.importorskip("torch")
    monkeypatch.setattr("mithridate.projects.defence", real_defence)
    tables = '[[methods]]\nname = "dpa"\npartitions = 3\nsteps = 2\n'
    text = 'out = "o"\ndevice = "cpu"'
    compared(capsys, config(text, DATA + tables))
    np.savez(here / "train.npz", x=TRAIN[0] + 1, y=TRAIN[1])
    outcome = run(capsys, "compare", config(text, DATA + tables))
    assert outcome.code == 2
    assert "another --out (out = ...)" in outcome.err
    assert not re.search("run.dir", outcome.err)


# --- files ----------------------------------------------------------------------------------------------------------


def test_data_is_looked_for_beside_the_file_and_held_out(here: Path) -> None:
    (here / "sub").mkdir()
    np.savez(here / "sub/all.npz", x=TRAIN[0], y=TRAIN[1])
    path = here / "sub/c.toml"
    path.write_text('methods = ["dpa"]\n[data]\ntrain = "all.npz"\nholdout = 0.3\n', encoding="utf-8")
    training, test = read_comparison(path).examples()
    assert len(training.x) + len(test.x) == 100
    assert 10 < len(test.x) < 50
    assert test.y is not None


@pytest.mark.more
def test_the_example_runs_on_digits(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fewer models and steps, which only cost time."""
    pytest.importorskip("sklearn")
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    text = EXAMPLE.read_text(encoding="utf-8")
    text = re.sub(r"instances = \d+", "instances = 16", text)
    text = re.sub(r"(steps|seconds) = \d+", r"\1 = 2", text)
    Path("compare.toml").write_text(text, encoding="utf-8")
    found = compared(capsys, "compare.toml", "--device", "cpu")
    names = ["fdp", "bagging", "dpa", "nearest-neighbours", "kernel-vote", "label-smoothing"]
    assert [method["name"] for method in found["methods"]] == names
    assert [method["name"] for method in found["methods"] if not method["ranked"]] == ["label-smoothing"]
    assert found["examples"] == 400
    for name in ("dpa", "kernel-vote", "nearest-neighbours", "fdp"):
        assert verify(f"comparisons/digits/certificates/{name}.json").valid
    again = compared(capsys, "compare.toml", "--device", "cpu")
    kept = ("certified_accuracy", "curve", "assumptions")
    for one, other in zip(found["methods"], again["methods"], strict=True):
        assert {key: one[key] for key in kept} == {key: other[key] for key in kept}
