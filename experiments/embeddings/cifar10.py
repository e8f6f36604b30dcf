"""CIFAR-10 on the features of EfficientNet-Lite2: constants chosen on trusted images, the test images used once.

    python experiments/embeddings/cifar10.py --data-dir DIR            (a GPU encodes the images in half a minute)

The last 5,000 training images are the trusted set. They choose all constants, are not trained on, and calibrate the
encoder without their labels. The other 45,000 are trained on. Whatever is chosen is written to `chosen.json` before a
test image is voted on; then every chosen recipe votes on the 10,000 test images once, and `tested/NAME.npz` gets its
labels and radii, and the true labels.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate import certify
from mithridate.core.certificate import Certificate
from mithridate.core.votes import Votes
from mithridate.data.named import load_named
from mithridate.defences import defence
from mithridate.defences.neighbours import NearestExamples
from mithridate.features import Pretrained, UnitNorm, encoder
from mithridate.features._conditioning import Conditioning

HERE = Path(__file__).parent
RADII = (0, 10, 50, 100, 200, 300, 500, 1000)
TRUSTED, SOME, FEW = 5_000, 1_000, 500
NEIGHBOURS = (60, 120, 200, 350, 700, 1200, 2000, 3150, 4500)
FEW_NEIGHBOURS = (20, 30, 40, 60, 80, 120, 200, 300)
# Several numbers of neighbours, and by what share of them the label has to lead.
SCALES = ((3150, 1200, 350), (3150, 700, 120), (4500, 1200, 200), (4500, 2000, 700, 200))
LEADS = (0.1, 0.2, 0.3, 0.45, 0.6, 0.75)
# Private training: signal, steps, clipping norm, noise of a logit; see docs/recipes.md.
PRIVATE = tuple(
    (signal, 40, clip, noise) for signal in (300, 400, 600, 1000) for clip, noise in ((0.1, 1.0), (0.25, 0.7))
)
INSTANCES, TRIED = 10_000, 300
_ROWS = UnitNorm(bias=0.0)
Array = npt.NDArray[Any]


class Task:
    """Images as rows, by one encoder: trained on, trusted, and tested."""

    def __init__(self, title: str, made: Pretrained, x: Array, y: Array, test: tuple[Array, Array], count: int) -> None:
        self.title, self.encoder = title, made
        rows = made.transform(x)
        self.train = rows[: len(x) - TRUSTED][:count], y[: len(x) - TRUSTED][:count]
        self.trusted = rows[len(x) - TRUSTED :], y[len(x) - TRUSTED :]
        self.test = made.transform(test[0]), test[1]

    @classmethod
    def of_rows(cls, title: str, rows: Array, y: Array) -> Task:
        """Rows that were made already, none of them tested."""
        task = cls.__new__(cls)
        task.title = title
        task.train, task.trusted = (rows[:-TRUSTED], y[:-TRUSTED]), (rows[-TRUSTED:], y[-TRUSTED:])
        return task


# --- neighbours -----------------------------------------------------------------------------------------------------


def nearest(task: Task, inputs: tuple[Array, Array], most: int) -> Votes:
    """The labels of the nearest examples, from which fewer neighbours can be read off."""
    made = defence("nearest-neighbours", neighbours=most, features=_ROWS, classes=10, num_train=len(task.train[1]))
    return made.train(task.train, inputs)


def fewer(votes: Votes, neighbours: int | Sequence[int], leads: Sequence[int] = ()) -> Votes:
    """The votes of fewer neighbours, or of several numbers of them."""
    order = votes.evidence["order"]
    most = neighbours if isinstance(neighbours, int) else neighbours[0]
    given = neighbours if isinstance(neighbours, int) else tuple(neighbours)
    mechanism = NearestExamples(given, num_train=int(votes.mechanism.to_dict()["num_train"]), leads=tuple(leads))
    shown = order[:, : mechanism.shown]
    counts = np.stack([(shown[:, :most] == label).sum(axis=1) for label in range(10)], axis=1)
    return replace(votes, counts=counts, mechanism=mechanism, evidence={"order": shown})


def curve(certificate: Certificate, y: Array) -> list[float]:
    return [round(float(value), 4) for value in certificate.accuracy(y, RADII)]


def choose_neighbours(task: Task, numbers: Sequence[int], trusted: tuple[Array, Array]) -> list[dict[str, Any]]:
    """What every number of neighbours certifies on the trusted images."""
    votes = nearest(task, trusted, max(numbers))
    return [
        {"features": task.title, "neighbours": count, "trusted": curve(certify(fewer(votes, count)), trusted[1])}
        for count in numbers
    ]


def choose_scales(task: Task) -> list[dict[str, Any]]:
    """The same of several numbers of neighbours, on some of the trusted images."""
    some = task.trusted[0][:SOME], task.trusted[1][:SOME]
    votes = nearest(task, some, max(scale[0] for scale in SCALES))

    def measured(scale: Sequence[int], leads: list[int]) -> dict[str, Any]:
        certificate = certify(fewer(votes, scale, leads))
        about = {"features": task.title, "neighbours": list(scale), "leads": leads}
        return {**about, "trusted": curve(certificate, some[1])}

    asked = [
        (scale, [max(1, round(share * count)) for share, count in zip(shares, scale, strict=False)])
        for scale in SCALES
        for shares in product(LEADS, repeat=len(scale) - 1)
        if list(shares) == sorted(shares, reverse=True)
    ]
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda each: measured(*each), asked))


def best_at_each(found: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each radius, what certifies most of the trusted images."""
    return {str(radius): max(found, key=lambda each: each["trusted"][at]) for at, radius in enumerate(RADII)}


