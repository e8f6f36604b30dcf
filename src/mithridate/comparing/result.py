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
from mithridate._text import shortened
from mithridate._version import VERSION
from mithridate.comparing import sentences
from mithridate.core.certificate import Certificate, Curve, guaranteed_failure_prob, round_ticks
from mithridate.core.conditions import Statement, before, conditions_of, distinct, in_json
from mithridate.core.labels import Commonest, commonest, single_label
from mithridate.core.mechanism import SEARCH_LIMIT, Threat
from mithridate.core.registry import hook
from mithridate.defences.statistical import StatisticalBound
from mithridate.errors import ArtifactError, ConfigError

FloatArray = npt.NDArray[np.float64]

SCHEMA = "mithridate.comparison/1"

# A chart ends where every method is below this share.
_LEAST_SHARE = 0.01
# What an entry may be called, since a file is named after it.
ROW_NAME = r"\w[\w.-]*"
# Where a method ends at less than one part in so many of the axis, a linear axis would hide it.
_SPREAD = 10
_TABLE_RADII = 9
# Sentences name at most so many stretches, and pass over differences up to the first of these shares that allows it.
_MOST_STRETCHES = 5
_TOLERANCES = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05)


@dataclass(frozen=True)
class Stretch:
    """Radii at which the same methods certify most.

    Attributes:
        first: the smallest of these radii.
        last: the largest.
        names: the methods; several where they share the lead at every one of these radii.
    """

    first: int
    last: int
    names: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"first": self.first, "last": self.last, "names": list(self.names)}


