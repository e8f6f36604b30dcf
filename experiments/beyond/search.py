"""Search for recipes of the DP ensemble that certify most, on held-out training examples; the test set is never used.

    python experiments/beyond/search.py --data mnist --data-dir DIR --trials 40 --seconds 600

Killed at any moment, the same command goes on: every trial is in `studies/<data>.log`, Optuna's journal, and the best
ones are in `studies/<data>.json`. One process at a time for each data set. README.md says what is measured and what the
choice does to the guarantee. Needs `pip install 'mithridate[train,tune]'`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from mithridate import FDP, Threat, TrainConfig, Votes, train
from mithridate import features as features_module
from mithridate.certifying.certification import bound, default_bounds, distinct_margins
from mithridate.data.named import load_named
from mithridate.errors import MithridateError
from mithridate.features import Encoder, encoder, from_dict
from mithridate.training import models

# --- what is searched: one line adds an encoder; constants that are not named keep their defaults ---------------------

ENCODERS: dict[str, dict[str, tuple[Any, ...]]] = {
    "oriented-gradients": {"cells": (4, 5, 6, 7, 8), "orientations": (8, 12), "coarse_weight": (0.15, 0.3, 0.5)},
    "object-gradients": {
        "cells": (5, 6, 7, 8, 10),
        "orientations": (8, 12),
        "sharpness": (8, 12),
        "coarse_weight": (0.0, 0.1, 0.15),
        "body_centering": (0.8, 0.9),
    },
    "photo-gradients": {"cells": (4, 5, 6, 7), "coarse_weight": (0.3, 0.6)},
    "layered-gradients": {"cells": (4, 6), "fine_cells": (14, 18), "edge_weight": (0.0, 1.0)},
}
MODELS = ("linear", "mlp")
NUMBERS: dict[str, tuple[float, float]] = {
    # A = q n sqrt(T) / s trades accuracy against radius (docs/recipes.md); here in units of n / the largest radius that
    # is wanted. Above about 3 nothing is certified there, whatever 10,000 instances vote.
    "signal": (0.4, 4.0),
    "logit_step": (0.3, 5.0),  # noise that all steps together add to a logit; it decides the learning rate
    "batch": (0.02, 0.3),  # expected batch in units of (A^2 / T): small ones add noise that nobody accounts for
    "max_grad_norm": (0.05, 1.5),
}
STEPS = (5, 80)
SMALLEST_BATCH, LARGEST_BATCH = 64, 8192

# --- what is wanted: weights of radii, for the whole training set ----------------------------------------------------

RADII: dict[str, dict[int, float]] = {
    "mnist": {0: 1.0, 150: 1.0, 400: 1.0},
    "fashion-mnist": {0: 1.0, 80: 1.0, 300: 1.0},
    "cifar10": {0: 1.0, 10: 1.0, 20: 1.0, 50: 1.0},
}
HELD_OUT = 10_000
FAILURE_PROB = 1e-3

# Where the search starts: near the defaults of `recipes.choose`, and one change at a time.
START: dict[str, Any] = {
    "signal": 1.8, "steps": 20, "logit_step": 1.4, "batch": 0.1, "max_grad_norm": 0.5, "model": "linear",
    "average_iterates": True, "features": "oriented-gradients", "oriented-gradients.cells": 4,
    "oriented-gradients.orientations": 8, "oriented-gradients.coarse_weight": 0.3,
}  # fmt: skip
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {
        "features": "object-gradients",
        "object-gradients.cells": 6,
        "object-gradients.orientations": 8,
        "object-gradients.sharpness": 8,
        "object-gradients.coarse_weight": 0.0,
        "object-gradients.body_centering": 0.8,
    },
    {
        "features": "object-gradients",
        "object-gradients.cells": 8,
        "object-gradients.orientations": 12,
        "object-gradients.sharpness": 12,
        "object-gradients.coarse_weight": 0.0,
        "object-gradients.body_centering": 0.8,
        "signal": 2.2,
        "logit_step": 1.3,
        "max_grad_norm": 0.1,
        "steps": 70,
        "average_iterates": False,
    },
    {"features": "photo-gradients", "photo-gradients.cells": 5, "photo-gradients.coarse_weight": 0.6},
    {"oriented-gradients.cells": 6, "oriented-gradients.coarse_weight": 0.15},
    {"signal": 0.9},
    {"signal": 2.6},
    {"max_grad_norm": 0.25},
    {"average_iterates": False, "logit_step": 0.6, "steps": 50},
    {"model": "mlp", "steps": 60, "logit_step": 0.5, "max_grad_norm": 1.0},
)
STUDIES = Path(__file__).parent / "studies"
SUMMARY_SCHEMA = "mithridate.search/1"
_SEEDED = 2  # so many of the best trials of another space are tried again in a new one

Params = Mapping[str, Any]
Array = npt.NDArray[Any]


# --- from the numbers of a trial to a recipe --------------------------------------------------------------------------


def suggested(trial: optuna.Trial) -> dict[str, Any]:
    """One point of the space."""
    params: dict[str, Any] = {name: trial.suggest_float(name, *ends, log=True) for name, ends in NUMBERS.items()}
    params["steps"] = trial.suggest_int("steps", *STEPS, log=True)
    params["model"] = trial.suggest_categorical("model", MODELS)
    params["average_iterates"] = trial.suggest_categorical("average_iterates", (True, False))
    params["features"] = name = trial.suggest_categorical("features", tuple(ENCODERS))
    for constant, choices in ENCODERS[name].items():
        params[f"{name}.{constant}"] = trial.suggest_categorical(f"{name}.{constant}", choices)
    return params


def encoder_of(params: Params) -> Encoder:
    """The fixed features of a trial."""
    name = params["features"]
    constants = {key.partition(".")[2]: value for key, value in params.items() if key.startswith(f"{name}.")}
    return encoder(name, **constants)


def config_of(params: Params, bench: Bench, *, num_train: int, instances: int) -> TrainConfig:
    """How every instance is trained, for a training set of this size.

    Signal, batch and noise stay the same for every size, so the accuracy nearly does, and radii grow with the size.
    """
    signal = params["signal"] * len(bench.x) / max(bench.radii)
    steps, norm = params["steps"], _rounded(params["max_grad_norm"])
    ratio = signal / math.sqrt(steps)  # expected batch / noise
    batch = min(max(params["batch"] * ratio**2, SMALLEST_BATCH), LARGEST_BATCH, num_train)
    return TrainConfig(
        instances=instances,
        noise_multiplier=_rounded(batch / ratio),
        sample_rate=min(1.0, _rounded(batch / num_train)),
        steps=steps,
        max_grad_norm=norm,
        learning_rate=_rounded(params["logit_step"] * signal / (steps * norm)),
        average_iterates=params["average_iterates"],
        num_train=num_train,
        classes=bench.classes,
        score_bins=0,
    )


def _rounded(number: float) -> float:
    """Three significant digits: what is written down is what was tried."""
    return float(f"{number:.3g}")


# --- what a trial is worth --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Bench:
    """Training examples to fit on, others to vote on, and what is wanted of the votes.

    Attributes:
        name: the data set.
        x: images of the training set, all of them.
        y: their labels.
        held_out: so many at the end are voted on; the others are trained on.
        classes: number of labels.
        radii: weights of radii, for a training set as large as the whole.
        final: the number of instances that certificates will be made from.
        device: where to train.
    """

    name: str
    x: Array
    y: Array
    held_out: int
    classes: int
    radii: Mapping[int, float]
    final: int
    device: str = "cpu"

    @property
    def fitted(self) -> int:
        """Number of examples that are trained on."""
        return len(self.x) - self.held_out

    def scaled(self, radius: int) -> int:
        """A radius of the whole training set on the part that is trained on: in proportion, rounded up."""
        return math.ceil(radius * self.fitted / len(self.x))

    def measure(self, params: Params, instances: int) -> dict[str, Any]:
        """Certified accuracies on the held-out examples, as if `final` instances had voted like these."""
        begin = time.monotonic()
        features = features_of(self, encoder_of(params))
        votes = train(
            (features[: self.fitted], self.y[: self.fitted]),
            (features[self.fitted :], self.y[self.fitted :]),
            model=partial(models.build, params["model"], features.shape[1:], self.classes, bias=False),
            config=config_of(params, self, num_train=self.fitted, instances=instances),
            device=self.device,
        )
        right = votes.counts.argmax(axis=1) == self.y[self.fitted :]
        radii = [self.scaled(radius) for radius in self.radii]
        reached = (certified(as_if(votes, self.final), radii) & right).mean(axis=1)
        accuracies = {str(radius): round(float(value), 4) for radius, value in zip(self.radii, reached, strict=True)}
        return {
            "value": float(np.average(reached, weights=list(self.radii.values()))),
            "certified_accuracy": accuracies,
            "accuracy": float(right.mean()),
            "instances": instances,
            "seconds": round(time.monotonic() - begin, 1),
        }

    def meaning(self, instances: int) -> dict[str, Any]:
        """What a value means that came from so many instances; values of different meanings are never compared."""
        return {
            "data": self.name,
            "radii": {str(radius): weight for radius, weight in self.radii.items()},
            "held_out": self.held_out,
            "instances": instances,
            "final_instances": self.final,
        }


def bench_of(name: str, *, data_dir: Path | None, final: int, device: str) -> Bench:
    """The training set of a named data set; its test set is dropped before anything is computed."""
    train, _ = load_named(name, data_dir=data_dir)
    assert train.y is not None
    assert train.class_names is not None
    return Bench(name, train.x, train.y, HELD_OUT, len(train.class_names), RADII[name], final, device)


def as_if(votes: Votes, final: int) -> Votes:
    """What `final` instances may vote, from fewer: every share is kept, with half a vote of doubt.

    Half a vote is added to the first label of each example and half a vote to the second: where all of 200 agree, the
    share is taken for 99.75% and not for 100%. Nobody voted like this; it serves to choose, never to certify.

    >>> from mithridate import SampledGaussian
    >>> few = Votes.from_counts([[100, 0, 0], [60, 10, 30]], mechanism=SampledGaussian(3.0, 0.001, 1000))
    >>> as_if(few, 1000).counts.tolist()
    [[995, 5, 0], [599, 99, 302]]
    """
    rows = np.arange(votes.examples)
    order = np.argsort(-votes.counts, axis=1, kind="stable")
    first, second = order[:, 0], order[:, 1]
    shares = votes.counts.astype(np.float64)
    shares[rows, first] += 0.5
    shares[rows, second] += 0.5
    counts = np.floor(shares * (final / (votes.instances + 1)) + 1e-9).astype(np.int64)
    counts[rows, second] += final - counts.sum(axis=1)  # what rounding leaves goes to the rival
    return Votes.from_counts(counts, mechanism=votes.mechanism)


def certified(votes: Votes, radii: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Which examples are certified to each radius, as by `mithridate.certify`, without searching the largest radius."""
    limits = bound(votes, on="votes", kind=default_bounds("votes"), failure_prob=FAILURE_PROB)
    separated = np.flatnonzero(limits.top_lower > limits.rival_upper)
    shown = np.zeros((len(radii), votes.examples), dtype=np.bool_)
    if len(separated):
        margins, inverse = distinct_margins(limits, separated)
        accountant = FDP().accountant(votes.mechanism, Threat.SYMMETRIC_DIFFERENCE)
        for row, radius in zip(shown, radii, strict=True):
            row[separated] = accountant.holds(radius, margins)[inverse] if radius else True
    return shown