# --- private training -----------------------------------------------------------------------------------------------


def private(task: Task, recipe: Sequence[float], instances: int) -> Any:
    """An ensemble of linear models with a signal, steps, a clipping norm and a noise of the logits."""
    signal, steps, clip, noise = recipe
    n = len(task.train[1])
    batch = max(256.0, 0.1 * signal**2 / steps)
    rate = 1.0 if 2 * batch >= n else round(batch / n, 4)
    return defence(
        "fdp",
        model="linear",
        features=_ROWS,
        instances=instances,
        noise_multiplier=round(rate * n * steps**0.5 / signal, 3),
        sample_rate=rate,
        steps=int(steps),
        max_grad_norm=clip,
        learning_rate=round(noise * signal / steps / clip, 3),
        momentum=0.0,
        average_iterates=False,
        num_train=n,
        classes=10,
    )


def as_if(votes: Votes, final: int) -> Votes:
    """What more instances may vote at the same shares, with half a vote of doubt: to choose by, never to certify."""
    rows, order = np.arange(votes.examples), np.argsort(-votes.counts, axis=1, kind="stable")
    shares = votes.counts.astype(np.float64)
    for place in (0, 1):
        shares[rows, order[:, place]] += 0.5
    counts = np.floor(shares * (final / (votes.instances + 1)) + 1e-9).astype(np.int64)
    counts[rows, order[:, 1]] += final - counts.sum(axis=1)
    return Votes.from_counts(counts, mechanism=votes.mechanism)


def choose_private(task: Task, device: str) -> list[dict[str, Any]]:
    found = []
    for recipe in PRIVATE:
        votes = private(task, recipe, TRIED).train(task.train, task.trusted, device=device)
        about = {"features": task.title, "recipe": list(recipe)}
        found.append({**about, "trusted": curve(certify(as_if(votes, INSTANCES)), task.trusted[1])})
    return found


# --- once on the test images ----------------------------------------------------------------------------------------


class Results:
    """What was found on the test images, written as soon as it is there."""

    def __init__(self, out: Path) -> None:
        self.out, path = out, out / "results.json"
        self.found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        (out / "tested").mkdir(parents=True, exist_ok=True)

    def add(self, name: str, certificate: Certificate, y: Array, about: dict[str, Any], **more: Any) -> None:
        self.found[name] = {**about, "radii": RADII, "test": curve(certificate, y), **more}
        np.savez_compressed(
            self.out / "tested" / f"{name}.npz",
            label=certificate.label.astype(np.int8),
            radius=certificate.radius.astype(np.int32),
            truth=y.astype(np.int8),
        )
        (self.out / "results.json").write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")
        print(name, self.found[name]["test"], more, flush=True)


