"""Certificate: what is claimed about each prediction, with everything needed to check it and to say it in words."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Context, Decimal
from enum import StrEnum
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate import _text, _validate
from mithridate._io.artifacts import decode_array, read_hashed, write_hashed
from mithridate._io.files import PathLike
from mithridate.core.bounds import (
    ANYTIME,
    SCORE_BOUNDS,
    VOTE_BOUNDS,
    FloatArray,
    IntArray,
    clopper_pearson_lower,
    clopper_pearson_upper,
)
from mithridate.core.collective import Collective
from mithridate.core.conditions import Statement, conditions_of, distinct, from_plain, in_json, listed_ids
from mithridate.core.input_change import Frontier
from mithridate.core.labels import balanced, commonest, single_label
from mithridate.core.mechanism import SEARCH_LIMIT, Deterministic, Drawn, Threat
from mithridate.core.provenance import from_digits, in_digits
from mithridate.core.registry import hook
from mithridate.core.rule import DrawnRule, ExactRule, Rule, rule_from_dict
from mithridate.core.units import EXAMPLES, UnitWords, unit_in_json
from mithridate.core.votes import Votes
from mithridate.errors import ArtifactError, ConfigError

BoolArray = npt.NDArray[np.bool_]
StatusArray = npt.NDArray[np.str_]

SCHEMA = "mithridate.certificate/1"
# What `to_dict` gives has no counts and no hash, and cannot be verified: it must not pass for a certificate file.
OUTPUT_SCHEMA = "mithridate.certification/1"
# Instead of confidence bounds, where the votes are no sample.
EXACT = "exact"
# Of votes that are draws of noise: how many of them withstand so much, bounded by the draws.
QUANTILE = "quantile"
_ARRAYS = ("label", "radius", "status")
# A claim is the same whenever it is made.
_NOT_CLAIMED = ("votes", "issued")
_TIME = "%Y-%m-%dT%H:%M:%SZ"
# What a file holds; what it holds beside that could say something else to whoever reads it.
_CLAIM = ("method", "method_options", "threat", "failure_prob", "scope", "on", "bounds", "assumptions", "error_budget")
_TOGETHER = ("collective", "collective_proof")
_MOVED = ("input_change", "input_change_of", "frontier")
_SAID = ("schema", "size", "sha256", "issued", "versions", "training", "unit", "conditional", "conditions", "votes")
_LISTS = (*_ARRAYS, "class", "input_hash")
# What `SOURCE_DATE_EPOCH` can name: the years that four digits have.
_LAST_SECOND = 253402300799


class Status(StrEnum):
    """How the search for a radius ended, for one prediction."""

    CERTIFIED = "certified"
    NOT_SEPARATED = "not_separated"
    SEARCH_LIMIT = "search_limit"
    NUMERICAL = "numerical"
    SIZE_LIMIT = "size_limit"
    INPUT_CHANGE = "input_change"

    @property
    def sentence(self) -> str:
        """What the status means, in a sentence for the user."""
        return self.sentence_of(EXAMPLES)

    def sentence_of(self, counted: UnitWords) -> str:
        """The same, with what radii count by its name."""
        return _SENTENCES[self].format(many=counted.many_in_full, declare=counted.declared_as)


_SENTENCES = {
    Status.CERTIFIED: "The label stays the same for every change of the training data up to the radius.",
    Status.NOT_SEPARATED: "The two leading labels are too close for this many instances; nothing is certified.",
    Status.SEARCH_LIMIT: "The label is certified to the largest radius that is searched, and may be beyond it.",
    Status.NUMERICAL: "The label is certified to the radius; beyond it the arithmetic is not safe; fdp goes farthest.",
    Status.INPUT_CHANGE: "The label may change with the input alone, whatever the training data; nothing is certified.",
    Status.SIZE_LIMIT: (
        "The label is certified up to the limit of a number of {many} that nobody declared; declare {declare}, where "
        "it is fixed or public, to go beyond it."
    ),
}


def _now() -> str:
    """The time in UTC, or what SOURCE_DATE_EPOCH says it is, for files that are to be the same byte for byte.

    Raises:
        ConfigError: that is no number of seconds.
    """
    said = os.environ.get("SOURCE_DATE_EPOCH")
    if not said:
        return datetime.now(UTC).strftime(_TIME)
    if not (said.isascii() and said.isdigit() and int(said[:13]) <= _LAST_SECOND):
        raise ConfigError(
            f"Expected SOURCE_DATE_EPOCH as whole seconds since 1970, got {said!r:.80}; correct it, or leave it out."
        )
    return datetime.fromtimestamp(int(said), UTC).strftime(_TIME)


class Scope(StrEnum):
    """What the failure probability is about."""

    PREDICTION = "prediction"
    ALL = "all"


@dataclass(frozen=True, eq=False)
class Certificate:
    """Certified radii of many predictions.

    Guarantee: for every example with `radius >= 0`, the label with the largest score under the mechanism on D is
    `label`, and it stays the largest on every D' that differs from D by up to `radius` units of `threat`. For each
    single example this holds with probability at least `1 - failure_prob` over the training of the instances
    (`scope="prediction"`), or for all examples at once (`scope="all"`). By `anytime` bounds it holds so for the
    certificates after every number of instances together. Of a deterministic mechanism, `label` is what is predicted,
    and stays so; `failure_prob` is 0. Of models that vote on draws of noise together, it is over that noise.

    Where the input may move, too (`frontier`), the label is that of the input as it was given, and it stays the largest
    on every such D' together with every input within the stated distance. `radius` and `status` are then for the
    smallest of these distances; the radii for all of them hold, or fail, together.

    Assumes: what `assumptions` lists, and that the instances of a random mechanism are independent runs of it. Where
    something followed the training data, or looked at it, outside of the mechanism, the claim is `conditional` on that.

    Attributes:
        votes: the votes that were certified.
        label: the majority label of each example (on scores: the one with the largest mean score); ties go to the
            smaller label.
        radius: the certified radius of each example, -1 where nothing is certified.
        status: how each search ended; compare with `Status`.
        method: the rule that turned votes into radii.
        threat: how D' may differ from D.
        failure_prob: probability with which the claim may fail, over training; 0 for a deterministic mechanism.
        scope: whether `failure_prob` is about one prediction or all of them at once.
        on: `votes` or `scores`.
        bounds: the confidence bounds that were used, `quantile` (of votes that are draws of noise) or `exact`.
        assumptions: what else is taken for granted, a sentence each.
        error_budget: numerical errors that were added in the safe direction.
        versions: versions of mithridate and of what it computed with.
        issued: when it was made, in UTC; certificates that differ in nothing else are equal.
        collective: how many predictions change together at most, by the radius, where that was asked for.
        frontier: radii by how far the input may move, where that was asked for; None: the input stays as it is.
    """

    votes: Votes
    label: IntArray
    radius: IntArray
    status: StatusArray
    method: Rule
    threat: Threat
    failure_prob: float
    scope: Scope
    on: str
    bounds: str
    assumptions: tuple[str, ...] = ()
    error_budget: dict[str, float] = field(default_factory=dict[str, float])
    versions: dict[str, str] = field(default_factory=dict[str, str])
    issued: str = field(default_factory=_now)
    collective: Collective | None = None
    frontier: Frontier | None = None

    @property
    def input_change(self) -> float:
        """How far the input may move beside the changes of the training data that `radius` counts."""
        return 0.0 if self.frontier is None else self.frontier.changes[0]

    def at_input_change(self, change: float) -> Certificate:
        """The same claims for inputs that move by one of the distances of the frontier, as a certificate of its own.

        Raises:
            ConfigError: the frontier has no such distance.
        """
        if self.frontier is None or change not in self.frontier.changes:
            known = "none" if self.frontier is None else ", ".join(f"{each:g}" for each in self.frontier.changes)
            raise ConfigError(f"This certificate says nothing of inputs that move by {change:g}; it knows {known}.")
        at, whole = self.frontier.changes.index(change), self.frontier
        only = Frontier((whole.changes[at],), whole.of, whole.radius[at : at + 1], whole.status[at : at + 1])
        return replace(self, radius=whole.radius[at], status=whole.status[at], frontier=only)

    @property
    def conditions(self) -> tuple[Statement, ...]:
        """What the claim is conditional on, given the threat; each has an `id`, a sentence and a `remedy`."""
        return conditions_of(self.assumptions, self.threat)

    @property
    def conditional(self) -> bool:
        """Whether the claim rests on something that followed the training data, or looked at it."""
        return bool(self.conditions)

    def accuracy(self, labels: npt.ArrayLike | None, radii: npt.ArrayLike) -> FloatArray:
        """Certified accuracy: the share of all examples that are correct and certified at least to each radius.

        Compare it with the baseline, `summary(labels)["baseline"]`: what always saying the commonest label scores, at
        every radius.

        Args:
            labels: the true label of each example, as the training data had them: names where the classes have names
                (`votes.class_names`), else positions. None takes the labels that the votes carry.
            radii: radii of 0 or more, one or many.

        Raises:
            ConfigError: the labels do not fit the examples or are none of the classes, or a radius is below 0.

        >>> from mithridate import SampledGaussian, Votes, certify
        >>> votes = Votes.from_counts([[1000, 0], [600, 400]], mechanism=SampledGaussian(3.0, 0.001, 1000))
        >>> certify(votes).accuracy([0, 1], [0, 100])
        array([0.5, 0.5])
        """
        counted, shown = self._counted(self._truth(labels)), _checked_radii(radii)
        return np.array([np.mean(counted >= radius) for radius in shown])

    def balanced_accuracy(self, labels: npt.ArrayLike | None, radii: npt.ArrayLike) -> FloatArray:
        """Certified accuracy within each class, averaged over the classes that occur among the true labels.

        Always saying the same label scores one part in as many as classes occur, however rare the others are. The
        arguments, and what is refused, are those of `accuracy`.

        >>> from mithridate import SampledGaussian, Votes, certify
        >>> votes = Votes.from_counts([[1000, 0]] * 10, mechanism=SampledGaussian(3.0, 0.001, 1000))
        >>> certify(votes).accuracy([0] * 9 + [1], 0), certify(votes).balanced_accuracy([0] * 9 + [1], 0)
        (array([0.9]), array([0.5]))
        """
        truth = self._truth(labels)
        return balanced(self._counted(truth), truth, _checked_radii(radii))

    def summary(self, labels: npt.ArrayLike | None = None, radii: Iterable[int] | None = None) -> dict[str, Any]:
        """The numbers of a report: radii, abstentions; with true labels also what is correct, beside the baseline.

        Where units are declared, `unit` says what the radii count.

        Args:
            labels: the true labels; see `accuracy`. By default those that the votes carry, if they do.
            radii: radii at which accuracy is reported; by default round ones.
        """
        result: dict[str, Any] = {
            **unit_in_json(self.votes.unit),
            "median_radius": float(np.median(self.radius)),
            "max_radius": int(self.radius.max()),
            "abstained": int((self.radius < 0).sum()),
            "single_label": single_label(self.label) is not None,
        }
        if labels is None and self.votes.labels is None:
            return result
        truth, shown = self._truth(labels), list(radii) if radii is not None else self.round_radii()
        counted, listed = self._counted(truth), _checked_radii(shown)
        result["baseline"] = commonest(truth).share
        result["median_radius_correct"] = float(np.median(counted))
        result["certified_accuracy"] = _keyed(shown, np.array([np.mean(counted >= radius) for radius in listed]))
        result["certified_balanced_accuracy"] = _keyed(shown, balanced(counted, truth, listed))
        if self.frontier is not None:
            result["frontier"] = [
                {"input_change": change, "certified_accuracy": _keyed(shown, _shares(truth == self.label, row, listed))}
                for change, row in zip(self.frontier.changes, self.frontier.radius, strict=True)
            ]
        return result

    def round_radii(self, parts: int = 5) -> list[int]:
        """Zero and about `parts` round numbers up to the largest radius, for a table or an axis."""
        return round_ticks(max(int(self.radius.max()), 0), parts)

    def to_dict(self, labels: npt.ArrayLike | None = None, radii: Iterable[int] | None = None) -> dict[str, Any]:
        """The certificate as plain JSON values, as `mithridate certify --json` prints it.

        It has neither the counts nor the time: the same votes always give the same values.

        The arguments are those of `summary`.
        """
        return {
            "schema": OUTPUT_SCHEMA,
            **self.claim(),
            "mechanism": self.votes.mechanism.to_dict(),
            "examples": self.votes.examples,
            "instances": self.votes.instances,
            "classes": self.votes.classes,
            "class_names": None if self.votes.class_names is None else list(self.votes.class_names),
            "size": None if self.votes.size is None else self.votes.size.to_dict(),
            **self._lists(),
            "summary": self.summary(labels, radii),
        }

    def to_frame(self, kind: str = "pandas", *, labels: npt.ArrayLike | None = None) -> Any:
        """A data frame with a row for each prediction.

        Its columns: `input`, the position of the input; `label`, by its name where the classes have names; `radius`, -1
        where nothing is certified; where units are declared, `unit`, what radii count; `status`; `votes` for the label
        (of methods that weigh examples, their weight); and where true labels are known, `true_label` and `correct`.

        Args:
            kind: `pandas` or `polars`, whichever is installed.
            labels: the true labels; see `accuracy`. By default those that the votes carry, if they do.

        Raises:
            ConfigError: the package is not installed, or the labels do not fit.
            ArtifactError: the certificate claims what cannot be.

        >>> from mithridate import SampledGaussian, Votes, certify
        >>> votes = Votes.from_counts([[1000, 0], [500, 500]], mechanism=SampledGaussian(3.0, 0.001, 1000))
        >>> certify(votes).to_frame(labels=[0, 1])[["input", "label", "status", "votes", "correct"]]
           input  label         status  votes  correct
        0      0      0      certified   1000     True
        1      1      0  not_separated    500    False
        """
        _validate.one_of(("pandas", "polars"), kind=kind)
        check_claims(self)
        names = self.votes.class_names or range(self.votes.classes)
        columns: dict[str, Any] = {
            "input": np.arange(len(self.label)),
            "label": [names[at] for at in self.label.tolist()],
            "radius": self.radius,
            **self.unit_column(),
            "status": self.status.tolist(),
            "votes": self.votes.counts[np.arange(len(self.label)), self.label],
        }
        if labels is not None or self.votes.labels is not None:
            truth = self._truth(labels)
            columns |= {"true_label": [names[at] for at in truth.tolist()], "correct": truth == self.label}
        return _package(kind, "A data frame").DataFrame(columns)

    def unit_column(self) -> dict[str, list[str]]:
        """The column of a table that says what its radii count; none where they count examples."""
        return {} if self.votes.unit is None else {"unit": [self.votes.unit.one] * len(self.label)}

    def plot(self, *, labels: npt.ArrayLike | None = None, ax: Any = None, **style: Any) -> Any:
        """Draw certified accuracy against the radius, beside the baseline; without true labels, the share certified.

        At any r the curve has the share of all predictions that are correct and certified at least to r.

        Args:
            labels: the true labels; see `accuracy`. By default those that the votes carry, if they do.
            ax: where to draw, an `Axes` of matplotlib; by default on a new figure. Several can share one.
            style: how the curve looks, as `Axes.plot` takes it: `color`, `label`, `linestyle` and so on.

        Returns:
            The `Axes`.

        Raises:
            ConfigError: matplotlib is not installed, or the labels do not fit.
            ArtifactError: the certificate claims what cannot be.
        """
        shown = self if labels is None else replace(self, votes=replace(self.votes, labels=self._truth(labels)))
        return hook("plot_curve")(shown, ax, style)

    def save(self, path: PathLike) -> None:
        """Write a certificate file: claims, counts, assumptions, versions, and a hash of every byte.

        What a person reads comes first, in plain lists; what only `verify` needs comes last, in packed arrays.

        Raises:
            ArtifactError: the file cannot be written.
        """
        header, arrays = self.votes.to_parts()
        for name in ("training", "unit"):
            header.pop(name, None)
        arrays.pop("input_hashes", None)
        proof = {} if self.collective is None else {"collective_proof": self.collective.proofs_to_dict()}
        content = {"issued": self.issued, **self.claim(), **self._lists(), "votes": {**header, "arrays": arrays}}
        content |= proof
        write_hashed(path, SCHEMA, content)

    @classmethod
    def load(cls, path: PathLike) -> Certificate:
        """Read what `save` wrote.

        Raises:
            TamperedError: a byte of the file was changed.
            ArtifactError: the file is missing, truncated, or not a certificate.
        """
        return cls.from_content(read_hashed(path, SCHEMA))

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> Certificate:
        """A certificate from the content of its file.

        Raises:
            ArtifactError: something is missing or of the wrong kind.
        """
        try:
            if unknown := content.keys() - {*_CLAIM, *_SAID, *_LISTS, *_TOGETHER, *_MOVED}:
                raise ValueError(f"it holds {min(unknown)!r:.80}, which no certificate does")
            votes = _votes_of(content)
            label, radius = (_whole_numbers(name, content[name], votes.examples) for name in ("label", "radius"))
            _check_class_names(votes, label, content.get("class"))
            status = [Status(name).value for name in _listed("status", content["status"], votes.examples)]
            on, kind, failure_prob = content["on"], content["bounds"], content["failure_prob"]
            _validate.one_of(("votes", "scores"), on=on)
            rule = rule_from_dict({"name": content["method"], **content["method_options"]})
            _check_confidence(votes, rule, on, kind, failure_prob)
            _validate.sentences(assumptions=content["assumptions"])
            _check_table("error_budget", content["error_budget"], int | float)
            _check_table("versions", content["versions"], str)
            if on == "scores" and votes.score_sums is None:
                raise ValueError("it is on scores but carries none")
            stated = {str(each): each for each in votes.statements}
            return cls(
                votes,
                label=label,
                radius=radius,
                status=np.array(status),
                method=rule,
                threat=Threat(content["threat"]),
                failure_prob=float(failure_prob),
                scope=Scope(content["scope"]),
                on=on,
                bounds=kind,
                # Which of them are conditions, the votes know.
                assumptions=distinct(stated.get(str(each), each) for each in from_plain(content["assumptions"])),
                error_budget=dict(content["error_budget"]),
                versions=dict(content["versions"]),
                issued=_checked_time(content["issued"]),
                collective=Collective.of(content.get("collective"), content.get("collective_proof"), votes.examples),
                frontier=_frontier_of(content, radius, status),
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
            if isinstance(error, ArtifactError):
                raise
            raise ArtifactError(f"This certificate cannot be understood: {error!s:.200}.") from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Certificate) and self.equals(other)

    def __repr__(self) -> str:
        certified = _text.percent(int((self.radius >= 0).sum()), len(self.radius))
        units = self.votes.unit_words
        of = f" of {units.many}" if units.are_named else ""
        lines = [
            f"Certificate of {_text.counted(len(self.radius), 'prediction')} by {self.method.name} against "
            f"{self.threat}{of}: {certified} certified, median radius {np.median(self.radius):g}, "
            f"largest {self.radius.max()}"
        ]
        if self.votes.labels is not None:
            known, counted = commonest(self.votes.labels), self._counted(self.votes.labels)
            held = ((int((counted >= radius).sum()), radius) for radius in self.round_radii(2))
            shares = ", ".join(f"{_text.percent(count, known.total)} at {radius:,}" for count, radius in held)
            lines.append(f"correct and certified: {shares} (baseline: {_text.percent(known.count, known.total)})")
        weak = "" if is_guarantee(self) else "not a guarantee"
        ended = int((self.status == Status.SIZE_LIMIT.value).sum())
        predictions = _text.counted(ended, "prediction")
        cut = f"the size step cuts the radius of {predictions} (declare {units.declared_as})" if ended else ""
        conditional = f"conditional on {listed_ids(self.conditions)}" if self.conditional else ""
        return "\n".join([*lines, *filter(None, ["; ".join(filter(None, [weak, cut, conditional]))])])

    def equals(self, other: Certificate) -> bool:
        """Whether both claim the same from the same votes, whenever they were made."""
        same_votes = self.votes.equals(other.votes)
        return same_votes and all(
            np.array_equal(getattr(self, f.name), getattr(other, f.name)) if f.name in _ARRAYS
            else getattr(self, f.name) == getattr(other, f.name)
            for f in fields(Certificate) if f.name not in _NOT_CLAIMED
        )  # fmt: skip

    def report(
        self, *, methods: Sequence[Rule] | None = None, progress: Callable[[int, int], None] | None = None, **page: Any
    ) -> Any:
        """What is shown about it, as a `mithridate.reporting.Report`, which `.write("report.html")` turns into a file.

        Args:
            methods: what its radii are compared with; see `mithridate.certifying.advice.advise`. None are with `()`,
                which takes less time.
            progress: called with the number of methods done and their total.
            page: what the page shows besides, such as `pictures`, `title` and `class_names`; see `Report.of`.

        Raises:
            ConfigError: an argument does not fit the certificate.
            ArtifactError: the certificate claims what cannot be.
        """
        report = hook("Report").of(self, **page)  # first, so that a wrong argument is not found after a long search
        return replace(report, advice=hook("advise")(self, methods=methods, progress=progress))

    def _repr_html_(self) -> str:
        """The report, for notebooks; without the comparison of methods, which takes seconds."""
        return self.report(methods=())._repr_html_()

    def claim(self) -> dict[str, Any]:
        """All that is said of every prediction alike, as plain JSON values: the claim without its predictions."""
        options, training = self.method.to_dict(), self.votes.training
        return {
            "versions": self.versions,
            "training": None if training is None else training.to_dict(),
            **unit_in_json(self.votes.unit),
            "method": options.pop("name"),
            "method_options": options,
            "threat": self.threat.value,
            "failure_prob": self.failure_prob,
            "scope": self.scope.value,
            "on": self.on,
            "bounds": self.bounds,
            **in_json(self.assumptions, self.threat),
            "assumptions": list(map(str, self.assumptions)),
            "error_budget": self.error_budget,
            **({} if self.collective is None else {"collective": self.collective.to_dict()}),
            **self._moves(),
        }

    def _moves(self) -> dict[str, Any]:
        """How far the input may move, and in what that is measured; nothing where it stays as it is."""
        if self.frontier is None:
            return {}
        return {"input_change": self.input_change, "input_change_of": self.frontier.of}

    def _lists(self) -> dict[str, Any]:
        """What is said of every prediction, in plain lists; names of classes and hashes of inputs where there are."""
        names, hashes = self.votes.class_names, self.votes.input_hashes
        return {
            **({} if hashes is None else {"input_hash": in_digits(hashes)}),
            "label": self.label.tolist(),
            **({} if names is None else {"class": _names_of(names, self.label)}),
            "radius": self.radius.tolist(),
            "status": self.status.tolist(),
            **({} if self.frontier is None else {"frontier": self.frontier.to_list()}),
        }

    def _truth(self, labels: npt.ArrayLike | None) -> IntArray:
        """True labels as positions among the classes."""
        if labels is not None:
            return self.votes.positions(labels)
        if self.votes.labels is None:
            raise ConfigError("These votes carry no true labels, which accuracy needs; give them as labels.")
        return self.votes.labels

    def _counted(self, truth: IntArray) -> IntArray:
        """The radius of every correct prediction, -1 for the others."""
        return np.where(truth == self.label, self.radius, -1)


def check_claims(certificate: Certificate) -> None:
    """Refuse what no search could have found; whether the rest is true is for `verify` to say.

    Raises:
        ArtifactError: there is a label or a radius that cannot be.
    """
    labels, radii = certificate.label, certificate.radius
    if labels.min() < 0 or labels.max() >= certificate.votes.classes or radii.min() < -1 or radii.max() > SEARCH_LIMIT:
        raise ArtifactError("This certificate claims labels or radii that cannot be; run mithridate verify on it.")


def _package(name: str, what: str) -> Any:
    """A package that only some users have."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ConfigError(f"{what} needs {name}; install it with: pip install {name}") from error