def features_of(bench: Bench, chosen: Encoder) -> Array:
    """Features of the whole training set, computed once and kept in the folder for temporary files."""
    return _features(bench, json.dumps(chosen.to_dict(), sort_keys=True))


@lru_cache(maxsize=4)
def _features(bench: Bench, constants: str) -> Array:
    images = hashlib.sha256(bench.x.tobytes()).hexdigest()
    code = "".join(file.read_text() for file in sorted(Path(features_module.__path__[0]).glob("*.py")))
    key = hashlib.sha256(f"{constants} {images} {np.__version__} {code}".encode()).hexdigest()[:24]
    path = Path(tempfile.gettempdir()) / f"mithridate-search-{os.getuid()}" / f"{key}.npy"
    if path.exists():
        return np.load(path, allow_pickle=False)
    features = from_dict(json.loads(constants)).transform(bench.x)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    half_done = path.with_suffix(".part")
    with half_done.open("wb") as file:
        np.save(file, features, allow_pickle=False)
    half_done.replace(path)
    return features


# --- the study --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """A complete trial, and what came out when it was trained anew with more instances, where that was done."""

    trial: FrozenTrial
    confirmed: Mapping[str, Any] | None

    @property
    def worth(self) -> tuple[bool, float]:
        """The larger, the better; what was confirmed comes before what may have been luck."""
        assert self.trial.value is not None
        return (True, self.confirmed["value"]) if self.confirmed else (False, self.trial.value)


