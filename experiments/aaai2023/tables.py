"""The tables and generated sentences of docs/results.md: text from results, no number typed.

`blocks` gives what stands between the marks `<!-- name -->` and `<!-- end of name -->` of the page. A run that is not
there is said not to have been run; a sentence that needs it is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from aaai2023.paper_rules import DELTA, FAILURE_PROB, LARGEST_RADIUS
from aaai2023.results import (
    PUBLISHED,
    ROWS,
    Certified,
    FloatArray,
    Results,
    Row,
    allowed_by_paper,
    best_scores,
    draws,
    majority_accuracy,
    published_mechanism,
    reached_by_attack,
    single_accuracy,
    unanimous,
)

from mithridate import Votes
from mithridate.accounting import FDP, RDP
from mithridate.core.mechanism import Mechanism, SampledGaussian, Subsampled
from mithridate.defences.bagging import Bagged
from mithridate.defences.partitions import Partitioned

NOT_RUN = "not run"
NO_GUARANTEE, NOT_ABOUT_POINTS = _MARKS = ("†", "\\*")
# The method of a table by its name in `published.json`, and as the paper calls it.
METHODS = {
    "rdp-votes": "RDP-multinomial",
    "rdp-scores": "RDP-prob-scores",
    "adp-votes": "ADP-multinomial",
    "adp-scores": "ADP-prob-scores",
    "bagging": "Bagging",
    "dpa": "DPA",
    "fdp-votes": "f-DP on votes",
    "fdp-scores": "f-DP on scores",
}
PAPER = RDP(group="paper")
# The run with the constants of the paper's code for ResNet-18.
CODE_RESNET = "cifar10-resnet18-sigma19"


def blocks(results: Results) -> dict[str, str]:
    """The text of every block of the page, by the name of its marks."""
    return {
        "settings": settings(),
        "runs": runs(results),
        "headline": headline(results),
        "medians": medians(results),
        "accuracies": accuracies(results),
        "bounds": bounds(results),
        "averages": averages(results),
        "group rule": group_rule(results),
        "score intervals": score_intervals(results),
        "resnet sigma": resnet_sigma(results),
    }


# --- how things are written -----------------------------------------------------------------------------------------


def table(head: Sequence[str], lines: Sequence[Sequence[str]], words: Sequence[int] = (0,)) -> str:
    """A table in Markdown; columns that hold words are aligned to the left, the others to the right."""
    aligned = ["---" if place in words else "---:" for place in range(len(head))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, aligned, *lines)) + "\n"


def share(value: float) -> str:
    """A share to four digits, rounded down: exact for ten thousand test points."""
    return f"{math.floor(value * 1e4 + 1e-6) / 1e4:.4f}".removeprefix("0")


def pair(median: float, largest: int) -> str:
    """Median and maximum as the paper writes them."""
    return f"{median:g}, {largest}"


def both(found: Certified) -> str:
    """Median and maximum inside a sentence."""
    return f"({pair(found.median, found.largest)})"


def duration(seconds: float) -> str:
    """A wall time for people."""
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def listed(words: Sequence[str]) -> str:
    """Words with commas, and `and` before the last."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def in_words(mechanism: Mechanism) -> str:
    """A mechanism in a few words."""
    match mechanism:
        case SampledGaussian(noise_multiplier=sigma, sample_rate=rate, steps=steps):
            return f"sigma {sigma:g}, rate {rate:g}, {steps:,} steps"
        case Subsampled(keep=keep, inner=inner):
            return f"each example kept with {keep:g}, then {in_words(inner)}"
        case Bagged(draws=drawn):
            return f"{drawn:,} draws"
        case Partitioned(partitions=parts):
            return f"{parts:,} partitions"
        case _:
            return type(mechanism).__name__


# --- what was run ---------------------------------------------------------------------------------------------------


def settings() -> str:
    """What all tables have in common."""
    return (
        f"Claims are about single predictions and fail with probability at most {FAILURE_PROB:g} over training. ADP "
        f"has delta {DELTA:g}. The search by the paper's rules ends at radius {LARGEST_RADIUS}.\n"
    )