# --- as a file --------------------------------------------------------------------------------------------------------


def _votes_of(content: Mapping[str, Any]) -> Votes:
    """The votes in the content of a file, of which some parts stand where people read them."""
    header = dict(content["votes"])
    arrays = {str(name): decode_array(array) for name, array in header.pop("arrays").items()}
    if header.keys() & {"training", "unit"} or "input_hashes" in arrays:
        raise ValueError("it names its data in two places")
    if "unit" in content:
        header["unit"] = content["unit"]
    if content["training"] is not None:
        header["training"] = content["training"]
    if "input_hash" in content:
        arrays["input_hashes"] = from_digits(_listed("input_hash", content["input_hash"]))
    return Votes.from_parts(header, arrays, "this certificate")


def _listed(name: str, values: Any, count: int | None = None) -> list[Any]:
    if not isinstance(values, list) or (count is not None and len(values) != count):  # pyright: ignore[reportUnknownArgumentType]
        raise ValueError(f"{name} is not a list with one entry for each example")
    return values  # pyright: ignore[reportUnknownVariableType]


def _whole_numbers(name: str, values: Any, count: int) -> IntArray:
    numbers = _listed(name, values, count)
    if not all(type(number) is int for number in numbers):
        raise ValueError(f"{name} holds something other than whole numbers")
    return np.array(numbers, dtype=np.int64)