@dataclass(frozen=True, eq=False)
class Entry:
    """One method of a comparison.

    Attributes:
        title: for people.
        name: of the method, followed by a number where another entry has the same.
        outcome: what it certifies, or its bound on mean accuracy.
        asked: the threat of the comparison.
        training_seconds: how long training took; of votes that several methods share, all of it.
        certification_seconds: how long it took to get from votes to radii.
        notes: what a reader must know, a sentence each.
        run_dir: the run directory of its votes, which can be certified, reported and deployed like any other.
    """

    title: str
    name: str
    outcome: Certificate | StatisticalBound
    asked: Threat
    training_seconds: float
    certification_seconds: float
    notes: tuple[str, ...] = ()
    run_dir: str | None = None

    @property
    def threat(self) -> Threat:
        """How the data may have been changed, in the claim of this method."""
        return self.outcome.threat

    @property
    def failure_prob(self) -> float:
        """Probability with which a claim may fail, over training; 0 for a deterministic method."""
        return self.outcome.failure_prob

    @property
    def certificate(self) -> Certificate | None:
        """The certificate; None for a bound on mean accuracy."""
        return self.outcome if isinstance(self.outcome, Certificate) else None

    @property
    def per_prediction(self) -> bool:
        """Whether it says something about each prediction."""
        return self.certificate is not None

    @property
    def same_threat(self) -> bool:
        """Whether its claim holds for the threat of the comparison; one about moves up to a distance is another."""
        return covers(self.threat, self.asked) and self.max_change is None

    @property
    def max_change(self) -> float | None:
        """How far one input may have moved, where the claim has such a limit."""
        return None if self.certificate is None else getattr(self.certificate.method, "max_change", None)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What its claim takes for granted, a sentence each."""
        return self.outcome.assumptions

    @property
    def conditions(self) -> tuple[Statement, ...]:
        """What its claim is conditional on."""
        return conditions_of(self.assumptions, self.threat)

    @property
    def is_guarantee(self) -> bool:
        """Whether its claims hold with the confidence they state."""
        found = self.certificate
        return found is None or (found.method.is_sound and guaranteed_failure_prob(found) is not None)

    @property
    def ranked(self) -> bool:
        """Whether it may be called better or worse than another one."""
        return self.per_prediction and self.same_threat and self.is_guarantee

    @property
    def single_label(self) -> bool:
        """Whether nearly all predictions are one label; a bound on mean accuracy predicts nothing."""
        return self.certificate is not None and single_label(self.certificate.label) is not None

    @cached_property
    def curve(self) -> Curve | None:
        """How many points are certified, and correct; None for a bound on mean accuracy."""
        return None if self.certificate is None else Curve.of(self.certificate)

    def accuracy(self, radii: npt.ArrayLike) -> FloatArray:
        """Certified accuracy at radii of 0 or more, or the bound on mean accuracy.

        >>> from mithridate import Votes, certify
        >>> from mithridate.defences.partitions import Partitioned
        >>> votes = Votes.from_counts([[9, 0], [5, 4]], mechanism=Partitioned(9), labels=[0, 0])
        >>> Entry("DPA", "dpa", certify(votes), Threat.SYMMETRIC_DIFFERENCE, 0.0, 0.0).accuracy([0, 4, 5])
        array([1. , 0.5, 0. ])
        """
        if self.curve is None:
            assert isinstance(self.outcome, StatisticalBound)
            return self.outcome.accuracy(radii)
        return self.curve.at(self.curve.shown, radii) / self.curve.total

    def balanced_accuracy(self, radii: npt.ArrayLike) -> FloatArray | None:
        """Certified accuracy as a mean over classes; None for a bound on mean accuracy, which knows no classes."""
        return None if self.certificate is None else self.certificate.balanced_accuracy(None, radii)

    @property
    def confidence(self) -> str:
        """How sure its claims are, in a sentence."""
        return sentences.confidence_of(self)

    @cached_property
    def end(self) -> int:
        """The last radius that is worth drawing: where at least a hundredth is certified; -1 where it never is."""
        if self.curve is not None:
            high = np.flatnonzero(self.curve.shown >= _LEAST_SHARE * self.curve.total)
            return int(self.curve.radius[high[-1]]) if len(high) else -1
        low, high = -1, SEARCH_LIMIT  # the bound only falls
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if float(self.accuracy(middle)) >= _LEAST_SHARE else (low, middle - 1)
        return low

    def to_dict(self, radii: Sequence[int]) -> dict[str, Any]:
        """The entry as plain JSON values."""
        found, shares, balanced = self.certificate, self.accuracy(radii), self.balanced_accuracy(radii)
        values: dict[str, Any] = {
            "name": self.name,
            "title": self.title,
            "ranked": self.ranked,
            "per_prediction": self.per_prediction,
            "threat": self.threat.value,
            "threat_in_words": self.threat.in_words,
            "same_threat": self.same_threat,
            "guarantee": self.is_guarantee,
            "failure_prob": self.failure_prob,
            "confidence": self.confidence,
            "scope": None if found is None else found.scope.value,
            "certified_accuracy": _keyed(radii, shares),
            "certified_balanced_accuracy": None if balanced is None else _keyed(radii, balanced),
            "single_label": self.single_label,
            "training_seconds": round(self.training_seconds, 3),
            "certification_seconds": round(self.certification_seconds, 3),
            "notes": list(self.notes),
            "run_dir": self.run_dir,
            **in_json(self.assumptions, self.threat),
            "assumptions": list(map(str, self.assumptions)),
        }
        if isinstance(self.outcome, StatisticalBound):
            # At the radii of the table, and never more than the bound allows.
            right = np.floor(shares * self.outcome.examples).astype(np.int64)
            return {
                **values,
                "certificate": None,
                "method": {"name": "statistical-dp", "delta": self.outcome.delta},
                "mechanism": self.outcome.mechanism.to_dict(),
                "curve": {"radius": list(radii), "right": right.tolist()},
                "bound": self.outcome.to_dict(),
            }
        assert self.curve is not None
        return {
            **values,
            "certificate": certificate_file(self),
            "method": self.outcome.method.to_dict(),
            "mechanism": self.outcome.votes.mechanism.to_dict(),
            "curve": {"radius": self.curve.radius.tolist(), "right": self.curve.shown.tolist()},
            "bound": None,
        }


def _keyed(radii: Sequence[int], shares: FloatArray) -> dict[str, float]:
    return {str(radius): float(share) for radius, share in zip(radii, shares, strict=True)}


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

    @property
    def examples(self) -> int:
        """Number of test points."""
        return len(self.labels)

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
        curves = [curve for entry in self.ranked if (curve := entry.curve) is not None]
        counts = np.array([curve.at(curve.shown, shown) for curve in curves]).reshape(len(curves), len(shown))
        top = counts.max(axis=0, initial=0)
        return [
            tuple(e.name for e, count in zip(self.ranked, column, strict=True) if count == most > self.baseline.count)
            for column, most in zip(counts.T, top, strict=True)
        ]

    def crossings(self, tolerance: float = 0.0) -> tuple[Stretch, ...]:
        """Who certifies most in which range of radii, as far as anyone certifies more than the baseline.

        Args:
            tolerance: a difference in certified accuracy up to which a method keeps the lead.
        """
        curves = [curve for entry in self.ranked if (curve := entry.curve) is not None]
        ends = np.unique(np.concatenate([np.array([], dtype=np.int64), *(curve.radius for curve in curves)]))
        shown = np.array([curve.at(curve.shown, ends) for curve in curves]).reshape(len(curves), len(ends))
        top = shown.max(axis=0, initial=0)
        leads = (shown >= top - tolerance * self.examples - 1e-9) & (shown > self.baseline.count)
        stretches: list[Stretch] = []
        start, total = 0, int((top > self.baseline.count).sum())  # what is certified only falls
        while start < total:
            reach = [_first_false(row, start, total) for row in leads]
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

    @property
    def headline(self) -> str:
        """Who certifies most where, and what the claims of some methods are conditional on."""
        return before(sentences.ranking(self), self.conditions)

    @property
    def findings(self) -> tuple[str, ...]:
        """The headline, why some methods are not ranked, and which of them know one label only."""
        return (self.headline, *sentences.not_ranked(self), *sentences.remarks(self))

    @property
    def notes(self) -> tuple[str, ...]:
        """What holds for the comparison as a whole, a sentence or two each."""
        return sentences.notes(self)

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain JSON values."""
        stretches, tolerance = self.leaders
        return {
            "schema": SCHEMA,
            "title": self.title,
            "headline": self.headline,
            "findings": list(self.findings),
            **in_json(self.conditions),
            "threat": self.threat.value,
            "threat_in_words": self.threat.in_words,
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


def covers(own: Threat, asked: Threat) -> bool:
    """Whether a certificate against one threat holds against another one, at the same radius.

    >>> covers(Threat.EDIT, Threat.SYMMETRIC_DIFFERENCE), covers(Threat.LABELS, Threat.REPLACE)
    (True, False)
    """
    if own is asked or own is Threat.EDIT:
        return True
    weaker = {
        Threat.SYMMETRIC_DIFFERENCE: (Threat.ADD, Threat.REMOVE),
        Threat.REPLACE: (Threat.LABELS, Threat.FEATURES),
    }
    return asked in weaker.get(own, ())


def certificate_file(entry: Entry) -> str:
    """Where `Comparison.write` puts a certificate, below its folder."""
    return f"certificates/{entry.name}.json"


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
        if (
            isinstance(listed, str)
            and re.fullmatch(rf"certificates/{ROW_NAME}\.json", listed)
            and listed not in current
        ):
            with suppress(OSError):
                (folder / listed).unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it.

    Raises:
        ArtifactError: that is not possible.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ArtifactError(f"Cannot make the folder {folder}: {reason}. Choose another place.") from error


def checked_radii(radii: Iterable[int]) -> tuple[int, ...]:
    """Radii that increase.

    Raises:
        ConfigError: they do not, or are no whole numbers of 0 or more.
    """
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


def _first_false(row: npt.NDArray[np.bool_], start: int, stop: int) -> int:
    """Where a row first is not true, from `start` on."""
    missed = np.flatnonzero(~row[start:stop])
    return start + int(missed[0]) if len(missed) else stop
