"""Certified accuracy on real tables and texts, beside plain scikit-learn.

    python benchmarks/real.py --rows 5000 --splits 2 --out experiments/real/results.jsonl

Every measurement becomes a line of the results as soon as it is there; what the file has is not measured again, so a
run that was stopped resumes, and more splits or methods are added by asking for them. One process, on the CPU. The sets
are those of `real_sets.py`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from real_sets import SETS, Real, declared, load
from scipy.sparse import vstack

from mithridate.certifying.certification import certify
from mithridate.core.certificate import Certificate
from mithridate.core.mechanism import Threat
from mithridate.data import Category, Date, Examples, Number, Table, propose, read
from mithridate.defences import defence
from mithridate.defences.automatic import named
from mithridate.errors import MithridateError
from mithridate.features import words
from mithridate.training import learners
from mithridate.training.order import compose

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "real" / "results.jsonl"
SHARES = (0.0, 0.001, 0.005, 0.01)
Record = dict[str, Any]


# --- splits ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """One split of a set.

    Attributes:
        name: of the set.
        split: its number, from which the split follows.
        train: the training rows, 70% of all or as many as were allowed.
        test: of the others, three for each seven training rows.
    """

    name: str
    split: int
    train: pd.DataFrame
    test: pd.DataFrame

    @classmethod
    def of(cls, name: str, frame: pd.DataFrame, split: int, rows: int | None) -> Task:
        order = np.random.default_rng([19, split]).permutation(len(frame))
        size = round(0.7 * len(frame))
        most = size if rows is None else min(rows, size)
        left = order[size:][: round(most * 3 / 7)]
        train, test = (frame.iloc[part].reset_index(drop=True) for part in (order[:size][:most], left))
        return cls(name, split, train, test)

    @property
    def set(self) -> Real:
        return SETS[self.name]

    @property
    def table(self) -> Table:
        return declared(self.name, list(self.train.columns))

    def labels(self, part: pd.DataFrame) -> npt.NDArray[np.int64]:
        numbers = {label: i for i, label in enumerate(self.set.weights)}
        return np.array([numbers[label] for label in part[self.set.label]], dtype=np.int64)

    def examples(self, table: Table) -> tuple[Examples, Examples]:
        train = read(self.train, table, labels=True)
        return train, read(self.test, table, labels=True, classes=train.class_names)

    @property
    def radii(self) -> list[int]:
        return [0, *(max(1, math.ceil(share * len(self.train))) for share in SHARES[1:])]


# --- plain scikit-learn, without any certificate --------------------------------------------------------------------


def baseline(task: Task) -> Record:
    """Always the commonest label of the training rows."""
    truth = task.labels(task.test)
    answer = np.bincount(task.labels(task.train)).argmax()
    return {"accuracy": _mean(truth == answer), "balanced": 1 / len(np.unique(truth))}


def plain(task: Task) -> Record:
    """Three classifiers as people use them; which of them is best is seen on the test rows, in their favour."""
    truth, found = task.labels(task.test), {}
    for name, predict in (_text_models(task) if task.set.is_text else _table_models(task)).items():
        answers = predict()
        shares = [_mean(answers[truth == label] == label) for label in np.unique(truth)]
        found[name] = {"accuracy": _mean(answers == truth), "balanced": round(statistics.fmean(shares), 4)}
    return {"classifiers": found}


def _table_models(task: Task) -> dict[str, Callable[[], Any]]:
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

    columns = task.table.columns
    categories = [column.name for column in columns if isinstance(column, Category)]
    figures = [column.name for column in columns if isinstance(column, Number | Date)]
    texts = [column.name for column in columns if column.name not in (*categories, *figures)]
    ordinal = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-1)
    onehot = OneHotEncoder(handle_unknown="ignore", min_frequency=2)
    words = [(name, TfidfVectorizer(max_features=100), name) for name in texts]
    for_trees = ColumnTransformer(
        [("c", ordinal, categories), ("f", "passthrough", figures), *words], sparse_threshold=0
    )
    scaled = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    for_lines = ColumnTransformer([("c", onehot, categories), ("f", scaled, figures), *words])
    labels = task.labels(task.train)
    train, test = (_prepared(part, task.table) for part in (task.train, task.test))
    many = len(task.set.weights) > 10
    boosting = HistGradientBoostingClassifier(random_state=0, max_iter=50 if many else 100)
    forest = make_pipeline(SimpleImputer(strategy="median"), RandomForestClassifier(200, random_state=0))
    models = {
        "HGB": make_pipeline(for_trees, boosting),
        "random forest": make_pipeline(for_trees, forest),
        "logistic": make_pipeline(for_lines, LogisticRegression(max_iter=500)),
    }
    return {name: lambda model=model: model.fit(train, labels).predict(test) for name, model in models.items()}


def _prepared(part: pd.DataFrame, table: Table) -> pd.DataFrame:
    made = part.copy()
    for column in table.columns:
        cells = made[column.name]
        if isinstance(column, Date):
            made[column.name] = pd.to_datetime(cells).map(
                lambda moment: moment.timestamp() if moment == moment else None
            )
        elif not isinstance(column, Number):
            made[column.name] = cells.astype(object).where(cells.notna(), "missing").astype(str)
    return made


def _text_models(task: Task) -> dict[str, Callable[[], Any]]:
    from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import ComplementNB
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import LinearSVC

    split: dict[str, Any] = {"analyzer": "char", "ngram_range": (1, 2)} if task.set.letters else {"ngram_range": (1, 2)}
    weighed = TfidfVectorizer(sublinear_tf=True, min_df=2, **split)
    labels = task.labels(task.train)
    models = {
        "complement naive Bayes": make_pipeline(CountVectorizer(**split), ComplementNB()),
        "logistic": make_pipeline(weighed, LogisticRegression(C=10.0, max_iter=200)),
        "linear SVC": make_pipeline(weighed, LinearSVC(C=0.5)),
    }
    train, test = task.train["text"], task.test["text"]
    return {name: lambda model=model: model.fit(train, labels).predict(test) for name, model in models.items()}


# --- certified methods ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """How a method is asked for; whatever is not said here is the product's default.

    Attributes:
        method: by its name.
        constants: those beside the number of examples and of classes, which are declared for every method.
        weighted: whether labels have the weights of the set.
        rule: the method whose rule certifies the votes, if it is another one.
    """

    method: str
    constants: dict[str, Any] = field(default_factory=dict[str, Any])
    weighted: bool = False
    rule: str | None = None

    def defence(self, task: Task) -> Any:
        declared = {"num_train": len(task.train), "classes": len(task.set.weights)}
        weights = {"class_weights": tuple(task.set.weights.values())} if self.weighted else {}
        return defence(self.method, **declared, **weights, **self.constants)


# Learners that want columns; one that wants counts of words; and one for both.
_COLUMNS, _WORDS, _BOTH = ("extra-trees", "hist-gradient-boosting"), ("complement-naive-bayes",), ("logistic",)
_LEARNERS, _QUICK = (*_BOTH, *_COLUMNS), (*_BOTH, "extra-trees")
_AUTO, _FDP, _RUN_OFF = "auto", "fdp", "run-off-election"
# By the name that results have for it.
METHODS = {
    "nearest-neighbours": Recipe("nearest-neighbours"),
    "nearest-neighbours weighted": Recipe("nearest-neighbours", weighted=True),
    "kernel-vote": Recipe("kernel-vote"),
    "ridge": Recipe("ridge"),
    "ridge weighted": Recipe("ridge", weighted=True),
    **{f"dpa {learner}": Recipe("dpa", {"learner": learner}) for learner in (*_LEARNERS, *_WORDS)},
    # The models are those of DPA, so their votes are certified once more.
    **{f"{_RUN_OFF} {learner}": Recipe("dpa", {"learner": learner}, rule=_RUN_OFF) for learner in _QUICK},
    # Boosting is for a few models only: it takes seconds each, and finds no leaf of 20 in parts of 50.
    **{f"bagging {learner}": Recipe("bagging", {"learner": learner}) for learner in _QUICK},
    **{f"finite-aggregation {learner}": Recipe("finite-aggregation", {"learner": learner}) for learner in _QUICK},
    _FDP: Recipe("fdp", {"seconds": 60.0}),
}
NAMES = ("baseline", "plain", _AUTO, *METHODS)


def without_repeats() -> None:
    """Train models in this process, try once for a learner whether it is deterministic, and encode each text once.

    Nothing of this changes a vote. Thousands of processes would be started otherwise for seconds of work each, and each
    text encoded for every method and split.
    """
    tried: set[str] = set()
    rehearse, encode = learners.LearnerMachine.rehearse, words.HashedWords._rows

    def once(machine: Any) -> None:
        if machine._learner.name not in tried:
            rehearse(machine)
            tried.add(machine._learner.name)

    def encoded(encoder: Any, x: Any, dimension: int) -> Any:
        kept = _encoded.setdefault((repr(encoder), dimension), Kept())
        return kept.rows([str(text) for text in x], lambda texts: encode(encoder, texts, dimension))

    for owner, name, value in (
        (learners.LearnerMachine, "rehearse", once),
        (learners, "_SECONDS_ALONE", math.inf),
        (words.HashedWords, "_rows", encoded),
    ):
        setattr(owner, name, value)


class Kept:
    """Sparse rows of texts, each of which is a function of its text alone."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._rows: Any = None

    def rows(self, texts: list[str], encode: Callable[[list[str]], Any]) -> Any:
        new = [text for text in dict.fromkeys(texts) if text not in self._places]
        if new:
            made = encode(new)
            self._rows = made if self._rows is None else vstack([self._rows, made], format="csr")
            self._places |= {text: len(self._places) + place for place, text in enumerate(new)}
        return self._rows[[self._places[text] for text in texts]]