def study_in(storage: JournalStorage, meaning: Mapping[str, Any]) -> optuna.Study:
    """The study of this space and this meaning of values: a new one starts with the best that earlier ones found."""
    space = [ENCODERS, MODELS, NUMBERS, STEPS, SMALLEST_BATCH, LARGEST_BATCH]
    identity = json.dumps({"meaning": meaning, "space": space}, sort_keys=True)
    name = f"{meaning['data']}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"
    earlier = all_found(storage, meaning)
    is_new = name not in optuna.get_all_study_names(storage)
    study = optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)
    if is_new:
        study.set_user_attr("meaning", meaning)
        for params in (*(found.trial.params for found in earlier[:_SEEDED]), *({**START, **one} for one in CHANGES)):
            study.enqueue_trial(dict(params), skip_if_exists=True)
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)  # of a process that was killed
    # Another seed each time: a search that goes on must not propose again what it proposed.
    seed = len(study.get_trials(deepcopy=False))
    study.sampler = optuna.samplers.TPESampler(multivariate=True, group=True, n_startup_trials=10, seed=seed)
    return study


def all_found(storage: JournalStorage, meaning: Mapping[str, Any]) -> list[Found]:
    """All complete trials of all spaces whose values mean this, the best first."""
    studies = [optuna.load_study(study_name=name, storage=storage) for name in optuna.get_all_study_names(storage)]
    found = [trial for study in studies if study.user_attrs.get("meaning") == meaning for trial in found_in(study)]
    return sorted(found, key=lambda each: each.worth, reverse=True)


