"""Which defence certifies most on my data? Several side by side, and who leads at which radius; see `comparing`.

Methods are ranked only where their claims are of one kind: about each prediction, against the threat of the comparison
(or one that covers it), by a rule that is valid. The others are shown and marked, and never win. Nobody wins at a
radius at which always saying the commonest label would be as good: that takes no learner, and survives every change.
"""

from __future__ import annotations

import itertools
import json
import math
import operator
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate._io.files import TEXT_BYTES, PathLike, parse_json, read_file, write_atomically
from mithridate._text import counted, listed, percent, shortened
from mithridate._version import VERSION
from mithridate.comparing.entry import Entry, FloatArray, certificate_file
from mithridate.core.certificate import round_ticks
from mithridate.core.conditions import Statement, before, conditions_of, distinct, in_json
from mithridate.core.labels import Commonest, commonest, single_label
from mithridate.core.mechanism import SEARCH_LIMIT, Threat
from mithridate.core.registry import hook
from mithridate.core.units import Unit, UnitWords, unit_in_json, words_of
from mithridate.errors import ArtifactError, ConfigError

SCHEMA = "mithridate.comparison/1"

# What an entry may be called, since a file is named after it.
ROW_NAME = r"\w[\w.-]*"
# Where a method ends at less than one part in so many of the axis, a linear axis would hide it.
_SPREAD = 10
_TABLE_RADII = 9
# Sentences name at most so many stretches, and pass over differences up to the first of these shares that allows it.
_MOST_STRETCHES = 5
_TOLERANCES = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
_CHOICE_NOTE = (
    "Each certificate is about its method as if it had been fixed beforehand. Whoever picks a method by these results "
    "has looked at the training data, which no certificate covers: take the choice as public and fixed, or make it on "
    "other data."
)