def runs(results: Results) -> str:
    """A table for each row with a line for every raw file, what they were trained with, and what is missing."""
    parts: list[str] = []
    for row in ROWS:
        names = [name for name in results.names if name.startswith(f"{row.key}-")]
        if names:
            head = (f"{row.key}-", "mechanism", "instances", "one is right", "majority is right", "training")
            parts.append(table(head, [_run(results, row, name) for name in names], words=(0, 1)))
    notes = [note for name in results.names if (note := results.note(name))]
    if notes:
        devices = sorted({str(note["device"]) for note in notes})
        parts.append(f"Trained on {listed(devices)} with {'; '.join(sorted({_versions(note) for note in notes}))}.\n")
    wanted = [row.run(sigma) for row in ROWS for sigma in row.sigmas]
    missing = [f"{name}{_so_far(results, name)}" for name in wanted if not results.has(name)]
    begun = [
        f"{name}{_so_far(results, name)}" for name in wanted if results.has(name) and not results.is_complete(name)
    ]
    missing += [f"{row.key} with bagging and enough instances" for row in ROWS if not results.bagging_runs(row)]
    missing += [f"{row.key} with DPA" for row in ROWS if results.dpa_run(row) is None]
    parts += [f"Not complete: {listed(begun)}.\n"] if begun else []
    parts += [f"Not run: {listed(missing)}.\n"] if missing else []
    return "\n".join(parts)


def _so_far(results: Results, name: str) -> str:
    """How far a run is that is not complete."""
    if name not in results.names:
        return ""
    return f" (only {results.votes(name).instances} of {results.wanted(name)} instances)"


def _run(results: Results, row: Row, name: str) -> list[str]:
    votes, note = results.votes(name), results.note(name)
    return [
        name.removeprefix(f"{row.key}-"),
        in_words(votes.mechanism),
        f"{votes.instances:,}",
        share(single_accuracy(votes)),
        share(majority_accuracy(votes)),
        duration(note["seconds"]) if "seconds" in note else "not noted",
    ]


def _versions(note: dict[str, object]) -> str:
    return ", ".join(f"{name} {note[name]}" for name in ("mithridate", "torch", "python") if name in note)


# --- medians and maxima ---------------------------------------------------------------------------------------------


def headline(results: Results) -> str:
    """The comparison in one table: the paper's main method, by its rule and soundly, and f-DP on the same votes."""
    lines: list[list[str]] = []
    for row in ROWS:
        published = PUBLISHED["radii"][row.key]["rdp-votes"]
        ours = [NOT_RUN] * 3
        if results.has(row.main):
            found = [results.by_paper(row.main, "rdp", "votes")]
            found += [results.sound(row.main, rule, "votes") for rule in ("rdp", "fdp")]
            ours = [pair(each.median, each.largest) for each in found]
        lines.append([row.title, pair(*published), *ours])
    head = ("median, largest radius", "paper", f"ours, its rules {NO_GUARANTEE}", "ours, sound RDP", "ours, sound f-DP")
    return table(head, lines)


def medians(results: Results) -> str:
    """A table for each row of the paper's: its figures, ours by its rules, ours soundly, and why they differ."""
    parts: list[str] = []
    for row in ROWS:
        parts.append(f"### {row.title}\n")
        if not results.has(row.main):
            parts.append(f"{row.main}: {NOT_RUN}{_so_far(results, row.main)}.\n")
            continue
        votes = results.votes(row.main)
        parts.append(f"{votes.instances:,} instances; {in_words(votes.mechanism)}.\n")
        head = ("median, largest", "paper", f"ours, its rules {NO_GUARANTEE}", "ours, sound")
        parts.append(table(head, [_line(results, row, method) for method in METHODS]))
        parts.append("Why they differ:\n")
        parts.append("".join(f"- *{METHODS[method]}.* {why}\n" for method, why in _reasons(results, row).items()))
    return "\n".join(parts)


def _line(results: Results, row: Row, method: str) -> list[str]:
    published = PUBLISHED["radii"][row.key].get(method)
    paper, sound = by_paper(results, row, method), soundly(results, row, method)
    missing = NOT_RUN if method in ("bagging", "dpa") else "no scores kept"
    shown = pair(paper.median, paper.largest) if paper else "" if method.startswith("fdp") else missing
    return [
        METHODS[method],
        pair(*published) if published else "",
        shown,
        pair(sound.median, sound.largest) if sound else missing,
    ]