_encoded: dict[Any, Kept] = {}  # of one set


def suits(method: str, found: Real) -> bool:
    """Not a learner of tables for texts, or the reverse; and no election between two labels: there DPA is the same."""
    election = method.startswith(_RUN_OFF) and len(found.weights) == 2
    return not election and not method.endswith(_COLUMNS if found.is_text else _WORDS)


def certified(task: Task, method: str, kept: dict[Any, Any]) -> Record:
    """One method on one split, as `train` and `certify` do it; of the default flow also what `init` proposes.

    Args:
        task: the split.
        method: by its name here.
        kept: examples and votes of this split, for methods that share them.
    """
    recipe = METHODS.get(method, Recipe(_AUTO))
    if method == _AUTO:
        order = compose(named(_AUTO, {}), *task.examples(_proposed(task)))
        votes = order.run()
    else:
        if "examples" not in kept:
            kept["examples"] = task.examples(task.table)
        order = compose(recipe.defence(task), *kept["examples"])
        key = order.defence.title, str(recipe.constants)
        votes = kept[key] = kept[key] if key in kept and recipe.rule else order.run()
    rule = defence(recipe.rule).rule() if recipe.rule else order.defence.rule()
    found = certify(votes, method=rule, threat=Threat.SYMMETRIC_DIFFERENCE)
    return {"chosen": order.defence.title, **scores(found, task)}


