"""Hashed words against dictionaries, sparse rows against dense ones, and texts from a file to a certificate."""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from mithridate._io.artifacts import read_npz
from mithridate.cli import main
from mithridate.core.mechanism import Threat
from mithridate.core.votes import Votes
from mithridate.data import Text, read
from mithridate.data.declarations import Table
from mithridate.data.examples import as_examples
from mithridate.data.proposing import propose
from mithridate.data.reading import LONGEST_TEXT
from mithridate.defences import _nearness, _search, _whole_rows
from mithridate.defences._nearness import StoredExamples
from mithridate.defences.kernel import Exponential, KernelRule, kernel_votes
from mithridate.defences.neighbours import NeighbourRule, neighbour_votes
from mithridate.errors import ConfigError
from mithridate.features import HashedWords, words

Array = npt.NDArray[Any]
TEXTS = [
    "The cat sat on the mat; the cat SAT.",
    "",
    "  Ärger\tmit\n Umlauten ",
    "日本語のテキスト",
    "x" * 50,
    "\ud800 half a pair",
    "!?! ...",
    "a_1 2 a_1",
]
made_by = pytest.mark.parametrize(
    "made",
    [
        HashedWords(),
        HashedWords(dimension=7, chars=None, words=(1, 3), rarity=0.5),
        HashedWords(dimension=50, words=None, chars=(1, 5), lowercase=False, key="another"),
        HashedWords(dimension=30, rarity=0.0, char_weight=2.0, words=(2, 2)),
    ],
    ids=["default", "words", "chars", "both"],
)


# --- the encoder ------------------------------------------------------------------------------------------------------


def listed() -> dict[str, int]:
    """The list of words as a person reads it."""
    found: dict[str, int] = {}
    lines = resources.files("mithridate.features").joinpath("word_frequencies.txt").read_text().split("\n")
    for line in lines:
        if line and line[0] != "#":
            number, rest = line.split(" ", 1)
            found.update({word: int(number) for word in rest.split(" ")})
    return found


FREQUENCIES = listed()


def characters_of_words(text: str) -> list[str]:
    """Runs of letters, digits and underscores, one character at a time."""
    found = [""]
    for character in text:
        found[-1:] = [found[-1] + character] if character.isalnum() or character == "_" else [found[-1], ""]
    return [word for word in found if word]