def by_paper(results: Results, row: Row, method: str) -> Certified | None:
    """What a method gives by the paper's rules; None where it has none, or nothing to go by."""
    rule, _, on = method.partition("-")
    match rule:
        case "bagging":
            name = results.matched_bagging(row)
            return results.bagging(name, as_published=True) if name else None
        case "dpa":
            name = results.dpa_run(row)
            return results.dpa(name) if name else None
        case "fdp":
            return None
        case _:
            return results.by_paper(row.main, rule, on) if results.has_scores(row) or on == "votes" else None


def soundly(results: Results, row: Row, method: str) -> Certified | None:
    """What a method gives by a rule and bounds that are valid; None where there is nothing to go by."""
    rule, _, on = method.partition("-")
    match rule:
        case "bagging":
            name = results.matched_bagging(row)
            return results.bagging(name, as_published=False) if name else None
        case "dpa":
            return by_paper(results, row, method)
        case _:
            return results.sound(row.main, rule, on) if results.has_scores(row) or on == "votes" else None


# --- why they differ ------------------------------------------------------------------------------------------------

# Each sentence says what a rule is, what follows from it, or how two results differ that were both computed.


def _reasons(results: Results, row: Row) -> dict[str, str]:
    """The sentences on every method that there is something to go by."""
    shown = [method for method in METHODS if soundly(results, row, method) is not None]
    return {method: " ".join(_why(results, row, method)) for method in shown}


def _why(results: Results, row: Row, method: str) -> Iterator[str]:
    rule, _, on = method.partition("-")
    match rule:
        case "rdp":
            yield from _apart_from_published(results, row, method)
            yield from _soundness_of_rdp(results, row, on)
        case "adp":
            yield from _apart_from_published(results, row, method)
            before, after = by_paper(results, row, method), soundly(results, row, method)
            assert before is not None
            assert after is not None
            yield f"{both(before)} become {both(after)} with valid bounds and a valid delta of groups."
        case "bagging":
            yield from _why_bagging(results, row)
        case "dpa":
            yield from _why_dpa(results, row)
        case _:
            yield f"The same {on} and bounds as for sound RDP, {both(results.sound(row.main, 'rdp', on))}."


def _apart_from_published(results: Results, row: Row, method: str) -> Iterator[str]:
    """Why our figures by the paper's rules are not the published ones."""
    votes, ours = results.votes(row.main), by_paper(results, row, method)
    assert ours is not None
    median, largest = PUBLISHED["radii"][row.key][method]
    if votes.mechanism != published_mechanism(row.key):
        yield f"The mechanism is not that of the paper's code ({in_words(published_mechanism(row.key))})."
        return
    if method == "rdp-votes":
        yield _reach(votes, PUBLISHED["mechanisms"][row.key]["instances"], largest)
    if (at_end := int((ours.radius == LARGEST_RADIUS).sum())) > 0:
        yield f"At the end of the search, {LARGEST_RADIUS}: {at_end:,} of {votes.examples:,} points."
    if ours.median < 0:
        yield f"A median of -1: only {share(ours.accuracy([0])[0])} are right and certified at all."
    if (ours.median, ours.largest) != (median, largest):
        others = f"other {method.split('-')[1]}"
        if votes.instances != PUBLISHED["mechanisms"][row.key]["instances"]:
            others += f" of {votes.instances:,} instances"
        if method.startswith("rdp"):
            yield f"Rule and mechanism are the paper's: what differs comes from {others}."
        else:
            yield f"Rule and mechanism are the paper's; ours are {others}, and eps is computed by our accounting."


def _reach(votes: Votes, instances: int, published: int) -> str:
    """What unanimous votes give, beside the largest radius that was published."""
    assert isinstance(votes.mechanism, SampledGaussian)
    ours, code = (unanimous(votes.mechanism, PAPER, instances=number) for number in (votes.instances, instances))
    sentence = f"Unanimous votes of {votes.instances:,} instances give {ours}"
    if votes.instances != instances:
        sentence += f", of {instances:,} as in the paper's code {code}"
    return sentence + (", the published largest radius." if published == code else f"; published is {published}.")