def say(text: str, begin: float) -> None:
    print(f"[{time.monotonic() - begin:.0f} s] {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="folder with the files of CIFAR-10")
    parser.add_argument("--arrays", type=Path, help="instead: .npz with x and y, the test images last")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--instances", type=int, default=INSTANCES)
    parser.add_argument(
        "--stages", default="choose,neighbours,private", help="what to do, with commas between; or conditioning"
    )
    arguments = parser.parse_args()
    stages = arguments.stages.split(",")
    run(arguments.data_dir, arguments.arrays, arguments.device, arguments.out, arguments.instances, stages)


def images_of(data_dir: Path | None, arrays: Path | None) -> tuple[Array, Array, tuple[Array, Array]]:
    if arrays is not None:
        both = np.load(arrays)
        x, y = both["x"], both["y"].astype(np.int64)
        return x[:-10_000], y[:-10_000], (x[-10_000:], y[-10_000:])
    train, test = load_named("cifar10", data_dir=data_dir)
    assert train.y is not None
    assert test.y is not None
    return train.x, train.y, (test.x, test.y)


def run(
    data_dir: Path | None, arrays: Path | None, device: str, out: Path, instances: int, stages: Sequence[str]
) -> None:
    begin = time.monotonic()
    x, y, test = images_of(data_dir, arrays)
    bare = encoder("efficientnet-lite2", device=device)
    assert isinstance(bare, Pretrained)
    if "conditioning" in stages:
        found = conditioning(bare, x, y, device, begin)
        (out / "conditioning.json").write_text(json.dumps({"radii": RADII, "rows": found}) + "\n", encoding="utf-8")
        return
    trusted = x[len(x) - TRUSTED :]
    made = {
        "own directions": bare,
        "calibrated": bare.calibrated(trusted),
        "calibrated, not whitened": replace(bare, whitening=0.0, columns=32).calibrated(trusted),
    }
    tasks = {title: Task(title, each, x, y, test, 45_000) for title, each in made.items()}
    few = Task("calibrated", made["calibrated"], x, y, test, TRUSTED - FEW)
    say("encoded", begin)
    out.mkdir(parents=True, exist_ok=True)
    if "choose" in stages:
        chosen = choose(tasks, few, device, begin)
        chosen["encoder"] = {title: each.to_dict() for title, each in made.items()}
        (out / "chosen.json").write_text(json.dumps(chosen) + "\n", encoding="utf-8")
    chosen, results = json.loads((out / "chosen.json").read_text(encoding="utf-8")), Results(out)
    if "neighbours" in stages:
        test_neighbours(tasks, chosen["neighbours"], chosen["scales"], results)
        votes = nearest(few, few.test, max(FEW_NEIGHBOURS))
        for radius, about in distinct(best_at_each(chosen["few_labels"]), (0, 10, 50)):
            results.add(f"few-labels-{radius}", certify(fewer(votes, about["neighbours"])), few.test[1], about)
        say("neighbours tested", begin)
    for radius, about in (
        distinct(best_at_each(chosen["private"]), (0, 10, 50, 100, 200)) if "private" in stages else ()
    ):
        task = tasks[about["features"]]
        ensemble = private(task, about["recipe"], instances)
        votes = ensemble.train(task.train, task.test, device=device)
        results.add(f"private-{radius}", certify(votes), task.test[1], about, instances=instances)
        say(f"private recipe for {radius} tested", begin)


def conditioning(bare: Pretrained, x: Array, y: Array, device: str, begin: float) -> list[dict[str, Any]]:
    """What centre and directions buy, on the trusted images: for two numbers of neighbours, and for private models."""
    rows = bare.embeddings(x)
    own = replace(bare, columns=256).own_conditioning(256)
    assert own is not None
    nothing = np.zeros(rows.shape[1])
    trusted = x[len(x) - TRUSTED :]
    variants: dict[str, Any] = {
        "entries as they are": Conditioning(nothing, None),
        "square roots": Conditioning(nothing, None, root=True),
        "square roots, centred": Conditioning(own.centre, None, root=True),
        **{f"own directions, {count}": bare.own_conditioning(count) for count in (64, 128, 256, 512)},
        **{
            f"calibrated, {count}, whitening {power:g}": replace(bare, columns=count, whitening=power)
            .calibrated(trusted)
            .calibration
            for count, power in ((32, 0.0), (64, 0.0), (64, 0.25), (64, 0.5), (128, 0.5))
        },
    }
    found = []
    for title, each in variants.items():
        made = each.constants if hasattr(each, "constants") else each
        task = Task.of_rows(title, made(rows), y)
        votes = nearest(task, task.trusted, 2000)
        curves = {str(count): curve(certify(fewer(votes, count)), task.trusted[1]) for count in (350, 2000)}
        models = private(task, (400, 40, 0.1, 1.0), TRIED).train(task.train, task.trusted, device=device)
        curves["private"] = curve(certify(as_if(models, INSTANCES)), task.trusted[1])
        found.append({"features": title, "columns": made.columns, **curves})
        say(f"{title} {curves}", begin)
    return found


def choose(tasks: dict[str, Task], few: Task, device: str, begin: float) -> dict[str, Any]:
    """All candidates with what they certify on the trusted images."""
    whitened = [tasks["own directions"], tasks["calibrated"]]
    neighbours = [each for task in tasks.values() for each in choose_neighbours(task, NEIGHBOURS, task.trusted)]
    say("neighbours compared", begin)
    scales = [each for task in whitened for each in choose_scales(task)]
    say("scales compared", begin)
    models = [each for task in whitened for each in choose_private(task, device)]
    say("private recipes compared", begin)
    little = choose_neighbours(few, FEW_NEIGHBOURS, (few.trusted[0][:FEW], few.trusted[1][:FEW]))
    return {"radii": RADII, "neighbours": neighbours, "scales": scales, "private": models, "few_labels": little}


def distinct(best: dict[str, dict[str, Any]], radii: Sequence[int]) -> list[tuple[int, dict[str, Any]]]:
    """The best at these radii, each once, under the first of its radii."""
    found: list[tuple[int, dict[str, Any]]] = []
    for radius in radii:
        about = best[str(radius)]
        if about not in [each for _, each in found]:
            found.append((radius, about))
    return found


def test_neighbours(
    tasks: dict[str, Task], neighbours: list[dict[str, Any]], scales: list[dict[str, Any]], results: Results
) -> None:
    """The best number for each radius, the most even recipe of several scales, and labels alone."""
    votes = {title: nearest(task, task.test, max(NEIGHBOURS)) for title, task in tasks.items()}
    y = next(iter(tasks.values())).test[1]
    for radius, about in distinct(best_at_each(neighbours), RADII):
        certificate = certify(fewer(votes[about["features"]], about["neighbours"]))
        results.add(f"neighbours-{radius}", certificate, y, about)
    best = [max(each["trusted"][at] for each in neighbours) for at in range(len(RADII))]
    close = max(scales, key=lambda each: min(a - b for a, b in zip(each["trusted"], best, strict=True)))
    certificate = certify(fewer(votes[close["features"]], close["neighbours"], close["leads"]))
    results.add("scales", certificate, y, close)
    # Of the recipes with .80 or more at r = 0, the one whose label needs most flips to change.
    flips = [each for each in neighbours if each["trusted"][0] >= 0.81]
    about = max(flips, key=lambda each: median_flips(tasks[each["features"]], each["neighbours"]))
    certificate = certify(fewer(votes[about["features"]], about["neighbours"]), threat="labels")
    results.add("labels", certificate, y, about, threat="labels", median=float(median_of(certificate, y)))


_flips: dict[tuple[str, int], float] = {}


def median_flips(task: Task, count: int) -> float:
    key = (task.title, count)
    if key not in _flips:
        some = task.trusted[0][:1000], task.trusted[1][:1000]
        certificate = certify(nearest(task, some, count), threat="labels")
        _flips[key] = median_of(certificate, task.trusted[1][:1000])
    return _flips[key]


def median_of(certificate: Certificate, y: Array) -> float:
    """The median radius, where a wrong prediction counts as -1."""
    return float(np.median(np.where(certificate.label == y, certificate.radius, -1)))


if __name__ == "__main__":
    main()
