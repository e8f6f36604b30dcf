"""What a comparison found, in words that are true for it: who leads where, who is not ranked, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mithridate._text import capitalised, percent, shortened
from mithridate.core.certificate import cautions, confidence
from mithridate.core.labels import single_label
from mithridate.core.mechanism import SEARCH_LIMIT, Threat

if TYPE_CHECKING:
    from mithridate.comparing.result import Comparison, Entry, Stretch

CHOICE_NOTE = (
    "Each certificate is about its method as if it had been fixed beforehand. Whoever picks a method by these results "
    "has looked at the training data, which no certificate covers: take the choice as public and fixed, or make it on "
    "other data."
)
_ONLY = {
    Threat.LABELS: "certifies label flips only",
    Threat.FEATURES: "certifies bounded changes of inputs only",
}


# --- about all methods ----------------------------------------------------------------------------------------------


def ranking(comparison: Comparison) -> str:
    """Who certifies most where, and beside which baseline, in a sentence or two."""
    stretches, tolerance = comparison.leaders
    if not comparison.ranked:
        return "No method here certifies predictions against the threat of this comparison; there is no ranking."
    if not stretches:
        return f"No method certifies more correct predictions than the baseline: {baseline_clause(comparison)}."
    said = _ranking(stretches, len(comparison.ranked), tolerance)
    single = (_one_label(entry) for entry in comparison.single_leaders)
    return " ".join([*single, said, _beyond(comparison, stretches[-1].last)])


def _ranking(stretches: tuple[Stretch, ...], ranked: int, tolerance: float) -> str:
    last = stretches[-1].last
    end = "to the end of the search" if last >= SEARCH_LIMIT else f"up to r = {last:,}"
    first = stretches[0]
    who = _listed(first.names)
    if ranked == 1:
        return (
            f"{who} certifies more correct predictions than the baseline {end}; no other method here makes a claim of "
            "the same kind."
        )
    verb = "certifies" if len(first.names) == 1 else "certify"
    points = "percentage point" if tolerance == 0.01 else "percentage points"
    aside = f" (differences of up to {100 * tolerance:g} {points} aside)" if tolerance else ""
    if len(stretches) == 1:
        return f"{who} {verb} the most correct predictions at every radius {end}{aside}."
    start = "at r = 0" if first.last == 0 else f"up to r = {first.last:,}"
    rest = ", ".join(f"{_listed(stretch.names)} {_range(stretch)}" for stretch in stretches[1:])
    return f"{who} {verb} the most correct predictions {start}, {rest}{aside}."


def _range(stretch: Stretch) -> str:
    if stretch.last >= SEARCH_LIMIT:
        return f"from {stretch.first:,} to the end of the search"
    if stretch.first == stretch.last:
        return f"at {stretch.first:,}"
    return f"from {stretch.first:,} to {stretch.last:,}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _beyond(comparison: Comparison, last: int) -> str:
    """What is left where nobody is ranked any more."""
    if last >= SEARCH_LIMIT:
        return f"The baseline is {baseline_share(comparison)}."
    return f"Beyond that, none is above the baseline of {baseline_share(comparison)}."


def baseline_share(comparison: Comparison) -> str:
    """What always saying the commonest label scores."""
    return percent(comparison.baseline.count, comparison.baseline.total)


def baseline_clause(comparison: Comparison) -> str:
    """What the baseline is, as a clause."""
    votes = next((entry.certificate.votes for entry in comparison.entries if entry.certificate is not None), None)
    label = comparison.baseline.label
    name = str(label) if votes is None or label >= votes.classes else votes.shown_class_names[label]
    share = baseline_share(comparison)
    return f"always saying '{shortened(name)}' is correct on {share} of the test points, at every radius"


def not_ranked(comparison: Comparison) -> tuple[str, ...]:
    """Why some methods are not ranked."""
    return tuple(f"{entry.name}: {_why_not_ranked(entry)}" for entry in comparison.unranked)


def remarks(comparison: Comparison) -> tuple[str, ...]:
    """Which methods know one label only, where the headline does not say it."""
    said = comparison.single_leaders
    return tuple(_one_label(entry) for entry in comparison.entries if entry.single_label and entry not in said)


def notes(comparison: Comparison) -> tuple[str, ...]:
    """What holds for the comparison as a whole, a sentence or two each."""
    about = f"Shares are of {comparison.examples:,} test points, exact for these and an estimate for others."
    beside = (
        f"The baseline: {baseline_clause(comparison)}. Nobody is ranked at radii at which no method certifies more."
    )
    return (about, beside, CHOICE_NOTE) if len(comparison.entries) > 1 else (about, beside)


# --- about one method -----------------------------------------------------------------------------------------------


def shares(entry: Entry, radii: Sequence[int]) -> list[str]:
    """Certified accuracy at some radii; a bound on mean accuracy is never rounded up."""
    if entry.curve is None:
        return [f"{math.floor(1000 * share) / 10:.1f}%" for share in entry.accuracy(radii)]
    counts = entry.curve.at(entry.curve.shown, radii)
    return [percent(int(count), entry.curve.total) for count in counts]


def confidence_of(entry: Entry) -> str:
    """How sure the claims of a method are."""
    found = entry.certificate
    if found is None:
        return f"With probability at most {entry.failure_prob:g}, over training, the whole curve fails."
    if entry.failure_prob == 0:
        return "There is no probability of failure: what it predicts is a function of the training data."
    if not found.method.is_sound:
        return (
            f"The failure probability of {entry.failure_prob:g} is that of the counted votes alone: no radius above "
            "0 is guaranteed."
        )
    return f"{capitalised(confidence(found))}."


def notes_on(entry: Entry) -> tuple[str, ...]:
    """What a reader must know about the claim of a method."""
    found = entry.certificate
    sentences: list[str] = []
    if not entry.ranked:
        sentences.append(capitalised(_why_not_ranked(entry)))
    if entry.same_threat and entry.threat is not entry.asked:
        sentences.append(
            f"Certifies more than was asked for: {entry.threat.in_words}. Its claims hold for the threat of this "
            "comparison, too."
        )
    if found is not None and not found.method.is_sound:
        sentences.append(
            f"Its radii follow the paper's rule for groups, which is {found.method.flaw}: do not rely on them; fdp "
            "gives a guarantee for the same models."
        )
    elif found is not None:
        sentences.extend(cautions(found))
    return tuple(sentences)


def _why_not_ranked(entry: Entry) -> str:
    """One clause, which is also the first note of the entry."""
    if entry.certificate is None:
        return "not per prediction: it bounds the mean accuracy of single models, and certifies no prediction."
    if not entry.same_threat:
        what = _ONLY.get(entry.threat, f"certifies another threat, {entry.threat.value}")
        if entry.max_change is not None:
            what = f"certifies moves of inputs by up to {entry.max_change:g} only"
        return f"{what}; not comparable with the others."
    if entry.certificate.method.is_sound:
        return "no guarantee: its confidence is nominal."
    return "no guarantee: its rule is not valid for what was trained."


def _one_label(entry: Entry) -> str:
    """That a method knows one label only."""
    found = entry.certificate
    most = None if found is None else single_label(found.label)
    assert found is not None
    assert most is not None
    name = shortened(found.votes.shown_class_names[most.label])
    which = f"all {most.total:,}" if most.count == most.total else f"{most.count:,} of {most.total:,}"
    return f"{entry.name} says one label, '{name}', on {which} test points."