def _soundness_of_rdp(results: Results, row: Row, on: str) -> Iterator[str]:
    ours, sound = results.by_paper(row.main, "rdp", on), results.sound(row.main, "rdp", on)
    if not isinstance(results.votes(row.main).mechanism, SampledGaussian):
        yield (
            "The paper's rule is applied to what an instance does with its part of the data; the sound one also counts "
            f"that the part is random: {both(ours)} become {both(sound)}."
        )
        return
    between = results.by_paper(row.main, "rdp", on, valid_bounds=True)
    bounds = "valid bounds" if on == "votes" else "valid bounds instead of Student-t intervals"
    yield f"{both(ours)} become {both(between)} with {bounds}, and {both(sound)} with the valid group rule as well."


def _why_bagging(results: Results, row: Row) -> Iterator[str]:
    name = results.matched_bagging(row)
    assert name is not None
    votes = results.votes(name)
    trained = listed([f"{draws(results.votes(each)):,}" for each in results.bagging_runs(row)])
    own = share(results.bagging(name, as_published=True).accuracy([0])[0])
    wanted = share(results.by_paper(row.main, "rdp", "votes").accuracy([0])[0])
    yield (
        f"{draws(votes):,} draws: of those trained ({trained}), the nearest at r = 0 ({own}) to RDP-multinomial "
        f"({wanted}); unanimous votes give {_bagging_reach(votes)}."
    )
    largest = PUBLISHED["radii"][row.key]["bagging"][1]
    instances = PUBLISHED["mechanisms"][row.key]["instances"]
    alike = [other for other in results.bagging_runs(row) if _bagging_reach(results.votes(other)) == largest]
    for other in alike:
        yield (
            f"With {draws(results.votes(other)):,} draws unanimous votes give the published {largest}, and our run "
            f"{both(results.bagging(other, as_published=True))}."
        )
    if not alike and _bagging_reach(votes, instances) == largest:
        yield (
            f"Of the {instances:,} instances of the paper they would give {largest}, as published; "
            f"ours are {votes.instances:,}, and other models."
        )
    yield (
        "As published, a changed example counts one; in the sound column it counts two, as everywhere here, which "
        "leaves fewer data sets to cover."
    )


def _bagging_reach(votes: Votes, instances: int | None = None) -> int:
    """The radius of unanimous votes, of so many instances or of those that there are."""
    assert isinstance(votes.mechanism, Bagged)
    return unanimous(votes.mechanism, None, instances=instances or votes.instances, bounds="simuem")


def _why_dpa(results: Results, row: Row) -> Iterator[str]:
    name = results.dpa_run(row)
    assert name is not None
    parts = results.votes(name).instances
    yield f"{parts:,} partitions, so at most {parts // 2}; nothing is estimated, and both columns are the same."
    if (published := PUBLISHED["radii"][row.key].get("dpa")) and published[0] != results.dpa(name).median:
        yield "The rule is the paper's: the medians differ because other models were trained."


# --- certified accuracy ---------------------------------------------------------------------------------------------


def accuracies(results: Results) -> str:
    """Certified accuracy at some radii, of every method that could be computed, a table for each row."""
    parts: list[str] = []
    for row in results.rows:
        curves = _curves(results, row)
        best = np.max([shares for title, shares in curves.items() if not title.endswith(_MARKS)], axis=0)
        lines = [
            [title, *_cells(shares, np.inf if title.endswith(_MARKS) else best)] for title, shares in curves.items()
        ]
        parts.append(table((row.title, *(f"r = {radius}" for radius in row.radii)), lines))
    return "\n".join([*parts, *_published_accuracy(results)])


