"""What a claim is conditional on: whatever was read off the training data, or looked at it, outside of the mechanism.

A certificate compares D with every D' under *the same* constants. A constant that follows D (its labels, its ranges)
may be another one on D', and so may one that somebody chose after a look at D. Such a claim is true only if that
constant is fixed; it is then called conditional wherever it is shown, with what would lift the condition.

What follows the number of examples limits the radius instead. A constant that followed every single example would be
another one on nearly all changed data. So all of them follow the *size step*, which is coarse, and a radius ends before
any D' within it could have another step: up to there the constants are the same on D and on D' (docs/theory.md).

Statements travel with the votes, from wherever they arise to every certificate. One without an `id` is an ordinary
assumption; one with an `id` is a condition.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from mithridate import _validate
from mithridate.core.mechanism import Threat
from mithridate.core.units import EXAMPLES, UnitWords
from mithridate.errors import ConfigError


class _Kind(NamedTuple):
    """What lifts a condition, in a few words and in a sentence, and the threats that cannot change what it is about."""

    hint: str
    remedy: str
    lifted_by: frozenset[Threat] = frozenset()


# By the ids that docs/certificate.md fixes: programs read them.
_KINDS = {
    "class-list": _Kind(
        "declare classes", "Declare the classes from what you know: classes.", frozenset({Threat.FEATURES})
    ),
    "proposed-schema": _Kind(
        "confirm what was proposed",
        "Compare what was proposed with what you know and correct it; then delete proposed = true from the project "
        "file, or give it to CertifiedClassifier as its schema.",
    ),
    "fitted-preprocessing": _Kind(
        "scale by known constants",
        "Scale by constants that you know, such as features=UnitNorm(center=..., scale=...), or declare the ranges of "
        "the columns.",
    ),
    "tuned-on-training-data": _Kind(
        "choose on other data",
        "Choose constants on other data, such as trusted examples that are not trained on; if the training data shares "
        "no example with the data that was looked at, the condition is met.",
    ),
    "instances-after-a-look": _Kind(
        "train them as one run",
        "Decide on the number of instances before anyone sees how they vote, train all of them as one run, and certify "
        "that run; or certify the first instances of one run by anytime bounds.",
    ),
    "seed-known": _Kind(
        "leave the seed out", "Leave the seed out: the operating system then draws one that nobody knows."
    ),
    "trusted-encoder": _Kind(
        "trust what trained it",
        "Use features that are a formula, such as oriented-gradients or hashed-words, or make sure that no attacker "
        "could touch what the encoder was trained on.",
    ),
    "encoder-rounding": _Kind(
        "encode one input at a time",
        "Give features.Frozen a batch_size of 1, so that every input is encoded alone and twice; or use an encoder by "
        "its name, such as onnx:FILE.",
    ),
    "adaptive-questions": _Kind(
        "choose inputs before the answers",
        "Choose every input without looking at what these models answered to others; or serve a method without "
        "randomness, such as nearest-neighbours or dpa, whose claims hold whatever is asked.",
    ),
}
IDS = tuple(_KINDS)


class Statement(str):
    """A sentence that every certificate repeats; with an `id`, a condition of its claims.

    It is a string, so that it can be shown, compared and joined as the sentence that it is.

    Args:
        sentence: what is taken for granted.
        id: one of `IDS` where the claim is conditional on it, None for an ordinary assumption.

    >>> seed = Statement("The root seed was given.", "seed-known")
    >>> seed.id, seed == "The root seed was given."
    ('seed-known', True)
    """

    id: str | None

    def __new__(cls, sentence: str, id: str | None = None) -> Statement:
        """A statement; an unknown id is refused."""
        if id is not None and id not in _KINDS:
            raise ValueError(f"unknown condition {id!r}")
        statement = super().__new__(cls, sentence)
        statement.id = id
        return statement

    def __getnewargs__(self) -> tuple[Any, ...]:  # pickled between processes of ours
        return str(self), self.id

    @property
    def remedy(self) -> str | None:
        """What lifts the condition."""
        return None if self.id is None else _KINDS[self.id].remedy

    def to_dict(self) -> dict[str, Any]:
        """The condition as plain JSON values."""
        return {"id": self.id, "sentence": str(self), "remedy": self.remedy}


def conditions_of(statements: Iterable[str], threat: Threat | None = None) -> tuple[Statement, ...]:
    """The conditions among statements: those that apply to a threat, or all of them."""
    return tuple(
        each
        for each in statements
        if isinstance(each, Statement) and each.id is not None and threat not in _KINDS[each.id].lifted_by
    )


def in_json(statements: Iterable[str], threat: Threat | None = None) -> dict[str, Any]:
    """`conditional` and `conditions`, as every JSON output of mithridate has them."""
    found = conditions_of(statements, threat)
    return {"conditional": bool(found), "conditions": [each.to_dict() for each in found]}


def in_words(statements: Iterable[str], threat: Threat | None = None) -> str | None:
    """One line that says what a claim is conditional on and what lifts it; None where it is unconditional.

    >>> in_words([Statement("The root seed was given.", "seed-known")])
    'Conditional on seed-known. Leave the seed out: the operating system then draws one that nobody knows.'
    """
    found = conditions_of(statements, threat)
    if not found:
        return None
    remedies = dict.fromkeys(each.remedy for each in found if each.remedy is not None)
    return f"Conditional on {listed_ids(found)}. {' '.join(remedies)}"


def listed_ids(conditions: Iterable[Statement]) -> str:
    """The ids of conditions, each once.

    >>> listed_ids([Statement("a", "seed-known"), Statement("b", "class-list"), Statement("c", "seed-known")])
    'seed-known and class-list'
    """
    return _enumerated(list(dict.fromkeys(each.id for each in conditions if each.id is not None)))


def _enumerated(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def before(claim: str, conditions: Iterable[Statement]) -> str:
    """A headline with its conditions first, and what to declare.

    >>> before("All is well.", [Statement("a", "seed-known"), Statement("b", "class-list")])
    'Conditional on seed-known (leave the seed out) and class-list (declare classes). All is well.'
    """
    ids = list(dict.fromkeys(each.id for each in conditions if each.id is not None))
    said = [f"{id} ({_KINDS[id].hint})" for id in ids]
    return f"Conditional on {_enumerated(said)}. {claim}" if said else claim


def explained(conditions: Iterable[Statement]) -> tuple[str, ...]:
    """A line for each id: all that is said about it, and what lifts it.

    >>> explained([Statement("The seed was given.", "seed-known")])[0][:48]
    'Conditional on seed-known. The seed was given. L'
    """
    found = list(conditions)
    sentences = {each.id: [str(one) for one in found if one.id == each.id] for each in found if each.id is not None}
    return tuple(f"Conditional on {id}. {' '.join(said)} {_KINDS[id].remedy}" for id, said in sentences.items())


def of_user(sentences: Sequence[str]) -> tuple[Statement, ...]:
    """What a user says has looked at the training data, as conditions; statements of our own stay what they are."""
    return tuple(
        each if isinstance(each, Statement) else Statement(each, "tuned-on-training-data") for each in sentences
    )


def distinct(statements: Iterable[str]) -> tuple[str, ...]:
    """Every sentence once, in order; of equal ones that which is a condition."""
    kept: dict[str, str] = {}
    for each in statements:
        known = kept.setdefault(str(each), each)
        if not conditions_of([known]):
            kept[str(each)] = each
    return tuple(kept.values())


# The end of every sentence about a constant that follows the training data.
PUBLIC = "the certificate assumes that this is public and fixed."


def classes_read_off(count: int) -> Statement:
    """What a certificate is conditional on where nobody declared the number of classes."""
    return Statement(f"classes = {count} was read off the training data; {PUBLIC}", "class-list")


def known_by_name(counted: UnitWords) -> Statement:
    """What every certificate says where units are declared: the claim is true of names, whoever has them."""
    return Statement(
        f"Radii count {counted.many} by their names: each name is one {counted.one}, so whoever can open a thousand "
        f"accounts is a thousand {counted.many}."
    )


# --- in files -------------------------------------------------------------------------------------------------------


def to_plain(statements: Iterable[str]) -> list[Any]:
    """Statements as a file holds them: a sentence, or for a condition an object with its id."""
    return [
        {"id": each.id, "sentence": str(each)} if isinstance(each, Statement) and each.id is not None else str(each)
        for each in statements
    ]


def from_plain(values: Any) -> tuple[str, ...]:
    """Read back what `to_plain` wrote.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(values, list | tuple):
        raise ValueError("assumptions are not a list")
    return tuple(_statement(value) for value in values)