@dataclass(frozen=True)
class Stretch:
    """Radii at which the same methods certify most; several where they share the lead at every one of them."""

    first: int
    last: int
    names: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"first": self.first, "last": self.last, "names": list(self.names)}


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several defences on the same data, by certified accuracy against radius; make one with `compare`.

    Attributes:
        entries: the methods, in the order asked for.
        threat: how the data may have been changed.
        labels: the true labels of the test points.
        failed: methods that came to no result, and why, by name.
        asked_radii: the radii that were asked for.
        title: the title of the report.
    """

    entries: tuple[Entry, ...]
    threat: Threat
    labels: npt.NDArray[np.int64]
    failed: tuple[tuple[str, str], ...] = ()
    asked_radii: tuple[int, ...] | None = None
    title: str = "Defences compared"

    def __post_init__(self) -> None:
        units = [entry.unit for entry in self.entries]
        other = next((entry for entry in self.entries if entry.unit != units[0]), None)
        if other is not None:
            said = ("examples" if unit is None else unit.counted(unit.count) for unit in (units[0], other.unit))
            raise ConfigError(
                f"The radii of {self.entries[0].name} and {other.name} count different things ({' and '.join(said)}); "
                "compare methods on the same data, with the same units."
            )

    def __repr__(self) -> str:
        gone = f"; no result: {listed(name for name, _ in self.failed)}" if self.failed else ""
        methods = listed(entry.name for entry in self.entries)
        return f"Comparison of {methods} on {counted(self.examples, 'test point')}{gone}\n{self.headline}"

    @property
    def examples(self) -> int:
        """Number of test points."""
        return len(self.labels)

    @property
    def unit(self) -> Unit | None:
        """What the radii of all methods count, where that is not single examples."""
        return self.entries[0].unit if self.entries else None

    @property
    def unit_words(self) -> UnitWords:
        """How people speak of that."""
        return words_of(self.unit)

    @cached_property
    def baseline(self) -> Commonest:
        """The commonest true label: always saying it is correct on its share of the test points, at every radius."""
        return commonest(self.labels)

    @property
    def ranked(self) -> tuple[Entry, ...]:
        """The methods whose claims are of one kind."""
        return tuple(entry for entry in self.entries if entry.ranked)

    @property
    def conditions(self) -> tuple[Statement, ...]:
        """What the claims of some method are conditional on, each once."""
        return conditions_of(distinct(each for entry in self.entries for each in entry.conditions))

    @cached_property
    def axis_limit(self) -> int:
        """The largest radius of the chart: where the last method falls below one per cent."""
        ends = [entry.end for entry in self.entries]
        return max(1, max((end for end in ends if end < SEARCH_LIMIT), default=1))

    @cached_property
    def is_logarithmic(self) -> bool:
        """Whether the methods end at radii so different that an axis by powers shows them better."""
        ends = [end for entry in self.entries if 0 <= (end := entry.end) < SEARCH_LIMIT]
        return bool(ends) and _SPREAD * (min(ends) + 1) < self.axis_limit

    @cached_property
    def radii(self) -> tuple[int, ...]:
        """The radii of the table: those asked for, else round ones up to the end of the chart."""
        if self.asked_radii is not None:
            return self.asked_radii
        return tuple(axis_ticks(self.axis_limit, _TABLE_RADII, logarithmic=self.is_logarithmic))

    def table(self, radii: Iterable[int] | None = None) -> dict[str, FloatArray]:
        """Certified accuracy of every method at some radii, by name.

        Raises:
            ConfigError: the radii are not whole numbers of 0 or more that increase.
        """
        shown = self.radii if radii is None else checked_radii(radii)
        return {entry.name: entry.accuracy(shown) for entry in self.entries}

    def best(self, radii: Iterable[int] | None = None) -> list[tuple[str, ...]]:
        """The ranked methods that certify most at each radius; none where none certifies more than the baseline."""
        shown = self.radii if radii is None else checked_radii(radii)
        counts = self._counts(shown)
        top = counts.max(axis=0, initial=0)
        return [
            tuple(e.name for e, count in zip(self.ranked, column, strict=True) if count == most > self.baseline.count)
            for column, most in zip(counts.T, top, strict=True)
        ]

    def _counts(self, radii: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """How many each ranked method certifies, and correctly, at each radius."""
        curves = [curve for entry in self.ranked if (curve := entry.curve) is not None]
        return np.array([curve.at(curve.shown, radii) for curve in curves]).reshape(len(curves), np.size(radii))

    def crossings(self, tolerance: float = 0.0) -> tuple[Stretch, ...]:
        """Who certifies most in which range of radii, as far as anyone certifies more than the baseline.

        Args:
            tolerance: a difference in certified accuracy up to which a method keeps the lead.
        """
        radii = [entry.curve.radius for entry in self.ranked if entry.curve is not None]
        ends = np.unique(np.concatenate([np.array([], dtype=np.int64), *radii]))
        shown = self._counts(ends)
        top = shown.max(axis=0, initial=0)
        leads = (shown >= top - tolerance * self.examples - 1e-9) & (shown > self.baseline.count)
        stretches: list[Stretch] = []
        start, total = 0, int((top > self.baseline.count).sum())  # what is certified only falls
        while start < total:
            # Where each stops to lead, at the latest at the end.
            reach = [start + int(np.append(row[start:total], False).argmin()) for row in leads]
            names = tuple(e.name for e, stop in zip(self.ranked, reach, strict=True) if stop == max(reach))
            first = int(ends[start - 1]) + 1 if start else 0
            start = max(reach)
            stretches.append(Stretch(first, int(ends[start - 1]), names))
        return tuple(stretches)

    @cached_property
    def leaders(self) -> tuple[tuple[Stretch, ...], float]:
        """The stretches that sentences and chart name, and the difference that is passed over for their number."""
        found = ((self.crossings(tolerance), tolerance) for tolerance in _TOLERANCES)
        few = (each for each in found if len(each[0]) <= _MOST_STRETCHES)
        return next(few, (self.crossings(_TOLERANCES[-1]), _TOLERANCES[-1]))

    @property
    def single_leaders(self) -> tuple[Entry, ...]:
        """The methods that lead somewhere although they know one label only."""
        named = {name for stretch in self.leaders[0] for name in stretch.names}
        return tuple(entry for entry in self.ranked if entry.name in named and entry.single_label)

    @property
    def unranked(self) -> tuple[Entry, ...]:
        """The methods whose claims are of another kind."""
        return tuple(entry for entry in self.entries if not entry.ranked)

    # --- in words ---------------------------------------------------------------------------------------------------

    @property
    def headline(self) -> str:
        """Who certifies most where, and what the claims of some methods are conditional on."""
        return before(_ranking(self), self.conditions)

    @property
    def findings(self) -> tuple[str, ...]:
        """The headline, why some methods are not ranked, and which of them know one label only."""
        return (self.headline, *self.not_ranked, *self.remarks)

    @property
    def not_ranked(self) -> tuple[str, ...]:
        """Why some methods are not ranked."""
        return tuple(f"{entry.name}: {entry.why_not_ranked}" for entry in self.unranked)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Which methods know one label only, where the headline does not say it."""
        said = self.single_leaders
        return tuple(_one_label(entry) for entry in self.entries if entry.single_label and entry not in said)

    @property
    def notes(self) -> tuple[str, ...]:
        """What holds for the comparison as a whole, a sentence or two each."""
        about = f"Shares are of {self.examples:,} test points, exact for these and an estimate for others."
        beside = f"The baseline: {self.baseline_clause}. Nobody is ranked at radii at which no method certifies more."
        return (about, beside, _CHOICE_NOTE) if len(self.entries) > 1 else (about, beside)

    @property
    def baseline_share(self) -> str:
        """What always saying the commonest label scores."""
        return percent(self.baseline.count, self.baseline.total)

    @property
    def baseline_clause(self) -> str:
        """What the baseline is, as a clause."""
        votes = next((entry.certificate.votes for entry in self.entries if entry.certificate is not None), None)
        label = self.baseline.label
        name = str(label) if votes is None or label >= votes.classes else votes.shown_class_names[label]
        return (
            f"always saying '{shortened(name)}' is correct on {self.baseline_share} of the test points, at every radius"
        )

    # --- in files ---------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain JSON values."""
        stretches, tolerance = self.leaders
        return {
            "schema": SCHEMA,
            "title": self.title,
            "headline": self.headline,
            "findings": list(self.findings),
            **in_json(self.conditions),
            **unit_in_json(self.unit),
            "threat": self.threat.value,
            "threat_in_words": self.threat.of(self.unit_words),
            "examples": self.examples,
            "baseline": self.baseline.share,
            "radii": list(self.radii),
            "leaders": [stretch.to_dict() for stretch in stretches],
            "leaders_tolerance": tolerance,
            "crossings": [stretch.to_dict() for stretch in self.crossings()],
            "methods": [entry.to_dict(self.radii) for entry in self.entries],
            "failed": [{"name": name, "reason": reason} for name, reason in self.failed],
            "notes": list(self.notes),
            "versions": {"mithridate": VERSION, "numpy": np.__version__},
        }

    def markdown(self) -> str:
        """Headline, table, methods and notes as Markdown."""
        return self._report.markdown()

    def svg(self) -> str:
        """The chart as a drawing that stands alone."""
        return self._report.svg()

    def html(self) -> str:
        """One self-contained page: no network, no script, no other files."""
        return self._report.html()

    def _repr_html_(self) -> str:
        return self._report._repr_html_()

    @property
    def _report(self) -> Any:
        return hook("ComparisonReport")(self)

    def write(self, folder: PathLike) -> None:
        """Write comparison.json, .md, .svg and .html, and certificates/NAME.json, into a folder.

        Certificates of an earlier comparison in that folder which are not among these are removed.

        Raises:
            ArtifactError: the folder cannot be written to.
        """
        folder = Path(folder)
        make_folder(folder / "certificates")
        for entry in self.entries:
            if entry.certificate is not None:
                entry.certificate.save(folder / certificate_file(entry))
        _remove_stale(folder, {certificate_file(entry) for entry in self.entries if entry.certificate is not None})
        texts = {"json": json.dumps(self.to_dict(), allow_nan=False) + "\n", "md": self.markdown()}
        texts |= {"svg": self.svg(), "html": self.html()}
        for suffix, text in texts.items():
            with write_atomically(folder / f"comparison.{suffix}") as file:
                file.write(text.encode("utf-8", "replace"))


