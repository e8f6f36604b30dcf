"""A finished run that was loaded once, and answers questions: predictions with the claims that go with them."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mithridate import _validate
from mithridate._io.files import PathLike
from mithridate.certifying.certification import certify, default_threat, own_rule
from mithridate.core.certificate import Certificate
from mithridate.core.conditions import Statement, in_json
from mithridate.core.mechanism import Drawn, Threat
from mithridate.core.rule import ExactRule, Rule
from mithridate.core.votes import Votes
from mithridate.data.declarations import Declaration
from mithridate.data.examples import Examples
from mithridate.data.plain import read_plain
from mithridate.defences.prediction import inputs_of, kind_of_run, predictor, read_like
from mithridate.errors import ArtifactError, ConfigError
from mithridate.serving.claims import ClaimBudget

Given = TypeVar("Given")
Result = TypeVar("Result")

ADAPTIVE = Statement(
    "Predictions were given to whoever asked: each claim is about an input that was chosen without looking at what "
    "these models answered to others.",
    "adaptive-questions",
)
_EXACT = (
    "The claims are exact: they hold together for any number of questions, also for those that follow earlier answers."
)
_RANDOM = (
    "Up to {budget:,} claims about these models hold together with probability at least 1 - {failure_prob:g}, if no "
    "input was chosen by earlier answers. Questions that follow answers are not covered: whoever asks on can look for "
    "inputs on which these models, drawn once, mislead."
)
_FRESH = (
    "Up to {budget:,} claims hold together with probability at least 1 - {failure_prob:g}, also for questions that "
    "follow earlier answers: models are functions of the training data, and every question gets fresh noise."
)


@dataclass(frozen=True)
class Claiming:
    """What is claimed of predictions.

    Attributes:
        threat: how the training data may differ; None: what the method certifies against by default.
        failure_prob: the probability with which any claim of a random method may fail, of all in the budget together.
        claims: how many there may be, of a random method; None: as before, or 10,000.
    """

    threat: str | None = None
    failure_prob: float = 1e-3
    claims: int | None = None

    def __post_init__(self) -> None:
        if self.threat is not None:
            _validate.one_of(tuple(Threat), threat=self.threat)
        _validate.number_in(0, 1, low_open=True, high_open=True, failure_prob=self.failure_prob)
        if self.claims is not None:
            _validate.positive_integer(claims=self.claims)


class Service:
    """A run that answers questions.

    Guarantee: labels, and for exact methods radii, are those of `mithridate predict` on the same inputs. For a random
    method each claim is made at an equal share of `failure_prob`, and `ClaimBudget` has no more shares than claims.

    Assumes: of a random method whose models were drawn once, that no input was chosen by what they answered to others;
    all its answers are conditional on that (`adaptive-questions`). Models of parts that vote on noisy inputs draw anew
    for every question, and need no such assumption. Questions that were asked elsewhere, such as by `mithridate
    predict`, are not counted.

    Args:
        run_dir: the directory of a finished run that kept what predictions need.
        claiming: what is claimed.
        device: `cpu`, `cuda`, `mps` or `auto`.

    Raises:
        ArtifactError: the run is not finished, keeps nothing for predictions, or is damaged.
        ConfigError: the method says nothing about single predictions, or the budget is another than before.
    """

    def __init__(self, run_dir: PathLike, claiming: Claiming | None = None, *, device: str = "auto") -> None:
        claiming = claiming or Claiming()
        folder = Path(run_dir)
        kind = kind_of_run(folder)
        if not kind.per_prediction:
            raise ConfigError(f"{kind.name} says nothing about a single prediction, so it cannot be served.")
        if not (folder / "votes.npz").exists():
            raise ArtifactError(f"The run in {folder} is not finished; run its `mithridate train` again.")
        self._folder, self._was = folder, _state_of(folder)
        votes = Votes.load(folder / "votes.npz")
        self._is_fresh = isinstance(votes.mechanism, Drawn)
        self._rule: Rule = own_rule(votes)
        if not self._rule.is_sound:
            raise ConfigError(
                f"Radii by {self._rule.name} are no guarantee, which is {self._rule.flaw}; serve another run."
            )
        self._threat = default_threat(votes) if claiming.threat is None else Threat(claiming.threat)
        self._on: str = (votes.recipe or {}).get("defence", {}).get("on", "votes")
        self._failure_prob = claiming.failure_prob
        self._declared: tuple[Declaration | None, list[str] | None] = read_like(folder)
        self._shape, self._kind = inputs_of(folder)
        self._votes_on = predictor(folder, device=device)
        self._busy = threading.Lock()
        self.budget: ClaimBudget | None = None
        if not self.is_exact:
            run = votes.run_ids[0] if votes.run_ids else votes.data_fingerprint
            self.budget = ClaimBudget.open(folder, str(run), claiming.claims, claiming.failure_prob)
        elif claiming.claims is not None:
            raise ConfigError(f"{self.method} is exact and needs no budget: leave claims out.")
        self._warm_up(votes)
        self._check_unchanged()

    @property
    def method(self) -> str:
        """The rule that certifies."""
        return self._rule.name

    @property
    def is_exact(self) -> bool:
        """Whether claims hold for any number of questions."""
        return isinstance(self._rule, ExactRule)

    @property
    def about_questions(self) -> str:
        """What any number of questions does to the claims."""
        if self.budget is None:
            return _EXACT
        return (_FRESH if self._is_fresh else _RANDOM).format(
            budget=self.budget.budget, failure_prob=self.budget.failure_prob
        )

    def answer(self, values: Sequence[Any]) -> dict[str, Any]:
        """Predictions for inputs as plain JSON values, and what is claimed of them.

        Raises:
            ConfigError: an input is not like those of the training set.
            ClaimsSpentError: the budget of claims does not suffice.
            ArtifactError: something became of the run directory.
        """
        (found,) = self.answers([values])
        if isinstance(found, Exception):
            raise found
        return found

    def answers(self, questions: Sequence[Sequence[Any]]) -> list[dict[str, Any] | Exception]:
        """What `answer` gives or raises for each question; together they take hardly longer than one.

        Every input has its votes and its claim by itself, so who else asks changes no answer.
        """
        with self._busy:
            read = [_tried(self._read, question) for question in questions]
            readable = [each for each in read if isinstance(each, Examples)]
            if not readable:
                return [each for each in read if isinstance(each, Exception)]
            together = _tried(self._asked, _joined(readable))
            if isinstance(together, Exception):
                if len(questions) == 1:
                    return [together]
                # One of them is at fault, and the others shall not hear of it.
                return [self._answered_alone(each) for each in read]
            return self._shared_out(self._certified(together), read)

    def _read(self, values: Sequence[Any]) -> Examples:
        declaration, classes = self._declared
        return read_plain(values, declaration, shape=self._shape, kind=self._kind, classes=classes)

    def _asked(self, inputs: Examples) -> Votes:
        votes = self._votes_on(inputs)
        self._check_unchanged()  # afterwards: some methods read the run at every question
        return votes

    def _check_unchanged(self) -> None:
        """Refuse to speak of a run that is no longer there, such as after an update.

        Raises:
            ArtifactError: the run directory holds another run than when serving began.
        """
        if _state_of(self._folder) != self._was:
            raise ArtifactError(
                f"The run in {self._folder} was updated or trained again while it was served; start the server again."
            )

    def _answered_alone(self, inputs: Examples | Exception) -> dict[str, Any] | Exception:
        found = inputs if isinstance(inputs, Exception) else _tried(self._asked, inputs)
        return found if isinstance(found, Exception) else self._shared_out(self._certified(found), [inputs])[0]

    def _shared_out(
        self, certificate: Certificate, read: Sequence[Examples | Exception]
    ) -> list[dict[str, Any] | Exception]:
        """To every question its predictions, once its claims are taken from the budget."""
        found: list[dict[str, Any] | Exception] = []
        start = 0
        for inputs in read:
            if isinstance(inputs, Exception):
                found.append(inputs)
                continue
            part = slice(start, start + len(inputs.x))
            start = part.stop
            left = None if self.budget is None else _tried(self.budget.reserve, len(inputs.x))
            found.append(left if isinstance(left, Exception) else self._in_json(certificate, part, left))
        return found

    def _certified(self, votes: Votes) -> Certificate:
        if self.budget is not None and not self._is_fresh:
            votes = replace(votes, assumptions=(*votes.assumptions, ADAPTIVE))
        each = self._failure_prob if self.budget is None else self.budget.failure_prob_each
        return certify(votes, method=self._rule, threat=self._threat, failure_prob=each, on=self._on)

    def _warm_up(self, votes: Votes) -> None:
        """Certify what was voted when the run was trained: what is wrong shows now, and curves are computed."""
        self._certified(votes)

    def _in_json(self, certificate: Certificate, part: slice, left: int | None) -> dict[str, Any]:
        _, classes = self._declared
        names = dict(enumerate(classes or ()))
        columns = (each[part].tolist() for each in (certificate.label, certificate.radius, certificate.status))
        return {
            "predictions": [
                {"label": label, "class": names.get(label), "radius": radius, "status": status}
                for label, radius, status in zip(*columns, strict=True)
            ],
            "unit": certificate.votes.unit_words.one,
            "threat": certificate.threat.value,
            "method": certificate.method.name,
            "failure_prob": 0.0 if self.budget is None else self.budget.failure_prob,
            **in_json(certificate.assumptions, certificate.threat),
            "certificate": self._identity(certificate, left),
        }

    def _identity(self, certificate: Certificate, left: int | None) -> dict[str, Any]:
        """Which claim an answer is part of: the hash of all that is said of every prediction alike."""
        votes, budget = certificate.votes, self.budget
        run = votes.run_ids[0] if votes.run_ids else None
        said = {"run": run, "mechanism": votes.mechanism.to_dict(), "recipe": votes.recipe, **certificate.claim()}
        content = json.dumps(said, sort_keys=True, separators=(",", ":"), default=str)
        claims = None
        if budget is not None:
            claims = {"budget": budget.budget, "left": left, "failure_prob_each": budget.failure_prob_each}
        return {
            "sha256": hashlib.sha256(content.encode()).hexdigest(),
            "run": run,
            "training": None if votes.training is None else votes.training.to_dict(),
            "bounds": certificate.bounds,
            "questions": self.about_questions,
            "claims": claims,
        }


def _state_of(folder: Path) -> tuple[tuple[int, int, int], ...]:
    """What changes when a run does: the files that say what was trained, and how it voted."""
    found = (os.stat(folder / name) for name in ("run.json", "votes.npz"))
    return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in found)


def _tried(work: Callable[[Given], Result], given: Given) -> Result | Exception:
    """What comes of something, or why nothing does."""
    try:
        return work(given)
    except Exception as error:
        return error


def _joined(parts: Sequence[Examples]) -> Examples:
    """All inputs, one after the other; they were read alike."""
    return parts[0] if len(parts) == 1 else replace(parts[0], x=np.concatenate([each.x for each in parts]), ids=None)