def _statement(value: Any) -> str:
    id, sentence = (value.get("id"), value.get("sentence")) if isinstance(value, dict) else (None, value)
    is_known = id in IDS if isinstance(value, dict) and value.keys() == {"id", "sentence"} else value is sentence
    if not (is_known and isinstance(sentence, str) and sentence.strip()):
        raise ValueError("an assumption is not a sentence")
    return Statement(sentence, id)


# --- constants that somebody tuned ----------------------------------------------------------------------------------

# The data sets that defaults of this library were tuned on: numbers of one raw input, and classes.
_LOOKED_AT = {
    "MNIST": (784, 10),
    "Fashion-MNIST": (784, 10),
    "CIFAR-10": (3072, 10),
    "scikit-learn's digits": (64, 10),
    "scikit-learn's breast cancer table": (30, 2),
    "scikit-learn's wine table": (13, 3),
}


def tuned_constants(what: str, looked_at: Sequence[str], values: int, classes: int) -> Statement:
    """The sentence that belongs to constants that were tuned on data sets, wherever they are used.

    It is a condition where one input has as many values, and the task as many classes, as one of these sets: the
    training data may then be that set, whatever file it came from.

    Args:
        what: the constants, as the subject of a sentence, in the plural.
        looked_at: the data sets, by their names in this module, or others.
        values: how many numbers one raw input has.
        classes: number of labels.

    >>> tuned_constants("The constants of these features", ["MNIST"], 28 * 28, 10).id
    'tuned-on-training-data'
    >>> tuned_constants("The constants of these features", ["MNIST"], 64 * 64, 10).id is None
    True
    """
    names = _enumerated(list(looked_at))
    alike = [name for name in looked_at if _LOOKED_AT.get(name) == (values, classes)]
    if not alike:
        return Statement(
            f"{what} were tuned with a look at {names}; the certificate assumes that the training data shares no "
            "example with these."
        )
    return Statement(
        f"{what} were tuned with a look at {names}. The training data has the shape of {' and '.join(alike)}: if it "
        "shares examples with that, these constants are not covered by the certificate.",
        "tuned-on-training-data",
    )


