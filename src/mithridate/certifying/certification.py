"""From votes to a certificate: confidence bounds, an accountant, and the search for the largest radius."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import scipy

from mithridate import _validate
from mithridate._version import VERSION
from mithridate.accounting import Accountant, Margins, Method
from mithridate.core.bounds import (
    ANYTIME,
    SCORE_BOUNDS,
    VOTE_BOUNDS,
    WEIGHED_BOUNDS,
    LabelBounds,
    bound_scores,
    bound_votes,
    bound_weighed_votes,
)
from mithridate.core.certificate import EXACT, QUANTILE, Certificate, Scope, Status
from mithridate.core.conditions import distinct
from mithridate.core.input_change import Frontier, checked_changes
from mithridate.core.mechanism import OF_UNITS, SEARCH_LIMIT, Deterministic, Threat
from mithridate.core.merging import not_first
from mithridate.core.rule import Decision, DrawnRule, ExactRule, Rule, Weighted, default_rule, rule_from_dict
from mithridate.core.votes import Votes
from mithridate.errors import ConfigError, MithridateError, NumericalError, UnsupportedMechanismError

IntArray = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]

# Radii above this are rounded down to multiples of the largest power of two that keeps 12 binary digits.
_EXACT_BITS = 12
_VERSIONS = {"mithridate": VERSION, "numpy": np.__version__, "scipy": scipy.__version__}
# Up to so many possible pairs of bounds, a table finds the distinct ones without sorting.
_FEW_PAIRS = 1 << 24


def certify(
    votes: Votes,
    *,
    method: Rule | None = None,
    threat: Threat | str | None = None,
    failure_prob: float = 1e-3,
    on: str = "votes",
    bounds: str | None = None,
    scope: Scope | str = Scope.PREDICTION,
    collective: Sequence[int] | None = None,
    input_change: float | Sequence[float] | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """Certify the majority label of every example, or the label with the largest mean score.

    Guarantee: that of `Certificate`. A radius is never larger than what was shown; it is the largest one that the
    method can show (above 4096, rounded down by less than half a per cent), but for the limit of `votes.size`.

    Assumes: the instances of a random mechanism are independent runs of `votes.mechanism`, with randomness that the
    attacker does not know; a deterministic one is the function that its docstring says.

    Args:
        votes: what the instances voted, and what each of them ran.
        method: for a private learner `FDP()` (default, the tightest), `RDP(...)` or `ADP(...)`; for the votes of
            another defence its own rule, which is the default.
        threat: how the data may have been changed; by default `symmetric-difference`, for votes of bagging and of
            smoothing what their authors certify against (`edit`, `labels`, `features`), and `edit` where units are
            declared.
        failure_prob: probability with which the claim may fail, over training, in (0, 1); a deterministic mechanism
            has none, and its certificates say 0.
        on: certify the majority of `votes`, or the mean of `scores`.
        bounds: for votes `winner` (default), `simultaneous`, `anytime`, `simuem` or `pointwise`; for scores `histogram`
            (default of f-DP where votes carry histograms), `empirical-bernstein` (default otherwise), `hoeffding` or
            `betting`. What `anytime` certifies holds for every number of instances at once, so instances may be added
            after a look.
        scope: whether `failure_prob` is about one `prediction` or about `all` of them at once.
        collective: radii of 1 or more at which to bound how many of the predictions change together, within one D'; for
            the votes of `dpa` and `finite-aggregation`. See `Certificate.collective`.
        input_change: how far the input may move, too, in Euclidean length, one or several; for votes that were cast on
            noisy inputs (`votes.input_noise`), and for those of neighbours and kernels. `radius` is for the smallest of
            them; `Certificate.frontier` has all.
        progress: called with the number of distinct examples done and their total.

    Raises:
        ConfigError: an argument is not what it should be.
        UnsupportedMechanismError: nothing is proved of all predictions together by this method.

    Edge cases:
        ============================  =====================================================
        two labels share the top      the smaller one is the label, status NOT_SEPARATED
        bounds overlap                radius -1, status NOT_SEPARATED
        the runner-up is too close    radius -1, status NOT_SEPARATED
        every radius holds            radius 2^20, status SEARCH_LIMIT
        a curve cannot be computed    the radius shown so far, status NUMERICAL
        `votes.size` ends it          the largest radius within the size step, status SIZE_LIMIT
        ============================  =====================================================

    >>> from mithridate import SampledGaussian, Votes
    >>> votes = Votes.from_counts([[1000, 0], [510, 490]], mechanism=SampledGaussian(3.0, 0.001, 1000))
    >>> certify(votes).status.tolist()
    ['certified', 'not_separated']
    """
    if not isinstance(votes, Votes):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"Expected votes to be Votes, got {type(votes).__name__}; see Votes.from_counts.")
    rule = own_rule(votes) if method is None else method
    threat = default_threat(votes) if threat is None else threat
    _validate.one_of(tuple(Threat), threat=threat)
    _validate.one_of(tuple(Scope), scope=scope)
    _validate.one_of(("votes", "scores"), on=on)
    _validate.number_in(0, 1, low_open=True, high_open=True, failure_prob=failure_prob)
    radii = _checked_collective(collective)
    changes = None if input_change is None else checked_changes(input_change)
    if isinstance(rule, ExactRule):
        if radii and changes:
            raise ConfigError("What holds of all predictions together is about fixed inputs; leave input_change out.")
        return _together(_decided(votes, rule, Threat(threat), changes, on=on, bounds=bounds), votes, radii)
    if not isinstance(rule, Method | DrawnRule):
        raise ConfigError(f"Expected method to be FDP(), RDP(...), ADP(...) or the rule of a defence, got {rule!r}.")
    if radii:
        raise UnsupportedMechanismError(
            f"The method {rule.name} certifies each prediction by itself; leave collective out, or train with dpa or "
            "finite-aggregation."
        )
    if isinstance(rule, DrawnRule):
        return _drawn(votes, rule, Threat(threat), failure_prob, changes, scope=Scope(scope), on=on, bounds=bounds)
    scope, kind = Scope(scope), default_bounds(on, votes, rule) if bounds is None else bounds
    options: dict[str, Any] = {"on": on, "bounds": kind, "scope": scope, "progress": progress}
    return bounded(votes, rule, Threat(threat), failure_prob, changes=changes, **options)


def default_threat(votes: Votes) -> Threat:
    """What is certified against where nobody says otherwise: with units, that they are inserted, deleted or changed."""
    return votes.mechanism.threat if votes.unit is None else OF_UNITS


def own_rule(votes: Votes) -> Rule:
    """The rule of the defence that voted, where the votes record it; else the usual one of their mechanism."""
    recorded: Any = (votes.recipe or {}).get("rule")
    if not isinstance(recorded, dict):
        return default_rule(votes.mechanism)
    return rule_from_dict(cast("dict[str, Any]", recorded))


def predicted(votes: Votes) -> IntArray:
    """The label that each example gets: what an exact rule decides, else that with most votes, ties to the smaller.

    Votes count by the class weights that they record.
    """
    try:
        rule = own_rule(votes)
        if isinstance(rule, ExactRule):
            return rule.decide(votes, default_threat(votes)).label
        return rule.weighed(votes.counts).argmax(axis=1)
    except MithridateError:  # a rule that needs what only the user knows, or votes of some models alone
        return votes.counts.argmax(axis=1)


class BeyondLimitError(Exception):
    """A radius beyond a limit would have to be tried."""


def bounded(
    votes: Votes,
    method: Method,
    threat: Threat,
    failure_prob: float,
    *,
    on: str,
    bounds: str,
    scope: Scope,
    changes: tuple[float, ...] | None = None,
    progress: Progress | None = None,
    farthest: int = SEARCH_LIMIT,
) -> Certificate:
    """The certificate of a random mechanism: bounds on the counts, then the largest radius at which they suffice.

    The same bounds serve every change of the input, so all radii of a prediction hold or fail together.

    Its arguments are those of `certify`, which checks them, and the largest radius that may be tried.

    Raises:
        BeyondLimitError: a larger one would have to be tried; some prediction is certified to at least half as much.
        UnsupportedMechanismError: the votes are no random draws.
        ConfigError: the bounds do not fit the votes.
    """
    if isinstance(votes.mechanism, Deterministic):
        raise UnsupportedMechanismError(
            f"Votes of {type(votes.mechanism).__name__} are no random draws, which {method.name} needs; leave method "
            "out."
        )
    if bounds == ANYTIME:
        check_first(votes)
    share = failure_prob / votes.examples if scope is Scope.ALL else failure_prob
    limits = _bound_for(method, votes, on=on, kind=bounds, failure_prob=share)
    most = _most(votes, threat)
    budget: dict[str, float] = {}
    found: list[tuple[IntArray, npt.NDArray[np.str_]]] = []
    for accountant in _accountants(method, votes, threat, changes):
        search = _Search(accountant, most, farthest, progress, moves=changes is not None)
        found.append(_within(most, *_largest_radii(search, limits, votes.examples)))
        budget |= {name: max(size, budget.get(name, 0.0)) for name, size in accountant.error_budget.items()}
    return Certificate(
        _used(votes, on),
        label=limits.label[: votes.examples],
        radius=found[0][0],
        status=found[0][1],
        method=method,
        threat=threat,
        failure_prob=float(failure_prob),
        scope=scope,
        on=on,
        bounds=bounds,
        assumptions=assumptions(method, on=on, kind=bounds, votes=votes),
        error_budget=budget,
        versions=dict(_VERSIONS),
        frontier=None
        if changes is None or votes.input_noise is None
        else _frontier(changes, votes.input_noise.of, found),
    )


def _accountants(method: Method, votes: Votes, threat: Threat, changes: Sequence[float] | None) -> Iterator[Accountant]:
    """An accountant for every change of the input, one after the other: each may hold thousands of curves."""
    for shift in _shifts(votes, changes):
        yield (
            method.accountant_moved(votes.mechanism, threat, shift)
            if shift
            else method.accountant(votes.mechanism, threat)
        )


def _shifts(votes: Votes, changes: Sequence[float] | None) -> list[float]:
    """Changes of the input in standard deviations of the noise on it, rounded up: more than was asked for is safe.

    Raises:
        ConfigError: the votes were cast on inputs without noise.
    """
    if changes is None:
        return [0.0]
    if votes.input_noise is None:
        raise ConfigError(
            "These votes were cast on inputs as they are, so nothing is known of inputs that change; train with "
            "--input-noise S (input_noise), or leave input_change out."
        )
    deviation = votes.input_noise.deviation
    return [math.nextafter(change / deviation, math.inf) if change else 0.0 for change in changes]


def _frontier(changes: tuple[float, ...], of: str, found: Sequence[tuple[IntArray, npt.NDArray[np.str_]]]) -> Frontier:
    return Frontier(changes, of, *(np.stack(each) for each in zip(*found, strict=True)))


def _decided(
    votes: Votes, rule: ExactRule, threat: Threat, changes: tuple[float, ...] | None, *, on: str, bounds: str | None
) -> Certificate:
    """The certificate of a deterministic mechanism: nothing is estimated, so nothing can fail."""
    if on != "votes" or bounds not in (None, EXACT):
        raise ConfigError(f"The rule {rule.name} decides from votes alone; leave on and bounds out.")
    decisions = (
        [rule.decide(votes, threat)]
        if changes is None
        else [rule.decide_moved(votes, threat, change) for change in changes]
    )
    reads = (*rule.reads(threat), *(() if changes is None else rule.reads_moved(threat)))
    needed = {name: votes.evidence[name] for name in reads if name in votes.evidence}
    found = [_ended(decision, _most(votes, threat)) for decision in decisions]
    return Certificate(
        replace(votes, evidence=needed),
        label=decisions[0].label,
        radius=found[0][0],
        status=found[0][1],
        method=rule,
        threat=threat,
        failure_prob=0.0,
        scope=Scope.ALL,
        on=on,
        bounds=EXACT,
        assumptions=assumptions(rule, on=on, kind=EXACT, votes=votes),
        versions=dict(_VERSIONS),
        frontier=None if changes is None else _frontier(changes, "features", found),
    )


def _drawn(
    votes: Votes,
    rule: DrawnRule,
    threat: Threat,
    failure_prob: float,
    changes: tuple[float, ...] | None,
    *,
    scope: Scope,
    on: str,
    bounds: str | None,
) -> Certificate:
    """The certificate of votes that are draws of noise. All changes of the input share the failure probability."""
    if on != "votes" or bounds not in (None, QUANTILE):
        raise ConfigError(f"The rule {rule.name} bounds votes in a way of its own; leave on and bounds out.")
    shifts = _shifts(votes, changes)
    share = failure_prob / len(shifts) / (votes.examples if scope is Scope.ALL else 1)
    unmoved = rule.decide_drawn(votes, threat, share, 0.0)
    most = _most(votes, threat)
    found: list[tuple[IntArray, npt.NDArray[np.str_]]] = []
    for shift in shifts:
        radius, status = _ended(rule.decide_drawn(votes, threat, share, shift), most)
        found.append((radius, np.where(unmoved.radius < 0, Status.NOT_SEPARATED.value, status)))
    needed = {name: votes.evidence[name] for name in rule.reads(threat)}
    return Certificate(
        replace(votes, evidence=needed),
        label=unmoved.label,
        radius=found[0][0],
        status=found[0][1],
        method=rule,
        threat=threat,
        failure_prob=float(failure_prob),
        scope=scope,
        on=on,
        bounds=QUANTILE,
        assumptions=assumptions(rule, on=on, kind=QUANTILE, votes=votes),
        versions=dict(_VERSIONS),
        frontier=None
        if changes is None or votes.input_noise is None
        else _frontier(changes, votes.input_noise.of, found),
    )


def _ended(decision: Decision, most: int) -> tuple[IntArray, npt.NDArray[np.str_]]:
    """Radii of a function of the data, and how the search for each ended."""
    radius = np.minimum(decision.radius, SEARCH_LIMIT)
    status = np.where(radius < SEARCH_LIMIT, Status.CERTIFIED.value, Status.SEARCH_LIMIT.value)
    return _within(most, radius, np.where(radius < 0, Status.INPUT_CHANGE.value, status))


def _checked_collective(radii: Sequence[Any] | None) -> list[int]:
    if radii is None:
        return []
    if not len(radii) or not all(
        isinstance(radius, int | np.integer) and 1 <= radius <= SEARCH_LIMIT for radius in radii
    ):
        raise ConfigError(f"Expected collective as radii from 1 to {SEARCH_LIMIT:,}, got {list(radii)!r:.80}.")
    return sorted({int(radius) for radius in radii})


def _together(certificate: Certificate, votes: Votes, radii: Sequence[int]) -> Certificate:
    """The certificate of a deterministic mechanism, with what holds of all predictions together."""
    if not radii:
        return certificate
    assert isinstance(certificate.method, ExactRule)
    most = _most(votes, certificate.threat)
    within = [radius for radius in radii if radius <= most]
    found = certificate.method.decide_together(votes, certificate.threat, within)
    # Beyond the size step other constants would have been used, and nothing is known.
    numbers = {radius: found.most_changed.get(radius, votes.examples) for radius in radii}
    needed = {name: votes.evidence[name] for name in certificate.method.reads_together if name in votes.evidence}
    used = replace(certificate.votes, evidence={**certificate.votes.evidence, **needed})
    return replace(certificate, votes=used, collective=replace(found, most_changed=numbers))


def _most(votes: Votes, threat: Threat) -> int:
    """The largest radius within which the constants of the votes are the same; see `Size`."""
    limit = None if votes.size is None else votes.size.limit(threat)
    return SEARCH_LIMIT if limit is None else min(limit, SEARCH_LIMIT)


def _within(most: int, radius: IntArray, status: npt.NDArray[np.str_]) -> tuple[IntArray, npt.NDArray[np.str_]]:
    """Radii and statuses, cut off at the largest radius that the size allows."""
    return np.minimum(radius, most), np.where(radius > most, Status.SIZE_LIMIT.value, status)


def default_bounds(on: str, votes: Votes | None = None, method: Method | None = None) -> str:
    """The confidence bounds that are used where none are named: those that certify most of what the votes carry."""
    if on == "votes":
        return VOTE_BOUNDS[0]
    has_histograms = votes is not None and votes.score_histograms is not None
    return "histogram" if has_histograms and method is not None and method.reads_distributions else SCORE_BOUNDS[0]


def check_first(votes: Votes) -> None:
    """Require votes for which bounds may hold at any time.

    Raises:
        ConfigError: they are not those of the first instances of one run.
    """
    reason = not_first(votes)
    if reason:
        raise ConfigError(
            f"Anytime bounds are for the instances 0, 1, 2, ... of one run, without gaps, and these votes {reason}. "
            "Start one run with as many instances as may ever be wanted, train its shards in order and merge all that "
            "there are; or use other bounds."
        )


def bound(votes: Votes, *, on: str, kind: str, failure_prob: float) -> LabelBounds:
    """Confidence bounds on the scores of the top label and its rivals; see `bounds`."""
    if on == "votes":
        return bound_votes(votes.counts, failure_prob=failure_prob, kind=kind)
    if votes.score_sums is None:
        raise ConfigError("These votes carry no score sums; certify on='votes', or collect scores while training.")
    return bound_scores(
        votes.score_sums,
        votes.score_squares,
        votes.score_histograms,
        instances=votes.instances,
        failure_prob=failure_prob,
        kind=kind,
    )


def _bound_for(method: Method, votes: Votes, *, on: str, kind: str, failure_prob: float) -> LabelBounds:
    """The bounds that a method needs: with class weights, those on all rivals at once.

    Raises:
        ConfigError: these bounds are not proved for class weights.
    """
    if not isinstance(method, Weighted) or method.class_weights is None:
        return bound(votes, on=on, kind=kind, failure_prob=failure_prob)
    if on != "votes" or kind not in WEIGHED_BOUNDS:
        raise ConfigError(
            f"Class weights are for votes with {', '.join(WEIGHED_BOUNDS)} bounds, not for {on} with {kind} bounds; "
            "leave one of the two out."
        )
    method.weighed(votes.counts)  # or it says what is wrong
    return bound_weighed_votes(votes.counts, method.weights(votes.classes), failure_prob=failure_prob, kind=kind)


def separated_margins(method: Method, votes: Votes, *, kind: str, failure_prob: float) -> Margins | None:
    """The margins of votes, against the rivals of each weight; None where some are not separated."""
    limits = _bound_for(method, votes, on="votes", kind=kind, failure_prob=failure_prob)
    if not _separated(limits).all():
        return None
    return Margins.of(limits.top_lower, limits.top_miss_upper, limits.rival_upper, limits.ratio)


def _separated(limits: LabelBounds) -> npt.NDArray[np.bool_]:
    rival = limits.rival_upper if limits.ratio is None else limits.rival_upper * limits.ratio
    return limits.top_lower > rival


def assumptions(method: Rule, *, on: str, kind: str, votes: Votes) -> tuple[str, ...]:
    """What a certificate takes for granted, a sentence each, including what the training of its votes did."""
    if isinstance(method, ExactRule):
        sentences = [
            "The votes are the stated function of the training data, the same to the bit whenever it is computed; "
            "nothing else has looked at the training data, beyond what is stated here.",
        ]
    elif isinstance(method, DrawnRule):
        sentences = [
            "Each model is the stated function of its part of the training data, the same to the bit whenever it is "
            "computed; nothing else has looked at the training data, beyond what is stated here.",
            "The attacker does not know the noise on the inputs.",
        ]
    else:
        sentences = [
            "The instances are independent runs of the stated mechanism; nothing else has looked at the training data, "
            "beyond what is stated here.",
            "The attacker does not know the randomness of training.",
        ]
    if votes.input_noise is not None and isinstance(method, DrawnRule):
        sentences.append(
            f"For every vote, {votes.input_noise.in_words()}, was added to the input before the models saw it, the "
            "same for all of them and drawn anew for each vote and input."
        )
    elif votes.input_noise is not None:
        sentences.append(
            f"Every instance added {votes.input_noise.in_words()}, to every input before it voted, drawn anew for "
            "each; the attacker does not know it."
        )
    sentences.extend(method.assumptions)
    if on == "scores":
        sentences.append("The scores of each instance lie in [0, 1] and add up to at most one.")
    if kind == "simuem":
        sentences.append(
            "simuem bounds are proved for a label fixed beforehand; for the label with most votes the claim may fail "
            "with up to (1 + 2 / classes) times the stated probability."
        )
    if kind == ANYTIME:
        sentences.append(
            "Instances count in the order of their numbers, from 0 on and without gaps; their mechanism, the inputs "
            "and the stated probability were fixed before anyone saw how they vote."
        )
    if kind == "pointwise":
        sentences.append(
            "pointwise bounds are not simultaneous: they ignore that the label was picked from the same votes and that "
            "there are several rivals. For reproduction of published numbers only."
        )
    sentences.extend(votes.statements_by(kind))
    return distinct(sentences)


def distinct_margins(limits: LabelBounds, chosen: npt.NDArray[np.intp]) -> tuple[Margins, npt.NDArray[np.intp]]:
    """The distinct margins among the chosen examples, and which of them each example has."""
    if limits.ratio is not None:
        return _distinct_weighed(limits, chosen)
    if limits.spread is not None:  # Hardly two inputs have the same histograms.
        columns = (limits.top_lower[chosen], limits.top_miss_upper[chosen], limits.rival_upper[chosen])
        return Margins.of(*columns, spread=limits.spread.take(chosen)), np.arange(len(chosen))
    pairs, inverse = _distinct_pairs(limits.top_miss_upper[chosen], limits.rival_upper[chosen])
    # The lower bound follows from the upper bound on the miss; were it ever not so, the least one is safe.
    top = np.full(pairs.shape[1], np.inf)
    np.minimum.at(top, inverse, limits.top_lower[chosen])
    return Margins.of(top, pairs[0], pairs[1]), inverse


def _distinct_weighed(limits: LabelBounds, chosen: npt.NDArray[np.intp]) -> tuple[Margins, npt.NDArray[np.intp]]:
    """The same where rivals have weights of their own."""
    assert limits.ratio is not None
    columns = (limits.top_lower, limits.top_miss_upper, limits.rival_upper, limits.ratio)
    rows, inverse = np.unique(np.stack([each[chosen] for each in columns]), axis=1, return_inverse=True)
    return Margins.of(*rows), inverse.reshape(-1)


def _distinct_pairs(
    first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.intp]]:
    """Distinct pairs, as two rows, and which of them each entry is; no sort of pairs where the values are few."""
    values = [np.unique(column) for column in (first, second)]
    codes = np.searchsorted(values[0], first) * len(values[1]) + np.searchsorted(values[1], second)
    if len(values[0]) * len(values[1]) <= _FEW_PAIRS:
        present = np.zeros(len(values[0]) * len(values[1]), dtype=np.bool_)
        present[codes] = True
        distinct, inverse = np.flatnonzero(present), (np.cumsum(present) - 1)[codes]
    else:
        distinct, inverse = np.unique(codes, return_inverse=True)
    return np.stack([values[0][distinct // len(values[1])], values[1][distinct % len(values[1])]]), inverse


@dataclass(frozen=True)
class _Search:
    """Where radii are looked for.

    Attributes:
        accountant: says which of them hold.
        most: the largest radius within which the constants of the votes are the same.
        farthest: the largest that may be tried.
        progress: called with the number of distinct margins done and their total.
        moves: whether the input may move, so that not even a radius of 0 is known to hold.
    """

    accountant: Accountant
    most: int
    farthest: int
    progress: Progress | None
    moves: bool

    @property
    def end(self) -> int:
        """Just beyond `most`, or where every search ends."""
        return min(self.most + 1, SEARCH_LIMIT)


def _largest_radii(search: _Search, limits: LabelBounds, examples: int) -> tuple[IntArray, npt.NDArray[np.str_]]:
    """Radius and status of every example; examples with equal margins are searched once.

    Where there are rivals of several weights, those of the nearest.
    """
    radius = np.full(len(limits.label), -1, dtype=np.int64)
    status = np.full(len(limits.label), Status.NOT_SEPARATED.value, dtype="U16")
    separated = np.flatnonzero(_separated(limits))
    if len(separated):
        margins, inverse = distinct_margins(limits, separated)
        try:
            radii, statuses = _searched(search, margins)
        finally:
            search.accountant.close()
        radius[separated], status[separated] = radii[inverse], statuses[inverse]
    by_weight = radius.reshape(-1, examples)
    nearest = by_weight.argmin(axis=0), np.arange(examples)
    return by_weight[nearest], status.reshape(-1, examples)[nearest]


def _searched(search: _Search, margins: Margins) -> tuple[IntArray, npt.NDArray[np.str_]]:
    """Largest radius at which each margin is shown to hold: doubling, then halving common brackets.

    A larger radius covers every smaller one, so a yes at any radius is a certificate by itself: the search relies on
    monotonicity for tightness only.
    """
    total = len(margins)
    radius = np.zeros(total, dtype=np.int64)
    status = np.full(total, Status.CERTIFIED.value, dtype="U16")
    refused: set[int] = set()

    def holds(at: int, points: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
        try:
            return search.accountant.holds(at, margins.take(points))
        except NumericalError:
            refused.add(at)
            return np.zeros(len(points), dtype=np.bool_)

    brackets: list[tuple[int, int, npt.NDArray[np.intp]]] = []
    points, low = np.arange(total), 0
    if search.moves:
        shown = holds(0, points)
        radius[~shown], status[~shown] = -1, Status.INPUT_CHANGE.value
        points = points[shown]
    while len(points) and low < search.end:
        at = min(2 * low or 1, search.end)
        if at > search.farthest:
            raise BeyondLimitError
        shown = holds(at, points)
        if not shown.all():
            brackets.append((low, at, points[~shown]))
        points, low = points[shown], at
    radius[points], status[points] = search.end, Status.SEARCH_LIMIT.value
    done = total - sum(len(left) for _, _, left in brackets)
    while brackets:
        low, high, points = brackets.pop()
        if high - low <= max(1, (1 << low.bit_length()) >> _EXACT_BITS):
            radius[points] = low
            if high in refused:
                status[points] = Status.NUMERICAL.value
            done += len(points)
            if search.progress is not None:
                search.progress(done, total)
            continue
        middle = (low + high) // 2
        shown = holds(middle, points)
        if shown.any():
            brackets.append((middle, high, points[shown]))
        if not shown.all():
            brackets.append((low, middle, points[~shown]))
    return radius, status


def _used(votes: Votes, on: str) -> Votes:
    """The votes without arrays that the certificate does not depend on, so that its file stays small."""
    if on == "scores" or (votes.score_sums is votes.score_squares is votes.score_histograms is None):
        return votes
    return replace(votes, score_sums=None, score_squares=None, score_histograms=None)