def _frontier_of(content: Mapping[str, Any], radius: IntArray, status: Sequence[str]) -> Frontier | None:
    """The radii by how far the input may move; the first are those of the certificate."""
    if "frontier" not in content:
        if content.keys() & set(_MOVED):
            raise ValueError("it says how far inputs move, and no radii for that")
        return None
    rows = _listed("frontier", content["frontier"])
    if not all(isinstance(row, dict) and row.keys() == {"input_change", "radius", "status"} for row in rows):
        raise ValueError("frontier holds something else than input_change, radius and status")
    said = [*(row["input_change"] for row in rows), content["input_change"]]
    if not all(type(each) in (int, float) for each in said):
        raise ValueError("an input_change is no number")
    changes = tuple(float(each) for each in said[:-1])
    radii = np.stack([_whole_numbers("frontier", row["radius"], len(radius)) for row in rows])
    statuses = [[Status(name).value for name in _listed("frontier", row["status"], len(radius))] for row in rows]
    if changes[0] != content["input_change"] or (radii[0] != radius).any() or statuses[0] != list(status):
        raise ValueError("the first of frontier is not what the certificate claims")
    return Frontier(changes, content["input_change_of"], radii, np.array(statuses))


def _names_of(names: Sequence[Any], label: IntArray) -> list[Any]:
    """What each label is called; None for what is no label, which only a forger claims."""
    return [names[each] if 0 <= each < len(names) else None for each in label.tolist()]


