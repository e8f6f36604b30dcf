"""`mithridate merge`: parts and runs become one votes file, whatever their order, and nothing counts twice."""

import itertools
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cli import program, refused, run, run_json
from test_votes import INSTANCES, models, part, whole

from mithridate import SampledGaussian, Votes, certify
from mithridate.cli import main

SHARES = ([0, 1, 7], [2, 3, 4], [5, 6, 8, 9, 10, 11])


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    return [
        saved(tmp_path / f"part-{at}.npz", part(share, planned={"a": INSTANCES})) for at, share in enumerate(SHARES)
    ]


def saved(path: Path, votes: Votes) -> Path:
    path.parent.mkdir(exist_ok=True)
    votes.save(path)
    return path


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


# --- what is written and said ---------------------------------------------------------------------------------------


def test_parts_become_the_run(capsys: pytest.CaptureFixture[str], parts: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "votes.npz"
    content = run_json(capsys, "merge", *parts, "-o", out)
    merged = Votes.load(out)
    first, *others = (part(share, planned={"a": INSTANCES}) for share in SHARES)
    assert merged == first.merge(*others)
    assert merged.counts.tolist() == whole().counts.tolist()
    assert content == {
        "votes": str(out),
        "instances": INSTANCES,
        "examples": 4,
        "classes": 3,
        "run_ids": ["a"],
        "shards": {"a": [[0, INSTANCES]]},
        "mechanism": merged.mechanism.to_dict(),
        "recipe": {"config": {"instances": INSTANCES, "steps": 4}},
        "devices": {},
        "conditional": False,
        "conditions": [],
        "assumptions": ["n is public."],
        "files": [
            {"path": str(parts[0]), "instances": 3, "run_ids": ["a"], "shards": {"a": [[0, 2], [7, 8]]}},
            {"path": str(parts[1]), "instances": 3, "run_ids": ["a"], "shards": {"a": [[2, 5]]}},
            {"path": str(parts[2]), "instances": 6, "run_ids": ["a"], "shards": {"a": [[5, 7], [8, 12]]}},
        ],
    }
    assert run_json(capsys, "certify", out)["radius"] == certify(whole()).radius.tolist()


def test_the_order_of_files_does_not_change_a_byte(
    capsys: pytest.CaptureFixture[str], parts: list[Path], tmp_path: Path
) -> None:
    runs = [saved(tmp_path / f"run-{name}.npz", whole(name, score_sums=np.full((4, 3), 0.1))) for name in "bc"]
    unnamed = [
        saved(tmp_path / f"unnamed-{at}.npz", whole(run_ids=(), score_sums=np.full((4, 3), 0.1 * at))) for at in (1, 3)
    ]
    for files in ([*parts, *runs], [*runs, *unnamed]):
        written: set[bytes] = set()
        for order in itertools.islice(itertools.permutations(files), 0, None, 7):
            assert run(capsys, "merge", *order, "-o", tmp_path / "votes.npz", "--force").code == 0
            written.add((tmp_path / "votes.npz").read_bytes())
        assert len(written) == 1
        assert Votes.load(tmp_path / "votes.npz") == Votes.load(files[2]).merge(
            *map(Votes.load, (*files[3:], *files[:2]))
        )


def test_directories_of_runs_stand_for_their_votes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in "ab":
        saved(tmp_path / name / "votes.npz", whole(name))
        (tmp_path / name / "run.json").write_text("{}")
    content = run_json(capsys, "merge", tmp_path / "b", tmp_path / "a", "-o", tmp_path / "c.npz")
    assert (content["run_ids"], content["instances"], content["shards"]) == (["a", "b"], 2 * INSTANCES, {})
    assert "belongs to the run" in refused(
        capsys, "merge", tmp_path / "a", tmp_path / "c.npz", "-o", tmp_path / "b" / "votes.npz", "--force"
    )
    (tmp_path / "a" / "votes.npz").unlink()
    message = refused(capsys, "merge", tmp_path / "a", tmp_path / "b", "-o", tmp_path / "d.npz")
    assert "run its `mithridate train` again" in message
    (tmp_path / "a" / "run.json").unlink()
    message = refused(capsys, "merge", tmp_path / "a", tmp_path / "b", "-o", tmp_path / "d.npz")
    assert "give that of a finished run" in message


def test_what_is_merged_with_gaps_is_not_certified_at_any_time(
    capsys: pytest.CaptureFixture[str], parts: list[Path], tmp_path: Path
) -> None:
    message = refused(capsys, "merge", *parts[1:], "-o", tmp_path / "gap.npz")
    assert "lack the instances 0 to 1 of the run 'a', and hold later ones" in message
    assert not (tmp_path / "gap.npz").exists()
    assert run(capsys, "merge", *parts[1:], "-o", tmp_path / "gap.npz", "--incomplete").code == 0
    for path, lacking in ((parts[0], "the instances 2 to 6"), (tmp_path / "gap.npz", "the instances 0 to 1")):
        message = refused(capsys, "certify", path, "--bounds", "anytime")
        assert f"without gaps, and these votes lack {lacking} of the run 'a'" in message
    run(capsys, "merge", *parts, "-o", tmp_path / "all.npz")
    found = run_json(capsys, "certify", tmp_path / "all.npz", "--bounds", "anytime")
    assert (found["bounds"], found["instances"], found["conditions"]) == ("anytime", INSTANCES, [])


def test_people_read_what_was_merged_and_what_is_assumed(
    capsys: pytest.CaptureFixture[str], parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    other = saved(tmp_path / "b.npz", whole("b"))
    outcome = run(capsys, "merge", parts[0], other, "-o", tmp_path / "my votes.npz", "--incomplete")
    assert (outcome.code, outcome.err) == (0, "")
    for said in (
        "15 instances, 2 runs",
        "instances 0 to 1, 7",
        "Of the run a: instances 0 to 1, 7.",
        "Note: n is public.",
        "Condition instances-after-a-look: The votes are those of several runs",
        "Conditional on instances-after-a-look. Decide on the number of instances before",
        f"Written to {tmp_path / 'my votes.npz'}; certify it with: mithridate certify '{tmp_path / 'my votes.npz'}'\n",
    ):
        assert said in outcome.out
    unnamed = saved(tmp_path / "unnamed.npz", whole(run_ids=()))
    text = run(capsys, "merge", unnamed, other, "-o", tmp_path / "more.npz").out
    assert "not named" in text
    assert "Condition instances-after-a-look: Votes of runs without a name were merged" in text


def test_names_cannot_command_a_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bad = "\x1b[31m\u202e[bold]"
    votes = [part([at], bad, assumptions=(bad,)) for at in range(2)]
    paths = [saved(tmp_path / f"{at}.npz", each) for at, each in enumerate(votes)]
    outcome = run(capsys, "merge", *paths, "-o", tmp_path / "votes.npz")
    assert outcome.code == 0
    assert "[bold]" in outcome.out
    assert "\x1b" not in outcome.out
    assert "\u202e" not in outcome.out
    assert "\x1b" not in refused(capsys, "merge", *paths, tmp_path / "votes.npz", "-o", tmp_path / "more.npz")


def test_models_of_a_function_certify_when_all_have_voted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    paths = [saved(tmp_path / f"{at}.npz", models(share, "spread")) for at, share in enumerate(SHARES)]
    some, everything = tmp_path / "some.npz", tmp_path / "all.npz"
    assert run(capsys, "merge", *paths[1:], "-o", some).code == 0
    assert f"one vote from each of {INSTANCES} models" in refused(capsys, "certify", some)
    assert run(capsys, "merge", some, paths[0], "-o", everything).code == 0
    expected = certify(models(range(INSTANCES), "spread"))
    assert run_json(capsys, "certify", everything)["radius"] == expected.radius.tolist()


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run(capsys, "merge", "--help")
    assert outcome.code == 0
    examples = outcome.out.split("examples:")[1]
    assert "mithridate merge monday.npz tuesday.npz -o votes.npz" in examples
    assert "sbatch" in examples


def test_as_a_program(parts: list[Path], tmp_path: Path) -> None:
    outcome = program("merge", *parts, "-o", tmp_path / "votes.npz", PYTHONIOENCODING="ascii")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    again = program("merge", *parts, "-o", tmp_path / "votes.npz")
    assert again.returncode == 2
    assert again.stderr.count("\n") == 1


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (part([0, 1, 2]), part([2, 3]), "share a run, 'a': the instance 2 would count twice"),
        (part(range(4)), part(range(1, 9)), "share a run, 'a': the instances 1 to 3 would count twice"),
        (whole(), part([3]), "share a run, 'a': the instance 3 would count twice"),
        (whole(), whole(), "share a run, 'a': all its instances would count twice"),
        (whole(), whole("b", mechanism=SampledGaussian(4.0, 1.0, 5)), "different mechanisms"),
        (whole(), whole("b", data_fingerprint="sha256:5"), "different data or inputs"),
        (whole(), whole("b", labels=None), "different true labels"),
        (whole(), whole("b", recipe={"config": {"steps": 5}}), "different recipes"),
        (models(range(6), "parts"), models(range(5, 9), "parts"), "the instance 5 would count twice"),
        (models(range(12), "parts", shards={}), models(range(6), "parts"), "nothing to merge but parts of one run"),
        (whole(), models(range(6), "parts"), "different mechanisms"),
    ],
)
def test_what_does_not_belong_together_names_both_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, first: Votes, second: Votes, says: str
) -> None:
    extra = replace(part([11], "z"), mechanism=first.mechanism) if first.score_sums is not None else None
    paths = [saved(tmp_path / f"{at}.npz", each) for at, each in enumerate((first, second, extra)) if each is not None]
    before = files_in(tmp_path)
    for order in itertools.permutations(paths):
        message = refused(capsys, "merge", *order, "-o", tmp_path / "votes.npz")
        assert says in message
        assert "0.npz" in message or "2.npz" in message
        assert "1.npz" in message
    assert files_in(tmp_path) == before


