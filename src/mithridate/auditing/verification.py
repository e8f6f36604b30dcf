"""An auditor's check of a saved certificate: everything is computed again, by another route, and compared.

Nothing here uses the curve cache, the privacy-loss engine or the search of `certify`; the second route is
`recomputation`. Two things are shared: the first route suggests which Renyi orders to try (the condition at any order
is a proof by itself), and betting bounds come from `bounds`, for a bet has no second route. A certificate is confirmed
when every claimed radius holds, not when it is the largest one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from mithridate._io.artifacts import PathLike, read_hashed
from mithridate.accounting import ADP, FDP, RDP
from mithridate.accounting.adp import CONVERSION_ORDERS
from mithridate.accounting.rdp import group_divergence
from mithridate.auditing.exact_curves import TOLERANCE, ExactMoments, ExactTradeoff, binomial_lower, binomial_upper
from mithridate.auditing.worst_changes import recheck, second_route
from mithridate.certifying.certification import SEARCH_LIMIT, assumptions
from mithridate.core.bounds import bound_scores
from mithridate.core.certificate import SCHEMA, Certificate, Scope, Status
from mithridate.core.conditions import Statement, conditions_of, in_json, listed_ids, to_plain
from mithridate.core.mechanism import Deterministic, Private, SampledGaussian, Subsampled, Threat, private
from mithridate.core.votes import Votes
from mithridate.errors import MithridateError, NumericalError, TamperedError

FloatArray = npt.NDArray[np.float64]
Progress = Callable[[int, int], None]
Split = tuple[int, int]

# Above this many splits in all, splits are checked in blocks, each by a split that dominates it.
_SINGLE_SPLITS = 150_000
# Beyond this radius claims on Renyi divergences are first tried at smaller ones.
_FEW_CHANGES = 8
# Above this many changes a subsampled mechanism is first tried at one number of kept ones.
_MANY_KEPT = 16


@dataclass(frozen=True)
class Check:
    """One line of an audit."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Verification:
    """The outcome of an audit: what was checked, and under which assumptions it holds."""

    checks: tuple[Check, ...]
    assumptions: tuple[str, ...] = ()
    conditions: tuple[Statement, ...] = ()

    @property
    def valid(self) -> bool:
        """Whether everything held."""
        return all(check.passed for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """The outcome as plain JSON values."""
        return {
            "schema": "mithridate.verification/1",
            "valid": self.valid,
            **in_json(self.conditions),
            "assumptions": list(map(str, self.assumptions)),
            "checks": [{"name": c.name, "passed": c.passed, "detail": c.detail} for c in self.checks],
        }


def verify(path: PathLike, *, run: PathLike | None = None, progress: Progress | None = None) -> Verification:
    """Recompute a saved certificate by a different, slower route.

    Guarantee: `valid` is True only if no byte of the file was changed and every claimed label, bound and radius holds
    when it is computed again without the cache and the engine that produced it; and if a recipe that is recorded has
    the constants of the mechanism that these follow from.

    Assumes: what the certificate assumes and is conditional on. The hash shows damage and careless changes; who wants
    to forge a file can compute a new hash, which is why everything is recomputed. Counts, mechanism, recipe and
    conditions stand in the file itself: with `run` they are compared with the run or the votes that they come from, and
    without it they are believed. Nothing can show that the counts are those of real runs.

    Args:
        path: a file that `Certificate.save` wrote.
        run: the directory of the run, or the votes file, that was certified.
        progress: called with the number of radii done and their total.

    Raises:
        ArtifactError: the file cannot be read, is truncated, or is not a certificate.
    """
    try:
        content = read_hashed(path, SCHEMA)
    except TamperedError as error:
        return Verification((Check("file unchanged", False, str(error)),))
    certificate = Certificate.from_content(content)
    checks = [Check("file unchanged", True, f"the SHA-256 of every byte of the file agrees, schema {SCHEMA}")]
    checks.append(_check_conditions(certificate, content))
    if run is not None:
        checks.append(_check_source(certificate, run))
    checks.extend(_claims(certificate, progress))
    return Verification(tuple(checks), certificate.assumptions, certificate.conditions)


def _claims(certificate: Certificate, progress: Progress | None) -> Iterator[Check]:
    yield _check_assumptions(certificate)
    yield from _check_recipe(certificate)
    if isinstance(certificate.votes.mechanism, Deterministic):
        yield _check_decisions(certificate)
        return
    yield _check_labels(certificate)
    try:
        limits = _limits(certificate)
    except MithridateError as error:
        yield Check("confidence bounds", False, f"they cannot be computed again: {error}")
        return
    route = "by the code that certified" if certificate.bounds == "betting" else "by another route"
    yield Check("confidence bounds", True, f"{certificate.bounds} bounds on {certificate.on} computed again {route}")
    yield _check_statuses(certificate, limits)
    yield _check_radii(certificate, limits, progress)


def _check_assumptions(certificate: Certificate) -> Check:
    expected = assumptions(certificate.method, on=certificate.on, kind=certificate.bounds, votes=certificate.votes)
    missing = [sentence for sentence in expected if sentence not in certificate.assumptions]
    if missing:
        return Check("assumptions", False, f"not stated: {missing[0]}")
    return Check("assumptions", True, f"stated: {len(expected)}")


def _check_conditions(certificate: Certificate, content: dict[str, Any]) -> Check:
    """That the file says on what it is conditional, as its votes do."""
    expected = in_json(certificate.votes.statements, certificate.threat)
    if _is_proposed(certificate.votes.recipe) and not conditions_of(certificate.votes.statements):
        return Check("conditions", False, "how the data is read was proposed from the data, but no condition says so")
    for name, value in expected.items():
        if content.get(name) != value:
            return Check("conditions", False, f"{name} is not what the votes say; {_in_words(certificate)}")
    return Check("conditions", True, _in_words(certificate))


def _is_proposed(recipe: Any) -> bool:
    """Whether a recipe says that its declaration was read off the data; a file may hold anything there."""
    for key in ("source", "declaration", "proposed"):
        recipe = cast("dict[str, Any]", recipe).get(key) if isinstance(recipe, dict) else None
    return recipe is True


def _in_words(certificate: Certificate) -> str:
    found = conditions_of(certificate.votes.statements, certificate.threat)
    return f"the claim is conditional on {listed_ids(found)}" if found else "the claim is unconditional"


def _check_source(certificate: Certificate, run: PathLike) -> Check:
    """That the votes in the file are those of their source, with all that was said about them there."""
    folder = Path(run)
    is_run = folder.is_dir()
    source = Votes.load(folder / "votes.npz" if is_run else folder)
    if is_run and (folder / "run.json").exists():
        damage = _differences_from_run(source, folder)
        if damage:
            return Check(
                "source", False, f"votes.npz in {run} is not what that run counted: {' and '.join(damage)} differ"
            )
    differences = _differences(_facts(certificate.votes), _facts(source))
    if differences:
        return Check("source", False, f"{' and '.join(differences)} differ from those of {run}")
    return Check("source", True, f"counts, mechanism, recipe, fingerprint and conditions are those of {run}")


def _facts(votes: Votes) -> dict[str, Any]:
    """What a certificate takes over from its votes, by the words of an audit; arrays only where they are there."""
    facts: dict[str, Any] = {
        "counts": votes.counts,
        "mechanism": votes.mechanism.to_dict(),
        "recipe": votes.recipe,
        "fingerprint": votes.data_fingerprint,
        "runs": votes.run_ids,
        "shards": (dict(votes.shards), dict(votes.planned)),
        "conditions": to_plain(votes.statements),
    }
    scores = {name: getattr(votes, name) for name in ("score_sums", "score_squares", "score_histograms")}
    return facts | {name: array for name, array in scores.items() if array is not None} | dict(votes.evidence)


def _differences(found: dict[str, Any], source: dict[str, Any]) -> list[str]:
    """The names of what a certificate has and its source has not, or has otherwise."""
    return [name for name, value in found.items() if name not in source or not _equal(value, source[name])]


def _differences_from_run(votes: Votes, run_dir: Path) -> list[str]:
    """In what the votes of a run are not what `run.json` and the shards say."""
    from mithridate.training.run_directory import recorded

    manifest, total = recorded(run_dir)
    said = {
        "counts": total["counts"],
        "recipe": manifest.recipe,
        "fingerprint": manifest.data_fingerprint,
        "runs": (manifest.run_id,),
        "conditions": to_plain(manifest.assumptions),
    }
    return _differences(said, _facts(votes))


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        return np.array_equal(np.asarray(first), np.asarray(second))
    return first == second


def _check_recipe(certificate: Certificate) -> Iterator[Check]:
    """That the recipe, where one is recorded, has the constants of the mechanism that the radii follow from."""
    stated, mechanism = _stated(certificate.votes.recipe), certificate.votes.mechanism.to_dict()
    shared = [name for name in mechanism if name != "type" and None not in (mechanism[name], stated.get(name))]
    for name in shared:
        if stated[name] != mechanism[name]:
            words = f"trained with {name} = {stated[name]!r:.80}, but certified for {mechanism[name]!r:.80}"
            yield Check("recipe", False, words)
            return
    if shared:
        yield Check("recipe", True, f"it has the {', '.join(shared)} of the mechanism")


def _stated(recipe: dict[str, Any] | None) -> dict[str, Any]:
    """The constants of a recipe by name: its own, those of its configuration, and those of what instances see."""
    found: dict[str, Any] = {}
    part: Any = recipe
    for inner in ("config", "plan", None):
        if not isinstance(part, dict):
            break
        found |= cast("dict[str, Any]", part)
        part = found.get(inner) if inner else None
    return found


def _check_labels(certificate: Certificate) -> Check:
    on_votes = certificate.on == "votes"
    scores = certificate.votes.counts if on_votes else np.asarray(certificate.votes.score_sums)
    best = scores[np.arange(len(scores)), np.clip(certificate.label, 0, scores.shape[1] - 1)]
    # The label has the largest score, and no smaller label has as much.
    smaller = np.arange(scores.shape[1]) < certificate.label[:, None]
    wrong = (scores.max(axis=1) > best) | ((scores >= best[:, None]) & smaller).any(axis=1)
    wrong |= (certificate.label < 0) | (certificate.label >= scores.shape[1])
    return _counted("labels", wrong, "have the most votes or the largest mean score, ties to the smaller label")


def _check_decisions(certificate: Certificate) -> Check:
    """Labels and radii of a deterministic mechanism, together: both follow from the votes alone."""
    try:
        wrong = recheck(
            certificate.votes, certificate.method.name, certificate.threat, certificate.label, certificate.radius
        )
    except MithridateError as error:
        return Check("labels and radii", False, f"they cannot be computed again: {error}")
    limited = np.where(certificate.radius < SEARCH_LIMIT, Status.CERTIFIED.value, Status.SEARCH_LIMIT.value)
    wrong |= (certificate.radius < 0) | (certificate.radius > SEARCH_LIMIT) | (certificate.status != limited)
    return _counted("labels and radii", wrong, "hold under the worst change of their size, by another route")


class _Limits(NamedTuple):
    """Bounds of every example, by the second route."""

    top_lower: FloatArray
    miss_upper: FloatArray
    rival_upper: FloatArray


def _limits(certificate: Certificate) -> _Limits:
    votes = certificate.votes
    share = certificate.failure_prob / (votes.examples if certificate.scope is Scope.ALL else 1)
    if certificate.on == "votes":
        tail = {"simultaneous": share / (2 * votes.classes), "simuem": share / votes.classes, "pointwise": share / 4}
        return _vote_limits(votes.counts, votes.instances, tail[certificate.bounds])
    if votes.score_sums is None:
        raise NumericalError("the certificate is on scores but carries none")
    if certificate.bounds == "betting":
        # The capital of a bet is a definition, not an approximation: there is no second route to it.
        limits = bound_scores(
            votes.score_sums,
            votes.score_squares,
            votes.score_histograms,
            instances=votes.instances,
            failure_prob=share,
            kind="betting",
        )
        return _Limits(limits.top_lower, limits.top_miss_upper, limits.rival_upper)
    return _score_limits(certificate, share / (2 * votes.classes))


def _vote_limits(counts: npt.NDArray[np.int64], total: int, tail: float) -> _Limits:
    ordered = np.sort(counts, axis=1)
    top, second = ordered[:, -1], ordered[:, -2]
    values = np.unique(ordered[:, -2:])
    lower, upper = binomial_lower(values, total, tail), binomial_upper(values, total, tail)
    place_top, place_second = np.searchsorted(values, top), np.searchsorted(values, second)
    # One minus the lower bound, from the other tail: the upper bound on the share of all other votes.
    miss = binomial_upper(total - values, total, tail)[place_top]
    return _Limits(lower[place_top], miss, np.minimum(upper[place_second], miss))


def _score_limits(certificate: Certificate, tail: float) -> _Limits:
    votes = certificate.votes
    instances = votes.instances
    sums = np.asarray(votes.score_sums)
    rounding = _rounding(sums.dtype, instances)
    mean = sums.astype(np.float64) / instances
    if certificate.bounds == "hoeffding":
        width = np.full(mean.shape, np.sqrt(np.log(1 / tail) / (2 * instances)))
    elif certificate.bounds == "empirical-bernstein" and votes.score_squares is not None and instances > 1:
        squares = votes.score_squares.astype(np.float64) / instances
        excess = 2 * rounding * mean**2 + rounding * squares
        variance = np.maximum(squares - mean**2 + excess, 0) * instances / (instances - 1)
        variance = np.minimum(variance, 0.25 * instances / (instances - 1))
        width = np.sqrt(2 * variance * np.log(2 / tail) / instances) + 7 * np.log(2 / tail) / (3 * (instances - 1))
    else:
        raise NumericalError(f"the bounds {certificate.bounds!r} do not fit the scores that the certificate carries")
    label = np.clip(certificate.label, 0, votes.classes - 1)[:, None]
    lower = np.clip(mean * (1 - rounding) - width, 0, 1)
    upper = np.clip(mean * (1 + rounding) + width, 0, 1)
    top = np.take_along_axis(lower, label, axis=1)[:, 0]
    np.put_along_axis(upper, label, 0.0, axis=1)
    return _Limits(top, 1 - top, np.minimum(upper.max(axis=1), 1 - top))


def _rounding(dtype: np.dtype[Any], instances: int) -> float:
    """Relative error of sums that were accumulated in this precision."""
    return instances * 2.0**-23 if dtype == np.float32 else instances * 2.0**-52


def _check_statuses(certificate: Certificate, limits: _Limits) -> Check:
    abstained = certificate.status == Status.NOT_SEPARATED.value
    separated = limits.top_lower > limits.rival_upper
    wrong = abstained != (certificate.radius == -1)
    wrong |= (certificate.radius < -1) | (certificate.radius > SEARCH_LIMIT)
    wrong |= ~abstained & ~separated
    wrong |= (certificate.status == Status.SEARCH_LIMIT.value) & (certificate.radius != SEARCH_LIMIT)
    return _counted("statuses", wrong, "fit their bounds and radii")


def _check_radii(certificate: Certificate, limits: _Limits, progress: Progress | None) -> Check:
    # What nobody searches for is not computed either: a file may claim any number.
    wrong = certificate.radius > SEARCH_LIMIT
    claimed = np.unique(certificate.radius[(certificate.radius > 0) & ~wrong])
    try:
        second_route = _second_route(certificate, claimed)
        for number, radius in enumerate(claimed.tolist()):
            members = np.flatnonzero(certificate.radius == radius)
            points = np.stack([field[members] for field in limits], axis=1)
            distinct, inverse = np.unique(points, axis=0, return_inverse=True)
            wrong[members] = ~second_route(radius, _Limits(*distinct.T))[inverse.reshape(-1)]
            if progress is not None:
                progress(number + 1, len(claimed))
    except (MithridateError, MemoryError) as error:
        return Check("radii", False, f"they cannot be computed again: {error}")
    return _counted("radii", wrong, f"hold, at {len(claimed)} distinct radii, whatever the changes are")


def _counted(name: str, wrong: npt.NDArray[np.bool_], what: str) -> Check:
    total, failures = len(wrong), int(wrong.sum())
    if failures:
        return Check(name, False, f"{failures} of {total} do not hold, the first is example {int(np.argmax(wrong))}")
    return Check(name, True, f"all {total} {what}")


SecondRoute = Callable[[int, _Limits], npt.NDArray[np.bool_]]


def _second_route(certificate: Certificate, claimed: npt.NDArray[np.int64]) -> SecondRoute:
    method, threat = certificate.method, certificate.threat
    if not isinstance(method, FDP | RDP | ADP):
        options = method.to_dict()
        return second_route(certificate.votes.mechanism, options.pop("name"), options, threat)
    mechanism = private(certificate.votes.mechanism)
    if isinstance(method, RDP):
        return _RenyiRoute(method, mechanism, threat)
    if isinstance(method, ADP):
        return _ApproximateRoute(method, mechanism, threat)
    single = int(claimed.sum()) <= _SINGLE_SPLITS
    return _TradeoffRoute(mechanism, threat, single=single)


class _TradeoffRoute:
    """Every split by its own curve; where there are too many, blocks of them by a split that dominates the block."""

    def __init__(self, mechanism: Private, threat: Threat, *, single: bool) -> None:
        self._mechanism, self._threat, self._single = mechanism, threat, single
        self._tables: dict[Split, _ConcaveTable] = {}
        self._node_values: dict[int, FloatArray] = {}

    def __call__(self, radius: int, limits: _Limits) -> npt.NDArray[np.bool_]:
        if self._threat is not Threat.SYMMETRIC_DIFFERENCE:
            return self._holds(_splits(self._threat, radius)[0], limits)
        if self._single:
            held = np.ones(len(limits.top_lower), dtype=np.bool_)
            for split in _splits(self._threat, radius):
                if held.any():
                    held &= self._holds(split, limits)
            return held
        return self._block(radius, 0, radius, limits)

    def _block(self, radius: int, fewest: int, most: int, limits: _Limits) -> npt.NDArray[np.bool_]:
        held = (
            self._holds((most, radius - fewest), limits)
            if most - fewest <= radius // 4
            else np.zeros(len(limits[0]), bool)
        )
        if held.all() or fewest == most:
            return held
        middle = (fewest + most) // 2
        rest = np.flatnonzero(~held)
        for first, last in ((fewest, middle), (middle + 1, most)):
            if len(rest):
                held[rest] = self._block(radius, first, last, _Limits(*(field[rest] for field in limits)))
                # A point that fails at one split has failed: the other half is not asked about it.
                rest = rest[held[rest]]
        return held

    def _holds(self, split: Split, limits: _Limits) -> npt.NDArray[np.bool_]:
        x = np.concatenate([limits.miss_upper, limits.rival_upper])
        if isinstance(self._mechanism, Subsampled) and max(split) > _MANY_KEPT:
            # Thousands of curves are not computed for a claim that one of them refutes.
            held = self._below_one(self._at_least(self._mechanism, split, x))
            if not held.any():
                return held
        return self._below_one(self._largest(split, x))

    @staticmethod
    def _below_one(largest: FloatArray) -> npt.NDArray[np.bool_]:
        points = len(largest) // 2
        return largest[:points] + largest[points:] < 1 - TOLERANCE

    def _at_least(self, mechanism: Subsampled, split: Split, x: FloatArray) -> FloatArray:
        """A lower bound on what `_largest` says of a subsampled mechanism, from a number that is nearly always kept.

        Let k or more be kept but with probability m. If D' has them, P(S) >= (1 - m) P_k(S); if D has them,
        Q(S) <= m + Q_k(S).
        """
        deleted, inserted = split
        changes = max(split)
        kept = int(stats.binom.ppf(max(float(x.min()) / 10, 1e-12), changes, mechanism.keep))
        missed = float(stats.binom.cdf(kept - 1, changes, mechanism.keep))
        if deleted >= inserted:
            return (1 - missed) * self._exact((kept, 0))(x)
        return self._exact((0, kept))(np.maximum(x - missed, 0.0))

    def _largest(self, split: Split, x: FloatArray) -> FloatArray:
        """K of a split. Of a subsampled mechanism: pure splits mixed over what was kept, others as a chain of two."""
        if isinstance(self._mechanism, Subsampled):
            deleted, inserted = split
            x = self._mixed(self._mechanism, 0, inserted)(x) if inserted else x
            return self._mixed(self._mechanism, deleted, 0)(x) if deleted else x
        return self._exact(split)(x)

    def _mixed(self, mechanism: Subsampled, deleted: int, inserted: int) -> _ConcaveTable:
        """K of a pure split: the mean of K_(k, 0) over what was kept, or the inverse of the mean of inverses."""
        if (deleted, inserted) not in self._tables:
            kept = np.arange(deleted + inserted + 1)
            weights = stats.binom.pmf(kept, deleted + inserted, mechanism.keep)
            used = weights > 1e-16
            # What is left out counts as if whoever was kept were seen: K <= 1.
            mean = np.full(len(_NODES), float(weights[~used].sum()))
            for k in kept[used].tolist():
                mean += weights[k] * self._at_nodes(k)
            mean = np.minimum(mean, 1.0)
            # The inverse of K_(0, j) is one minus the curve of the reverse pair at one minus y, and that is K_(j, 0);
            # one minus the nodes are the nodes backwards.
            self._tables[deleted, inserted] = (
                _ConcaveTable(_NODES, mean, error=_NODE_ERROR)
                if deleted
                else _ConcaveTable(1 - mean[::-1], _NODES, error=_NODE_ERROR)
            )
        return self._tables[deleted, inserted]

    def _at_nodes(self, kept: int) -> FloatArray:
        if kept not in self._node_values:
            try:
                self._node_values[kept] = self._exact((kept, 0))(_NODES)
            except NumericalError:  # so little noise that whoever is kept is seen: K <= 1 is all that is claimed
                self._node_values[kept] = np.ones(len(_NODES))
        return self._node_values[kept]

    def _exact(self, split: Split) -> ExactTradeoff:
        inner = _inner(self._mechanism)
        return ExactTradeoff(inner.noise_multiplier, inner.sample_rate, inner.steps, *split)


class _ConcaveTable:
    """An upper bound on a concave, increasing function with values in [0, 1], from its values at some points.

    Between two points a concave function lies below the chords of the intervals on both sides, extended; where there is
    only one of them, below that one; where there is none, nothing is known but that it is at most 1.

    Args:
        x: where it is known, ascending; each may be too small by up to `error`.
        y: its values there; each may be too large by up to `error`.
        error: see there; chords are turned by so much that they stay above the function.
    """

    def __init__(self, x: FloatArray, y: FloatArray, *, error: float = 0.0) -> None:
        x = np.maximum.accumulate(x)
        apart = np.append(np.diff(x) > max(1e-12, 16 * error), True)  # Closer points would turn errors into slopes.
        self._x, self._y = x[apart], y[apart]
        rise, run = np.diff(self._y), np.diff(self._x)
        self._steepest, self._flattest = (rise + error) / (run - error), np.maximum(rise - error, 0) / (run + error)

    def __call__(self, x: FloatArray) -> FloatArray:
        right = np.searchsorted(self._x, x)
        from_left = self._chord(right - 2, right - 1, self._steepest, x)
        from_right = self._chord(right, right, self._flattest, x)
        return np.clip(np.minimum(from_left, from_right), 0.0, 1.0)

    def _chord(
        self, interval: npt.NDArray[np.intp], point: npt.NDArray[np.intp], slopes: FloatArray, x: FloatArray
    ) -> FloatArray:
        """The chord of an interval through one of its points at x, 1 where there is no such interval."""
        there = (interval >= 0) & (interval < len(slopes))
        if not there.any():
            return np.ones(len(x))
        interval, point = np.where(there, interval, 0), np.where(there, point, 0)
        return np.where(there, self._y[point] + slopes[interval] * (x - self._x[point]), 1.0)


# Probabilities at which the curves of a subsampled mechanism are tabulated, evenly spaced as normal quantiles.
_NODES: FloatArray = special.ndtr(np.linspace(-6.0, 6.0, 4001))
# By how much the curves there may differ from concave ones, and one minus a node from a node.
_NODE_ERROR = 1e-12


class _RenyiRoute:
    """The paper's condition, at the orders that matter, from moments with every component of the mixture.

    The engine is asked only which orders to try: the condition at any order is a proof by itself.
    """

    def __init__(self, method: RDP, mechanism: Private, threat: Threat) -> None:
        self._method, self._mechanism, self._threat = method, mechanism, threat
        self._suggestion = group_divergence(method.group, mechanism, threat)
        self._moments: dict[float, ExactMoments] = {}
        self._known: dict[tuple[Split, float], float] = {}

    def __call__(self, radius: int, limits: _Limits) -> npt.NDArray[np.bool_]:
        # What does not hold for fewer changes does not for more, whose divergences may take minutes.
        fewer = _FEW_CHANGES
        while fewer < radius:
            if not self._holds(fewer, limits).any():
                return np.zeros(len(limits.top_lower), dtype=np.bool_)
            fewer *= 2
        return self._holds(radius, limits)

    def _holds(self, radius: int, limits: _Limits) -> npt.NDArray[np.bool_]:
        orders = self._orders(radius, limits)
        if not len(orders):
            return np.zeros(len(limits.top_lower), dtype=np.bool_)
        eps = np.array([self._divergence(radius, order) for order in orders.tolist()])
        lower = _after_lower(orders, eps, limits.top_lower)
        upper = _after_upper(orders, eps, limits.rival_upper)
        if self._method.complement:
            lower = np.maximum(lower, 1 - _after_upper(orders, eps, limits.miss_upper))
            upper = np.minimum(upper, 1 - _after_lower(orders, eps, 1 - limits.rival_upper))
        return lower > upper

    def _orders(self, radius: int, limits: _Limits) -> FloatArray:
        """The best order of each point for its upper and for its lower bound."""
        orders, eps = self._suggestion.at(radius)
        orders, eps = orders[np.isfinite(eps)], eps[np.isfinite(eps)]
        if not len(orders):
            return orders
        upper, lower = (orders - 1) / orders, orders / (orders - 1)
        best = [np.argmin((np.log(np.maximum(x, 1e-300))[:, None] + eps) * upper, axis=1) for x in limits[1:]]
        best += [
            np.argmax(np.log(np.maximum(p, 1e-300))[:, None] * lower - eps, axis=1)
            for p in (limits.top_lower, 1 - limits.rival_upper)
        ]
        return orders[np.unique(np.concatenate(best))]

    def _divergence(self, radius: int, order: float) -> float:
        changes = self._threat.changes(radius)
        match self._method.group:
            case "standard":
                doublings = (changes - 1).bit_length()
                return 3.0**doublings * self._either_way(1, 0, order * 2.0**doublings)
            case "paper":
                inner = _inner(self._mechanism)
                rate = 1 - (1 - inner.sample_rate) ** changes
                moments = ExactMoments(inner.noise_multiplier, rate)
                moment = max(moments.log_moment(1, 0, order), moments.log_moment(0, 1, order))
                return inner.steps * moment / (order - 1)
            case _:
                return max(self._either_way(*split, order) for split in _splits(self._threat, radius))

    def _either_way(self, deleted: int, inserted: int, order: float) -> float:
        """Divergence of one split over all steps, the larger of both directions."""
        both = ((deleted, inserted), (inserted, deleted))
        return max(self._log_moment(split, order) for split in both) / (order - 1)

    def _log_moment(self, split: Split, order: float) -> float:
        if not isinstance(self._mechanism, Subsampled):
            return self._inner_log_moment(split, order)
        # The mean of the inner moments over how many changed examples were kept.
        up, down = (stats.binom.logpmf(np.arange(n + 1), n, self._mechanism.keep) for n in split)
        inner = [[self._inner_log_moment((k, j), order) for j in range(split[1] + 1)] for k in range(split[0] + 1)]
        return float(special.logsumexp(up[:, None] + down + np.array(inner)))

    def _inner_log_moment(self, split: Split, order: float) -> float:
        """Of all steps, for a mechanism without subsampling."""
        if (split, order) not in self._known:
            inner = _inner(self._mechanism)
            moments = self._moments.setdefault(order, ExactMoments(inner.noise_multiplier, inner.sample_rate))
            self._known[split, order] = inner.steps * moments.log_moment(*split, order)
        return self._known[split, order]


class _ApproximateRoute:
    """(eps, delta) of one example from its divergences, then of the group; any choice of orders is a proof."""

    def __init__(self, method: ADP, mechanism: Private, threat: Threat) -> None:
        self._threat, self._delta = threat, method.delta
        inner = _inner(mechanism)
        keep = mechanism.keep if isinstance(mechanism, Subsampled) else 1.0
        moments = ExactMoments(inner.noise_multiplier, inner.sample_rate)
        # An inner delta of one or more is obeyed whatever the inner mechanism does.
        eps = np.inf if self._delta < keep else 0.0
        for order in CONVERSION_ORDERS.tolist() if eps else []:
            moment = max(moments.log_moment(1, 0, order), moments.log_moment(0, 1, order))
            conversion = np.log(1 - 1 / order) - (np.log(self._delta / keep) + np.log(order)) / (order - 1)
            eps = min(eps, inner.steps * moment / (order - 1) + conversion)
        with np.errstate(over="ignore"):
            self._eps = float(np.log1p(keep * np.expm1(max(eps, 0.0)))) * (1 + 1e-13)

    def __call__(self, radius: int, limits: _Limits) -> npt.NDArray[np.bool_]:
        changes = self._threat.changes(radius)
        if changes * self._eps > 300:
            return np.zeros(len(limits.top_lower), dtype=np.bool_)
        delta = self._delta * sum(np.exp(i * self._eps) for i in range(changes))
        factor = np.exp(changes * self._eps)
        return (limits.top_lower - delta) / factor > (factor * limits.rival_upper + delta) * (1 + 1e-13)


def _inner(mechanism: Private) -> SampledGaussian:
    return mechanism.inner if isinstance(mechanism, Subsampled) else mechanism


def _splits(threat: Threat, radius: int) -> list[Split]:
    match threat:
        case Threat.ADD:
            return [(radius, 0)]
        case Threat.REMOVE:
            return [(0, radius)]
        case Threat.REPLACE | Threat.EDIT | Threat.LABELS | Threat.FEATURES:
            return [(radius, radius)]
        case Threat.SYMMETRIC_DIFFERENCE:
            return [(deleted, radius - deleted) for deleted in range(radius, -1, -1)]


def _after_upper(orders: FloatArray, eps: FloatArray, x: FloatArray) -> FloatArray:
    powers = (np.exp(np.minimum(eps, 600))[:, None] * x) ** ((orders - 1) / orders)[:, None]
    return np.minimum(powers.min(axis=0), 1)


def _after_lower(orders: FloatArray, eps: FloatArray, p: FloatArray) -> FloatArray:
    return (np.exp(-eps)[:, None] * p ** (orders / (orders - 1))[:, None]).max(axis=0)