def _remove_stale(folder: Path, current: set[str]) -> None:
    """Remove the certificates that an earlier comparison lists as its own, but for the current ones."""
    content: Any = None
    with suppress(ArtifactError, ValueError):
        content = parse_json(read_file(folder / "comparison.json", TEXT_BYTES))
    if not isinstance(content, dict) or content.get("schema") != SCHEMA or not isinstance(content.get("methods"), list):
        return
    for method in content["methods"]:
        listed = method.get("certificate") if isinstance(method, dict) else None
        # A file may hold anything: only plain names inside the folder of the certificates count.
        own = re.fullmatch(rf"certificates/{ROW_NAME}\.json", listed) if isinstance(listed, str) else None
        if own is not None and own[0] not in current:
            with suppress(OSError):
                (folder / own[0]).unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ArtifactError(f"Cannot make the folder {folder}: {reason}. Choose another place.") from error


def checked_radii(radii: Iterable[int]) -> tuple[int, ...]:
    """Whole numbers of 0 or more that increase; else an error."""
    try:
        given = list(radii)
        numbers = [operator.index(radius) for radius in given]
    except TypeError:
        given, numbers = [], []
    increase = all(one < other for one, other in itertools.pairwise(numbers))
    if not numbers or min(numbers) < 0 or not increase or any(isinstance(each, bool | np.bool_) for each in given):
        raise ConfigError(
            "Expected radii as whole numbers of 0 or more that increase, such as 0, 10, 50; "
            f"got {shortened(repr(radii))}."
        )
    return tuple(numbers)


