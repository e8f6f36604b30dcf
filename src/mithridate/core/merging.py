"""Parts of runs, by the numbers of their instances; and votes of several runs or parts, as if they had been one run."""

from __future__ import annotations

import copy
import functools
import hashlib
import itertools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mithridate._text import shown
from mithridate.core.conditions import Statement, distinct
from mithridate.core.mechanism import Deterministic, Drawn
from mithridate.errors import ConfigError

if TYPE_CHECKING:
    from mithridate.core.votes import Votes

# Instances of one run, from the first to before the second number of every pair; sorted, with gaps between the pairs.
InstanceRanges = tuple[tuple[int, int], ...]

# Whole numbers in files stay below this, so that every program reads them alike.
LARGEST = 2**53
# A run whose parts are not listed, however many instances it has.
WHOLE: InstanceRanges = ((0, LARGEST),)


def checked_parts(run: str, parts: Any) -> InstanceRanges:
    """Pairs of instances, sorted and joined.

    Raises:
        ConfigError: they are no such pairs, or name an instance twice.
    """
    try:
        pairs = sorted((whole_number(first), whole_number(stop)) for first, stop in parts)
        fits = bool(pairs) and all(0 <= first < stop <= LARGEST for first, stop in pairs)
    except (TypeError, ValueError):
        fits, pairs = False, []
    if not fits:  # Without the values, which may be of any size.
        raise ConfigError(
            f"Expected the shards of the run {shown(run)} as pairs (first, stop) of whole numbers from 0 on, "
            "first below stop, and at least one pair."
        )
    twice = overlap(pairs)
    if twice is not None:
        raise ConfigError(
            f"The shards of the run {shown(run)} name {instances_in_words(*twice)} twice; name them once."
        )
    return joined(pairs)