def slow_row(text: str, made: HashedWords, dimension: int) -> dict[int, float]:
    """The docstring by dictionaries, one n-gram at a time, hexadecimal digits in place of bytes."""
    text = text.lower() if made.lowercase else text
    both: dict[str, dict[str, float]] = {"w": {}, "c": {}}
    if made.words:
        row = characters_of_words(text)
        for length in range(made.words[0], made.words[1] + 1):
            for start in range(len(row) - length + 1):
                run = row[start : start + length]
                weights = [(FREQUENCIES.get(word.lower(), 50) / 50) ** made.rarity for word in run]
                both["w"][" ".join(run)] = sum(weights) / length
    if made.chars:
        for token in text.split():
            padded = f" {token} "
            for start in range(len(padded)):
                for end in range(start + made.chars[0], min(start + made.chars[1], len(padded)) + 1):
                    both["c"][padded[start:end]] = 1.0
    sums: dict[int, float] = {}
    for kind, scale in (("w", 1.0), ("c", made.char_weight)):
        norm = math.sqrt(sum(value**2 for value in both[kind].values()))
        for ngram, value in both[kind].items():
            data = (kind + ngram).encode("utf-8", "surrogatepass")
            digest = hashlib.blake2b(data, digest_size=8, key=made.key.encode()).hexdigest()
            number = sum(int(digest[2 * i : 2 * i + 2], 16) * 256**i for i in range(8))
            place = number % 2**63 % dimension
            sums[place] = sums.get(place, 0.0) + (1 - 2 * (number // 2**63)) * scale * value / norm
    norm = math.sqrt(sum(value**2 for value in sums.values()))
    return {place: value / norm for place, value in sums.items()}


@made_by
def test_rows_are_those_of_the_docstring(made: HashedWords) -> None:
    dense, sparse = made.transform(TEXTS), made.compared(TEXTS)
    assert dense.dtype == sparse.dtype == np.float32
    assert dense.shape == (len(TEXTS), made.dimension)
    assert sparse.shape == (len(TEXTS), made.sparse_dimension)
    for i, text in enumerate(TEXTS):
        slow = slow_row(text, made, made.dimension)
        np.testing.assert_allclose(dense[i], [slow.get(place, 0.0) for place in range(made.dimension)], atol=1e-6)
        slow = slow_row(text, made, made.sparse_dimension)
        row = sparse[[i]]
        np.testing.assert_allclose(row.data, [slow[int(place)] for place in row.indices], atol=1e-6)
        assert set(row.indices.tolist()) == {place for place, value in slow.items() if abs(value) > 1e-7}


@given(st.lists(st.text(max_size=30), min_size=1, max_size=6), st.integers(2, 40))
def test_a_text_is_encoded_by_itself(texts: list[str], dimension: int) -> None:
    made = HashedWords(dimension=dimension)
    dense, sparse = made.transform(texts), made.compared(texts)
    assert sparse.has_canonical_format
    assert sparse.data.all()
    for i, text in enumerate(texts):
        assert (made.transform([text])[0] == dense[i]).all()
        alone, among = made.compared([text]), sparse[[i]]
        assert (alone.indices == among.indices).all()
        assert (alone.data == among.data).all()
        norm = math.fsum(float(value) ** 2 for value in among.data)
        assert norm == 0 or abs(norm - 1) < 1e-6


def test_what_is_remembered_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = HashedWords().compared(TEXTS)
    monkeypatch.setattr("mithridate.features.tables_and_text._REMEMBERED_NGRAMS", 3)
    assert abs(HashedWords().compared(TEXTS) - whole).nnz == 0


def test_rows_ignore_pythonhashseed() -> None:
    text = "a few words, and some more of the words"
    program = "from mithridate.features import HashedWords as H\n"
    program += f"print(H(64).compared([{text!r}]).data.tobytes().hex())"
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert printed == {HashedWords(64).compared([text]).data.tobytes().hex()}


def test_common_words_count_less_and_unknown_ones_fully() -> None:
    def entry(text: str, word: str) -> float:
        made = HashedWords(chars=None)
        row, alone = made.compared([text]), made.compared([word])
        return float(np.abs(row[[0], alone.indices])[0])

    ratio = entry("the zyzzyva", "the") / entry("the zyzzyva", "zyzzyva")
    assert ratio == pytest.approx((FREQUENCIES["the"] / 50) ** 2)
    assert entry("wort zyzzyva", "wort") == pytest.approx(entry("wort zyzzyva", "zyzzyva"))
    shouted = HashedWords(chars=None, lowercase=False).compared(["THE zyzzyva"])
    assert np.abs(shouted.data).min() < np.abs(shouted.data).max()


def test_the_list_of_words_is_small_and_in_order() -> None:
    file = resources.files("mithridate.features").joinpath("word_frequencies.txt").read_text()
    assert len(file) < 100_000
    assert "Apache-2.0" in file
    numbers = [int(line.split()[0]) for line in file.splitlines() if not line.startswith("#")]
    assert numbers == sorted(set(numbers))
    assert numbers[0] > 0
    assert numbers[-1] == words._RAREST
    assert len(FREQUENCIES) == sum(len(line.split()) - 1 for line in file.splitlines() if not line.startswith("#"))
    assert all(word.isascii() and word.isalpha() and word.islower() for word in FREQUENCIES)
    # Shares of a text cannot sum to more than all of it, to the rounding of the classes.
    assert 0.4 < sum(10 ** (-number / 10) for number in FREQUENCIES.values()) < 1.12
    assert FREQUENCIES["the"] < FREQUENCIES["because"] < FREQUENCIES["kitchen"]


@pytest.mark.parametrize(
    ("constants", "says"),
    [
        ({"dimension": 1}, "dimension from 2"),
        ({"sparse_dimension": 1 << 25}, "sparse_dimension from 2 to 16,777,216"),
        ({"sparse_dimension": 2.5}, "sparse_dimension"),
        ({"words": None, "chars": None}, "chars or words"),
        ({"words": (3, 1)}, "shortest length first"),
        ({"char_weight": 0}, "char_weight"),
        ({"rarity": -1}, "rarity"),
        ({"rarity": math.nan}, "rarity"),
        ({"lowercase": 1}, "lowercase"),
        ({"key": "k" * 65}, "64 bytes"),
    ],
)
def test_refused_constants(constants: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        HashedWords(**constants)


@pytest.mark.parametrize("texts", ["one text", [b"bytes"], ["text", None], np.zeros(3)])
def test_refused_texts(texts: Any) -> None:
    for encode in (HashedWords().transform, HashedWords().compared):
        with pytest.raises(ConfigError, match="text"):
            encode(texts)


# --- sparse rows that vote --------------------------------------------------------------------------------------


def random_texts(seed: int, count: int) -> Array:
    random = np.random.default_rng(seed)
    vocabulary = ["the", "of", "cat", "dog", "zebra", "日本", "runs", "running", "a", "fast", "slowly", "x1"]
    return np.array([" ".join(random.choice(vocabulary, random.integers(0, 9))) for _ in range(count)])


def stored(texts: Array, labels: Array, classes: int, made: HashedWords | None = None) -> StoredExamples:
    training = as_examples((texts, labels), "training", need_labels=True, classes=classes)
    return StoredExamples.of(training, made or HashedWords(), classes)


def whole(rows: Any) -> list[dict[int, int]]:
    """Sparse rows in Python's whole numbers."""
    ends = zip(rows.indptr[:-1], rows.indptr[1:], strict=True)
    parts = [(rows.indices[start:end].tolist(), rows.data[start:end].tolist()) for start, end in ends]
    return [{place: int(value) for place, value in zip(*part, strict=True)} for part in parts]


def dot(first: dict[int, int], second: dict[int, int]) -> int:
    return sum(value * second.get(place, 0) for place, value in first.items())


@settings(max_examples=20)
@given(seed=st.integers(0, 999), dimension=st.sampled_from([2, 9, 64, 1 << 18]))
def test_sparse_products_are_those_of_whole_numbers_and_of_dense_rows(seed: int, dimension: int) -> None:
    made = HashedWords(sparse_dimension=dimension)
    examples = stored(random_texts(seed, 20), np.arange(20) % 2, 2, made)
    inputs = examples.asked(random_texts(seed + 1, 6), mirrored=False)
    (view,) = inputs.views
    assert isinstance(view, csr_array)
    assert isinstance(examples.rows, csr_array)
    found = _whole_rows.products(view, examples.rows)
    assert found.dtype == np.float32
    exact = [[dot(one, other) for other in whole(examples.rows)] for one in whole(view)]
    assert found.tolist() == exact
    dense = _whole_rows.products(view.toarray(), _whole_rows.turned(examples.rows.toarray()))
    assert found.tobytes() == dense.tobytes()
    assert all(dot(row, row) <= 1 << 24 for row in whole(examples.rows))


def test_rows_are_rounded_from_the_features() -> None:
    texts = random_texts(3, 12)
    examples, features = stored(texts, np.arange(12) % 2, 2), HashedWords().compared(texts)
    assert examples.scale == 4095 - 256
    for row, rounded in zip(features.toarray(), examples.rows.toarray(), strict=True):  # pyright: ignore[reportAttributeAccessIssue]
        assert np.abs(row * examples.scale - rounded).max() <= 0.5 + 1e-3


def test_rounding_makes_no_row_too_long_for_exact_products() -> None:
    # Equal entries, also just above where they are rounded up.
    scale = 4095 - 64
    counts = [1, 2, *(math.floor((scale / (number + 0.5)) ** 2) for number in range(31, 300)), 1 << 14]
    dense = np.zeros((len(counts), 1 << 14), np.float32)
    for row, count in zip(dense, counts, strict=True):
        row[:count] = 1 / math.sqrt(count)
    rows = _whole_rows.sparse_whole_rows(csr_array(dense))
    assert _whole_rows.scale_of(1 << 14) == scale
    assert scale**2 < max(dot(row, row) for row in whole(rows)) <= 1 << 24


def expected_order(examples: StoredExamples, row: dict[int, int]) -> list[int]:
    """Positions by the words of the docstring: larger dot product first, then smaller hash."""
    rows = whole(examples.rows)

    def key(i: int) -> tuple[int, bytes]:
        places = sorted(rows[i])
        content = b"".join(place.to_bytes(4, "little") for place in places)
        content += b"".join(rows[i][place].to_bytes(2, "little", signed=True) for place in places)
        content += int(examples.labels[i]).to_bytes(8, "little", signed=True)
        return -dot(rows[i], row), hashlib.blake2b(content, digest_size=32).digest()

    return sorted(range(len(rows)), key=key)


@settings(max_examples=20)
@given(seed=st.integers(0, 999), neighbours=st.integers(1, 21), chunk=st.integers(1, 60))
def test_the_order_is_that_of_whole_numbers(seed: int, neighbours: int, chunk: int) -> None:
    labels = np.random.default_rng(seed).integers(0, 4, 21)
    examples = stored(random_texts(seed, 21), labels, 5)
    texts = random_texts(seed + 1, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_search, "_BLOCK_EXAMPLES", chunk)
        votes = neighbour_votes(examples, texts, neighbours=neighbours)
    (view,) = examples.asked(texts, mirrored=False).views
    kept = min(2 * neighbours, 21)
    orders = [[int(labels[i]) for i in expected_order(examples, row)[:kept]] for row in whole(view)]
    assert votes.evidence["order"].tolist() == orders


class _Dense(StoredExamples):
    """The same examples with all zeros written out."""

    def asked(self, test_set: Any, *, mirrored: bool) -> _nearness.Inputs:
        inputs = super().asked(test_set, mirrored=mirrored)
        return replace(inputs, views=tuple(view.toarray() for view in inputs.views))  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("seed", range(5))
def test_votes_of_sparse_and_dense_rows_are_equal(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, labels = random_texts(seed, 60), np.random.default_rng(seed).integers(0, 3, 60)
    sparse = stored(texts, labels, 3)
    fields = {name: getattr(sparse, name) for name in sparse.__dataclass_fields__}
    dense = _Dense(**{**fields, "rows": sparse.rows.toarray()})  # pyright: ignore[reportAttributeAccessIssue]
    asked = random_texts(seed + 1, 9)
    first, second = (kernel_votes(each, asked, kernel=Exponential(0.2)) for each in (sparse, dense))
    assert (first.counts == second.counts).all()
    assert (first.evidence["own"] == second.evidence["own"]).all()
    # Equally near examples follow a hash of what is written; here one that both have.
    hashes = [hashlib.blake2b(f"{text} {label}".encode()).digest() for text, label in zip(texts, labels, strict=True)]
    ranks = np.argsort(sorted(range(60), key=hashes.__getitem__)).astype(np.uint32)
    monkeypatch.setattr(_nearness, "ranks_of", lambda rows, labels: ranks)
    first, second = (neighbour_votes(each, asked, neighbours=7) for each in (sparse, dense))
    assert (first.evidence["order"] == second.evidence["order"]).all()
    assert (first.counts == second.counts).all()


def test_weights_are_those_of_whole_numbers() -> None:
    texts, asked = random_texts(1, 15), random_texts(2, 5)
    examples = stored(texts, np.arange(15), 15)
    counts = kernel_votes(examples, asked, kernel=Exponential(0.2)).counts
    (view,) = examples.asked(asked, mirrored=False).views
    for row, found in zip(whole(view), counts.tolist(), strict=True):
        for other, weight in zip(whole(examples.rows), found, strict=True):
            product = dot(row, other)
            steps = abs(product) // 256 * (1 if product > 0 else -1)
            cosine = max(-1.0, min(1.0, float(Fraction(256 * steps, examples.scale**2))))
            assert weight == round(1024 * min(1.0, math.exp((cosine - 1) / 0.2)))


# --- every poisoning of a small set of texts --------------------------------------------------------------------

DOMAIN = [(text, label) for text in ("the cat", "the dog runs", "") for label in (0, 1)]


def poisonings(data: Sequence[tuple[str, int]]) -> list[tuple[int, list[tuple[str, int]]]]:
    """Every set that up to two insertions and deletions make of the data."""

    def once(rows: list[tuple[str, int]]) -> list[list[tuple[str, int]]]:
        return [*([*rows, one] for one in DOMAIN), *(rows[:i] + rows[i + 1 :] for i in range(len(rows)))]

    first = once(list(data))
    return [*((1, rows) for rows in first), *((2, rows) for one in first for rows in once(one))]


@pytest.mark.parametrize("kind", ["neighbours", "kernel"])
def test_no_small_poisoning_changes_a_certified_vote_on_texts(kind: str) -> None:
    asked = np.array(["a cat", "dogs run", "nothing"])

    def vote(rows: Sequence[tuple[str, int]]) -> Votes:
        examples = stored(np.array([text for text, _ in rows]), np.array([label for _, label in rows]), 2)
        if kind == "neighbours":
            return neighbour_votes(examples, asked, neighbours=3)
        return kernel_votes(examples, asked, kernel=Exponential(0.4))

    data = [DOMAIN[i] for i in (0, 0, 0, 2, 3, 3, 3)]
    rule = NeighbourRule() if kind == "neighbours" else KernelRule()
    decided = rule.decide(vote(data), Threat.SYMMETRIC_DIFFERENCE)
    attacks = 0
    for changes, poisoned in poisonings(data):
        changed = rule.decide(vote(poisoned), Threat.SYMMETRIC_DIFFERENCE).label != decided.label
        attacks += int(changed.sum())
        assert (decided.radius[changed] < changes).all()
    assert attacks > 0
    assert decided.radius.max() >= 1


# --- from a file to predictions ---------------------------------------------------------------------------------------


def written(folder: Path, name: str, rows: Sequence[tuple[str, str]]) -> Path:
    path = folder / name
    path.write_text("text,label\n" + "".join(f'"{text}",{label}\n' for text, label in rows), encoding="utf-8")
    return path


def test_a_table_with_one_column_of_text_is_read_as_texts(tmp_path: Path) -> None:
    rows = [("the cat sat on it", "a"), ("dogs run over there", "b"), ("", "a"), ("x y z " * 1500, "b")]
    path = written(tmp_path, "texts.csv", rows)
    declaration = propose(path, label="label")
    assert declaration == Table("label", (Text("text"),), ("a", "b"), proposed=True)
    examples = read(path, Table("label", (Text("text"),), ("a", "b")), labels=True)
    assert examples.kind == "text"
    assert examples.x.tolist() == ["the cat sat on it", "dogs run over there", "", ("x y z " * 1500)[:LONGEST_TEXT]]
    empty = written(tmp_path, "empty.csv", [("", "a"), ("", "b")])
    with pytest.raises(ConfigError, match="no values at all"):
        read(empty, Table("label", (Text("text"),), ("a", "b")), labels=True)


def test_writing_without_spaces_is_proposed_as_text(tmp_path: Path) -> None:
    path = written(tmp_path, "texts.csv", [("这家店的东西很好吃", "a"), ("房间很小而且很吵", "b")])
    declaration = propose(path, label="label")
    assert isinstance(declaration, Table)
    assert declaration.columns == (Text("text"),)


@pytest.mark.parametrize("method", ["nearest-neighbours", "kernel-vote"])
def test_init_train_and_predict_on_texts(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [(f"{text} again and more", "ab"[i % 2]) for i, text in enumerate(random_texts(5, 80))]
    train, test = written(tmp_path, "train.csv", texts), written(tmp_path, "test.csv", texts[:9])
    assert main(["init", str(train), "--test", str(test), "--label", "label"]) == 0
    assert main(["train", "mithridate.toml", "--method", method, "--features", "auto"]) == 0
    run = Path("runs/mithridate")
    votes = Votes.load(run / "votes.npz")
    assert votes.recipe is not None
    assert votes.recipe["features"] == json.loads(json.dumps(HashedWords().to_dict()))
    assert set(read_npz(run / "examples.npz", "examples")) == {"data", "indices", "indptr", "columns", "labels"}
    assert main(["predict", str(run), str(test), "--out", "new.npz"]) == 0
    again = Votes.load("new.npz")
    assert (again.counts == votes.counts).all()
    capsys.readouterr()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("indices", lambda array: array[::-1].copy()),
        ("indices", lambda array: np.where(np.arange(len(array)) == 3, 1 << 18, array).astype(np.int32)),
        ("indptr", lambda array: array + 1),
        ("data", lambda array: np.full_like(array, 4000)),
        ("data", lambda array: np.zeros_like(array)),
        ("columns", lambda array: array[:0]),
    ],
)
def test_damaged_rows_are_refused(name: str, change: Any) -> None:
    examples = stored(random_texts(1, 20), np.arange(20) % 2, 2)
    votes = neighbour_votes(examples, random_texts(2, 3), neighbours=3)
    run = examples.as_run(votes)
    kept = StoredExamples.of_run(run)
    assert isinstance(kept.rows, csr_array)
    assert isinstance(examples.rows, csr_array)
    assert abs(kept.rows - examples.rows).nnz == 0
    damaged = replace(run, arrays={**run.arrays, name: change(run.arrays[name])})
    with pytest.raises(ValueError, match=r"."):
        StoredExamples.of_run(damaged)
