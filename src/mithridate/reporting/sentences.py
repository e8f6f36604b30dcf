"""What a certificate says, in plain words that are true for it: the headline, the confidence, and what weakens it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mithridate._text import capitalised, one_line, percent, shortened
from mithridate.core.certificate import Advice, Certificate, Status, confidence
from mithridate.core.conditions import before, conditions_of
from mithridate.core.input_change import Frontier
from mithridate.core.labels import Commonest, commonest, single_label
from mithridate.core.mechanism import Threat
from mithridate.core.rule import DrawnRule, ExactRule
from mithridate.core.units import UnitWords
from mithridate.core.votes import Votes

# From this share of all predictions on, a weakness is worth a sentence.
_MANY = 0.1
# How many times the instances are asked for when they are too few.
_MORE = 4
# So many changes of the input are drawn and spoken of, at most.
MOST_CHANGES_SHOWN = 8

_HEADLINE_RULE = (
    "The number in the headline is the largest radius to which 9 of 10 predictions are certified; where that is below "
    "1, the largest for half of them; where that is below 1 too, it counts the predictions that withstand one "
    "{change}. Where true labels are known, only correct predictions count. The baseline is what always saying the "
    "commonest of these labels would score, at every radius."
)

_NOT_CORRECTNESS = (
    "Whether a label is correct. A certificate is about the label staying the same, and a wrong label can be stable."
)
_NOT_CHANGED_INPUTS = "Changed test inputs. Nothing is said about perturbed, rotated or otherwise attacked ones."
_NOT_LARGER_CHANGES = (
    "Larger changes of the test inputs. Nothing is said about inputs that change by more than {most}, however small "
    "that looks to a person, as where a picture is rotated."
)
_NOT_OTHER_LOOKS = (
    "Anything besides the stated mechanism that looked at the training data: normalisation by its statistics, "
    "cleaning that compares examples, early stopping, an encoder trained on it."
)
_NOT_COVERED_BY_TEST_POINTS = (
    "Wrong true labels. Where test points come from data that may be poisoned, so do the labels that decide what is "
    "correct.",
    "Other test points. Shares are exact for the points in this report and an estimate for any others.",
)
_NOT_ROWS = (
    "People rather than rows. The radius counts rows: divide it by the largest number of rows that one party controls."
)
# What could defeat a sample of models, but not a function of the data.
_NOT_COVERED_BY_SAMPLES = (
    "An attacker who knows the randomness of training, such as its seeds.",
    "Inputs that somebody chose by what these very models answered to others. The claim is about each input by itself.",
)
_NOT_COVERED_BY_DRAWS = (
    "An attacker who knows the noise on the inputs, such as its seed.",
    *_NOT_COVERED_BY_SAMPLES[1:],
)
# What the narrower threats leave out.
_NOT_COVERED_BY_THREAT = {
    Threat.LABELS: (
        "Anything but changed labels: nothing is said about {many} that were added or removed, or whose "
        "inputs were changed.",
    ),
    Threat.FEATURES: (
        "Anything but inputs that were changed by at most the declared distance: nothing is said about larger changes, "
        "changed labels, and {many} that were added or removed.",
    ),
}


@dataclass(frozen=True)
class Headline:
    """What a report says first.

    Guarantee: at least `reached` predictions of the certificate have a radius of at least `radius` and, where true
    labels are known, are correct; the share that `text` names is not larger than their share.

    Attributes:
        text: that there is but one label, where that is so; the claim, beside the baseline; its confidence.
        radius: the radius that is claimed, 0 where no change is survived, -1 where nothing is certified.
        reached: how many predictions have at least this radius, and are correct where that is known.
    """

    text: str
    radius: int
    reached: int


def headline_rule(counted: UnitWords) -> str:
    """How the number in a headline is chosen."""
    return _HEADLINE_RULE.format(change=counted.change)


def headline(certificate: Certificate, names: Sequence[str] | None = None) -> Headline:
    """The claim that says most about a certificate, chosen by `headline_rule`, and what it is conditional on.

    Args:
        certificate: what is claimed.
        names: what the classes are called; by default what training recorded.
    """
    radius = _headline_radius(certificate)
    reached = int((counted_radii(certificate) >= max(radius, 0)).sum())
    opening = one_label(certificate.votes, certificate.label, names)
    claim, known = _claim(certificate, radius, reached), baseline(certificate)
    if known is not None and not opening:
        claim += f" (baseline: {percent(known.count, known.total)})"
    sure = f"; {confidence(certificate)}"
    # What is predicted on this very data is no claim.
    if radius < 0 or (radius == 0 and isinstance(certificate.method, ExactRule)):
        sure = ""
    elif radius > 0 and not certificate.method.is_sound:  # a radius of 0 rests on the bounds alone
        claim = claim if claim.startswith("9") else claim[0].lower() + claim[1:]
        claim, sure = f"Not a guarantee: by a rule that is {certificate.method.flaw}, {claim}", ""
    text = " ".join([*opening, f"{claim}{sure}."])
    return Headline(before(text, certificate.conditions), radius, reached)


def counted_radii(certificate: Certificate) -> npt.NDArray[np.int64]:
    """The radius of every prediction that counts: of correct ones where true labels are known, else of all; else -1."""
    truth = certificate.votes.labels
    return certificate.radius if truth is None else np.where(certificate.label == truth, certificate.radius, -1)


def _headline_radius(certificate: Certificate) -> int:
    for share in (0.9, 0.5):
        radius = radius_reached_by(certificate, share)
        if radius >= 1:
            return radius
    return min(int(counted_radii(certificate).max()), 1)


def radius_reached_by(certificate: Certificate, share: float) -> int:
    """The largest radius to which at least this share of the predictions is certified (and correct); -1 if none is."""
    counted = counted_radii(certificate)
    needed = max(math.ceil(share * len(counted) - 1e-9), 1)
    return int(np.sort(counted)[-needed])


def _claim(certificate: Certificate, radius: int, reached: int) -> str:
    total, known = len(certificate.radius), certificate.votes.labels is not None
    units = certificate.votes.unit_words
    # What is certified and wrong is no reason to speak of a correct prediction.
    which = "correct prediction" if known and certificate.radius.max() > radius else "prediction"
    if radius < 0 and certificate.radius.max() >= 0:
        return f"No {which} is certified{_where_moved(certificate)}"
    if radius < 0:
        return f"Nothing is certified{_where_moved(certificate)}: the votes are not clear enough for any prediction"
    if radius == 0 and isinstance(certificate.method, ExactRule):
        single = f"single {units.change}" if units.are_named else "single one"
        against = f"a change of the training data{_where_moved(certificate)}"
        return f"No {which} is certified against {against}: a {single} may be too many"
    verb = "is" if total == 1 or reached == 1 else "are"
    if radius == 0:
        who = _how_many(reached, total, lower=True)
        but = f"for {who} the label is shown to be the leading one on this very data"
        if known:
            but = f"{who} {verb} correct, with a label that is shown to be the leading one on this very data"
        return f"No {which} is certified against a change of the training data, but {but}{_also_moved(certificate)}"
    stay = f"stay the same if {certificate.threat.changes_of(units, radius)}{_and_moved(certificate)}"
    stay += _or_moved(certificate, radius)
    if not known:
        return f"{_how_many(reached, total)} would {stay}"
    return f"{_how_many(reached, total)} {verb} correct and certified to {stay}"


def _how_many(reached: int, total: int, *, lower: bool = False) -> str:
    if total == 1:
        phrase = "The one prediction"
    elif reached == total == 2:
        phrase = "Both predictions"
    elif reached == total:
        phrase = f"All {total:,} predictions"
    elif reached >= 0.9 * total and total >= 10:
        phrase = "9 of 10 predictions"
    elif reached >= 0.5 * total and total >= 10:
        phrase = "Half of the predictions"
    else:
        phrase = f"{reached:,} of {total:,} predictions"
    return phrase[0].lower() + phrase[1:] if lower else phrase


# --- together with a change of the input ------------------------------------------------------------------------------


def _length(frontier: Frontier, change: float) -> str:
    """How far an input moves at most, and in what that is measured."""
    return f"a Euclidean length of up to {change:g}, {frontier.in_words}"


def _where_moved(certificate: Certificate) -> str:
    """The end of a clause on inputs that may change by as much as the radii say; empty where they stay as they are."""
    if certificate.frontier is None or not certificate.input_change:
        return ""
    return f" where the input may change by {_length(certificate.frontier, certificate.input_change)}"


def _also_moved(certificate: Certificate) -> str:
    moved = _where_moved(certificate)
    return f", also{moved}" if moved else ""


def _and_moved(certificate: Certificate) -> str:
    if certificate.frontier is None or not certificate.input_change:
        return ""
    return f" and the input was changed by {_length(certificate.frontier, certificate.input_change)}"


def _or_moved(certificate: Certificate, radius: int) -> str:
    """What the same predictions withstand together with a change of the input: the largest that leaves a radius.

    Guarantee: as many predictions as the headline says withstand both, the change that it names first and this one.
    """
    frontier = certificate.frontier
    if frontier is None or certificate.input_change:
        return ""
    reached = counted_radii(certificate) >= radius
    for least in (1, 0):
        for change, radii in zip(frontier.changes[:0:-1], frontier.radius[:0:-1], strict=True):
            most = _still_reached(radii[reached], len(reached))
            if most >= least:
                return f", or if {_as_many(most)} the input was changed by {_length(frontier, change)}"
    return ""


def _still_reached(radii: npt.NDArray[np.int64], total: int) -> int:
    """The largest radius that so many of these predictions have that a sentence on all of them stays true."""
    said = _how_many(len(radii), total)
    return next(
        (int(radius) for radius in np.unique(radii)[::-1] if _how_many(int((radii >= radius).sum()), total) == said), -1
    )


def _as_many(radius: int) -> str:
    """So many changes of the training data, after they were named; followed by what happened to the input."""
    if radius == 0:
        return "none were and"
    return "one was and" if radius == 1 else f"up to {radius:,} were and"


def moved_inputs(certificate: Certificate) -> list[str]:
    """By how much the input may change beside the training data, in a sentence; none where it stays as it is."""
    if certificate.frontier is None or not certificate.input_change:
        return []
    change = f"{certificate.input_change:g}, {certificate.frontier.in_words}"
    return [f"Together with any change of the input of Euclidean length up to {change}."]


def moved_further(certificate: Certificate) -> list[str]:
    """How far half of the predictions are certified as the input changes by more and more, in two sentences."""
    frontier = certificate.frontier
    if frontier is None or len(frontier.changes) == 1:
        return []
    changes = [frontier.changes[at] for at in evenly(len(frontier.changes), MOST_CHANGES_SHOWN)]
    found = [(change, radius_reached_by(certificate.at_input_change(change), 0.5)) for change in changes]
    held = [f"r = {radius:,} at {change:g}" for change, radius in found if radius >= 0]
    lost = [f"{change:g}" for change, radius in found if radius < 0]
    known = certificate.votes.labels is not None
    who, are = _half_of(len(certificate.radius), "correct and certified" if known else "certified")
    parts = [f"{who} {are} to {_enumerated(held)}"] if held else []
    parts += [f"at {_enumerated(lost)}, {_fewer(who, are, bool(held))}"] if lost else []
    length = f"Lengths are Euclidean, {frontier.in_words}."
    return [f"If the input changes by up to a given length: {'; '.join(parts)}. {length}"]


def _half_of(total: int, what: str) -> tuple[str, str]:
    """Half of so many predictions, and that they are something."""
    return ("the one prediction", f"is {what}") if total == 1 else ("half of the predictions", f"are {what}")


def _fewer(who: str, are: str, said: bool) -> str:
    """That fewer are, after it was said what they are or before."""
    if who.startswith("half"):
        return "fewer are" if said else f"fewer than {who} {are}"
    return "it is not" if said else f"{who} {are.replace('is ', 'is not ', 1)}"


def may_move_alone(certificate: Certificate) -> list[str]:
    """How many labels may change with the input alone, by how far it moves; none where none may."""
    if certificate.frontier is None:
        return []
    frontier = certificate.frontier
    counts = (frontier.status == Status.INPUT_CHANGE.value).sum(axis=1)
    shown = [at for at in evenly(len(counts), MOST_CHANGES_SHOWN) if counts[at]]
    if not shown:
        return []
    numbers = [_out_of(int(counts[shown[0]]), len(certificate.radius)), *(f"{counts[at]:,}" for at in shown[1:])]
    found = [f"{number} at {frontier.changes[at]:g}" for number, at in zip(numbers, shown, strict=True)]
    return [f"{Status.INPUT_CHANGE.sentence} This is so for {_enumerated(found)}."]


def evenly(count: int, most: int) -> list[int]:
    """Positions among so many, the first and the last included, at most so many and evenly spread.

    >>> evenly(3, 8), evenly(30, 4)
    ([0, 1, 2], [0, 10, 19, 29])
    """
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64)).tolist()


def _enumerated(phrases: Sequence[str]) -> str:
    """Phrases in a sentence.

    >>> _enumerated(["a", "b", "c"])
    'a, b and c'
    """
    return phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} and {phrases[-1]}"


# --- beside the baseline --------------------------------------------------------------------------------------------


def baseline(certificate: Certificate) -> Commonest | None:
    """The commonest true label; None where true labels are unknown."""
    return None if certificate.votes.labels is None else commonest(certificate.votes.labels)


def one_label(votes: Votes, predictions: npt.NDArray[np.int64], names: Sequence[str] | None = None) -> list[str]:
    """That nearly all predictions are one and the same label, where that is so, and what the baseline is."""
    found = single_label(predictions)
    if found is None:
        return []
    called = votes.shown_class_names if names is None else names
    every = found.count == found.total
    who = ("Both" if found.total == 2 else f"All {found.total:,}") if every else f"{found.count:,} of {found.total:,}"
    sentence = f"{who} predictions are the same label, {_quoted(called, found.label)}."
    if votes.labels is None:
        return [sentence]
    return [sentence, f"{_always(commonest(votes.labels), called)} (the baseline)."]


def baseline_sentence(votes: Votes, names: Sequence[str] | None = None) -> list[str]:
    """What the baseline is, where true labels are known."""
    if votes.labels is None:
        return []
    return [
        f"Baseline: {_always(commonest(votes.labels), votes.shown_class_names if names is None else names, start='a')}."
    ]


def not_above_baseline(certificate: Certificate) -> list[str]:
    """From which radius on, of those to which something is certified, no more is than the baseline."""
    known, counted = baseline(certificate), counted_radii(certificate)
    if known is None or counted.max() < 0:
        return []
    # The share falls with the radius: the first radius at which it is not above the baseline ends what is gained.
    first = max(int(np.sort(counted)[-known.count - 1]) + 1, 0) if known.count < known.total else 0
    if first > counted.max():
        return []
    where = "At no radius is more" if first == 0 else f"From r = {first:,} on, no more is"
    return [f"{where} correct and certified than the baseline of {percent(known.count, known.total)}."]


def _always(known: Commonest, names: Sequence[str], start: str = "A") -> str:
    return f"{start}lways saying {_quoted(names, known.label)} is correct on {percent(known.count, known.total)}"


def _quoted(names: Sequence[str], label: int) -> str:
    """A name in quotes; forged certificates may name classes that there are not."""
    return f"'{shortened(names[label])}'" if 0 <= label < len(names) else str(label)


def how(certificate: Certificate) -> str:
    """By which means the radii were found, as a clause."""
    name = f"By {certificate.method.in_words()}"
    if isinstance(certificate.method, ExactRule):
        return name
    return f"{name} with {certificate.bounds} bounds on {certificate.on}"


def precise_claim(certificate: Certificate) -> str:
    """What a radius means, without abbreviation."""
    units = certificate.votes.unit_words
    changed = f"{certificate.threat.changes_of(units)}{_and_moved(certificate)}"
    if isinstance(certificate.method, ExactRule):
        return (
            f"A radius r says: this label is predicted from this data, and would also be if {changed}. "
            f"The label is {_chosen(certificate)}; of equal ones, the smaller. A radius of 0 says that a single "
            f"{units.change} may be too many.{_by_change(certificate)}"
        )
    most = "more often than any other" if certificate.on == "votes" else "a larger score on average than any other"
    if certificate.method.choice:
        most = "so often that its share of all such models x class weight is larger than that of any other label"
    who = "a model trained on this data gives"
    if isinstance(certificate.method, DrawnRule):
        who = "most of the models that were trained on this data give, on a noisy copy of the input,"
    return (
        f"A radius r says: {who} this label {most}, and would also "
        f"if {changed}. The label of a prediction is {_chosen(certificate)}; a radius of 0 confirms it for this very "
        f"data and no change{_of_the_data(certificate)}.{_by_change(certificate)}"
    )


def _of_the_data(certificate: Certificate) -> str:
    """No change of what, where a radius of 0 is about changes of the input."""
    return f" of the training data{_also_moved(certificate)}" if certificate.input_change else ""


def _by_change(certificate: Certificate) -> str:
    """What a radius for another change of the input says, as a further sentence; empty where there is none."""
    if certificate.frontier is None or len(certificate.frontier.changes) == 1:
        return ""
    return (
        " A radius for some change of the input says the same of the training data changed and, together with it, the "
        "input changed in any way by up to that Euclidean length."
    )


def _chosen(certificate: Certificate) -> str:
    """How a label is predicted."""
    kind = certificate.votes.voters
    if not kind.voters:
        times = " x class weight" if certificate.method.choice else ""
        return f"the one with the largest sum{times} over all {kind.in_full}"
    voters = f"{certificate.votes.instances:,} {kind.in_full}"
    if certificate.method.choice:
        return certificate.method.choice.format(voters=voters)
    most = "most votes" if certificate.on == "votes" else "the largest mean score"
    return f"the one with {most} among the {voters}{certificate.votes.mechanism.tie_break()}"


def not_covered(certificate: Certificate) -> tuple[str, ...]:
    """What a certificate of this kind says nothing about, a sentence or two each."""
    samples = () if isinstance(certificate.method, ExactRule) else _NOT_COVERED_BY_SAMPLES
    if isinstance(certificate.method, DrawnRule):
        samples = _NOT_COVERED_BY_DRAWS
    many = certificate.votes.unit_words.many_in_full
    narrower = (each.format(many=many) for each in _NOT_COVERED_BY_THREAT.get(certificate.threat, ()))
    covered = (_NOT_CORRECTNESS, _not_of_inputs(certificate), _NOT_OTHER_LOOKS, _parties(certificate))
    return (*narrower, *covered, *_NOT_COVERED_BY_TEST_POINTS, *samples)


def _not_of_inputs(certificate: Certificate) -> str:
    """Which changes of the test inputs are not covered."""
    frontier = certificate.frontier
    if frontier is None or not frontier.changes[-1]:
        return _NOT_CHANGED_INPUTS
    return _NOT_LARGER_CHANGES.format(most=f"{frontier.changes[-1]:g}, as a Euclidean length {frontier.in_words}")


def _parties(certificate: Certificate) -> str:
    """How many of what radii count one party may have."""
    units = certificate.votes.unit_words
    if not units.are_named:
        return _NOT_ROWS
    return (
        f"Parties rather than names. The radius counts {units.many} by their names: divide it by the largest number of "
        "names that one party controls."
    )


def particular_assumptions(certificate: Certificate) -> tuple[str, ...]:
    """What this certificate takes for granted beyond the first sentences, which all certificates of its kind share.

    A line each for a terminal: `Condition class-list: ...` where the claim is conditional on it, else `Note: ...`.
    """
    shared = 1 if isinstance(certificate.method, ExactRule) else 2
    return noted(certificate.assumptions[shared:], certificate.threat)


def noted(statements: Iterable[str], threat: Threat | None = None) -> tuple[str, ...]:
    """Statements as lines for a terminal."""
    ids = {str(each): each.id for each in conditions_of(statements, threat)}
    return tuple(
        f"Condition {ids[str(each)]}: {one_line(str(each))}" if str(each) in ids else f"Note: {one_line(str(each))}"
        for each in statements
    )


def limits(certificate: Certificate) -> list[str]:
    """A sentence for every reason other than the votes for which radii may end too early."""
    early = [status for status in Status if status not in (Status.CERTIFIED, Status.NOT_SEPARATED)]
    numbers = [int((certificate.status == status.value).sum()) for status in early]
    sentences = [status.sentence_of(certificate.votes.unit_words) for status in early]
    return [
        f"{capitalised(_out_of(number, len(certificate.status)))}: {said[0].lower()}{said[1:]}"
        for said, number in zip(sentences, numbers, strict=True)
        if number
    ]


def together(certificate: Certificate) -> list[str]:
    """What holds of all predictions together, a sentence for each radius that was asked for."""
    found, total = certificate.collective, len(certificate.radius)
    if found is None:
        return []
    sentences: list[str] = []
    for radius, most in found.most_changed.items():
        happened = certificate.threat.changes_of(certificate.votes.unit_words, radius)
        alone = int((certificate.radius < radius).sum())
        beside = f"; by their own radii it could be {alone:,}" if alone > most else ""
        sentences.append(f"Together: at most {most:,} of {total:,} predictions would change if {happened}{beside}.")
    return sentences


def _out_of(number: int, total: int) -> str:
    """So many of all predictions, as people say it; without a capital."""
    if total == 1:
        return "the one prediction"
    return "both predictions" if number == total == 2 else f"{number:,} of {total:,} predictions"


def weaknesses(certificate: Certificate, advice: Advice) -> list[str]:
    """What keeps the radii small, and which knob to turn; empty for a strong certificate."""
    if isinstance(certificate.method, ExactRule):
        return _easily_changed(certificate)
    instances = certificate.votes.instances
    if advice.unanimous.get(instances) == -1:
        return [
            f"With {instances:,} instances not even unanimous votes can be certified at this failure probability: "
            f"train a new run with {_enough_instances(certificate, advice)}."
        ]
    return [
        *_too_few_instances(certificate, advice),
        *_abstentions(certificate),
        *_moved_away(certificate),
        *_easily_changed(certificate),
    ]


def _enough_instances(certificate: Certificate, advice: Advice) -> str:
    """How many instances can be certified where they agree, as a flag with its value."""
    for instances, radius in advice.unanimous.items():
        if radius is not None and radius >= 0:
            return f"{_ask_for(certificate, instances)} or more"
    return f"many more {certificate.votes.mechanism.words.more.partition(' ')[0]}"


def _too_few_instances(certificate: Certificate, advice: Advice) -> list[str]:
    """Where all instances agree, only their number limits what they show; said where more of them would show more."""
    votes = certificate.votes
    unanimous = votes.counts.max(axis=1) == votes.instances
    limit = int(certificate.radius[unanimous].max(initial=-1))
    return [
        f"On {_out_of(int(unanimous.sum()), len(unanimous))} all {votes.instances:,} instances agree, and so many can "
        f"show no more than a radius of {limit:,}; {more:,} that agree would show {beyond:,} (train a new run with "
        f"{_ask_for(certificate, more)})."
        for more, beyond in advice.unanimous.items()
        if beyond is not None and beyond > limit
    ]


def _abstentions(certificate: Certificate) -> list[str]:
    close = (certificate.radius < 0) & (certificate.status != Status.INPUT_CHANGE.value)
    abstained, total = int(close.sum()), len(certificate.radius)
    if abstained < _MANY * total:
        return []
    who, instances = _out_of(abstained, total), certificate.votes.instances
    are_not, their = ("is not", "its") if abstained == 1 else ("are not", "their")
    return [
        f"{capitalised(who)} {are_not} certified at all: {their} leading labels are too close for "
        f"{certificate.votes.tally}. More of them tell closer labels apart (train a new run with "
        f"{_ask_for(certificate, _MORE * instances)}), and a more accurate model leaves fewer labels close."
    ]


def _moved_away(certificate: Certificate) -> list[str]:
    """Where many labels may change with the input alone, and training can do something about it."""
    moved, total = int((certificate.status == Status.INPUT_CHANGE.value).sum()), len(certificate.radius)
    if moved < max(_MANY * total, 1) or certificate.votes.input_noise is None:
        return []
    labels = "its label" if moved == 1 else "their labels"
    return [
        f"{capitalised(_out_of(moved, total))} {'is' if moved == 1 else 'are'} not certified at all: {labels} may "
        f"change with the input alone. Certify smaller changes of the input, or train a new run with more noise on it "
        f"(--input-noise above {certificate.votes.input_noise.deviation:g})."
    ]


def _ask_for(certificate: Certificate, instances: int) -> str:
    return certificate.votes.mechanism.words.more.format(instances)


def _easily_changed(certificate: Certificate) -> list[str]:
    certified = certificate.radius >= 0
    if not certified.any() or np.median(certificate.radius[certified]) >= 1:
        return []
    return [
        "At least half of the certified predictions are not shown to withstand a single "
        f"{certificate.votes.unit_words.change}: {certificate.votes.voters.remedy}"
    ]


def tighter(own: Certificate, others: tuple[Certificate, ...]) -> list[str]:
    """Whether another sound method certifies more from the same votes; exact rules may predict other labels."""
    if isinstance(own.method, ExactRule):
        return []
    sound = [other for other in others if other.method.is_sound]
    best = max(sound, key=_median, default=own)
    if not own.method.is_sound or _median(best) <= _median(own):
        return []
    return [
        f"{best.method.in_words()} certifies more from the same votes: a median radius of {_median(best):,} instead "
        f"of {_median(own):,}. Certify with --method {best.method.name}."
    ]


def _median(certificate: Certificate) -> int:
    return radius_reached_by(certificate, 0.5)