def _proposed(task: Task) -> Table:
    made = propose(task.train, label=task.set.label)
    assert isinstance(made, Table)
    return made


def scores(found: Certificate, task: Task) -> Record:
    """Accuracies at the radii; the median radius of correct predictions as a share of the training rows."""
    truth = np.asarray(found.votes.labels)
    correct = (found.label == truth) & (found.radius >= 0)
    median = float(np.median(found.radius[correct])) / len(task.train) if correct.any() else 0.0
    return {
        "accuracy": _rounded(found.accuracy(None, task.radii)),
        "balanced": _rounded(found.balanced_accuracy(None, task.radii)),
        "median": round(median, 5),
        "commonest_answer": _mean(found.label == np.bincount(found.label).argmax()),
    }


def _mean(values: Any) -> float:
    return round(float(np.mean(values)), 4)


def _rounded(values: Iterable[float]) -> list[float]:
    return [round(float(value), 4) for value in values]


# --- measuring ------------------------------------------------------------------------------------------------------


def measure(task: Task, method: str, kept: dict[Any, Any]) -> Record:
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            match method:
                case "baseline":
                    found = baseline(task)
                case "plain":
                    found = plain(task)
                case _:
                    found = certified(task, method, kept)
        except MithridateError as error:
            found = {"refused": str(error)}
    return {**found, "seconds": round(time.perf_counter() - start, 1)}


def run(sets: list[str], methods: list[str], splits: list[int], rows: int | None, folder: Path, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    found = records(out)
    done = {_key(record) for record in found if "refused" not in record}  # which may have been mended since
    if out.exists() and not out.read_bytes().endswith(b"\n"):  # a line that was cut off must not spoil the next one
        out.write_text("".join(json.dumps(record) + "\n" for record in found), encoding="utf-8")
    for name in sets:
        frame = None
        _encoded.clear()
        for split in splits:
            wanted = [method for method in methods if suits(method, SETS[name])]
            wanted = [method for method in wanted if (name, split, rows, method) not in done]
            if not wanted:
                continue
            frame = load(name, folder) if frame is None else frame
            task, kept = Task.of(name, frame, split, rows), {}
            for method in wanted:
                about = {"set": name, "split": split, "rows": rows, "method": method}
                size = {"n": len(task.train), "test": len(task.test)}
                record = {**about, **size, **measure(task, method, kept)}
                with out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
                print(json.dumps(record), flush=True)


def records(path: Path) -> list[Record]:
    """What was measured so far; a last line that was cut off is none."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _key(record: Record) -> tuple[Any, ...]:
    return record["set"], record["split"], record["rows"], record["method"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default=",".join(SETS), help="names, with commas between (all)")
    parser.add_argument(
        "--methods",
        default=",".join(name for name in NAMES if name != _FDP),
        help=f"names, with commas between (all but {_FDP}, which takes a minute or more each)",
    )
    parser.add_argument(
        "--splits", type=numbers, default="0,1,2,3,4", help="their numbers, with commas between (the first five)"
    )
    parser.add_argument("--rows", type=int, help="most training rows (all)")
    parser.add_argument("--folder", type=Path, default=ROOT / "data" / "real", help="where packages are kept")
    parser.add_argument("--out", type=Path, default=RESULTS, help="results, one JSON object a line")
    arguments = parser.parse_args()
    sets, methods = arguments.sets.split(","), arguments.methods.split(",")
    unknown = [name for name in sets if name not in SETS] + [name for name in methods if name not in NAMES]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; sets are {', '.join(SETS)}; methods are {', '.join(NAMES)}")
    without_repeats()
    run(sets, methods, arguments.splits, arguments.rows, arguments.folder, arguments.out)


def numbers(words: str) -> list[int]:
    return [int(word) for word in words.split(",")]


if __name__ == "__main__":
    main()
