"""An auditor's check of a saved certificate: everything is computed again, by another route, and compared.

Nothing here uses the curve cache, the privacy-loss engine, the search of `certify` or a defence; radii are checked by
`routes`, and bounds and size steps are computed again below and in `distributions`, sharing no code with `bounds`,
`score_bands` and `conditions`. Two things are shared: the first route suggests which Renyi orders to try (the condition
at any order is a proof by itself), and betting bounds come from `bounds`, for the capital of a bet is a definition and
has no second route. A certificate is confirmed when every claimed radius holds, not when it is the largest one.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from mithridate._io.artifacts import read_hashed
from mithridate._io.files import PathLike, parse_json, read_file
from mithridate._text import counted, listed
from mithridate.auditing.confidence import (
    binomial_lower,
    binomial_upper,
    log_binomial_tail,
    mixture,
    mixture_upper,
)
from mithridate.auditing.distributions import distributions_of, means_of
from mithridate.auditing.draws_and_noise import copies_again
from mithridate.auditing.routes import (
    BoolArray,
    Claim,
    Distributions,
    FloatArray,
    IntArray,
    Limits,
    NoSecondRouteError,
    Progress,
    recheck,
)
from mithridate.auditing.together import unconfirmed_together
from mithridate.certifying.certification import assumptions
from mithridate.core.bounds import bound_scores
from mithridate.core.certificate import SCHEMA, Certificate, Scope, Status
from mithridate.core.conditions import Size, Statement, conditions_of, from_plain, in_json, listed_ids, to_plain
from mithridate.core.mechanism import SEARCH_LIMIT, Deterministic, Drawn, Threat
from mithridate.core.provenance import TrainingData
from mithridate.core.units import Unit, unit_in_json
from mithridate.core.votes import Votes
from mithridate.errors import ArtifactError, MithridateError, NumericalError, TamperedError


@dataclass(frozen=True)
class Check:
    """One line of an audit."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Verification:
    """The outcome of an audit: what was checked, what the radii count, and under which assumptions it holds."""

    checks: tuple[Check, ...]
    assumptions: tuple[str, ...] = ()
    conditions: tuple[Statement, ...] = ()
    unit: Unit | None = None

    def __repr__(self) -> str:
        failed = [check.name for check in self.checks if not check.passed]
        of = "" if self.unit is None else f", for {self.unit.many}"
        outcome = f"not valid: {listed(failed)}" if failed else f"valid{of}"
        lines = [f"Verification by {counted(len(self.checks), 'check')}: {outcome}"]
        return "\n".join([*lines, *([f"conditional on {listed_ids(self.conditions)}"] if self.conditions else [])])

    @property
    def valid(self) -> bool:
        """Whether everything held."""
        return all(check.passed for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """The outcome as plain JSON values."""
        return {
            "schema": "mithridate.verification/1",
            "valid": self.valid,
            **unit_in_json(self.unit),
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
        path: a file that `Certificate.save` wrote; or the directory of a run, for its `certificate.json`, which is then
            compared with that run.
        run: the directory of the run, or the votes file, that was certified.
        progress: called with how many radii, or how many predictions, are done, and their total.

    Raises:
        ArtifactError: the file cannot be read, is truncated, or is not a certificate.
    """
    if os.path.isdir(path):
        path, run = _certificate_in(Path(path)), path if run is None else run
    try:
        content = read_hashed(path, SCHEMA)
    except TamperedError as error:
        return Verification((Check("file unchanged", False, str(error)),))
    certificate = Certificate.from_content(content)
    checks = [Check("file unchanged", True, f"the SHA-256 of every byte of the file agrees, schema {SCHEMA}")]
    checks.append(_check_conditions(certificate, content))
    if run is not None:
        differences = differences_from_source(certificate.votes, run)
        agreed = f"counts, mechanism, recipe, data, inputs, size and conditions are those of {run}"
        checks.append(Check("source", not differences, differences or agreed))
    checks.extend(_claims(certificate, progress))
    return Verification(tuple(checks), certificate.assumptions, certificate.conditions, certificate.votes.unit)


def certificate_of_run(folder: Path) -> Certificate:
    """The certificate in the directory of a run; one that was left from before it was trained again is refused.

    Raises:
        ArtifactError: there is none, it cannot be read, or it is not of the votes beside it.
    """
    certificate = Certificate.load(_certificate_in(folder))
    check_is_of(certificate, folder)
    return certificate


def check_is_of(certificate: Certificate, run_dir: Path) -> None:
    """Require that a certificate is of the votes of a run.

    Raises:
        ArtifactError: the run was trained otherwise since, such as with other class weights, or its votes are gone.
    """
    votes = run_dir / "votes.npz"
    if not os.path.isfile(votes):
        raise ArtifactError(
            f"There is no votes.npz in {run_dir}, so nobody knows whose certificate.json that is; give the file itself."
        )
    if differences_from_source(certificate.votes, votes):
        raise ArtifactError(
            f"certificate.json in {run_dir} is not of the votes beside it: the run was trained otherwise since. "
            f"Certify it again: mithridate certify {shlex.quote(str(run_dir))}"
        )


def _certificate_in(folder: Path) -> Path:
    path = folder / "certificate.json"
    if not os.path.isfile(path):
        finished = os.path.isfile(folder / "votes.npz")
        write = f"write it with: mithridate certify {shlex.quote(str(folder))}"
        remedy = write if finished else "give the directory of a certified run"
        raise ArtifactError(f"There is no certificate.json in {folder}; {remedy}.")
    return path


def _claims(certificate: Certificate, progress: Progress | None) -> Iterator[Check]:
    yield _check_assumptions(certificate)
    yield from _check_recipe(certificate)
    yield from _check_units(certificate)
    for each in _by_input_change(certificate):
        yield from _check_size(each)
    if isinstance(certificate.votes.mechanism, Deterministic):
        for each in _by_input_change(certificate):
            yield _check_decisions(each, progress)
        yield from _check_together(certificate)
        return
    if certificate.collective is not None:
        yield Check("together", False, "nothing is proved of all predictions of a random mechanism together")
    yield _check_labels(certificate)
    yield from _check_order(certificate)
    yield from _check_input_noise(certificate)
    if isinstance(certificate.votes.mechanism, Drawn):
        yield from _check_draws(certificate, progress)
        return
    try:
        distributions = _distributions_of(certificate)
        limits = _limits_of(certificate) if distributions is None else means_of(distributions)
    except MithridateError as error:
        yield Check("confidence bounds", False, f"they cannot be computed again: {error}")
        return
    route = "by the code that certified" if certificate.bounds == "betting" else "by another route"
    yield Check("confidence bounds", True, f"{certificate.bounds} bounds on {certificate.on} computed again {route}")
    for row in _by_input_change(certificate):
        moved = _moved(row)
        yield _check_statuses(row, limits, moved)
        claim = replace(_claim(row, limits, progress), distributions=distributions)
        what = f"hold, at {len(claim.radii)} distinct radii, whatever the {row.votes.unit_words.changes} are"
        yield _check_again(f"radii{moved}", claim, _to_show(row) > SEARCH_LIMIT, what)


def _check_draws(certificate: Certificate, progress: Progress | None) -> Iterator[Check]:
    """Radii of votes that are draws of noise; changes of the input share the failure probability."""
    share = certificate.failure_prob
    if certificate.frontier is not None:
        share /= len(certificate.frontier.changes)
    if certificate.scope is Scope.ALL:
        share /= certificate.votes.examples
    for row in _by_input_change(certificate):
        moved = _moved(row)
        nothing = [Status.NOT_SEPARATED.value, *([Status.INPUT_CHANGE.value] if row.frontier is not None else [])]
        wrong = np.isin(row.status, nothing) != (row.radius == -1)
        wrong |= (row.radius < -1) | (row.radius > SEARCH_LIMIT)
        wrong |= (row.status == Status.SEARCH_LIMIT.value) & (row.radius != SEARCH_LIMIT)
        yield _counted(f"statuses{moved}", wrong, "fit their radii")
        claim = replace(_claim(row, progress=progress), failure_prob=share)
        what = f"are withstood by enough draws of the noise, whatever the {row.votes.unit_words.changes} are"
        yield _check_again(f"radii{moved}", claim, _to_show(row) > SEARCH_LIMIT, what)


def _moved(certificate: Certificate) -> str:
    """By how much the input may move, for the name of a check."""
    return "" if certificate.frontier is None else f", input change {certificate.input_change:g}"


def _check_assumptions(certificate: Certificate) -> Check:
    expected = assumptions(certificate.method, on=certificate.on, kind=certificate.bounds, votes=certificate.votes)
    missing = [sentence for sentence in expected if sentence not in certificate.assumptions]
    if missing:
        return Check("assumptions", False, f"not stated: {missing[0]}")
    return Check("assumptions", True, f"stated: {len(expected)}")


def _check_conditions(certificate: Certificate, content: dict[str, Any]) -> Check:
    """That the file says on what it is conditional, as its votes do."""
    said = certificate.votes.statements_by(certificate.bounds)
    expected = in_json(said, certificate.threat)
    if _is_proposed(certificate.votes.recipe) and not conditions_of(said):
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
    found = conditions_of(certificate.votes.statements_by(certificate.bounds), certificate.threat)
    return f"the claim is conditional on {listed_ids(found)}" if found else "the claim is unconditional"


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


def _check_units(certificate: Certificate) -> Iterator[Check]:
    """That the mechanism, the size and the training data are of as many units as are stated."""
    votes, unit = certificate.votes, certificate.votes.unit
    named = votes.training is not None and votes.training.units is not None
    if unit is None:
        if named:
            yield Check("units", False, "the training data has units, but radii count examples")
        return
    if votes.training is not None and not (named and unit.count <= votes.training.examples):
        yield Check("units", False, f"the training data is not that of {unit.counted(unit.count)}")
        return
    stated = {votes.mechanism.to_dict().get("num_train"), None if votes.size is None else votes.size.num_train}
    others = stated - {None, unit.count}
    if others:
        yield Check("units", False, f"the training data has {unit.counted(unit.count)}, but {min(others)} are counted")
        return
    yield Check("units", True, f"radii count {unit.many}, of which the training data is said to have {unit.count:,}")


def _check_size(certificate: Certificate) -> Iterator[Check]:
    """That no change within a radius leads to a number of training examples for which constants would be others."""
    problem, size, counted = _size_problem(certificate), certificate.votes.size, certificate.votes.unit_words
    if problem is not None:
        yield Check("size", False, problem)
    elif size is not None:
        stay = f"stay within {size.low} to {size.high - 1} {counted.many_in_full}"
        yield _counted("size", _beyond_size(certificate, size), stay)


def _check_labels(certificate: Certificate) -> Check:
    on_votes = certificate.on == "votes"
    scores = certificate.votes.counts * _weights(certificate) if on_votes else np.asarray(certificate.votes.score_sums)
    best = scores[np.arange(len(scores)), np.clip(certificate.label, 0, scores.shape[1] - 1)]
    # The label has the largest score, and no smaller label has as much.
    smaller = np.arange(scores.shape[1]) < certificate.label[:, None]
    wrong = (scores.max(axis=1) > best) | ((scores >= best[:, None]) & smaller).any(axis=1)
    wrong |= (certificate.label < 0) | (certificate.label >= scores.shape[1])
    return _counted("labels", wrong, "have the most votes or the largest mean score, ties to the smaller label")


def _check_order(certificate: Certificate) -> Iterator[Check]:
    """That bounds which hold at any time are of the first instances of a run; see `Votes.shards`."""
    if certificate.bounds != "anytime":
        return
    votes = certificate.votes
    merged = any("without a name were merged" in sentence for sentence in votes.assumptions)
    if merged or len(votes.run_ids) > 1:
        yield Check("order of instances", False, "the votes are those of several runs, whose order nobody fixed")
        return
    numbers = [range(*pair) for pairs in votes.shards.values() for pair in pairs] or [range(votes.instances)]
    first = numbers == [range(votes.instances)]
    agreed = f"the votes are those of the first {counted(votes.instances, 'instance')}, in the order of their numbers"
    yield Check("order of instances", first, agreed if first else "instances before the last that voted are missing")


def _check_input_noise(certificate: Certificate) -> Iterator[Check]:
    """That the noise on inputs is that of the recipe, where one is recorded, and what the distances are measured in."""
    votes, frontier = certificate.votes, certificate.frontier
    noise, recorded = votes.input_noise, (votes.recipe or {}).get("input_noise")
    if votes.recipe is not None and recorded != (None if noise is None else noise.to_dict()):
        yield Check("input noise", False, f"the recipe says {recorded!r:.80}, the votes another")
    elif frontier is not None and (noise is None or noise.of != frontier.of):
        yield Check("input noise", False, "the inputs may move, but the votes were cast on inputs without such noise")
    elif noise is not None:
        yield Check("input noise", True, f"stated: {noise.in_words()}")


def _weights(certificate: Certificate) -> IntArray:
    """What a vote for each label counts."""
    return np.array(_claim(certificate).weights, dtype=np.int64)


def _by_input_change(certificate: Certificate) -> Iterator[Certificate]:
    """What is claimed for each change of the input; the certificate itself, where inputs stay."""
    if certificate.frontier is None:
        yield certificate
        return
    for change in certificate.frontier.changes:
        yield certificate.at_input_change(change)


def _check_decisions(certificate: Certificate, progress: Progress | None) -> Check:
    """Labels and radii of a deterministic mechanism, together: both follow from the votes alone."""
    limited = np.where(certificate.radius < SEARCH_LIMIT, Status.CERTIFIED.value, Status.SEARCH_LIMIT.value)
    limited[certificate.status == Status.SIZE_LIMIT.value] = Status.SIZE_LIMIT.value  # see `_check_size`
    moves = certificate.input_change
    if moves:  # then nothing may be claimed
        limited[certificate.radius == -1] = Status.INPUT_CHANGE.value
    wrong = (certificate.radius < (-1 if moves else 0)) | (_to_show(certificate) > SEARCH_LIMIT)
    wrong |= certificate.status != limited
    if certificate.frontier is not None:
        wrong |= certificate.frontier.of != "features"
    units = certificate.votes.unit_words
    change = f"change of so many {units.many}" if units.are_named else "change of their size"
    together = f" and inputs that move by {moves:g}" if moves else ""
    what = f"hold under the worst {change}{together}, by another route"
    return _check_again(f"labels and radii{_moved(certificate)}", _claim(certificate, progress=progress), wrong, what)


def _check_together(certificate: Certificate) -> Iterator[Check]:
    """What is claimed of all predictions together, where anything is."""
    found, size = certificate.collective, certificate.votes.size
    if found is None:
        return

    def is_within(radius: int) -> bool:
        return size is None or not _leaves(size, np.array([radius]), certificate.threat).any()

    try:
        wrong = unconfirmed_together(_claim(certificate), found.most_changed, found.proofs, is_within)
    except (MithridateError, MemoryError) as error:
        yield Check("together", False, f"it cannot be computed again: {error}")
        return
    if wrong:
        claimed = found.most_changed[wrong[0]]
        yield Check("together", False, f"at r = {wrong[0]}, more than {claimed} predictions may change together")
        return
    radii = listed([str(radius) for radius in found.most_changed])
    yield Check("together", True, f"no more predictions change together than claimed, at r = {radii}, by another route")


def _check_statuses(certificate: Certificate, limits: Limits, moved: str) -> Check:
    abstained = certificate.status == Status.NOT_SEPARATED.value
    if certificate.frontier is not None:
        abstained |= certificate.status == Status.INPUT_CHANGE.value
    ahead = limits.weight * limits.top_lower > limits.rival_weight * limits.rival_upper
    separated = ahead.reshape(len(abstained), -1).all(axis=1)
    wrong = abstained != (certificate.radius == -1)
    wrong |= (certificate.radius < -1) | (certificate.radius > SEARCH_LIMIT)
    wrong |= ~abstained & ~separated
    wrong |= (certificate.status == Status.SEARCH_LIMIT.value) & (certificate.radius != SEARCH_LIMIT)
    return _counted(f"statuses{moved}", wrong, "fit their bounds and radii")


def _claim(certificate: Certificate, limits: Limits | None = None, progress: Progress | None = None) -> Claim:
    """What a certificate claims, for a second route."""
    votes, rule = certificate.votes, certificate.method.to_dict()
    return Claim(
        votes.mechanism,
        rule.pop("name"),
        certificate.threat,
        certificate.label,
        _to_show(certificate),
        votes.counts,
        options=rule,
        evidence=votes.evidence,
        limits=limits,
        progress=progress,
        counts_units=votes.unit is not None,
        input_change=certificate.input_change,
        input_noise=None if votes.input_noise is None else votes.input_noise.deviation,
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


# --- the size step ----------------------------------------------------------------------------------------------------

# The numbers of training examples at which constants that follow them change, written down anew.
_CHANGES_AT = np.array([1, 4, 7, 14, 34, 67] + [int(float(f"{m}e{e}")) for e in range(2, 17) for m in (1.35, 3.4, 6.7)])


def _size_problem(certificate: Certificate) -> str | None:
    """Why the stated size cannot be right; None where it can."""
    size, cut = certificate.votes.size, certificate.status == Status.SIZE_LIMIT.value
    many = certificate.votes.unit_words.many
    if size is None:
        return "a radius ends with the size of the training set, but no size is stated" if cut.any() else None
    stated = certificate.votes.mechanism.to_dict().get("num_train")
    if stated not in (None, size.num_train):
        return f"it is that of {size.num_train} {many}, but the mechanism has {stated}"
    if size.high not in _CHANGES_AT or size.low != _CHANGES_AT[_CHANGES_AT < size.high].max(initial=0):
        return f"{size.low} to {size.high - 1} is not the size step of {size.num_train} {many}"
    return None


def _beyond_size(certificate: Certificate, size: Size) -> BoolArray:
    """Which radii leave the step, or are cut short although they do not reach its end."""
    radius, cut = _searched(certificate), certificate.status == Status.SIZE_LIMIT.value
    return _leaves(size, radius, certificate.threat) | (cut & ~_leaves(size, radius + 1, certificate.threat))


def _to_show(certificate: Certificate) -> IntArray:
    """The radii that must hold by another route: one more than claimed where the size alone ends it."""
    return _searched(certificate) + (certificate.status == Status.SIZE_LIMIT.value)


def _leaves(size: Size, radius: IntArray, threat: Threat) -> BoolArray:
    """Whether so many changes can lead to a number of examples beyond the edges of the size."""
    changes = np.maximum(radius, 0)  # an abstention claims nothing
    may_shrink = threat in (Threat.SYMMETRIC_DIFFERENCE, Threat.REMOVE, Threat.EDIT)
    may_grow = threat in (Threat.SYMMETRIC_DIFFERENCE, Threat.ADD, Threat.EDIT)
    fewest, most = size.num_train - may_shrink * changes, size.num_train + may_grow * changes
    return (fewest < size.low) | (most >= size.high)


def _searched(certificate: Certificate) -> IntArray:
    """The radii, as far as anyone searches for them: a file may claim any number."""
    return np.minimum(certificate.radius, SEARCH_LIMIT + 1)


# --- where the votes come from ----------------------------------------------------------------------------------------


def differences_from_source(votes: Votes, run: PathLike) -> str:
    """In what votes are not those of a run, or of a votes file, with all that was said there; empty where they are."""
    folder = Path(run)
    source = Votes.load(folder / "votes.npz" if os.path.isdir(folder) else folder)
    if (folder / "run.json").exists() and (damage := _differences_from_run(source, folder)):
        return f"votes.npz in {run} is not what that run counted: {' and '.join(damage)} differ"
    found = _differences(_facts(votes), _facts(source))
    return f"{' and '.join(found)} differ from those of {run}" if found else ""


def _facts(votes: Votes) -> dict[str, Any]:
    """What a certificate takes over from its votes, by the words of an audit; arrays only where they are there."""
    facts: dict[str, Any] = {
        "counts": votes.counts,
        "mechanism": votes.mechanism.to_dict(),
        "recipe": votes.recipe,
        "fingerprint": votes.data_fingerprint,
        "training data": votes.training,
        "runs": votes.run_ids,
        "shards": (dict(votes.shards), dict(votes.planned)),
        "size": votes.size,
        "units": votes.unit,
        "input noise": votes.input_noise,
        "conditions": to_plain(votes.assumptions),
    }
    # No radius depends on true labels, and every accuracy does.
    names = {"input_hashes": "hashes of inputs", "labels": "true labels"}
    for name in ("score_sums", "score_squares", "score_histograms", "input_hashes", "labels", "devices"):
        if getattr(votes, name) is not None:
            facts[names.get(name, name)] = getattr(votes, name)
    return facts | dict(votes.evidence)


def _differences(found: dict[str, Any], source: dict[str, Any]) -> list[str]:
    """The names of what a certificate has and its source has not, or has otherwise."""
    return [name for name, value in found.items() if name not in source or not _equal(value, source[name])]


def _differences_from_run(votes: Votes, run_dir: Path) -> list[str]:
    """In what the votes of a run are not what `run.json` and the shards say."""
    plain = _said_of_examples(run_dir / "run.json")
    if plain is not None:
        # A run that keeps examples trains nothing and has no shards; what draws random numbers is another kind of run.
        return _differences(plain, _facts(votes)) if isinstance(votes.mechanism, Deterministic) else ["mechanism"]
    from mithridate.training.run_directory import recorded

    manifest, total = recorded(run_dir)
    said = {
        **_counted_by(votes, total["counts"]),
        "recipe": manifest.recipe,
        "fingerprint": manifest.data_fingerprint,
        "training data": manifest.training,
        "runs": (manifest.run_id,),
        "size": manifest.size,
        "units": manifest.unit,
        "conditions": to_plain(manifest.assumptions),
    }
    return _differences(said, _facts(votes))


def _counted_by(votes: Votes, answers: IntArray) -> dict[str, IntArray]:
    """The votes that the answers of the models of a run amount to, and the evidence beside them."""
    if not isinstance(votes.mechanism, Drawn):
        return {"counts": answers}
    if answers.shape != (votes.examples * votes.instances, votes.classes):
        return {"counts": answers}  # of other inputs or draws
    counts, withstood = copies_again(answers, votes.instances)
    return {"counts": counts, "withstood": withstood}


def _said_of_examples(path: Path) -> dict[str, Any] | None:
    """What `run.json` says of a run that keeps examples; None where the run trained models."""
    try:
        values = parse_json(read_file(path))
        if values.get("kind") != "examples":
            return None
        size = None if values["size"] is None else Size(**values["size"])
        said = {"recipe": values["recipe"], "fingerprint": values["data_fingerprint"], "size": size}
        said["training data"] = TrainingData(**values["training"])
        said["units"] = None if values.get("unit") is None else Unit(**values["unit"])
        return {**said, "conditions": to_plain(from_plain(values["assumptions"]))}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, ArtifactError):
            raise
        raise ArtifactError(f"{path} is damaged ({error!s:.200}); verify without it.") from error


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        return np.array_equal(np.asarray(first), np.asarray(second))
    return first == second


# --- confidence bounds ------------------------------------------------------------------------------------------------


def _limits_of(certificate: Certificate) -> Limits:
    """Bounds on the label of every example and on its rivals.

    Raises:
        NumericalError: the bounds that the certificate names do not fit what it carries.
    """
    votes = certificate.votes
    share = certificate.failure_prob / (votes.examples if certificate.scope is Scope.ALL else 1)
    if certificate.on == "votes":
        return _vote_limits(certificate, share)
    if votes.score_sums is None:
        raise NumericalError("the certificate is on scores but carries none")
    if certificate.bounds == "betting":
        limits = bound_scores(
            votes.score_sums,
            votes.score_squares,
            votes.score_histograms,
            instances=votes.instances,
            failure_prob=share,
            kind="betting",
        )
        return Limits(limits.top_lower, limits.top_miss_upper, limits.rival_upper)
    return _score_limits(certificate, share / (2 * votes.classes))


def _distributions_of(certificate: Certificate) -> Distributions | None:
    """Bounds on whole distributions of scores, where the certificate rests on them."""
    votes = certificate.votes
    if certificate.on != "scores" or certificate.bounds != "histogram":
        return None
    if votes.score_sums is None or votes.score_histograms is None:
        raise NumericalError("the certificate is on histograms of scores but carries none")
    share = certificate.failure_prob / (votes.examples if certificate.scope is Scope.ALL else 1)
    label = np.clip(certificate.label, 0, votes.classes - 1)
    tail = share / (2 * votes.classes)
    return distributions_of(votes.score_histograms, votes.score_sums, label, instances=votes.instances, tail=tail)


def _vote_limits(certificate: Certificate, share: float) -> Limits:
    """Bounds on the label of every example and on its rivals; with class weights examples x rivals.

    Raises:
        NumericalError: the bounds are not proved for class weights.
    """
    counts, label = certificate.votes.counts, np.clip(certificate.label, 0, certificate.votes.classes - 1)
    weighed = certificate.method.to_dict().get("class_weights") is not None
    if weighed and certificate.bounds in ("simuem", "pointwise"):
        raise NumericalError(f"class weights rest on no {certificate.bounds} bounds, but the certificate names them")
    weights = _weights(certificate)
    lower_tail, upper_tail, test_tail = _tails(certificate.bounds, share, weights)
    top, theirs, other = _against(counts, label, weights, each=weighed)
    own = weights[label][:, None]
    miss = _looked_up(certificate, certificate.votes.instances - top, lower_tail)
    upper = np.minimum(_looked_up(certificate, theirs, upper_tail), miss)
    lower = 1 - miss if certificate.bounds == "anytime" else _looked_up(certificate, top, lower_tail, below=True)
    ahead = _all_ahead(certificate.bounds, top, theirs, own, other, test_tail)
    columns = (np.where(ahead, lower, 0), np.where(ahead, miss, 1), np.where(ahead, upper, 1), own, other)
    if not weighed:
        return Limits(*(column[:, 0] for column in columns[:3]))
    return Limits(*(np.broadcast_to(column, other.shape).astype(np.float64) for column in columns))


def _against(counts: IntArray, label: IntArray, weights: IntArray, each: bool) -> tuple[IntArray, IntArray, IntArray]:
    """Votes for the label, votes for each of its rivals or for the nearest alone, and what these weigh."""
    top = np.take_along_axis(counts, label[:, None], axis=1)
    if each:
        rivals = np.stack([np.delete(np.arange(len(weights)), own) for own in label])
        return top, np.take_along_axis(counts, rivals, axis=1), weights[rivals]
    ordered = np.sort(counts, axis=1)
    return ordered[:, -1:], ordered[:, -2:-1], np.ones(top.shape, dtype=np.int64)


def _tails(bounds: str, share: float, weights: IntArray) -> tuple[float, float, float | None]:
    """What may be spent on the lower bound, on each upper bound, and on each sign test where there are any."""
    labels, kinds = len(weights), len(set(weights.tolist()))
    if bounds in ("simultaneous", "simuem", "pointwise"):
        tail = share / {"simultaneous": 2 * labels, "simuem": labels, "pointwise": 4}[bounds]
        return tail, tail, None
    tests = labels - 1
    if bounds == "winner" and kinds == 1:
        tests = min(tests, 2)
    spent = share / 10
    if bounds == "winner" and tests / (2 * labels) > 1 / 10:
        spent = share * tests / (2 * labels)
    rest = (share - spent) / (1 if labels == 2 else 1 + min(kinds, labels - 1))
    return rest, rest, spent / tests


def _looked_up(certificate: Certificate, counts: IntArray, tail: float, below: bool = False) -> FloatArray:
    """A bound for every count, computed once for each that occurs."""
    values, where = np.unique(counts, return_inverse=True)
    total = certificate.votes.instances
    if certificate.bounds == "anytime":
        found = mixture_upper(values, total, tail)
    else:
        found = binomial_lower(values, total, tail) if below else binomial_upper(values, total, tail)
    return found[where.reshape(counts.shape)]


def _all_ahead(
    bounds: str, top: IntArray, theirs: IntArray, own: IntArray, other: IntArray, tail: float | None
) -> BoolArray:
    """Whether sign tests separate the label of each example from all its rivals, in one column."""
    if tail is None:
        return np.ones(top.shape, dtype=np.bool_)
    rows = np.stack([each.ravel() for each in np.broadcast_arrays(top, theirs, own, other)])
    (hits, misses, mine, rival), where = np.unique(rows, axis=1, return_inverse=True)
    if bounds == "anytime":
        passed = mixture(misses, hits, mine / (mine + rival)) >= np.log(1 / tail)
    else:
        passed = log_binomial_tail(hits, hits + misses, rival / (mine + rival)) <= np.log(tail)
    return passed[where.reshape(theirs.shape)].all(axis=1, keepdims=True)


def _score_limits(certificate: Certificate, tail: float) -> Limits:
    votes = certificate.votes
    instances = votes.instances
    sums = np.asarray(votes.score_sums)
    # Relative error of sums that were accumulated in this precision.
    rounding = instances * (2.0**-23 if sums.dtype == np.float32 else 2.0**-52)
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
    return Limits(top, 1 - top, np.minimum(upper.max(axis=1), 1 - top))