def test_the_file_that_shares_instances_is_found_among_many(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    paths = [saved(tmp_path / f"part-{at}.npz", part([at])) for at in range(6)]
    paths.append(saved(tmp_path / "again.npz", part([4, 7])))
    message = refused(capsys, "merge", *paths, "-o", tmp_path / "votes.npz")
    assert f"{tmp_path / 'again.npz'} does not merge with {tmp_path / 'part-4.npz'}. " in message


def test_a_file_is_given_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Also where it has no name of its run, and under any name of its own."""
    path, other = saved(tmp_path / "a.npz", whole(run_ids=())), saved(tmp_path / "b.npz", whole("b"))
    (tmp_path / "soft.npz").symlink_to(path)
    os.link(path, tmp_path / "hard.npz")
    for again in (path, tmp_path / ".." / tmp_path.name / "a.npz", tmp_path / "soft.npz", tmp_path / "hard.npz"):
        message = refused(capsys, "merge", path, other, again, "-o", tmp_path / "votes.npz")
        assert f"is the same file as {path}" in message
    assert "at least two" in refused(capsys, "merge", path, "-o", tmp_path / "votes.npz")


def test_what_exists_is_replaced_only_when_told(
    capsys: pytest.CaptureFixture[str], parts: list[Path], tmp_path: Path
) -> None:
    out, link = tmp_path / "out.npz", tmp_path / "link.npz"
    out.write_bytes(b"something else")
    link.symlink_to(tmp_path / "nowhere")
    for existing in (out, link):
        message = refused(capsys, "merge", *parts, "-o", existing)
        assert f"{existing} exists already; add --force" in message
    assert out.read_bytes() == b"something else"
    assert run(capsys, "merge", *parts, "-o", out, "--force").code == 0
    assert Votes.load(out).instances == INSTANCES


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_inputs_are_never_replaced(
    capsys: pytest.CaptureFixture[str], parts: list[Path], tmp_path: Path, force: list[str]
) -> None:
    (tmp_path / "link.npz").symlink_to(parts[1])
    before = files_in(tmp_path)
    for out in (parts[0], parts[1], tmp_path / "link.npz", tmp_path / ".." / tmp_path.name / parts[2].name):
        assert "it is read from" in refused(capsys, "merge", *parts, "-o", out, *force)
    for out, says in ((tmp_path, "it is a folder"), (tmp_path / "no" / "v.npz", "no folder"), ("/dev/null", "plain")):
        assert says in refused(capsys, "merge", *parts, "-o", out, *force)
    assert files_in(tmp_path) == before


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (None, "no file"),
        (b"", "not a readable .npz"),
        (b"90,10\n40,60\n", "not a readable .npz"),
        ({"counts": np.array([[9, 0]])}, "not a mithridate votes file"),
        ({"mithridate": np.array("{}"), "counts": np.array([[9, 0]])}, "header"),
    ],
)
def test_files_that_are_no_votes(
    capsys: pytest.CaptureFixture[str], parts: list[Path], tmp_path: Path, data: Any, says: str
) -> None:
    bad = tmp_path / "bad.npz"
    if isinstance(data, dict):
        np.savez(bad, **data)
    elif data is not None:
        bad.write_bytes(data)
    for order in ((bad, *parts), (*parts, bad)):
        message = refused(capsys, "merge", *order, "-o", tmp_path / "votes.npz")
        assert says in message
        assert "bad.npz" in message
    assert not (tmp_path / "votes.npz").exists()


def test_a_mechanism_that_cannot_be_read_comes_with_its_file(
    capsys: pytest.CaptureFixture[str], parts: list[Path], tmp_path: Path
) -> None:
    header = {"schema": "mithridate.votes/1", "mechanism": {"type": "magic"}, "data_fingerprint": None, "run_ids": []}
    header |= {"assumptions": [], "recipe": None}
    np.savez(tmp_path / "bad.npz", mithridate=np.array(json.dumps(header)), counts=np.array([[9, 0]]))
    message = refused(capsys, "merge", *parts, tmp_path / "bad.npz", "-o", tmp_path / "votes.npz")
    assert "bad.npz: The mechanism" in message


@pytest.mark.parametrize("words", [[], ["a.npz", "b.npz"], ["-o", "c.npz"], ["a.npz", "b.npz", "-o"]])
def test_words_that_argparse_refuses(capsys: pytest.CaptureFixture[str], words: Sequence[str]) -> None:
    outcome = run(capsys, "merge", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("mithridate merge: ")
    assert outcome.err.count("\n") == 1


# --- bytes from anywhere --------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4),
    end=st.none() | st.integers(0, 10**6),
)
def test_damaged_files_never_crash(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], end: int | None
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    good, bad, out = saved(folder / "good.npz", part([0, 1])), folder / "bad.npz", folder / "votes.npz"
    data = bytearray(saved(bad, part([2, 3])).read_bytes())
    for position, value in changes:
        data[position % len(data)] = value
    bad.write_bytes(data[: None if end is None else end % len(data)])
    code = main(["merge", str(good), str(bad), "-o", str(out), "--json"])
    assert code in (0, 2)
    assert out.exists() == (code == 0)
    if code == 0:
        assert Votes.load(out).counts.tolist() == part(range(4)).counts.tolist()
    assert {path.name for path in folder.iterdir()} <= {"good.npz", "bad.npz", "votes.npz"}
    shutil.rmtree(folder)