def _check_class_names(votes: Votes, label: IntArray, said: Any) -> None:
    """Require that labels are called what the votes call them: whoever reads the names reads no other claim."""
    names = votes.class_names
    expected = None if names is None else _names_of(names, label)
    if json.dumps(said) != json.dumps(expected):  # where 1 is not True
        raise ValueError("class does not hold the names of the labels")


def _checked_time(said: Any) -> str:
    if not isinstance(said, str) or datetime.strptime(said, _TIME).strftime(_TIME) != said:
        raise ValueError(f"issued is no time such as 2000-01-31T23:59:59Z: {said!r:.80}")
    return said


# --- numbers ----------------------------------------------------------------------------------------------------------


def _checked_radii(radii: npt.ArrayLike) -> IntArray:
    shown = np.atleast_1d(np.asarray(radii))
    if not (shown >= 0).all():
        raise ConfigError(f"Expected radii of 0 or more, got {shown.tolist()}.")
    return shown


def _keyed(radii: Iterable[int], shares: FloatArray) -> dict[str, float]:
    return {str(radius): float(share) for radius, share in zip(radii, shares, strict=True)}


def _shares(correct: BoolArray, radius: IntArray, radii: IntArray) -> FloatArray:
    return np.array([np.mean(correct & (radius >= each)) for each in radii])