def axis_ticks(limit: int, parts: int, *, logarithmic: bool) -> list[int]:
    """Zero and about `parts` round radii up to a limit, evenly spaced on a linear or logarithmic axis.

    >>> axis_ticks(1200, 9, logarithmic=True)
    [0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]
    >>> axis_ticks(100, 5, logarithmic=False)
    [0, 20, 40, 60, 80, 100]
    """
    if not logarithmic:
        return round_ticks(limit, parts)
    powers = range(math.floor(math.log10(max(limit, 1))) + 1)
    steps = (1, 2, 5) if len(powers) <= 4 else (1, 3) if len(powers) == 5 else (1,)
    return [0, *(step * 10**power for power in powers for step in steps if step * 10**power <= limit)]


# --- who leads where, in words --------------------------------------------------------------------------------------


def _ranking(comparison: Comparison) -> str:
    """Who certifies most where, and beside which baseline, in a sentence or two."""
    stretches, tolerance = comparison.leaders
    if not comparison.ranked:
        return "No method here certifies predictions against the threat of this comparison; there is no ranking."
    if not stretches:
        return f"No method certifies more correct predictions than the baseline: {comparison.baseline_clause}."
    said = _leading(stretches, len(comparison.ranked), tolerance, comparison.unit_words)
    single = (_one_label(entry) for entry in comparison.single_leaders)
    share = comparison.baseline_share
    beyond = f"Beyond that, none is above the baseline of {share}."
    if stretches[-1].last >= SEARCH_LIMIT:
        beyond = f"The baseline is {share}."
    return " ".join([*single, said, beyond])


def _leading(stretches: tuple[Stretch, ...], ranked: int, tolerance: float, counted: UnitWords) -> str:
    last = stretches[-1].last
    end = "to the end of the search" if last >= SEARCH_LIMIT else f"up to r = {last:,}{counted.after(last)}"
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
    start = "at r = 0" if first.last == 0 else f"up to r = {first.last:,}{counted.after(first.last)}"
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


def _one_label(entry: Entry) -> str:
    """That a method knows one label only."""
    found = entry.certificate
    most = None if found is None else single_label(found.label)
    assert found is not None
    assert most is not None
    name = shortened(found.votes.shown_class_names[most.label])
    which = f"all {most.total:,}" if most.count == most.total else f"{most.count:,} of {most.total:,}"
    return f"{entry.name} says one label, '{name}', on {which} test points."