# --- the size step ----------------------------------------------------------------------------------------------------

# Three a decade, none of them round: data sets of the usual sizes are far from the next step.
_FIRST = (1, 4, 7, 14, 34, 67)
_DECADE = (135, 340, 670)


def _steps() -> Iterator[int]:
    yield from _FIRST
    for power in itertools.count():
        yield from (step * 10**power for step in _DECADE)


def step_of(number: int) -> int:
    """The largest step that is at most a number of examples.

    >>> step_of(1587), step_of(60_000), step_of(3), step_of(670)
    (1350, 34000, 1, 670)
    """
    _validate.positive_integer(num_train=number)
    return max(itertools.takewhile(lambda step: step <= number, _steps()))


def next_step(step: int) -> int:
    """The step after this one.

    >>> next_step(1350), next_step(67)
    (3400, 135)
    """
    return next(later for later in _steps() if later > step)


@dataclass(frozen=True)
class Size:
    """That constants follow the number of training examples, which nobody declared, by its step.

    Guarantee: on every D' with `low` to `high - 1` examples they are the same as on D, and so on every D' within
    `limit(threat)` changes of D.

    Args:
        num_train: the number of examples of D.
        low: its step, from 1 to `num_train`.
        high: the next step, above `num_train`.

    >>> size = Size.of(60_000)
    >>> size.low, size.high, size.limit(Threat.ADD), size.limit(Threat.REMOVE), size.limit(Threat.REPLACE)
    (34000, 67000, 6999, 26000, None)
    """

    num_train: int
    low: int
    high: int

    def __post_init__(self) -> None:
        _validate.positive_integer(**asdict(self))
        for name, value in asdict(self).items():
            object.__setattr__(self, name, int(value))
        if not self.low <= self.num_train < self.high:
            raise ConfigError(
                f"Expected num_train={self.num_train} from low={self.low} to below high={self.high}; use Size.of(n)."
            )

    @classmethod
    def of(cls, number: int) -> Size:
        """The size of a training set with so many examples."""
        low = step_of(number)
        return cls(number, low, next_step(low))

    def limit(self, threat: Threat) -> int | None:
        """The largest radius within which no D' has another step; None where every D' has as many examples as D."""
        fewer, more = self.num_train - self.low, self.high - 1 - self.num_train
        match threat:
            case Threat.REMOVE:
                return fewer
            case Threat.ADD:
                return more
            case Threat.SYMMETRIC_DIFFERENCE | Threat.EDIT:
                return min(fewer, more)
            case Threat.REPLACE | Threat.LABELS | Threat.FEATURES:
                return None

    @property
    def sentence(self) -> str:
        """What every certificate says about it."""
        return self.sentence_of(EXAMPLES)

    def sentence_of(self, counted: UnitWords) -> str:
        """The same where it is the number of units, with their name."""
        return (
            f"What was chosen by the number of {counted.many_in_full}, {self.num_train:,}, is the same from "
            f"{self.low:,} to {self.high - 1:,} {counted.many}, and no radius goes beyond these; declare "
            f"{counted.declared_as} to lift this limit."
        )

    def to_dict(self) -> dict[str, int]:
        """The size as plain JSON values."""
        return asdict(self)