def _check_table(name: str, value: Any, kind: Any) -> None:
    """Require names with values of one kind, as a certificate writes them."""
    if not isinstance(value, dict) or not all(isinstance(each, kind) for each in value.values()):  # pyright: ignore[reportUnknownVariableType,reportUnknownMemberType]
        raise ValueError(f"{name} is not what it should be")


def _check_confidence(votes: Votes, rule: Any, on: str, bounds: str, failure_prob: Any) -> None:
    """Require bounds that fit the rule, and a probability that fits the bounds."""
    kinds = ((ExactRule, Deterministic), (DrawnRule, Drawn))
    if any(isinstance(rule, kind) != isinstance(votes.mechanism, ran) for kind, ran in kinds):
        raise ValueError(f"the rule {rule.name} does not fit the mechanism {type(votes.mechanism).__name__}")
    if isinstance(rule, ExactRule):
        _validate.one_of((EXACT,), bounds=bounds)
        _validate.number_in(0, 0, failure_prob=failure_prob)
        return
    known = (QUANTILE,) if isinstance(rule, DrawnRule) else VOTE_BOUNDS if on == "votes" else SCORE_BOUNDS
    _validate.one_of(known, bounds=bounds)
    _validate.number_in(0, 1, low_open=True, high_open=True, failure_prob=failure_prob)