def whole_number(value: Any) -> int:
    """A whole number, of whatever type that is.

    Raises:
        TypeError: it is none.
    """
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def overlap(pairs: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """The first instances that two of the sorted pairs share."""
    for (_, end), (first, stop) in itertools.pairwise(pairs):
        if first < end:
            return first, min(end, stop)
    return None


def joined(pairs: Iterable[tuple[int, int]]) -> InstanceRanges:
    """Sorted disjoint pairs, of which those that touch become one.

    >>> joined([(0, 2), (2, 5), (7, 8)])
    ((0, 5), (7, 8))
    """
    result: list[tuple[int, int]] = []
    for first, stop in pairs:
        if result and result[-1][1] == first:
            first = result.pop()[0]
        result.append((first, stop))
    return tuple(result)


def size_of(parts: InstanceRanges) -> int:
    """Their number of instances."""
    return sum(stop - first for first, stop in parts)


def first_gap(parts: InstanceRanges) -> tuple[int, int] | None:
    """The first instances that are missing before others.

    >>> first_gap(((0, 5), (7, 8)))
    (5, 7)
    """
    if parts[0][0] > 0:
        return 0, parts[0][0]
    return (parts[0][1], parts[1][0]) if len(parts) > 1 else None


def instances_in_words(first: int, stop: int) -> str:
    """Instances from `first` to before `stop`."""
    return f"the instances {first} to {stop - 1}" if stop - first > 1 else f"the instance {first}"


_UNNAMED = Statement(
    "Votes of runs without a name were merged; they are taken for those of different runs.", "instances-after-a-look"
)


def same_array(first: Any, second: Any) -> bool:
    """Whether both are None, or arrays of the same type and values."""
    if first is None or second is None:
        return first is second
    one, two = np.asarray(first), np.asarray(second)
    return one.dtype == two.dtype and np.array_equal(one, two)


def not_first(votes: Votes) -> str:
    """What votes do that are not those of the first instances of one run; empty where they are.

    Of votes without a name nobody can say; they are taken for what `Votes` assumes.
    """
    if len(votes.run_ids) > 1:
        return f"are those of {len(votes.run_ids)} runs, whose order nobody fixed beforehand"
    if _UNNAMED in votes.assumptions:
        return "come from runs without a name, whose order nobody fixed beforehand"
    for run, parts in votes.shards.items():
        gap = first_gap(parts)
        if gap is not None:
            return f"lack {instances_in_words(*gap)} of the run {shown(run)}"
    return ""


def merge_order(votes: Votes) -> tuple[Any, ...]:
    """By what votes are sorted before they are added up: sums of floating-point numbers depend on their order."""
    runs = tuple((run, votes.shards[run][0][0] if run in votes.shards else 0) for run in sorted(votes.run_ids))
    return runs, "" if runs else _digest(votes)


def _digest(votes: Votes) -> str:
    """What tells votes without a name apart."""
    digest = hashlib.sha256()
    for name, array in votes.to_parts()[1].items():
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def merge(votes: Iterable[Votes]) -> Votes:
    """The votes of all; see `Votes.merge`."""
    return functools.reduce(_merged, sorted(votes, key=merge_order))


def _merged(first: Votes, second: Votes) -> Votes:
    _check_alike(first, second)
    _check_apart(first, second)
    devices, runs = {*first.devices, *second.devices}, {*first.shards, *second.shards}
    unnamed = (_UNNAMED,) if _nameless(first) or _nameless(second) else ()
    return replace(
        first,
        counts=first.counts + second.counts,
        score_sums=_sum(first.score_sums, second.score_sums),
        score_squares=_sum(first.score_squares, second.score_squares),
        score_histograms=_sum(first.score_histograms, second.score_histograms),
        run_ids=tuple(sorted({*first.run_ids, *second.run_ids})),
        # Sorted, so that they do not depend on the order of merging.
        assumptions=tuple(sorted(distinct((*first.assumptions, *second.assumptions, *unnamed)))),
        recipe=_merged_recipe(first, second),
        evidence=_merged_evidence(first, second) if isinstance(first.mechanism, Deterministic) else {},
        shards={run: joined(sorted(first.shards.get(run, ()) + second.shards.get(run, ()))) for run in runs},
        devices={name: first.devices.get(name, 0) + second.devices.get(name, 0) for name in devices},
        planned={**first.planned, **second.planned},
    )


def _check_alike(first: Votes, second: Votes) -> None:
    """Require votes of one mechanism on the same data."""
    if first.mechanism != second.mechanism:
        raise ConfigError(
            f"Votes of different mechanisms never merge: {first.mechanism} and {second.mechanism}. "
            "Certify them one by one."
        )
    if isinstance(first.mechanism, Drawn):
        raise ConfigError(
            "These votes are draws of noise on the inputs for the models of one run, which have nothing to merge; "
            "train once, with as many draws as are wanted (--noise-draws)."
        )
    parts_of_one = bool(first.shards and second.shards) and first.run_ids == second.run_ids
    if isinstance(first.mechanism, Deterministic) and not parts_of_one:
        raise ConfigError(
            "These votes come from a function of the data, which has nothing to merge but parts of one run; train once."
        )
    same_data = (first.data_fingerprint, first.training) == (second.data_fingerprint, second.training)
    same_inputs = same_array(first.input_hashes, second.input_hashes) and len(first.counts) == len(second.counts)
    if not same_data or not same_inputs or first.classes != second.classes:
        raise ConfigError("These votes are about different data or inputs; merge only runs on the same ones.")
    if first.unit != second.unit:
        raise ConfigError("These votes do not agree on what a unit is; merge only runs that declare the same units.")
    if first.input_noise != second.input_noise:
        raise ConfigError(
            "These votes were cast on inputs with different noise; merge only runs with the same --input-noise."
        )
    if first.size != second.size:
        raise ConfigError(
            f"These votes do not agree on the number of {first.unit_words.many_in_full} that their constants follow; "
            f"train all of them with {first.unit_words.declared_as} declared, or none."
        )
    if any(first.planned[run] != second.planned[run] for run in first.planned.keys() & second.planned.keys()):
        raise ConfigError("These votes contradict each other about the size of a run; the files are damaged.")
    if not same_array(first.labels, second.labels):
        raise ConfigError(
            "These votes carry different true labels, or one of them none; run the mithridate train of each again with "
            "the right labels, which trains nothing anew."
        )


def _nameless(votes: Votes) -> bool:
    """Whether votes hold instances of which nobody can say whether they are elsewhere too."""
    return not votes.run_ids or _UNNAMED in votes.assumptions


def _check_apart(first: Votes, second: Votes) -> None:
    """Require that no instance of a run is in both."""
    if (first.shards or second.shards) and (_nameless(first) or _nameless(second)):
        raise ConfigError(
            "Parts of a run merge only with votes that name their runs, which some of these do not: instances could "
            "count twice. Merge them with whole runs only."
        )
    for run in sorted(set(first.run_ids) & set(second.run_ids)):
        twice = overlap(sorted(first.shards.get(run, WHOLE) + second.shards.get(run, WHOLE)))
        if twice is not None:
            which = "all its instances" if twice in WHOLE else instances_in_words(*twice)
            raise ConfigError(
                f"These votes share a run, {shown(run)}: {which} would count twice. "
                "Merge each part once, and none beside the whole run."
            )


def _merged_recipe(first: Votes, second: Votes) -> dict[str, Any] | None:
    """The recipe of both; they may differ in the number of instances only, which becomes that of all that voted."""
    one, two = copy.deepcopy(first.recipe), copy.deepcopy(second.recipe)
    for part in ((recipe or {}).get(table) for recipe in (one, two) for table in ("config", "defence")):
        if isinstance(part, dict) and "instances" in part:
            part["instances"] = first.instances + second.instances
    if one != two:
        raise ConfigError("These votes were trained by different recipes; merge only runs of the same one.")
    return one


def _merged_evidence(first: Votes, second: Votes) -> dict[str, npt.NDArray[Any]]:
    """What parts of one run say beside counts: what each model says side by side in their order, preferences added up.

    Evidence that only one of them has is dropped, as other arrays are; a rule that needs it will ask for it.
    """
    merged: dict[str, npt.NDArray[Any]] = {}
    both = first.evidence.keys() & second.evidence.keys()
    for name in ("predictions", "rankings"):
        if name in both:
            merged[name] = _side_by_side(first, second, name)
    if "preferences" in both:
        one, two = (votes.evidence["preferences"].astype(np.int64) for votes in (first, second))
        if one.shape != two.shape:
            raise ConfigError("These votes carry the evidence 'preferences' in different shapes; train them again.")
        merged["preferences"] = one + two
    return merged


def _side_by_side(first: Votes, second: Votes, name: str) -> npt.NDArray[Any]:
    tables, numbers = list[npt.NDArray[Any]](), list[npt.NDArray[np.int64]]()
    for votes in (first, second):
        table = votes.evidence[name]
        if table.shape != (votes.examples, votes.instances, *first.evidence[name].shape[2:]):
            raise ConfigError(f"The evidence {name!r} does not hold a vote of each model; train them again.")
        tables.append(table)
        numbers += [np.arange(*pair) for pairs in votes.shards.values() for pair in pairs]
    return np.concatenate(tables, axis=1)[:, np.argsort(np.concatenate(numbers))]


def _sum(first: npt.NDArray[Any] | None, second: npt.NDArray[Any] | None) -> npt.NDArray[Any] | None:
    if first is None or second is None or first.shape != second.shape:  # histograms may have other bins
        return None
    # A sum is no more precise than its parts: single and double precision give single.
    return (first + second).astype(min(first.dtype, second.dtype, key=lambda dtype: dtype.itemsize))