def _curves(results: Results, row: Row) -> dict[str, FloatArray]:
    """The certified accuracies of a table, by the titles of its lines."""
    found: dict[str, FloatArray] = {}
    for method, title in METHODS.items():
        if method[:3] in ("rdp", "adp") and (paper := by_paper(results, row, method)) is not None:
            found[f"{title}, the paper's rules {NO_GUARANTEE}"] = paper.accuracy(row.radii)
    for method, title in METHODS.items():
        if (sound := soundly(results, row, method)) is not None:
            found[title] = sound.accuracy(row.radii)
    bound = results.on_average(row.main)
    found[f"Baseline-DP {NOT_ABOUT_POINTS}"] = bound.published(list(row.radii))
    found[f"f-DP, mean accuracy {NOT_ABOUT_POINTS}"] = bound.accuracy(list(row.radii))
    return found


def _cells(shares: FloatArray, best: FloatArray | float) -> list[str]:
    """Shares, the best ones in bold; nothing where there is nothing."""
    leads = (shares >= best) & (shares > 0)
    shown = [share(value) if value > 0 else "" for value in shares]
    return [f"**{text}**" if lead else text for text, lead in zip(shown, leads, strict=True)]


def _published_accuracy(results: Results) -> list[str]:
    """The certified accuracies that the paper's text gives, beside ours."""
    sentences: list[str] = []
    for row in results.rows:
        given = PUBLISHED["accuracies"].get(row.key)
        if given is None:
            continue
        found = {
            "by the paper's rules": results.by_paper(row.main, "rdp", "votes"),
            "by sound RDP": results.sound(row.main, "rdp", "votes"),
            "by sound f-DP": results.sound(row.main, "fdp", "votes"),
        }
        radius = given["radius"]
        shown = listed([f"{share(one.accuracy([radius])[0])} {how}" for how, one in found.items()])
        sentences.append(
            f"{row.title.split(',')[0]} at r = {radius}: the paper's text has {share(given['rdp-votes'])} for "
            f"RDP-multinomial and {share(given['best baseline'])} for the best baseline; our votes give {shown}.\n"
        )
    return sentences


# --- evidence -------------------------------------------------------------------------------------------------------

# Where the group rule is tried: a mechanism, a number of inserted examples, the probability of an event without them.
_TRIALS = (
    (published_mechanism("cifar10-resnet18"), PUBLISHED["radii"]["cifar10-resnet18"]["rdp-votes"][1]),
    (SampledGaussian(20.0, 1.0, 50), 6),
)
_UNLIKELY = 0.01


def bounds(results: Results) -> str:
    """f-DP on the same votes, by every kind of confidence bounds."""
    kinds = ("simultaneous", "anytime", "winner")
    lines: list[list[str]] = []
    for row in results.rows:
        radii = row.radii[3], row.radii[4]
        for kind in kinds:
            if kind == "anytime" and len(results.votes(row.main).run_ids) > 1:
                continue  # which are not the first instances of one run
            found = results.by_bounds(row.main, kind)
            at = [f"{share(each)} at {radius}" for radius, each in zip(radii, found.accuracy(radii), strict=True)]
            lines.append([f"{row.title}, sigma {row.sigma}", f"`{kind}`", f"{found.median:g}", str(found.largest), *at])
    return table(("run", "bounds", "median", "largest", "correct and certified", "and"), lines, (0, 1))


def averages(results: Results) -> str:
    """What is certified of the accuracy of one instance: as published, and by trade-off curves."""
    lines: list[list[str]] = []
    for row in results.rows:
        radii, bound = [row.radii[3], row.radii[4]], results.on_average(row.main)
        for title, found in (("as published", bound.published(radii)), ("by curves", bound.accuracy(radii))):
            at = [f"{share(float(each))} at {radius}" for radius, each in zip(radii, found, strict=True)]
            lines.append([f"{row.title}, sigma {row.sigma}", title, *at])
    return table(("run", "bound on the accuracy of one instance", "at least", "and"), lines, (0, 1))


def group_rule(results: Results) -> str:
    """Where the paper's group rule is exceeded, and why the published radii stand nevertheless."""
    trials = [
        [
            in_words(mechanism),
            str(radius),
            f"{allowed_by_paper(mechanism, radius, _UNLIKELY):.4f}".removeprefix("0"),
            f"{reached_by_attack(mechanism, radius, _UNLIKELY):.4f}".removeprefix("0"),
        ]
        for mechanism, radius in _TRIALS
    ]
    head = (f"an event of probability {_UNLIKELY:g}", "inserted examples", "the rule allows", "it becomes")
    radii = [_unanimous_line(row) for row in ROWS]
    second = ("unanimous votes, the paper's bounds", "published", "the paper's rule", "f-DP")
    return "\n".join([table(head, trials), table(second, radii), *_exceeded(results)])