# --- its curve --------------------------------------------------------------------------------------------------------

_BAND = 0.95


@dataclass(frozen=True, eq=False)
class Curve:
    """How many points are certified, and how many of them are correct, at every radius.

    The counts change at the distinct radii only: at any radius r they are those of the first entry at or above r, and
    0 beyond the last.

    Attributes:
        radius: distinct certified radii, ascending.
        certified: points with at least that radius.
        right: those among them whose label is the true one; None where true labels are unknown.
        total: all points.
    """

    radius: IntArray
    certified: IntArray
    right: IntArray | None
    total: int

    @classmethod
    def of(cls, certificate: Certificate) -> Curve:
        """The curve of one certificate; true labels are those of its votes."""
        distinct = np.unique(certificate.radius[certificate.radius >= 0])
        correct = is_correct(certificate)
        return cls(
            distinct,
            _at_least(certificate.radius, distinct),
            None if correct is None else _at_least(certificate.radius[correct], distinct),
            len(certificate.radius),
        )

    @property
    def shown(self) -> IntArray:
        """What is drawn: correct and certified where that is known, else certified."""
        return self.certified if self.right is None else self.right

    def at(self, counts: IntArray, radii: npt.ArrayLike) -> IntArray:
        """Counts of this curve at any radii of 0 or more."""
        return np.append(counts, 0)[np.searchsorted(self.radius, np.asarray(radii))]

    def band(self) -> tuple[FloatArray, FloatArray]:
        """Clopper-Pearson interval for the share that is drawn, at each distinct radius by itself.

        Guarantee: were the points drawn independently from some source, each interval would hold the share in that
        source with probability at least 95%. It says nothing about the certificates themselves.
        """
        tail = (1 - _BAND) / 2
        return (
            clopper_pearson_lower(self.shown, self.total, tail),
            clopper_pearson_upper(self.shown, self.total, tail),
        )


