"""Kernel vote: every training example votes, with a weight that falls with its distance from the input."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from mithridate import _validate
from mithridate._io.scratch import scratch
from mithridate.certifying.exact import IntArray, chunks, evidence_of, leads, mechanism_of, most_within, winners
from mithridate.core.conditions import Statement, tuned_constants
from mithridate.core.mechanism import SEARCH_LIMIT, Deterministic, Threat, Voters
from mithridate.core.rule import Decision, ExactRule, Rule, Weighted
from mithridate.core.units import EXAMPLES, UnitWords
from mithridate.core.votes import Votes
from mithridate.defences._kernel_sums import FULL_WEIGHT, STEP, Done, WeighedUnits, Weighing
from mithridate.defences._moves import BINS, LENGTHS, OF_KERNELS, farthest_products, lengths_of
from mithridate.defences._near import NearDefence
from mithridate.defences._nearness import StoredExamples, check_may_move, chunks_of, require_moving, votes_of
from mithridate.defences._places import HERE, Comparing
from mithridate.defences._whole_rows import LARGEST_PRODUCT, FloatArray
from mithridate.defences.base import Option
from mithridate.defences.registry import register
from mithridate.errors import ConfigError
from mithridate.features import Encoder, HashedWords, OrientedGradients, PhotoGradients
from mithridate.training.order import Facts, Progress

_TABLE_END = LARGEST_PRODUCT // STEP
# Steps of a bin, and bins of all steps: 1/256 of the cosine is a bin.
STEPS_OF_BIN = 1 << 8
BINS_OF_STEPS = 2 * _TABLE_END // STEPS_OF_BIN + 1
# How many inputs examples are weighed for in one go through all of them. It bounds memory and cannot change a result.
_INPUTS = 1 << 16


@dataclass(frozen=True)
class KernelSum(Deterministic):
    """Every training example votes for its label with a weight that is a function of the input and of itself.

    Weights are whole numbers from 0 to `full_weight`, so that sums are exact in any order. The score of a label is the
    sum of the weights of its examples, and `Votes.counts` holds the scores.

    Where units are declared (`Votes.unit`), the voices of units are meant wherever examples are spoken of: of each unit
    the example that is nearest to the input, which is a function of the input and of that unit.

    Args:
        full_weight: the largest weight, at least 1.
        thresholds: for inputs that move: the weight is the number of these whole numbers that the product of the rows
            of input and example, divided by 256 and rounded toward 0, is not below; one for each weight, ascending.
            None: what the weight is a function of is not said.
    """

    type = "kernel-sum"
    rule = "kernel-vote"
    counts_voters = False
    words = Voters(
        "",
        "{many_in_full}, each by its weight",
        "one {one} can weigh as much as the label is ahead. Use a wider kernel, so that more {many} count, or "
        "features that bring examples of a class closer together.",
        share="weight for the label",
    )

    full_weight: int
    thresholds: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        _validate.positive_integer(full_weight=self.full_weight)
        object.__setattr__(self, "full_weight", int(self.full_weight))
        if self.thresholds is not None:
            object.__setattr__(self, "thresholds", _checked_thresholds(self.thresholds, self.full_weight))

    def to_dict(self) -> dict[str, Any]:
        """The mechanism as plain JSON values."""
        said = {} if self.thresholds is None else {"thresholds": list(self.thresholds)}
        return {"type": self.type, "full_weight": self.full_weight, **said}

    def in_words(self, counted: UnitWords = EXAMPLES) -> str:
        """What it does with the training data, with its constants."""
        voice = " as its nearest example does" if counted.are_named else ""
        voter = f"every {counted.one_in_full} votes{voice}"
        return f"{voter} for its label with a weight from 0 to {self.full_weight:,}"


def _checked_thresholds(thresholds: Any, full_weight: int) -> tuple[int, ...]:
    numbers = np.asarray(thresholds)
    if numbers.shape != (full_weight,) or numbers.dtype.kind not in "iu" or (np.diff(numbers) < 0).any():
        raise ConfigError(f"Expected thresholds as {full_weight:,} whole numbers in ascending order.")
    if numbers[0] < -_TABLE_END or numbers[-1] > _TABLE_END + 1:
        raise ConfigError(f"Expected thresholds from {-_TABLE_END:,} to {_TABLE_END + 1:,}.")
    return tuple(numbers.tolist())


# --- kernels --------------------------------------------------------------------------------------------------------


class Kernel(Protocol):
    """A function of the cosine between the features of an input and of an example, with values from 0 to 1.

    It must be fixed before anyone looks at the training set. Write your own with these two methods.
    """

    def __call__(self, cosine: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        """The values at these cosines, each from 0 to 1."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """The kernel as plain JSON values."""
        ...


@dataclass(frozen=True)
class Exponential:
    """1 where the cosine is at least `full`; below, a factor of e less for every `width`.

    An attacker's example weighs up to 1, so a kernel certifies much where it gives the honest examples of a class
    nearly that, and this is what `full` is for: about the cosine between examples of one class. With oriented gradients
    that is 0.8 for digits and clothes, and 0.4 for photographs (0.5 with photo gradients). With `full` = 1, only copies
    of the input weigh 1.

    Args:
        width: how far the cosine falls for a factor of e, above 0.
        full: the cosine from which on the weight is 1, in [-1, 1].

    >>> Exponential(width=0.2)(np.array([1.0, 0.8])).round(3).tolist()
    [1.0, 0.368]
    """

    width: float
    full: float = 1.0

    def __post_init__(self) -> None:
        _validate.number_in(0, math.inf, low_open=True, width=self.width)
        _validate.number_in(-1, 1, full=self.full)
        object.__setattr__(self, "width", float(self.width))
        object.__setattr__(self, "full", float(self.full))

    def __call__(self, cosine: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        """The values at these cosines."""
        with np.errstate(over="ignore", under="ignore"):  # a tiny width
            return np.exp(np.minimum(cosine - self.full, 0.0) / self.width)

    def to_dict(self) -> dict[str, Any]:
        """The kernel as plain JSON values."""
        return {"name": "exponential", "width": self.width, "full": self.full}


@dataclass(frozen=True)
class Within:
    """1 where the cosine is at least `cosine`, else 0: the examples within a distance vote (radius neighbours, rNN).

    References:
        J. Jia, Y. Liu, X. Cao, N. Z. Gong, 2022, "Certified robustness of nearest neighbors against data poisoning and
        backdoor attacks".

    Args:
        cosine: the least cosine of an example that votes, in [-1, 1].

    >>> Within(cosine=0.7)(np.array([0.9, 0.5])).tolist()
    [1.0, 0.0]
    """

    cosine: float

    def __post_init__(self) -> None:
        _validate.number_in(-1, 1, cosine=self.cosine)
        object.__setattr__(self, "cosine", float(self.cosine))

    def __call__(self, cosine: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        """The values at these cosines."""
        return (cosine >= self.cosine).astype(np.float64)

    def to_dict(self) -> dict[str, Any]:
        """The kernel as plain JSON values."""
        return {"name": "within", "cosine": self.cosine}


_KERNELS: dict[str, Callable[..., Kernel]] = {"exponential": Exponential, "within": Within}


def kernel_from_dict(values: Mapping[str, Any]) -> Kernel:
    """Read back what `to_dict` of a kernel wrote.

    Raises:
        ConfigError: it is not one of these.
    """
    options = {name: value for name, value in values.items() if name != "name"}
    if values.get("name") not in _KERNELS:
        raise ConfigError(f"The kernel {dict(values)!r} is one of the user's own, which no file can hold.")
    return _KERNELS[str(values["name"])](**options)


# Chosen on held-out parts of the training sets of MNIST and Fashion-MNIST (drawings, with oriented gradients) and of
# CIFAR-10 (in colour, with oriented gradients; photographs, with photo gradients); public constants now. For other
# inputs nothing was tuned.
_DRAWINGS, _IN_COLOUR = Exponential(width=0.03, full=0.75), Exponential(width=0.06, full=0.4)
_PHOTOGRAPHS = Exponential(width=0.06, full=0.5)
_OTHERS = Exponential(width=0.1, full=0.8)
# Two texts have few words in common; chosen on five sets of texts that `HashedWords` names.
_WORDS = Exponential(width=0.02, full=0.2)


def _default_kernel(encoder: Encoder, channels: int) -> Kernel:
    if not isinstance(encoder, OrientedGradients):
        return _WORDS if isinstance(encoder, HashedWords) else _OTHERS
    if channels != 3:
        return _DRAWINGS
    return _PHOTOGRAPHS if isinstance(encoder, PhotoGradients) else _IN_COLOUR


def _about_kernel(examples: StoredExamples) -> tuple[Statement, ...]:
    """What the default kernel was tuned on."""
    if not isinstance(examples.encoder, OrientedGradients | HashedWords):
        return ()
    of_images, values = ("MNIST", "Fashion-MNIST", "CIFAR-10"), math.prod(examples.preparation.shape)
    looked_at = examples.encoder.tuned_on if isinstance(examples.encoder, HashedWords) else of_images
    return (tuned_constants("The constants of the kernel", looked_at, values, examples.classes),)


# --- votes ---------------------------------------------------------------------------------------------------------


def kernel_votes(
    examples: StoredExamples,
    test_set: Any,
    *,
    kernel: Kernel | None = None,
    mirrored: bool = False,
    moving_inputs: bool = False,
    own: bool = True,
    class_weights: Sequence[int] | None = None,
    progress: Progress | None = None,
    place: Comparing = HERE,
) -> Votes:
    """Scores of labels: each training example adds to its label what the kernel makes of its cosine to the input.

    Guarantee: `counts[x, l]` is the sum over the examples of label l of their weights on input x. A weight is a whole
    number from 0 to `FULL_WEIGHT` and a function of the input and that one example (its features), bit for bit,
    whatever the other examples and inputs are and in whatever order they come; sums are exact. Where units are
    declared, the examples that count are one of each unit: the nearest to x, of equally near ones the one whose content
    (rounded features and label) has the smallest BLAKE2b hash.

    Assumes: features and kernel were fixed before anyone looked at the training set, and what `votes.assumptions`
    lists.

    Args:
        examples: those that vote; rows have norm 1, and a row of zeros has the cosine 0 to all.
        test_set: inputs to vote on, or a pair with their true labels.
        kernel: by default one for these features; a function of the cosine with values from 0 to 1, multiplied by
            `FULL_WEIGHT` and rounded. The cosine is that of rows rounded to multiples of about 1/4096, and then rounded
            toward 0 to a multiple of about 1/65536: a copy of the input can have a cosine slightly below 1.
        mirrored: for images [n, H, W] or [n, channels, H, W]: an example is as near as it is to the input or to its
            mirror image, left and right exchanged, whichever is nearer.
        moving_inputs: keep what certificates of inputs that move need, too: by label, how many examples have products
            in each of some five hundred bins. The kernel must not fall where the cosine rises.
        own: also count by weight the examples of the predicted label, `evidence["own"]`, which threats without
            insertions need.
        class_weights: by which the predicted label is the one with the largest weight x score.
        progress: called with the number of inputs that are done and their total.
        place: where inputs and examples are compared.

    Raises:
        ConfigError: an argument or the data is not what it should be.
    """
    if moving_inputs:
        check_may_move(examples, mirrored=mirrored)
    inputs = examples.asked(test_set, mirrored=mirrored)
    statements = examples.statements
    if kernel is None:
        kernel = _default_kernel(examples.encoder, examples.preparation.channels)
        statements = (*statements, *_about_kernel(examples))
    rule = KernelRule(class_weights=None if class_weights is None else tuple(class_weights))
    table = _table(kernel, examples.scale)
    scores = np.zeros((len(inputs), examples.classes), dtype=np.int64)
    histograms = scratch((len(inputs), FULL_WEIGHT + 1), np.uint32) if own else None
    mechanism = KernelSum(FULL_WEIGHT, _thresholds(table, kernel) if moving_inputs else None)
    bins = scratch((len(inputs), examples.classes, BINS_OF_STEPS), np.uint32) if moving_inputs else None
    passes = 1 + (1 if own else 0) + (examples.classes if moving_inputs else 0)
    units = _weighed_units(examples)
    for part in chunks_of(len(inputs), _INPUTS, None):
        views, done = inputs.part(part), _told(progress, part, len(inputs), passes)
        asked = Weighing(table, views, examples.rows, examples.labels, units)
        scores[part] = place.label_sums(asked, examples.classes, done)
        if histograms is not None:
            predicted = winners(rule.weighed(scores[part]))
            histograms[part] = place.own_weights(asked, predicted, done)
        for label in range(examples.classes if bins is not None else 0):
            assert bins is not None
            # Bins take the place of weights, and every label that of the one that is predicted.
            everywhere, in_bins = np.full(asked.inputs, label), replace(asked, table=_bin_table())
            bins[part, label] = place.own_weights(in_bins, everywhere, done)[:, :BINS_OF_STEPS]
    evidence = {} if histograms is None else {"own": histograms}
    recipe = {"method": "kernel-vote", **examples.recipe(mirrored=mirrored), "kernel": kernel.to_dict()}
    if bins is not None:
        evidence |= {BINS: bins, LENGTHS: lengths_of(inputs.views[0], examples.rows, examples.scale)}
        recipe["moving_inputs"] = True
    return votes_of(replace(examples, statements=statements), inputs, scores, mechanism, recipe, evidence)


def _weighed_units(examples: StoredExamples) -> WeighedUnits | None:
    if examples.starts is None:
        return None
    return WeighedUnits.of(examples.starts, examples.ranks, examples.labels)


# --- kernel sums ----------------------------------------------------------------------------------------------------


def _table(kernel: Kernel, scale: int) -> FloatArray:
    """Weights by dot product, divided by `STEP` and rounded toward 0; negative ones count from the end."""
    cosine = np.clip(_steps() * (STEP / scale**2), -1.0, 1.0).astype(np.float64)
    values = np.asarray(kernel(cosine), dtype=np.float64)
    if values.shape != cosine.shape or not ((values >= 0) & (values <= 1)).all():
        raise ConfigError(f"Expected a kernel with a value from 0 to 1 at every cosine, got others from {kernel!r}.")
    return np.rint(FULL_WEIGHT * values).astype(np.float32)


def _steps() -> IntArray:
    """Products divided by `STEP` and rounded toward 0, in the order of a table; negative ones count from the end."""
    return np.concatenate([np.arange(_TABLE_END + 1), np.arange(-_TABLE_END, 0)])


def _bin_table() -> FloatArray:
    """The bin of a product, by its step."""
    return ((_steps() + _TABLE_END) // STEPS_OF_BIN).astype(np.float32)


def _thresholds(table: FloatArray, kernel: Kernel) -> tuple[int, ...]:
    """The first step of each weight from 1 on; one beyond all where there is none.

    Raises:
        ConfigError: the weight falls somewhere.
    """
    weights = np.roll(table, _TABLE_END).astype(np.int64)  # from the smallest product to the largest
    if (np.diff(weights) < 0).any():
        raise ConfigError(
            f"The kernel {kernel!r} falls where the cosine rises, and nothing is proved of it for inputs that move; "
            "leave moving_inputs out."
        )
    first = np.searchsorted(weights, np.arange(1, FULL_WEIGHT + 1)) - _TABLE_END
    return tuple(first.tolist())


def _told(progress: Progress | None, part: slice, total: int, passes: int) -> Done:
    """What is told after each block of examples, of all that some inputs are compared with in some passes."""
    seen = 0

    def done(examples: int, of: int) -> None:
        nonlocal seen
        seen += examples
        if progress is not None:
            progress(part.start + (part.stop - part.start) * seen // (passes * of), total)

    return done


# --- rule ---------------------------------------------------------------------------------------------------------


_KERNEL_OPTIONS = {
    "width": Option("kernel-vote: how far the cosine falls for a factor of e in weight", float, "W"),
    "full": Option("kernel-vote: the cosine from which on an example has the full weight", float, "COSINE"),
    "cosine": Option("kernel-vote: all examples within this cosine weigh the same, others nothing", float, "COSINE"),
}


@dataclass(frozen=True)
class KernelRule(Weighted, ExactRule):
    """Every training example votes for its label by its weight; the label with the largest score wins.

    Where labels have weights, too, the largest product of score and label weight wins.

    Reads, for the threats that delete examples and for those that change them, and with label weights for the symmetric
    difference, the evidence `own`, examples x
    (full_weight + 1): how many training examples of the predicted label have each weight from 0 to `full_weight`.

    Guarantee: the prediction stays the same whatever `radius` units of the threat change. No larger radius can be shown
    where an example of any label can have the weight `full_weight`, as one has that equals the input; for `LABELS` and
    `FEATURES`, which change weights less freely, a larger radius may hold.

    Assumes: nothing beyond `KernelSum`. Without any example the label is 0.

    An insertion takes at most the full weight f from the lead over a rival; a deletion takes the weight of one of the
    label's own, no more than an insertion. With w_1 >= w_2 >= ... the weights of the label's examples, r units of the
    threat take at most

        ADD, SYMMETRIC_DIFFERENCE          r f
        REMOVE                             w_1 + ... + w_r
        REPLACE, EDIT, LABELS, FEATURES    r f + w_1 + ... + w_r

    whichever the rival, so the one with the smallest lead decides: r is safe where this is at most its lead.

    With weights v of the labels, the lead of a over c is v_a score_a - v_c score_c - [c < a]. An insertion takes at
    most v_c f from it, the deletion of an example of a, of weight w_j, v_a w_j, and both can be done without regard to
    each other. So r units take at most

        ADD                                r v_c f
        REMOVE                             v_a (w_1 + ... + w_r)
        SYMMETRIC_DIFFERENCE               max(v_a w_1, v_c f) + ... + max(v_a w_r, v_c f)
        REPLACE, EDIT, LABELS, FEATURES    r v_c f + v_a (w_1 + ... + w_r)

    for the third line: of r changes those j should be deletions, the heaviest first, that cost more than insertions.
    Every rival is looked at by itself.

    References: the threshold on sums of Jia, Liu, Cao, Gong 2022 (arXiv 2012.03765), with weights.
    """

    name = "kernel-vote"
    title = "kernel vote"

    def reads(self, threat: Threat) -> tuple[str, ...]:
        """The weights of the label's own examples, where they may be deleted and are not outweighed by insertions."""
        unneeded = (Threat.ADD,) if self._differ else (Threat.ADD, Threat.SYMMETRIC_DIFFERENCE)
        return () if threat in unneeded else ("own",)

    @property
    def _differ(self) -> bool:
        return self.class_weights is not None and len(set(self.class_weights)) > 1

    def decide(self, votes: Votes, threat: Threat) -> Decision:
        """The prediction on every example, and its radius."""
        full = mechanism_of(votes, KernelSum, self).full_weight
        scores, by_label = self.weighed(votes.counts), self.weights(votes.classes)
        label = winners(scores)
        lead = leads(scores, label)
        if not self.reads(threat):
            return Decision(label, np.minimum((lead // (full * by_label)).min(axis=1), SEARCH_LIMIT))
        own = evidence_of(votes, "own", self, (full + 1,))
        weights = np.arange(full, -1, -1)
        radius = np.full(votes.examples, SEARCH_LIMIT, dtype=np.int64)
        for rows in chunks(votes.examples, full + 1):
            numbers = own[rows, ::-1].astype(np.int64)
            _check_own(numbers, weights, np.take_along_axis(votes.counts[rows], label[rows, None], axis=1)[:, 0])
            radius[rows] = _withstood(label[rows], lead[rows], numbers, by_label, threat)
        return Decision(label, radius)

    def reads_moved(self, threat: Threat) -> tuple[str, ...]:
        """How many examples of each label have products in each bin."""
        return OF_KERNELS

    def decide_moved(self, votes: Votes, threat: Threat, change: float) -> Decision:
        """The prediction on every example, and its radius where the features of the input may move, too.

        Guarantee: the prediction stays the same whatever `radius` units of the threat change, together with any change
        of the features of the input, scaled to norm 1, whose Euclidean length is at most `change`. No larger radius can
        be shown in the relaxation in which every product moves by itself, but for the width of the bins, and for what
        `decide` says.

        Proof. By `_moves`, with t = 0, every product with the input moves by B R at most, so that it moves by at most
        h = ceil(B R / 256) steps: rounding toward 0 keeps the order, and rounds what differs by a whole number to what
        differs by no more. The weight rises with the step. So an example in a bin of steps from `first` to `last`
        weighs from w(first - h) to w(last + h), whatever the input has become and whatever else D' holds. At worst
        every example of the label a weighs the least and all others the most, at the same time; these are other weights
        and scores of the same examples, of which the proof of `KernelRule` speaks.
        """
        decision = self.decide(votes, threat)
        if change == 0:
            return decision
        mechanism = mechanism_of(votes, KernelSum, self)
        bins, lengths, thresholds = _moved_evidence(votes, mechanism, self)
        steps = np.ceil(farthest_products(lengths, change) / STEP).astype(np.int64)
        first = np.arange(BINS_OF_STEPS) * STEPS_OF_BIN - _TABLE_END
        by_label, radius = self.weights(votes.classes), np.empty(votes.examples, dtype=np.int64)
        for row in range(votes.examples):
            label, counts = decision.label[row : row + 1], bins[row].astype(np.int64)
            least = np.searchsorted(thresholds, first - steps[row], side="right")
            most = np.searchsorted(thresholds, first + STEPS_OF_BIN - 1 + steps[row], side="right")
            scores = counts @ most
            scores[label] = counts[label] @ least
            lead = leads(self.weighed(scores[None, :]), label)
            numbers = np.zeros((1, mechanism.full_weight + 1), dtype=np.int64)
            np.add.at(numbers[0], mechanism.full_weight - least, counts[label[0]])
            radius[row] = _withstood(label, lead, numbers, by_label, threat)[0]
        return Decision(decision.label, radius)


def _moved_evidence(votes: Votes, mechanism: KernelSum, rule: KernelRule) -> tuple[Any, IntArray, IntArray]:
    """Numbers of examples by label and bin, lengths of rows, and the thresholds of weights, checked.

    Raises:
        ConfigError: the votes do not carry them, or they contradict the votes.
    """
    require_moving(votes, OF_KERNELS)
    if mechanism.thresholds is None:
        raise ConfigError("These votes do not say what weights are a function of; train again with --moving-inputs.")
    bins = evidence_of(votes, BINS, rule, (votes.classes, BINS_OF_STEPS))
    lengths = evidence_of(votes, LENGTHS, rule, (4,)).astype(np.int64)
    thresholds, first = np.array(mechanism.thresholds), np.arange(BINS_OF_STEPS) * STEPS_OF_BIN - _TABLE_END
    ends = (np.searchsorted(thresholds, each, side="right") for each in (first, first + STEPS_OF_BIN - 1))
    least, most = (np.stack([row.astype(np.int64) @ end for row in bins]) for end in ends)
    if (votes.counts < least).any() or (votes.counts > most).any():
        raise ConfigError(f"The evidence {BINS!r} does not add up to the scores; train again.")
    return bins, lengths, thresholds


def _withstood(label: IntArray, lead: IntArray, numbers: IntArray, by_label: IntArray, threat: Threat) -> IntArray:
    """The largest radius that is safe, -1 where a lead is negative.

    Args:
        label: the prediction on each example.
        lead: over every rival.
        numbers: how many examples of the label have each weight, from the largest to 0; it is written to.
        by_label: what the weights of each label count.
        threat: how the training data may have been changed.
    """
    full = numbers.shape[1] - 1
    weights, radius = np.arange(full, -1, -1), np.full(len(label), SEARCH_LIMIT, dtype=np.int64)
    # When all examples of the label are gone, a deletion takes nothing, like that of an example of weight 0.
    numbers[:, -1] = SEARCH_LIMIT
    for mine, rival, budget in _by_weights(label, lead, by_label):
        costs = _costs(weights * by_label[label[mine[0]]], full * rival, threat)
        found = np.where(budget < 0, -1, most_within(np.maximum(budget, 0), costs, numbers[mine]))
        radius[mine] = np.minimum(radius[mine], found)
    return radius


def _by_weights(label: IntArray, lead: IntArray, weights: IntArray) -> Iterator[tuple[IntArray, int, IntArray]]:
    """Examples whose label has a weight, the weight of a rival, and the smallest lead over rivals of that weight."""
    for own in np.unique(weights[label]):
        mine = np.flatnonzero(weights[label] == own)
        for rival in np.unique(weights):
            # The label is no rival of its own: its lead is the largest number.
            yield mine, int(rival), lead[mine][:, weights == rival].min(axis=1)


def _costs(deletions: IntArray, insertion: int, threat: Threat) -> IntArray:
    """What one unit of the threat takes from a lead, by the example of the label that may be deleted."""
    match threat:
        case Threat.ADD:
            return np.full_like(deletions, insertion)
        case Threat.REMOVE:
            return deletions
        case Threat.SYMMETRIC_DIFFERENCE:
            return np.maximum(deletions, insertion)
        case _:
            return deletions + insertion


def _check_own(numbers: IntArray, weights: IntArray, scores: IntArray) -> None:
    # In floating point first: only where that is near the score, whole numbers cannot overflow.
    near = numbers.astype(np.float64) @ weights.astype(np.float64) <= 2.0**54
    if not near.all() or (numbers @ weights != scores).any():
        raise ConfigError("The evidence 'own' does not add up to the scores of the predicted labels; train again.")


@register
@dataclass(frozen=True, kw_only=True)
class KernelVote(NearDefence):
    """Every example votes, with a weight that falls with its distance from the input.

    Guarantee: that of `Certificate`, without any probability of failure: an insertion adds at most one full weight to
    one label, a deletion removes at most the weight of the example.

    Args:
        kernel: a function of the cosine of two rows of features, from 0 to 1, such as `Exponential(0.1)`. By default
            that of the features.
    """

    name = "kernel-vote"
    summary = "Every training example votes, with a weight that falls with its distance; nothing is trained."
    mechanisms = (KernelSum,)
    weighs_votes = True

    kernel: Kernel | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel is not None and not (callable(self.kernel) and hasattr(self.kernel, "to_dict")):
            raise ConfigError(
                f"Expected kernel to be a function of cosines that has a to_dict, such as Exponential(0.1), got "
                f"{self.kernel!r}."
            )

    @classmethod
    def options(cls) -> dict[str, Option]:
        """Its constants, with those of a kernel in its place."""
        return {**super().options(), **_KERNEL_OPTIONS}

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """A kernel vote whose kernel is named by its constants."""
        others = {name: value for name, value in options.items() if name not in _KERNEL_OPTIONS}
        chosen = {name: value for name, value in options.items() if name in _KERNEL_OPTIONS}
        if "cosine" in chosen and len(chosen) > 1:
            raise ConfigError("cosine (all examples within it weigh the same) excludes width and full; give one kind.")
        if not chosen:
            return cls(**others)
        kernel = Within(**chosen) if "cosine" in chosen else Exponential(**{"width": 0.1, **chosen})
        return cls(kernel=kernel, **others)

    @classmethod
    def from_record(cls, values: dict[str, Any]) -> Self:
        """With the kernel that a run recorded.

        Raises:
            ConfigError: it was one of the user's own.
        """
        said = values.pop("kernel", None)
        return cls(kernel=None if said is None else kernel_from_dict(said), **values)

    @property
    def title(self) -> str:
        """For a legend."""
        return "kernel vote"

    def decided(self, facts: Facts) -> dict[str, Any]:
        """Nothing follows the facts: the kernel is that of the features."""
        return {}

    def rule(self) -> Rule:
        """See `KernelRule`."""
        return KernelRule(class_weights=self.class_weights)

    def votes(
        self,
        examples: StoredExamples,
        test_set: Any,
        progress: Progress | None = None,
        place: Comparing = HERE,
    ) -> Votes:
        """How the examples vote on some inputs."""
        return kernel_votes(
            examples,
            test_set,
            kernel=self.kernel,
            mirrored=self.mirrored,
            moving_inputs=self.moving_inputs,
            class_weights=self.class_weights,
            progress=progress,
            place=place,
        )

    @property
    def training_key(self) -> dict[str, Any]:
        """With class weights: the votes show the examples of the label that is predicted."""
        return self.to_dict()