def _exceeded(results: Results) -> Iterator[str]:
    """At how many points of ours the paper's rule goes beyond f-DP, which is sound."""
    counts: list[str] = []
    for row in results.rows:
        if isinstance(results.votes(row.main).mechanism, SampledGaussian):
            paper = results.by_paper(row.main, "rdp", "votes", valid_bounds=True)
            beyond = paper.radius > results.sound(row.main, "fdp", "votes").radius
            counts.append(f"{int(beyond.sum()):,} of {len(beyond):,} ({row.title})")
    if counts:
        found = "Test points at which the paper's rule gives more than f-DP, from our votes and valid bounds"
        yield f"{found}: {listed(counts)}.\n"


def _unanimous_line(row: Row) -> list[str]:
    mechanism, instances = published_mechanism(row.key), PUBLISHED["mechanisms"][row.key]["instances"]
    return [
        f"{row.title}: {in_words(mechanism)}",
        str(PUBLISHED["radii"][row.key]["rdp-votes"][1]),
        str(unanimous(mechanism, PAPER, instances=instances)),
        str(unanimous(mechanism, FDP(), instances=instances)),
    ]


def score_intervals(results: Results) -> str:
    """What the bounds that the paper names can give at best, beside what it publishes."""
    row = ROWS[0]
    mechanism, instances = published_mechanism(row.key), PUBLISHED["mechanisms"][row.key]["instances"]
    hoeffding, bernstein = (
        best_scores(mechanism, instances=instances, bounds=bounds) for bounds in ("hoeffding", "empirical-bernstein")
    )
    text = (
        f"{row.title}: published are radii up to {PUBLISHED['radii'][row.key]['rdp-scores'][1]}. If all {instances:,} "
        "instances were certain and agreed, the paper's group rule would give at most "
        f"{hoeffding} with Hoeffding's bound and {bernstein} with empirical Bernstein's, for ten labels at once."
    )
    if row in results.rows and results.has_scores(row):
        ours = results.by_paper(row.main, "rdp", "scores")
        valid = results.by_paper(row.main, "rdp", "scores", valid_bounds=True)
        text += (
            f" By Student-t intervals our scores give a median of {ours.median:g} and radii up to {ours.largest}; by "
            f"empirical Bernstein's bound and the same group rule {valid.median:g} and {valid.largest}."
        )
    return text + "\n"


def resnet_sigma(results: Results) -> str:
    """What the two noise multipliers of the paper's ResNet-18 mean for its radii, and what they let it learn."""
    row = ROWS[-1]
    code, published = published_mechanism(row.key), PUBLISHED["radii"][row.key]["rdp-votes"][1]
    text = SampledGaussian(float(row.sigma), code.sample_rate, code.steps)
    instances = PUBLISHED["mechanisms"][row.key]["instances"]
    by_code, by_text = (unanimous(each, PAPER, instances=instances) for each in (code, text))
    sentences = [
        f"The paper's text says sigma {text.noise_multiplier:g}, its code {code.noise_multiplier:g}. By its rules "
        f"unanimous votes reach {by_code} with the constant of the code, where {published} is published, and {by_text} "
        "with that of the text."
    ]
    if results.has(CODE_RESNET):
        sentences.append(_learnt(results.votes(CODE_RESNET), f"With the constants of the code ({CODE_RESNET})"))
    if row.main in results.names:
        sentences.append(_learnt(results.votes(row.main), f"With that of the text ({row.main})"))
    return " ".join(sentences) + "\n"


def _learnt(votes: Votes, subject: str) -> str:
    return (
        f"{subject}, one of {votes.instances:,} instances alone is right on {share(single_accuracy(votes))} of the "
        f"test points, their majority on {share(majority_accuracy(votes))}."
    )