def is_correct(certificate: Certificate) -> BoolArray | None:
    """Which labels are correct; None where true labels are unknown."""
    return None if certificate.votes.labels is None else certificate.label == certificate.votes.labels


def round_ticks(limit: float, parts: int = 6) -> list[int]:
    """Zero and about `parts` round whole numbers up to a limit of 0 or more, for a table or an axis.

    >>> round_ticks(215)
    [0, 50, 100, 150, 200]
    >>> round_ticks(3)
    [0, 1, 2, 3]
    """
    rough = max(limit / parts, 1.0)
    magnitude = 10 ** int(np.log10(rough))
    step = next(int(m * magnitude) for m in (1, 2, 2.5, 5, 10) if m * magnitude >= rough and (m * magnitude) % 1 == 0)
    return list(range(0, int(limit) + 1, step))


def _at_least(radius: IntArray, thresholds: IntArray) -> IntArray:
    return len(radius) - np.searchsorted(np.sort(radius), thresholds)


# --- how sure its claims are ------------------------------------------------------------------------------------------

# Below this, a confidence in per cent would be a row of nines.
_TINY = 1e-6


def guaranteed_failure_prob(certificate: Certificate) -> float | None:
    """The probability with which a claim may fail, as far as the bounds guarantee it; None where they do not."""
    if certificate.bounds == "pointwise":
        return None
    factor = 1 + 2 / certificate.votes.classes if certificate.bounds == "simuem" else 1.0
    probability = factor * certificate.failure_prob
    return probability if probability < 1 else None


