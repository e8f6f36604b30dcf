"""An audit as a page without any script: how far the best attacks got, against whom, and what they knew.

A certified radius bounds from below what it takes to change a prediction, and an attack from above. The page shows both
and says of what lies between them that nothing is known.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from mithridate._io.pieces import taken
from mithridate._text import capitalised, counted, listed, percent, shortened
from mithridate._version import VERSION
from mithridate.attacking.poison import Poison
from mithridate.attacking.result import Audit, Broken, Control, InputMove, Target, words_of_control
from mithridate.core.certificate import round_ticks
from mithridate.core.conditions import conditions_of, explained
from mithridate.core.input_change import in_words_of
from mithridate.data.columns import Column, cells_in_words
from mithridate.data.declarations import Table
from mithridate.errors import ConfigError
from mithridate.reporting import rendering
from mithridate.reporting.comparison import duration
from mithridate.reporting.rendering import Chart, ChartText, Path, Plane, Point, Shape

Array = npt.NDArray[Any]

# A radius from here on is no number of changes: the rule knows no limit.
_NO_LIMIT = 1_000_000
# What is certified to more than this many times the best attack is drawn with an arrow.
_MOST_TIMES = 3
# Both drawings are as wide as a phone, so that they need not scroll.
_WIDTH = 440
_ROW, _ROWS_TOP, _BAR = 46, 34, 10
_ROWS_LEFT, _ROWS_RIGHT = 8, 428
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 428, 28, 216
# Multiples of the radius on the axis: at least, at most, and those in the table.
_LEAST_RATIO, _MOST_RATIO = 3, 10
_RATIOS = (1, 1.1, 1.5, 2, 3, 4, 6, 8, 10)
_BLUE, _GREY, _RED, _BROWN = "#0b5d6b", "#4d5560", "#a3262a", "#9a4a00"
# Of a poisoned set, so many examples are shown; of a text so many letters, and of a row so many numbers.
_FEW, _LETTERS, _NUMBERS = 3, 80, 6
# Bytes of all pictures together; as text in the page they take a third more.
_PICTURE_BYTES = 3_000_000
# Names of classes are cut to this.
_SHORT = 30


@dataclass(frozen=True, eq=False)
class AuditReport:
    """An audit as a page."""

    audit: Audit

    def html(self) -> str:
        """One self-contained page: no network, no script, no other files."""
        audit = self.audit
        album = _Album(audit)
        broken = _broken_tables(audit)
        return rendering.page(
            "audit.html",
            styles=("style.css", "comparison.css", "audit.css"),
            title=_title(audit),
            headline=audit.headline,
            lead=_lead(audit),
            meaning=audit.meaning,
            warnings=_warnings(audit),
            sections=_sections(audit, broken),
            broken=broken,
            reproduce=_reproduce(audit) if broken else (),
            **_radii(audit),
            **_flipped(audit),
            targets_lead=_targets_lead(audit),
            radius_title=audit.unit_words.radius("certified to"),
            targets=[_row(target, audit, album) for target in _hardest_last(audit.targets)],
            triggered=[_row(target, audit, album) for target in _hardest_last(audit.triggered)],
            **_moved(audit, album),
            targets_note=_targets_note(album),
            knowledge=_knowledge(audit),
            attacks=[
                [each.name, each.title, each.knows, f"{each.retrainings:,}", f"{each.best_on:,}"] for each in audit.used
            ],
            controls=[_control(each) for each in _controls(audit)],
            notes=audit.notes,
            assumptions=audit.assumptions,
            footer=f"Written by mithridate {VERSION}. audit.json, beside this page, holds the same numbers.",
        )

    def _repr_html_(self) -> str:
        return rendering.framed(self.html(), _title(self.audit), sandbox="")


def _title(audit: Audit) -> str:
    return f"Audit by attack: {audit.title}"


def _sections(audit: Audit, broken: Sequence[Any]) -> list[tuple[str, str]]:
    """Where the links at the top of the page lead."""
    there = [("broken", "Broken claims")] if broken else []
    there += [("radii", "Radius and attack"), ("flipped", "Share flipped"), ("targets", "Targets")]
    there += [("moved", "Moved inputs")] if audit.frontier else []
    there += [("triggered", "Triggers")] if audit.triggered else []
    return [*there, ("attacks", "Attacks"), ("control", "Control"), ("notes", "Notes")]


# --- in words ---------------------------------------------------------------------------------------------------------


def _is_exact(audit: Audit) -> bool:
    return audit.failure_prob == 0


def _lead(audit: Audit) -> str:
    attacked = f"attacks were aimed at {len(audit.targets):,} of them"
    if audit.moved:
        attacked += f", at {counted(len(audit.moved), 'input')} that {'has' if len(audit.moved) == 1 else 'have'} moved"
    if audit.triggered:
        attacked += f", and at {counted(len(audit.triggered), 'input')} with a trigger"
    sure = (
        "The predictions are a function of the data, so that one flip within a certified radius would be a bug."
        if _is_exact(audit)
        else f"Each claim may fail with probability {audit.failure_prob:g}, over the randomness of training."
    )
    return (
        f"r counts {audit.threat.counts(audit.unit_words)}. {counted(audit.inputs, 'input')} "
        f"{'was' if audit.inputs == 1 else 'were'} predicted; {attacked}. All of it took {duration(audit.seconds)}. "
        f"{sure}"
    )


def _warnings(audit: Audit) -> list[str]:
    """What a reader must know before any number."""
    said: list[str] = []
    if audit.violations:
        said.append(
            f"{capitalised(counted(len(audit.violations), 'certified claim'))} of {audit.title} "
            f"{'is' if len(audit.violations) == 1 else 'are'} false: the rule, the code or an assumption is wrong. "
            "Do not rely on its certificates until this is explained."
        )
    said += [words_of_control(each) for each in _controls(audit) if not each.has_power]
    if not audit.finished:
        said.append(
            "The audit did not finish: time was over before everything was tried. The same call, with the same folder, "
            "resumes it."
        )
    return [*said, *explained(conditions_of(audit.assumptions, audit.threat))]


def _knowledge(audit: Audit) -> str:
    """Who the attacker is; the table says what each attack needs of it."""
    limit = (
        "Training draws nothing at random, so nothing is hidden."
        if _is_exact(audit)
        else "None knows the randomness of training: the certificates assume that, and whether a claim is broken is "
        "judged on instances with fresh seeds."
    )
    return f"Every attacker knows the training data, the method with all its constants, and how it votes. {limit}"


def _controls(audit: Audit) -> list[Control]:
    """That of claims about inputs as they are, and where inputs move that of claims about these."""
    return [each for each in (audit.control, audit.moved_control) if each is not None]


def _control(control: Control) -> dict[str, Any]:
    known = (
        "the published rule for groups, which is known to be unsound"
        if control.method == "rdp-paper"
        else "radii that are too large on purpose"
    )
    facts = [
        ("control", f"{control.method}: {known}"),
        ("claims checked", f"{control.claims:,}"),
        ("claims broken", f"{control.violations:,}"),
    ]
    return {"facts": facts, "said": words_of_control(control)}


# --- broken claims ----------------------------------------------------------------------------------------------------


def _broken_tables(audit: Audit) -> list[dict[str, Any]]:
    """What was broken, by what follows from it: a heading, a sentence and rows each."""
    kinds = (
        (
            "Violations",
            "violations",
            audit.violations,
            "These claims are false, and the failure probability of the certificate does not account for them.",
        ),
        (
            "Within the failure probability",
            "excused",
            audit.excused,
            f"A claim may fail with probability {audit.failure_prob:g}, and there are no more broken ones than that "
            "allows. A certificate for all predictions together would not make them. They are no violations.",
        ),
        (
            "Outside the conditions",
            "conditional",
            audit.conditional,
            "The certificate is conditional, and these changes break its condition. They are no violations; they show "
            "what the condition is worth.",
        ),
    )
    return [
        {"title": title, "id": id, "sentence": sentence, "rows": [_broken_row(each, audit) for each in found]}
        for title, id, found, sentence in kinds
        if found
    ]


def _broken_row(each: Broken, audit: Audit) -> list[str]:
    return [
        _moved_input(each.of, each.move) if _has_moved(each.move) else _input(each.input, audit),
        _label(each.label, audit),
        f"{each.radius:,}",
        f"{each.budget:,}",
        each.attack,
        _votes(each, audit),
        "a fact" if each.seed is None else f"{each.p:.1e}",
        each.file or "not kept",
    ]


def _votes(each: Broken, audit: Audit) -> str:
    """How the instances voted: the labels with most votes."""
    first = sorted(range(len(each.votes)), key=lambda label: -each.votes[label])[:_FEW]
    return ", ".join(f"{_label(label, audit)}: {each.votes[label]:,.6g}" for label in first)


def _reproduce(audit: Audit) -> tuple[str, ...]:
    steps = (
        "Each file, in the folder of this page, is a .npz file that NumPy reads: deleted (numbers of training "
        "examples, from 0), x and y (inputs and labels to insert).",
        "Delete and insert them; where there are as many of both, and radii count examples, each inserted one takes "
        "the place of the deleted one. Train on that with the same constants, and predict the input; where it has "
        "moved, audit.json names the file that holds it.",
    )
    if _is_exact(audit):
        return (*steps, "The label is another one each time.")
    return (
        *steps,
        "audit.json has the root seed of the instances that judged each claim: train with it to see the same votes. p "
        "is the chance of such votes if the claim were true, times the number of claims and of rivals.",
    )


# --- certified radius and best attack ---------------------------------------------------------------------------------


def _middle(values: Sequence[float]) -> float:
    """The lower median."""
    return sorted(values)[(len(values) - 1) // 2]


@dataclass(frozen=True)
class _Rule:
    """A way to certify the votes, over all targets.

    Attributes:
        name: the rule.
        radius: the median of the radii that it certifies.
        refuted_on: on how many targets an attack flips the label within its radius.
        attack: the median of the changes that flip the label; None: fewer than half were flipped.
        times: the median of these changes over the radius of the same target; infinite: fewer than half were flipped.
        is_own: whether the audit is about this rule.
    """

    name: str
    radius: int
    refuted_on: int
    attack: int | None
    times: float
    is_own: bool

    @property
    def is_refuted(self) -> bool:
        """Whether the median radius is no less than what flips half of the targets; some target then refutes it."""
        return self.attack is not None and self.radius >= self.attack

    @property
    def has_limit(self) -> bool:
        """Whether the radius is a number of changes at all."""
        return self.radius < _NO_LIMIT

    @property
    def words(self) -> str:
        """The radius as it is shown."""
        return "nothing" if self.radius < 0 else f"{self.radius:,}" if self.has_limit else "no limit"

    @property
    def ratio(self) -> str:
        """How many times the radius it takes."""
        if not math.isfinite(self.times) or not self.has_limit:
            return "below 1" if self.is_refuted else "unknown"
        return f"{self.times:.2f}"

    @property
    def css(self) -> tuple[str, str]:
        """Its colour: by the style of the page, and elsewhere."""
        if self.is_refuted:
            return "refuted", _RED
        return ("own", _BLUE) if self.is_own else ("other", _GREY)


def _best_attack(audit: Audit) -> int | None:
    """The median of what flips the targets; those that were not flipped count as more than all that was tried."""
    if not audit.targets:
        return None
    found = _middle([math.inf if each.flipped_at is None else each.flipped_at for each in audit.targets])
    return int(found) if math.isfinite(found) else None


def _times(flipped_at: int | None, radius: int) -> float:
    return math.inf if flipped_at is None else flipped_at / max(radius, 1)


def _rules(audit: Audit) -> list[_Rule]:
    """All ways to certify the votes, that of the audit first."""
    if not audit.targets:
        return []
    own = audit.method if audit.method in audit.rules else next(iter(audit.rules), None)
    flipped = [each.flipped_at for each in audit.targets]
    found = [
        _Rule(
            name,
            int(_middle(radii)),
            sum(at is not None and radius >= at for radius, at in zip(radii, flipped, strict=True)),
            _best_attack(audit),
            _middle(
                [math.inf if at is None else at / max(radius, 1) for radius, at in zip(radii, flipped, strict=True)]
            ),
            name == own,
        )
        for name, radii in audit.rules.items()
    ]
    return sorted(found, key=lambda rule: not rule.is_own)


def _radii(audit: Audit) -> dict[str, Any]:
    rules, changes = _rules(audit), audit.unit_words.changes
    total = len(audit.targets)
    return {
        "radii_chart": draw_radii(audit).svg() if rules else None,
        "radii_lead": _radii_lead(audit),
        "refuted": [_refuted_words(rule, audit) for rule in rules if rule.is_refuted],
        "radii_header": ["rule", f"median radius ({changes})", "attack / radius", "attack within radius"],
        "radii_rows": [
            [_rule_name(rule), rule.words, rule.ratio, f"{rule.refuted_on:,} of {total:,}"] for rule in rules
        ],
        "radii_note": _radii_note(audit, rules),
    }


def _rule_name(rule: _Rule) -> str:
    return f"{rule.name} (refuted)" if rule.is_refuted else rule.name


def _radii_lead(audit: Audit) -> str:
    if not audit.targets:
        return "No prediction was attacked, so there is nothing to compare."
    if not audit.rules:
        return "No rule certifies these votes against this threat, so there is nothing to compare."
    few = (
        f"Fewer than half of the {counted(len(audit.targets), 'target')} were flipped, so the lines have no end."
        if _best_attack(audit) is None
        else "The dashed line goes on to the median of what the best attack needed; between the two, nothing is known."
    )
    return f"All rules certify the same votes. A bar is as long as the median radius of the targets. {few}"


def _refuted_words(rule: _Rule, audit: Audit) -> str:
    changes, control = audit.unit_words.changes, " It is the control." if rule.name == audit.control.method else ""
    claimed = f"{rule.words} {changes}" if rule.has_limit else f"{_NO_LIMIT:,} {changes} or more, which is no limit,"
    return (
        f"{rule.name} is refuted: its median radius is {claimed} while half of the targets flip at "
        f"{rule.attack:,} or fewer: on {rule.refuted_on:,} of {counted(len(audit.targets), 'target')} the best attack "
        f"is within the radius that it claims.{control}"
    )


def _radii_note(audit: Audit, rules: Sequence[_Rule]) -> str:
    said = ["Of an even number of targets, the median is the lower of the two in the middle."]
    if any(_is_far(rule, audit) for rule in rules):
        said.append("An arrow: the radius is beyond the end of the axis.")
    own = next((rule.name for rule in rules if rule.is_own), None)
    if own is not None and tuple(audit.rules[own]) != tuple(each.radius for each in audit.targets):
        said.append("Radii are those of the rules alone; the certificate ends some of them sooner (see the notes).")
    if audit.targets and not _is_exact(audit):
        said.append("What the attacks needed is an estimate, from the instances of the search.")
    return " ".join(said)


def _reference(audit: Audit) -> int:
    """What the axis has to hold: the best attack, or where there is none, what was tried."""
    found = _best_attack(audit)
    return max(1, int(_middle([each.tried for each in audit.targets])) if found is None else found)


def _is_far(rule: _Rule, audit: Audit) -> bool:
    return not rule.has_limit or rule.radius > _MOST_TIMES * _reference(audit)


def draw_radii(audit: Audit) -> Chart:
    """A bar for every rule up to its median radius, and a line on to the best attack."""
    rules = _rules(audit)
    last = max([_reference(audit), *(rule.radius for rule in rules if not _is_far(rule, audit))])
    bottom = _ROWS_TOP + _ROW * len(rules) + 4
    plane = Plane(_ROWS_LEFT, _ROWS_RIGHT, _ROWS_TOP, bottom, math.ceil(1.1 * last))
    shapes = [*_rule_axis(plane, last, audit), *_attack_line(plane, audit)]
    for place, rule in enumerate(rules):
        shapes += _rule_row(rule, _ROWS_TOP + _ROW * place, plane, is_far=_is_far(rule, audit))
    words = " ".join(f"{rule.name}: {rule.words}{' (refuted)' if rule.is_refuted else ''}." for rule in rules)
    attack = "fewer than half were flipped" if rules[0].attack is None else f"{rules[0].attack:,}"
    title = "Certified radius and best attack"
    return Chart(_WIDTH, bottom + 46, title, f"Medians over the targets. Best attack: {attack}. {words}", shapes)


def _rule_axis(plane: Plane, last: int, audit: Audit) -> list[Shape]:
    shapes: list[Shape] = []
    for radius in round_ticks(last, 5):
        at = float(plane.x(radius))
        shapes.append(Path([(at, plane.top), (at, plane.bottom + 5)], opacity=0.15))
        shapes.append(ChartText(at, plane.bottom + 20, f"{radius:,}", anchor="middle"))
    counts = shortened(audit.threat.counts(audit.unit_words.short), 56)
    return [*shapes, ChartText((plane.left + plane.right) / 2, plane.bottom + 40, counts, anchor="middle")]


def _attack_line(plane: Plane, audit: Audit) -> list[Shape]:
    found = _best_attack(audit)
    if found is None:
        return [ChartText(plane.right, plane.top - 14, "fewer than half were flipped", "attack-name", _BROWN, "end")]
    at, text = float(plane.x(found)), f"best attack: {found:,}"
    anchor = "end" if at > (plane.left + plane.right) / 2 else "start"
    return [
        Path([(at, plane.top - 8), (at, plane.bottom)], "attack", _BROWN, 2),
        ChartText(at, plane.top - 14, text, "attack-name", _BROWN, anchor, is_bold=True),
    ]


def _rule_row(rule: _Rule, top: float, plane: Plane, *, is_far: bool) -> list[Shape]:
    """The name and the radius, and below them the bar with its line."""
    css, colour = rule.css
    middle, half = top + 31, _BAR / 2
    end = plane.right - 8 if is_far else float(plane.x(max(rule.radius, 0)))
    bar = [(plane.left, middle - half), (end, middle - half), (end, middle + half), (plane.left, middle + half)]
    shapes: list[Shape] = [Path(bar, css, colour, width=0, is_filled=True, is_closed=True)]
    if is_far:
        shapes.append(_arrow(end, middle, css, colour))
    elif not rule.is_refuted:
        goal = plane.right if rule.attack is None else float(plane.x(rule.attack))
        shapes.append(Path([(end, middle), (goal, middle)], css, colour, 2, "3 4"))
    said = f"{shortened(rule.name, 30)}: {rule.words}{', refuted' if rule.is_refuted else ''}"
    return [*shapes, ChartText(plane.left, top + 19, said, f"row {css}", colour, is_bold=True)]


def _arrow(x: float, y: float, css: str, colour: str) -> Path:
    head = [(x, y - _BAR), (x + 9, y), (x, y + _BAR)]
    return Path(head, f"{css} arrow", colour, width=0, is_filled=True, is_closed=True)


# --- share of targets flipped -----------------------------------------------------------------------------------------


def _is_within(target: Target) -> bool:
    """Whether a target flips within what was certified."""
    return target.flipped_at is not None and target.flipped_at <= target.radius


def _last_ratio(audit: Audit) -> int:
    """Where the axis ends: behind the last target that flips, if that is not too far."""
    largest = max((each.ratio for each in audit.targets if each.ratio is not None), default=0.0)
    return min(_MOST_RATIO, max(_LEAST_RATIO, math.floor(largest) + 1))


def _shown_ratios(last: int) -> list[float]:
    return [*(ratio for ratio in _RATIOS if ratio < last), last]


def _flipped(audit: Audit) -> dict[str, Any]:
    total, last = len(audit.targets), _last_ratio(audit)
    shares = [(ratio, round(audit.flipped_by(ratio) * total)) for ratio in _shown_ratios(last)]
    return {
        "flipped_chart": draw_flipped(audit).svg() if total else None,
        "flipped_lead": _flipped_lead(audit),
        "flipped_rows": [[f"{ratio:g}", f"{count:,} of {total:,}", percent(count, total)] for ratio, count in shares]
        if total
        else [],
        "flipped_note": "A prediction that is certified to 0 counts as if that were 1: it may flip at 1.",
    }


def _flipped_lead(audit: Audit) -> str:
    total = len(audit.targets)
    if not total:
        return "No prediction was attacked, so there is nothing to draw."
    within, never = sum(map(_is_within, audit.targets)), sum(each.flipped_at is None for each in audit.targets)
    said = [f"Within their certified radii, {within:,} of {counted(total, 'target')} flip."]
    if within:
        said.append("The search saw these on few instances; what fresh ones confirmed is under Broken claims.")
    if never:
        said.append(f"{never:,} did not flip by all that was tried, which says nothing about what was not tried.")
    beyond = sum(each.ratio is not None and each.ratio > _MOST_RATIO for each in audit.targets)
    if beyond:
        said.append(f"{beyond:,} flipped at more than {_MOST_RATIO} times the radius, beyond the axis.")
    return " ".join(said)


def draw_flipped(audit: Audit) -> Chart:
    """The share of targets that flip within so many times their radius."""
    last = _last_ratio(audit)
    plane = Plane(_LEFT, _RIGHT, _TOP, _BOTTOM, last - 1)
    one = float(plane.x(1))
    safe = [(_LEFT, _TOP), (one, _TOP), (one, _BOTTOM), (_LEFT, _BOTTOM)]
    shapes: list[Shape] = [
        Path(safe, "own", _BLUE, width=0, opacity=0.1, is_filled=True, is_closed=True),
        *_ratio_axes(plane, last),
        Path([(one, _TOP - 6), (one, _BOTTOM)], "own", _BLUE, 2),
        ChartText(one, _TOP - 12, "certified", "own", _BLUE, "middle", is_bold=True),
        Path(_steps(audit, plane, last), "attack", _BROWN, 2.5),
    ]
    if audit.flipped_by(math.nextafter(1, 0)) > 0:
        shapes.append(Path(_corners(audit, plane, 1), "refuted", _RED, 3.5))
    listed_shares = ", ".join(f"{audit.flipped_by(r):.0%} at {r:g}" for r in _shown_ratios(last))
    words = f"By budget as a multiple of the certified radius: {listed_shares}."
    return Chart(_WIDTH, _BOTTOM + 46, "Share of targets flipped", words, shapes)


def _ratio_axes(plane: Plane, last: int) -> list[Shape]:
    shapes: list[Shape] = []
    for share in range(0, 101, 25):
        height = float(plane.y(share / 100))
        shapes.append(Path([(_LEFT, height), (_RIGHT, height)], opacity=0.15))
        shapes.append(ChartText(_LEFT - 8, height + 4, f"{share}%", anchor="end"))
    for ratio in range(last + 1):
        at = float(plane.x(ratio))
        shapes.append(Path([(at, _BOTTOM), (at, _BOTTOM + 5)], opacity=0.5))
        shapes.append(ChartText(at, _BOTTOM + 20, f"{ratio}", anchor="middle"))
    return [*shapes, ChartText((_LEFT + _RIGHT) / 2, _BOTTOM + 40, "changes / certified radius", anchor="middle")]


def _corners(audit: Audit, plane: Plane, end: float) -> list[Point]:
    """The curve up to a ratio, which is reached only by flips before it."""
    points = [(float(plane.left), float(plane.bottom))]
    ratios = {each.ratio for each in audit.targets if each.ratio is not None and each.ratio < end}
    for ratio in sorted(ratios):
        x = float(plane.x(ratio))
        points += [(x, points[-1][1]), (x, float(plane.y(audit.flipped_by(ratio))))]
    return [*points, (float(plane.x(end)), points[-1][1])]


def _steps(audit: Audit, plane: Plane, last: int) -> list[Point]:
    """The whole curve, with the step at the end of the axis, if there is one."""
    points = _corners(audit, plane, last)
    return [*points, (points[-1][0], float(plane.y(audit.flipped_by(last))))]


# --- the table of targets ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Example:
    """An example in a table: as a picture, or as text.

    Attributes:
        label: what it is called; empty for an input that is predicted.
        text: its content, or what the picture shows.
        picture: a data URI, if there is one.
    """

    label: str
    text: str
    picture: str | None = None


class _Album:
    """Examples as the page shows them: pictures until they take too much room, else text.

    Args:
        audit: whose inputs and examples they are.
    """

    def __init__(self, audit: Audit) -> None:
        self.audit = audit
        self.left = _PICTURE_BYTES
        self.is_full = False

    def input(self, number: int) -> list[_Example]:
        """An input that is predicted; nothing where the audit has none to show."""
        shown = self.audit.pictures
        return [] if shown is None else self._examples(taken(shown.inputs.x, np.array([number])), [""])

    def changed(self, poison: Poison) -> list[_Example]:
        """A few examples that are inserted, or else of those that are deleted."""
        if len(poison.y):
            return self._examples(poison.x[:_FEW], [_label(label, self.audit) for label in poison.y[:_FEW].tolist()])
        shown, few = self.audit.pictures, poison.deleted[:_FEW]
        if shown is None or shown.training.y is None or not len(few):
            return []
        labels = [_label(label, self.audit) for label in shown.training.y[few].tolist()]
        return self._examples(taken(shown.training.x, few), labels)

    def _examples(self, x: Array, labels: Sequence[str]) -> list[_Example]:
        try:
            pictures = rendering.checked_pictures(x, len(x))
        except ConfigError:  # they are no images
            shown = self.audit.pictures
            declared = None if shown is None else shown.training.declaration
            columns = declared.columns if isinstance(declared, Table) else ()
            return [_Example(label, _in_text(each, columns)) for each, label in zip(x, labels, strict=True)]
        return [self._picture(each, label) for each, label in zip(pictures, labels, strict=True)]

    def _picture(self, picture: rendering.Pixels, label: str) -> _Example:
        file = rendering.png(rendering.reduced(picture))
        if len(file) > self.left:
            self.is_full = True
            return _Example(label, "left out")
        self.left -= len(file)
        uri = f"data:image/png;base64,{base64.b64encode(file).decode()}"
        return _Example(label, f"example with label {label}" if label else "the input", uri)


def _in_text(x: Array, columns: Sequence[Column]) -> str:
    """An input without a picture: the beginning of a text, the first cells of a row that can be told, or numbers."""
    if x.dtype.kind == "U":
        return shortened(str(x), _LETTERS) or "(empty)"
    flat = x.reshape(-1)
    if cells := cells_in_words(flat, columns):
        return ", ".join(f"{shortened(name, _SHORT)} {cell}" for name, cell in cells[:_NUMBERS]) + (
            ", …" if len(columns) > min(len(cells), _NUMBERS) else ""
        )
    few = ", ".join(f"{float(value):.4g}" for value in flat[:_NUMBERS])
    return f"{few}, …" if len(flat) > _NUMBERS else few


def _label(label: int, audit: Audit) -> str:
    """A label by its name, where it has one."""
    names = audit.label_names
    return shortened(names[label], _SHORT) if 0 <= label < len(names) else str(label)


def _input(number: int, audit: Audit) -> str:
    """The number of an input; one with a trigger is called by that of the input without it."""
    if number < audit.inputs:
        return f"{number:,}"
    known = {each.input: each.of for each in audit.triggered}
    of = known.get(number)
    return f"{number:,} (with a trigger)" if of is None else f"{of:,} with a trigger"


def _moved_input(of: int | None, move: InputMove) -> str:
    """An input that has moved, by the number that it had, and by how much."""
    return f"{0 if of is None else of:,} with a {move.trigger} of {move.length:.4g}"


def _has_moved(move: InputMove | None) -> TypeGuard[InputMove]:
    return move is not None and move.trigger is not None


def _hardest_last(targets: Sequence[Target]) -> list[Target]:
    """Those first that took least beyond their radius."""
    return sorted(targets, key=lambda each: (math.inf if each.ratio is None else each.ratio, each.radius, each.input))


def _targets_lead(audit: Audit) -> str:
    if not audit.targets:
        return "No prediction was attacked."
    return (
        "Those that took the fewest changes, measured by their certified radii, come first. The last column shows the "
        "changes that flipped the label, or else the most that were tried in vain."
    )


def _targets_note(album: _Album) -> str:
    said = [f"Of many changes, up to {_FEW} are shown, each with the label that training sees."]
    if album.is_full:
        said.append("Some pictures are left out, so that the page stays small.")
    return " ".join(said)


def _row(target: Target, audit: Audit, album: _Album) -> dict[str, Any]:
    return {
        "input": _moved_input(target.of, target.move)
        if _has_moved(target.move)
        else f"{target.input if target.of is None else target.of:,}",
        "shown": album.input(target.input),
        "label": _label(target.label, audit),
        "rival": _label(target.rival, audit),
        "radius": "nothing" if target.radius < 0 else f"{target.radius:,}",
        "flipped_at": _flipped_at(target),
        "ratio": "" if target.ratio is None else f"{target.ratio:.2f}",
        "is_within": _is_within(target),
        "attack": target.attack or "",
        "poison": "" if target.poison is None else _changes(target.poison, audit),
        "examples": [] if target.poison is None else album.changed(target.poison),
    }


def _moved(audit: Audit, album: _Album) -> dict[str, Any]:
    """What was tried where inputs move, too."""
    if not audit.frontier or audit.changes_of is None:
        return {"moved_rows": []}
    changes = audit.unit_words.changes
    rows = [
        [
            f"{each.input_change:g}",
            f"{each.copies:,}",
            f"{each.claims:,}",
            f"{each.violations:,}",
            f"{each.flipped:,} of {len(each.targets):,}",
            "" if each.median_radius is None else f"{each.median_radius:,}",
            "" if each.median_flipped_at is None else f"{each.median_flipped_at:,}",
        ]
        for each in audit.frontier
    ]
    return {
        "moved_lead": (
            "These inputs carry a trigger that is no longer than a certified change of the input, measured "
            f"{in_words_of(audit.changes_of)}, after rounding: a patch, or a drift from the mean of the nearest label "
            "towards that of the second. The claim is that of the input without it. Poison carries the trigger at its "
            "full strength, or is a copy of the input with it."
        ),
        "moved_header": [
            "change of the input", "inputs with a trigger", "claims checked", "broken", "flipped",
            f"median radius ({changes})", "median attack",
        ],
        "moved_rows": rows,
        "moved": [_row(target, audit, album) for target in _hardest_last(audit.moved)],
    }  # fmt: skip


def _flipped_at(target: Target) -> str:
    if target.flipped_at is not None:
        return f"{target.flipped_at:,}"
    return f"not by {target.tried:,}" if target.tried else "not tried"


def _changes(poison: Poison, audit: Audit) -> str:
    """What a poisoned set does to the training data, in a few words."""
    gone, new = len(poison.deleted), len(poison.y)
    if gone == new and poison.units is None:
        said = f"{counted(gone, 'example')} changed"
    else:
        parts = [(gone, "deleted"), (new, "inserted")]
        said = ", ".join(f"{counted(count, 'example')} {done}" for count, done in parts if count)
    names = _sources(poison, audit)
    return f"{said}; {audit.unit_words.many}: {listed(names, _FEW)}" if names else said


def _sources(poison: Poison, audit: Audit) -> list[str]:
    """The names of the units whose examples are inserted or deleted; none where radii count examples."""
    inserted, shown = poison.units or (), audit.pictures
    if poison.units is None or shown is None or shown.training.units is None:
        return list(dict.fromkeys(inserted))
    units = shown.training.units
    gone = [units.names[at] for at in units.of_example[poison.deleted].tolist()]
    return list(dict.fromkeys([*inserted, *gone]))
