"""What a search may choose: methods, features and constants, as a table that asks one question after the other.

Constants that follow the number of examples (neighbours, leads, parts, a penalty) are asked for as shares of it, and
held as what they are for the declared number, `num_train`; for the smaller sets that a search trains on, they are
scaled (`Candidate.scaled`). So one candidate means the same at every size: as large a part of the examples votes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from mithridate._text import did_you_mean
from mithridate.data.examples import Array, Examples
from mithridate.defences import Defence, defence
from mithridate.defences.registry import kind_of
from mithridate.errors import ConfigError
from mithridate.training.order import Facts

Options = dict[str, Any]
# As many neighbours are kept for every input, twice; and no more models are trained than this.
_MOST_NEIGHBOURS, _MOST_PARTS = 5_000, 5_000
# The batch of private training, as `recipes.choosing` has it: (batch / noise)^2 times this, and at least so many.
_BATCH, _LEAST_BATCH = 0.1, 256
# More columns than this are not scaled one by one: a configuration has to hold a number for each.
_MOST_SCALED = 512
_SMALLEST_IMAGE = 8
# What the weights of labels are multiplied by before they are rounded to whole numbers.
_WEIGHT_STEPS, _LARGEST_WEIGHT = 10, 1_000_000


class Asked(Protocol):
    """Who answers the questions of a search: a sampler, a record of its answers, or the table's own first guesses."""

    def number(self, name: str, low: float, high: float, start: float, *, log: bool = False) -> float:
        """A number from `low` to `high`."""
        ...

    def one_of(self, name: str, choices: Sequence[str], start: str | None = None) -> str:
        """One of some words; the first guess is the first one unless another is named."""
        ...


@dataclass(frozen=True, eq=False)
class Known:
    """What is known before the search: declared facts, what the user decided, and the trusted examples' own scale.

    Attributes:
        facts: with the declared number of training examples.
        given: constants that the user decided, for as many examples.
        methods: the names of the methods that are searched.
        label_counts: of the trusted examples, where weights of labels are searched; None where they are not.
        columns: center and scale of every column of the trusted examples; None where that is of no use.
    """

    facts: Facts
    given: Mapping[str, Any]
    methods: tuple[str, ...]
    label_counts: tuple[int, ...] | None = None
    columns: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    @classmethod
    def of(
        cls,
        trusted: Examples,
        facts: Facts,
        given: Mapping[str, Any],
        methods: Sequence[str] | None,
        *,
        weigh_labels: bool,
    ) -> Known:
        """What is known of choosing on trusted examples.

        Raises:
            ConfigError: a method is not known here, or what the user decided leaves none.
        """
        assert trusted.y is not None
        counts = tuple(np.bincount(trusted.y, minlength=facts.classes).tolist()) if weigh_labels else None
        columns = None if facts.is_table else _scale_of(trusted.x)
        return cls(facts, dict(given), _methods(given, methods, facts.unit is not None), counts, columns)

    @property
    def is_image(self) -> bool:
        """Whether inputs are 8-bit images of a size that gradients are defined for."""
        shape = self.facts.shape
        return self.facts.kind == "uint8" and len(shape) in (2, 3) and min(shape[-2:]) >= _SMALLEST_IMAGE


