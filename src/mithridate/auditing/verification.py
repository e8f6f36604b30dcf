"""An auditor's check of a saved certificate: everything is computed again, by another route, and compared.

Nothing here uses the curve cache, the privacy-loss engine, the search of `certify` or a defence; radii are checked by
`routes`, bounds by `confidence`. Two things are shared: the first route suggests which Renyi orders to try (the
condition at any order is a proof by itself), and betting bounds come from `bounds`, for a bet has no second route. A
certificate is confirmed when every claimed radius holds, not when it is the largest one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from mithridate._io.artifacts import PathLike, read_hashed
from mithridate.auditing import sizes
from mithridate.auditing.confidence import limits_of
from mithridate.auditing.provenance import differences_from_source
from mithridate.auditing.routes import BoolArray, Claim, Limits, NoSecondRouteError, Progress, recheck
from mithridate.certifying.certification import assumptions
from mithridate.core.certificate import SCHEMA, Certificate, Status
from mithridate.core.conditions import Statement, conditions_of, in_json, listed_ids
from mithridate.core.mechanism import SEARCH_LIMIT, Deterministic
from mithridate.core.votes import Votes
from mithridate.errors import MithridateError, TamperedError


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
    the constants of the mechanism that these follow from. Where nobody knows a second route to the rule, it is False.

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
        checks.append(_check_source(certificate.votes, run))
    checks.extend(_claims(certificate, progress))
    return Verification(tuple(checks), certificate.assumptions, certificate.conditions)


def _claims(certificate: Certificate, progress: Progress | None) -> Iterator[Check]:
    yield _check_assumptions(certificate)
    yield from _check_recipe(certificate)
    yield from _check_size(certificate)
    if isinstance(certificate.votes.mechanism, Deterministic):
        yield _check_decisions(certificate)
        return
    yield _check_labels(certificate)
    try:
        limits = limits_of(certificate)
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


def _check_source(votes: Votes, run: PathLike) -> Check:
    differences = differences_from_source(votes, run)
    agreed = f"counts, mechanism, recipe, fingerprint, size and conditions are those of {run}"
    return Check("source", not differences, differences or agreed)


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


def _check_size(certificate: Certificate) -> Iterator[Check]:
    """That no change within a radius leads to a number of training examples for which constants would be others."""
    problem, size = sizes.problem_of(certificate), certificate.votes.size
    if problem is not None:
        yield Check("size", False, problem)
    elif size is not None:
        stay = f"stay within {size.low} to {size.high - 1} training examples"
        yield _counted("size", sizes.beyond(certificate, size), stay)


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
    limited = np.where(certificate.radius < SEARCH_LIMIT, Status.CERTIFIED.value, Status.SEARCH_LIMIT.value)
    limited[certificate.status == Status.SIZE_LIMIT.value] = Status.SIZE_LIMIT.value  # see `_check_size`
    wrong = (certificate.radius < 0) | (sizes.to_show(certificate) > SEARCH_LIMIT) | (certificate.status != limited)
    what = "hold under the worst change of their size, by another route"
    return _check_again("labels and radii", _claim(certificate), wrong, what)


def _check_statuses(certificate: Certificate, limits: Limits) -> Check:
    abstained = certificate.status == Status.NOT_SEPARATED.value
    separated = limits.top_lower > limits.rival_upper
    wrong = abstained != (certificate.radius == -1)
    wrong |= (certificate.radius < -1) | (certificate.radius > SEARCH_LIMIT)
    wrong |= ~abstained & ~separated
    wrong |= (certificate.status == Status.SEARCH_LIMIT.value) & (certificate.radius != SEARCH_LIMIT)
    return _counted("statuses", wrong, "fit their bounds and radii")


def _check_radii(certificate: Certificate, limits: Limits, progress: Progress | None) -> Check:
    claim = _claim(certificate, limits, progress)
    what = f"hold, at {len(claim.radii)} distinct radii, whatever the changes are"
    return _check_again("radii", claim, sizes.to_show(certificate) > SEARCH_LIMIT, what)


def _claim(certificate: Certificate, limits: Limits | None = None, progress: Progress | None = None) -> Claim:
    """What a certificate claims, for a second route."""
    votes, rule = certificate.votes, certificate.method.to_dict()
    return Claim(
        votes.mechanism,
        rule.pop("name"),
        certificate.threat,
        certificate.label,
        sizes.to_show(certificate),
        votes.counts,
        options=rule,
        evidence=votes.evidence,
        limits=limits,
        progress=progress,
    )


def _check_again(name: str, claim: Claim, wrong: BoolArray, what: str) -> Check:
    """One check by the second route, beside what is known to be wrong without it."""
    try:
        unconfirmed = recheck(claim)
    except NoSecondRouteError as error:
        return Check("second route", False, str(error))
    except (MithridateError, MemoryError) as error:
        return Check(name, False, f"they cannot be computed again: {error}")
    return _counted(name, wrong | unconfirmed, what)


def _counted(name: str, wrong: BoolArray, what: str) -> Check:
    total, failures = len(wrong), int(wrong.sum())
    if failures:
        return Check(name, False, f"{failures} of {total} do not hold, the first is example {int(np.argmax(wrong))}")
    return Check(name, True, f"all {total} {what}")
