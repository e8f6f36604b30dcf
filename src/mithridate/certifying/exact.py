"""What the exact rules have in common.

Ties go to the smaller label. So label a wins against rival c exactly where its *lead*, `score_a - score_c - [c < a]`,
is 0 or more, and the prediction stays a as long as no lead is negative. Where labels have weights, a score is the
weight times the votes (`Weighted.weighed`), and the lead is in units of one vote of weight 1.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mithridate.core.mechanism import SEARCH_LIMIT, Deterministic, Threat
from mithridate.core.rule import ExactRule, Rule
from mithridate.core.units import Unit
from mithridate.core.votes import Votes
from mithridate.errors import ConfigError, UnsupportedMechanismError

IntArray = npt.NDArray[np.int64]
AnyArray = npt.NDArray[Any]
Kind = TypeVar("Kind", bound=Deterministic)

# Working arrays of about this many entries stay in the cache of a core.
_CHUNK = 1 << 20


def mechanism_of(votes: Votes, kind: type[Kind], rule: ExactRule) -> Kind:
    """The mechanism of the votes, which has to be of one kind."""
    if not isinstance(votes.mechanism, kind):
        raise UnsupportedMechanismError(
            f"The method {rule.name} is for votes of {kind.__name__}, these are of {type(votes.mechanism).__name__}; "
            "leave the method out to use the one that fits."
        )
    return votes.mechanism


def evidence_of(votes: Votes, name: str, rule: Rule, shape: tuple[int | None, ...]) -> AnyArray:
    """An array of the evidence, of one entry for each example and then this shape (None: any size)."""
    if name not in votes.evidence:
        raise ConfigError(
            f"The method {rule.name} needs the evidence {name!r}, which these votes do not carry; "
            f"train again with the defence {rule.name}."
        )
    array = votes.evidence[name]
    fits = array.ndim == 1 + len(shape) and all(
        wanted is None or size == wanted for size, wanted in zip(array.shape[1:], shape, strict=True)
    )
    if not fits:
        wanted = " x ".join(["examples", *("any" if size is None else str(size) for size in shape)])
        raise ConfigError(f"Expected the evidence {name!r} in the shape {wanted}, got {array.shape}.")
    return array


def check_voters(votes: Votes, models: int) -> None:
    """Require one vote of each model: a model that votes twice could change two votes."""
    if votes.instances != models:
        raise ConfigError(f"Expected one vote from each of {models} models, but the counts hold {votes.instances}.")


def winners(scores: IntArray) -> IntArray:
    """The label with the largest score, of equal ones the smaller."""
    return np.argmax(scores, axis=1).astype(np.int64)


def leads(scores: IntArray, label: IntArray) -> IntArray:
    """By how much each rival may gain on the label without winning; the largest number in the label's own column."""
    rivals = np.arange(scores.shape[1])
    own = np.take_along_axis(scores, label[:, None], axis=1)
    lead = own - scores - (rivals < label[:, None])
    np.put_along_axis(lead, label[:, None], np.iinfo(np.int64).max, axis=1)
    return lead


def in_units(changes: IntArray, threat: Threat) -> IntArray:
    """The largest radius of a threat that is contained in so many single insertions and deletions."""
    return np.minimum(changes // threat.changes(1), SEARCH_LIMIT)


def in_touched_parts(parts: IntArray, threat: Threat, unit: Unit | None) -> IntArray:
    """The largest radius of a threat whose changes reach so many parts of the training set at most.

    Where the content of an example says to which part it belongs, one that is changed leaves its part for another, and
    so reaches two. A unit has its part by its name: inserted, deleted or changed under that name, it reaches one.
    """
    return in_units(parts, threat) if unit is None else np.minimum(parts, SEARCH_LIMIT)


def touched_parts(radius: int, threat: Threat, unit: Unit | None) -> int:
    """How many parts so many units of a threat reach at most; see `in_touched_parts`."""
    return threat.changes(radius) if unit is None else radius


def most_within(budget: IntArray, costs: IntArray, numbers: AnyArray) -> IntArray:
    """How many items can be taken, the dearest first, before their costs exceed a budget.

    Args:
        budget: 0 or more, for each example.
        costs: what an item of each kind costs, from the dearest kind to the cheapest.
        numbers: how many items of each kind there are, examples x kinds; together below 2^63.

    Returns:
        At most `SEARCH_LIMIT` for each example.

    >>> most_within(np.array([8]), np.array([5, 2, 0]), np.array([[1, 3, 4]]))
    array([2])
    """
    # No more than SEARCH_LIMIT items matter, so their costs add up to no more than 2^63.
    taken = np.minimum(np.cumsum(numbers, axis=1, dtype=np.int64), SEARCH_LIMIT)
    spent = np.cumsum(np.diff(taken, axis=1, prepend=0) * costs, axis=1)
    whole = (spent <= budget[:, None]).sum(axis=1)
    rows = np.arange(len(budget))
    last = np.maximum(whole - 1, 0)
    before, paid = np.where(whole > 0, (taken[rows, last], spent[rows, last]), 0)
    # A kind that fits only in part costs more than nothing; behind the last kind nothing is left to take.
    cost = np.maximum(np.append(costs, 1)[whole], 1)
    return before + np.where(whole < len(costs), (budget - paid) // cost, 0)


def chunks(examples: int, entries: int) -> Iterator[slice]:
    """Slices of the examples, so that working arrays of `entries` for each example stay small."""
    size = max(1, _CHUNK // max(entries, 1))
    for start in range(0, examples, size):
        yield slice(start, min(start + size, examples))