def is_guarantee(certificate: Certificate) -> bool:
    """Whether the rule is valid and the confidence is guaranteed, given what is assumed."""
    return certificate.method.is_sound and guaranteed_failure_prob(certificate) is not None


def confidence(certificate: Certificate) -> str:
    """How sure the claims are, as a clause that promises no more than the bounds do."""
    if isinstance(certificate.method, ExactRule):
        one = len(certificate.radius) == 1
        return f"{'this claim is' if one else 'these claims are'} certain, given what is assumed"
    probability = guaranteed_failure_prob(certificate)
    if probability is None:
        nominal = percent_confidence(certificate.failure_prob)
        return f"the confidence of {nominal}% is nominal and not guaranteed"
    if len(certificate.radius) == 1:
        holds, fails = "this claim holds", "this claim fails"
    elif certificate.scope is Scope.ALL:
        holds, fails = "all of these claims together hold", "any of these claims fails"
    else:
        holds, fails = "each of these claims holds", "each of these claims fails"
    when = ", whenever one stops adding instances" if certificate.bounds == ANYTIME else ""
    if probability < _TINY:
        return f"{fails} with probability at most {float(_rounded_up(probability, 2)):g}{when}"
    return f"{holds} with {percent_confidence(probability)}% confidence{when}"


def percent_confidence(failure_prob: float) -> str:
    """One minus a failure probability in per cent, never rounded up.

    >>> percent_confidence(1e-3), percent_confidence(0.05), percent_confidence(1 / 3)
    ('99.9', '95', '66.6')
    """
    return f"{100 - _rounded_up(failure_prob, 3) * 100:f}".rstrip("0").rstrip(".")


def _rounded_up(number: float, digits: int) -> Decimal:
    return Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(number))


def cautions(certificate: Certificate) -> list[str]:
    """Why a certificate is no guarantee, or a lesser one than it seems; empty for sound choices."""
    sentences: list[str] = []
    if not certificate.method.is_sound:
        sentences.append(
            f"These radii follow the paper's rule for groups, which is {certificate.method.flaw}: do not rely on them. "
            "Certify with --method fdp for a guarantee."
        )
    if certificate.bounds == "pointwise":
        sentences.append(
            "Pointwise bounds ignore that the label was picked from the same votes: the confidence is nominal. "
            "Certify with --bounds winner for a guarantee."
        )
    if certificate.bounds == "simuem":
        sentences.append(
            "With simuem bounds a claim may fail with up to (1 + 2 / classes) times the stated probability, which is "
            "counted in the confidence here. --bounds winner has no such factor."
        )
    return sentences


# --- what else its votes could show -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Advice:
    """What other methods certify from the same votes, and what more instances could.

    Attributes:
        others: the same votes and the same claim, certified by other methods.
        left_out: methods that could not be compared, and why, a sentence each.
        unanimous: the radius of a prediction on which all of so many instances agree, by their number; None where it
            is too large to search for. Only numbers that are worth a word are there, in ascending order.
    """

    others: tuple[Certificate, ...] = ()
    left_out: tuple[str, ...] = ()
    unanimous: Mapping[int, int | None] = field(default_factory=dict[int, int | None])