def _scale_of(x: Array) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and deviation of every column, to six digits; constants of the trusted examples, and of nothing else."""
    if x.dtype.kind not in "fiu" or x.dtype == np.uint8 or x.ndim != 2 or x.shape[1] > _MOST_SCALED:
        return None
    values = x.astype(np.float64)
    if not np.isfinite(values).all():
        return None  # what trains on it says what is wrong
    with np.errstate(over="ignore", invalid="ignore"):
        center, scale = values.mean(axis=0), values.std(axis=0)
    if not (np.isfinite(center).all() and np.isfinite(scale).all()):
        return None
    rounded = [[float(f"{each:.6g}") for each in one.tolist()] for one in (center, scale)]
    return tuple(rounded[0]), tuple(each if each > 0 else 1.0 for each in rounded[1])


# --- candidates -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """One method with its constants.

    Attributes:
        method: its name.
        num_train: the declared number of training examples.
        options: its constants for as many examples, as a configuration has them.
        signal: of private training: what noise and rate are computed from at every size; see `recipes.signal`.
        counts_units: whether that is the number of units.
    """

    method: str
    num_train: int
    options: Options
    signal: float | None = None
    counts_units: bool = False

    def scaled(self, number: int) -> Options:
        """Its constants for so many examples: those that follow their number are the same share of it."""
        factor = number / self.num_train
        options = {
            name: _SIZED[name](value, factor) if name in _SIZED else value for name, value in self.options.items()
        }
        if "neighbours" in options:
            options |= _distinct(options["neighbours"], options.get("leads", ()))
        if self.signal is not None:
            options |= _noise_for(self.signal, options["steps"], number)
        return {name: value for name, value in options.items() if value is not None}

    def defence(self, number: int | None = None, classes: int | None = None) -> Defence:
        """The defence, for so many examples; for the declared number where none is given."""
        size = self.num_train if number is None else number
        declared = {} if classes is None else {"classes": classes}
        counted = "num_units" if self.counts_units else "num_train"
        return defence(self.method, **{**self.scaled(size), **declared, counted: size})


def candidate_of(asked: Asked, known: Known) -> Candidate:
    """Ask for everything that the user left open."""
    method = asked.one_of("method", known.methods)
    own = _SPACES[method]
    within = _Named(asked, method)
    decided = {name: value for name, value in known.given.items() if name in own.constants}
    options, signal = (decided, None) if decided else own.ask(within, known)
    options |= {name: value for name, value in known.given.items() if name not in options}
    if "features" not in options:
        options["features"] = _features(within, known, raw="learner" in options)
    if "mirrored" in kind_of(method).options() and known.is_image and "mirrored" not in options:
        options["mirrored"] = within.one_of("mirrored", ("no", "yes")) == "yes"
    if known.label_counts is not None and "class_weights" not in options and _weighs_labels(method, options):
        options["class_weights"] = _weights(within, known.label_counts)
    shown = {name: value for name, value in options.items() if value not in (None, False)}
    made = Candidate(method, known.facts.num_train, shown, signal, known.facts.unit is not None)
    return made if signal is None else replace(made, options=made.scaled(known.facts.num_train))


@dataclass(frozen=True)
class _Named:
    """Questions of one method, under its name."""

    asked: Asked
    method: str

    def number(self, name: str, low: float, high: float, start: float, *, log: bool = False) -> float:
        return self.asked.number(f"{self.method}: {name}", low, high, min(max(start, low), high), log=log)

    def one_of(self, name: str, choices: Sequence[str], start: str | None = None) -> str:
        return self.asked.one_of(f"{self.method}: {name}", choices, start)


# --- features and weights ---------------------------------------------------------------------------------------------

_SCALED = "unit-norm, columns scaled as the trusted examples are"


def _features(asked: Asked, known: Known, *, raw: bool) -> Any:
    """An encoder, as a configuration names it."""
    if known.facts.kind == "text":
        return asked.one_of("features", ("hashed-words", "hashed-ngrams"))
    if known.is_image:
        in_colour = len(known.facts.shape) == 3 and known.facts.shape[0] == 3
        gradients = ("oriented-gradients", "object-gradients", "layered-gradients")
        return asked.one_of("features", (*(("photo-gradients",) if in_colour else ()), *gradients, "unit-norm"))
    rows = (*((_SCALED,) if known.columns is not None else ()), "unit-norm")
    chosen = asked.one_of("features", (("none", *rows) if raw else rows))
    if chosen == "none":
        return chosen
    bias = round(asked.number("bias", 0.0, 2.0, 1.0), 2)
    if chosen == _SCALED:
        assert known.columns is not None
        return {"name": "unit-norm", "bias": bias, "center": list(known.columns[0]), "scale": list(known.columns[1])}
    return {"name": "unit-norm", "bias": bias}


def _weighs_labels(method: str, options: Options) -> bool:
    """Whether a method with these constants has a place for weights of labels."""
    kind = kind_of(method)
    return not options.get("leads") and (kind.weighs_votes or (kind.weighs_losses and "learner" not in options))


def _weights(asked: Asked, counts: Sequence[int]) -> list[int] | None:
    """A weight for each label: the rarer it is among the trusted examples, the more."""
    power = {"equal": 0.0, "by the root of their rarity": 0.5, "by their rarity": 1.0}
    chosen = power[asked.one_of("weights of labels", tuple(power))]
    if chosen == 0:
        return None
    most = max(counts)
    weights = [round(_WEIGHT_STEPS * (most / max(count, 1)) ** chosen) for count in counts]
    return [min(_LARGEST_WEIGHT, weight) for weight in weights]


# --- the table --------------------------------------------------------------------------------------------------------

Answers = tuple[Options, float | None]


@dataclass(frozen=True)
class _Space:
    """What a search asks about one method.

    Attributes:
        ask: asks for the method's own constants.
        constants: their names; where the user gave one of them, none is asked for.
        needs: packages without which the method is left out.
        by_default: whether it is searched where nobody names methods.
    """

    ask: Callable[[Asked, Known], Answers]
    constants: tuple[str, ...]
    needs: tuple[str, ...] = ()
    by_default: bool = field(default=True, kw_only=True)

    @property
    def is_installed(self) -> bool:
        """Whether the packages are there."""
        return all(find_spec(name) is not None for name in self.needs)


def _ask_neighbours(asked: Asked, known: Known) -> Answers:
    """One number of neighbours, or two with the lead that the larger one needs."""
    size = known.facts.num_train
    largest = min(0.3, _MOST_NEIGHBOURS / size)
    share = asked.number("neighbours / examples", min(0.001, largest / 2), largest, 1 / 15, log=True)
    most = max(1, round(share * size))
    if most == 1 or asked.one_of("numbers of neighbours", ("one", "two")) == "one":
        return {"neighbours": most}, None
    fewer = asked.number("second number / first", 0.01, 0.5, 0.1, log=True)
    lead = asked.number("lead / neighbours", 0.02, 0.8, 0.3)
    return _distinct([most, max(1, round(fewer * most))], [max(1, round(lead * most))]), None


def _ask_kernel(asked: Asked, known: Known) -> Answers:
    """The width of a kernel and where it begins to fall, or the cosine from which on examples vote."""
    if asked.one_of("kernel", ("exponential", "within")) == "within":
        return {"cosine": _digits(asked.number("cosine", -0.2, 0.99, 0.7))}, None
    width = asked.number("width", 0.005, 0.5, 0.1, log=True)
    return {"width": _digits(width), "full": _digits(asked.number("full", -0.2, 1.0, 0.8))}, None


def _ask_ridge(asked: Asked, known: Known) -> Answers:
    share = asked.number("penalty / examples", 1e-4, 0.5, 0.01, log=True)
    return {"penalty": _digits(share * known.facts.num_train)}, None


def _ask_parts(asked: Asked, known: Known) -> Answers:
    """Examples in a part, and what learns from them."""
    size = known.facts.num_train
    smallest = max(5.0, size / _MOST_PARTS)
    of_part = asked.number("examples in a part", smallest, max(300.0, 2 * smallest), 50.0, log=True)
    if known.facts.kind == "text":
        learners = ("complement-naive-bayes", "logistic")
    else:
        learners = (
            ("logistic", "extra-trees") if known.is_image else ("extra-trees", "logistic", "hist-gradient-boosting")
        )
    return {"partitions": max(2, round(size / of_part)), "learner": asked.one_of("learner", learners)}, None


def _ask_private(asked: Asked, known: Known) -> Answers:
    """The signal that the noise leaves, and the number of steps."""
    steps = int(asked.one_of("steps", ("20", "100"), "20" if known.is_image else "100"))
    start = 30.0 * max(known.facts.classes, 5)
    return {"steps": steps}, asked.number("signal", 20.0, 3000.0, start, log=True)


_OF_PARTS = ("partitions", "learner", "model")
_OF_PRIVATE = ("noise_multiplier", "sample_rate", "steps", "recipe", "model", "keep", "divisor")
_SPACES = {
    "nearest-neighbours": _Space(_ask_neighbours, ("neighbours", "leads")),
    "kernel-vote": _Space(_ask_kernel, ("width", "full", "cosine")),
    "ridge": _Space(_ask_ridge, ("penalty",)),
    "dpa": _Space(_ask_parts, _OF_PARTS, ("torch", "sklearn")),
    "run-off-election": _Space(_ask_parts, _OF_PARTS, ("torch", "sklearn"), by_default=False),
    # Every fold of a trial trains a thousand models.
    "fdp": _Space(_ask_private, _OF_PRIVATE, ("torch",), by_default=False),
}
METHODS = tuple(_SPACES)


def _methods(given: Mapping[str, Any], asked: Sequence[str] | None, has_units: bool) -> tuple[str, ...]:
    """The methods that are searched: those asked for, else the quick ones that suit and have all that was decided."""
    for name in asked or ():
        if name not in _SPACES:
            raise ConfigError(f"tune does not search {name!r}; {did_you_mean(name, METHODS)}")
        if not _SPACES[name].is_installed:
            needs = " and ".join(_SPACES[name].needs)
            raise ConfigError(f"{name} needs {needs}; install them with: pip install 'mithridate[train]'")
    usual = (n for n, s in _SPACES.items() if s.by_default and (kind_of(n).takes_units or not has_units))
    wanted = tuple(dict.fromkeys(asked or usual))
    fits = tuple(n for n in wanted if _SPACES[n].is_installed and all(one in kind_of(n).options() for one in given))
    if not fits:
        raise ConfigError(
            f"None of the methods {', '.join(wanted)} has all of the constants that are given ({', '.join(given)}); "
            "leave out some of them, or name other methods."
        )
    for name in fits:
        defence(name, **given)  # or it says what is wrong with a value
        private = [one for one in _OF_PRIVATE if name == "fdp" and one in given]
        if private:
            raise ConfigError(
                f"tune chooses noise, rate, steps and network of fdp itself; leave {private[0]} out of what is given."
            )
    return fits


# --- sizes ------------------------------------------------------------------------------------------------------------


def _digits(number: float) -> float:
    """Three digits."""
    return float(f"{number:.3g}")


def _whole(value: Any, factor: float) -> Any:
    if isinstance(value, list | tuple):
        return [_whole(each, factor) for each in value]
    return max(1, round(value * factor))


_SIZED: dict[str, Callable[[Any, float], Any]] = {
    "neighbours": _whole,
    "leads": _whole,
    "partitions": _whole,
    "penalty": lambda value, factor: value * factor,
}


def _distinct(neighbours: int | Sequence[int], leads: Sequence[Any]) -> Options:
    """Numbers of neighbours that fall, each with a lead that it can have; one alone where no other is smaller."""
    if isinstance(neighbours, int):
        return {"neighbours": neighbours}
    kept, needed = [neighbours[0]], []
    for (_, fewer), lead in zip(pairwise(neighbours), leads, strict=True):
        fewer = min(fewer, kept[-1] - 1)
        if fewer < 1:
            break
        needed.append(_capped(lead, kept[-1]))
        kept.append(fewer)
    return {"neighbours": kept, "leads": needed} if needed else {"neighbours": kept[0], "leads": None}


def _capped(lead: Any, voters: int) -> Any:
    return [min(each, voters) for each in lead] if isinstance(lead, Iterable) else min(lead, voters)


def _noise_for(signal: float, steps: int, number: int) -> Options:
    """Noise and rate that leave a signal to so many examples: all of them in a batch, or as many as it takes."""
    batch = max(_BATCH * signal**2 / steps, _LEAST_BATCH)
    rate = 1.0 if 2 * batch >= number else _digits(batch / number)
    return {"sample_rate": rate, "noise_multiplier": _digits(rate * number * math.sqrt(steps) / signal)}