def found_in(study: optuna.Study) -> list[Found]:
    """The complete trials of a study."""
    confirmed = study.user_attrs.get("confirmed", {})
    return [Found(trial, confirmed.get(str(trial.number))) for trial in study.get_trials(states=(TrialState.COMPLETE,))]


def search(study: optuna.Study, bench: Bench, *, trials: int, seconds: float | None, instances: int) -> None:
    """Go on until the study has so many complete trials, or the time is over."""

    def objective(trial: optuna.Trial) -> float:
        measured = bench.measure(suggested(trial), instances)
        trial.set_user_attr("measured", measured)
        return measured["value"]

    missing = trials - len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))
    if missing > 0:
        study.optimize(objective, n_trials=missing, timeout=seconds, callbacks=[_say])


def confirm(study: optuna.Study, bench: Bench, *, number: int, instances: int) -> None:
    """Train the best few anew, with more instances: the best of many values is too good by chance."""
    best = sorted(found_in(study), key=lambda found: found.trial.value or 0.0, reverse=True)[:number]
    for trial in (found.trial for found in best if found.confirmed is None):
        measured = bench.measure(trial.params, instances)
        study.set_user_attr("confirmed", {**study.user_attrs.get("confirmed", {}), str(trial.number): measured})
        print(f"trial {trial.number} confirmed: {_words(measured)}", flush=True)


def _say(study: optuna.Study, trial: FrozenTrial) -> None:
    print(f"trial {trial.number}: {_words(trial.user_attrs['measured'])}  {_short(trial.params)}", flush=True)


def _words(measured: Mapping[str, Any]) -> str:
    curve = " ".join(f"{value:.3f}@{radius}" for radius, value in measured["certified_accuracy"].items())
    return f"{measured['value']:.4f} ({curve}; {measured['instances']} instances, {measured['seconds']} s)"


def _short(params: Params) -> str:
    shown = {name: f"{value:.3g}" if isinstance(value, float) else value for name, value in params.items()}
    return " ".join(f"{name}={value}" for name, value in shown.items())


# --- what comes of it -------------------------------------------------------------------------------------------------


def summary_of(found: Sequence[Found], bench: Bench, number: int) -> dict[str, Any]:
    """The best trials, with their recipes for the whole training set."""
    return {
        "schema": SUMMARY_SCHEMA,
        "trials": len(found),
        "best": [_described(each, bench) for each in found[:number]],
    }


def _described(found: Found, bench: Bench) -> dict[str, Any]:
    params = found.trial.params
    config = config_of(params, bench, num_train=len(bench.x), instances=bench.final)
    return {
        "trial": found.trial.number,
        "measured": found.trial.user_attrs["measured"],
        "confirmed": found.confirmed,
        "model": params["model"],
        "features": encoder_of(params).to_dict(),
        "config": config.to_dict(),
        "params": params,
    }


def arguments_of(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Search for DP-ensemble recipes on held-out training examples.")
    parser.add_argument("--data", required=True, choices=sorted(RADII))
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="folder with the data (else MITHRIDATE_DATA)")
    parser.add_argument("--trials", type=int, default=40, metavar="N", help="complete trials in all (%(default)s)")
    parser.add_argument("--seconds", type=float, metavar="S", help="no new trial after this time")
    parser.add_argument("--instances", type=int, default=200, metavar="K", help="models a trial (%(default)s)")
    parser.add_argument("--final", type=int, default=10_000, metavar="P", help="models that will vote (%(default)s)")
    parser.add_argument("--confirm", type=int, default=3, metavar="M", help="best trials trained anew (%(default)s)")
    parser.add_argument("--confirm-instances", type=int, default=1000, metavar="K", help="with so many models each")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, mps or auto (%(default)s)")
    parser.add_argument("--studies", type=Path, default=STUDIES, metavar="DIR", help="where journals are kept")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Search, or go on with it, and write down the best."""
    arguments = arguments_of(argv)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    bench = bench_of(arguments.data, data_dir=arguments.data_dir, final=arguments.final, device=arguments.device)
    os.environ["MITHRIDATE_CACHE"] = "off"  # every trial has a mechanism of its own: its curves are of no further use
    arguments.studies.mkdir(parents=True, exist_ok=True)
    storage = JournalStorage(JournalFileBackend(str(arguments.studies / f"{bench.name}.log")))
    meaning = bench.meaning(arguments.instances)
    study = study_in(storage, meaning)
    search(study, bench, trials=arguments.trials, seconds=arguments.seconds, instances=arguments.instances)
    confirm(study, bench, number=arguments.confirm, instances=arguments.confirm_instances)
    summary = {**summary_of(all_found(storage, meaning), bench, number=10), "meaning": meaning}
    path = arguments.studies / f"{bench.name}.json"
    path.write_text(json.dumps(summary, indent=1) + "\n")
    for place in summary["best"][:5]:
        shown = place["confirmed"] or place["measured"]
        print(f"{_words(shown)}\n    {_short(place['params'])}")
    print(f"{summary['trials']} trials; the best are in {path}.")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MithridateError as error:
        sys.exit(f"search: {error}")
    except KeyboardInterrupt:
        sys.exit("search: interrupted; the same command goes on.")
