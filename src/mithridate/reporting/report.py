"""Report: everything that is shown about a certificate, computed once, and rendered in several forms."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate._io.files import PathLike, write_atomically
from mithridate._text import one_line, printable
from mithridate.core.certificate import (
    Advice,
    Certificate,
    Curve,
    Status,
    cautions,
    check_claims,
    confidence,
    guaranteed_failure_prob,
    is_correct,
)
from mithridate.core.conditions import explained, in_json
from mithridate.core.units import unit_in_json
from mithridate.errors import ConfigError
from mithridate.reporting import rendering
from mithridate.reporting import sentences as words

SCHEMA = "mithridate.report/1"
FORMATS = ("html", "md", "json", "svg", "png")

IntArray = npt.NDArray[np.int64]

_BINS = 40
# Points at each end of the order, of all and of the wrong ones, that get a picture.
_OF_EACH = 100
_NO_ADVICE = Advice()
_EXTENSIONS = {".html": "html", ".htm": "html", ".md": "md", ".json": "json", ".svg": "svg", ".png": "png"}


@dataclass(frozen=True, eq=False)
class Report:
    """What is shown about a certificate; make one with `Report.of`.

    Attributes are as in `Report.of`, but `pictures` are PNG files of some points, by index.
    """

    certificate: Certificate
    advice: Advice
    class_names: tuple[str, ...]
    point_names: tuple[str, ...] | None
    pictures: dict[int, bytes]
    title: str
    check_with: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Report {self.title!r}\n{self.headline}"

    @classmethod
    def of(
        cls,
        certificate: Certificate,
        *,
        advice: Advice = _NO_ADVICE,
        class_names: Sequence[str] | None = None,
        point_names: Sequence[str] | None = None,
        pictures: npt.ArrayLike | None = None,
        title: str | None = None,
        certificate_path: PathLike | None = None,
        check_with: Sequence[str] | None = None,
    ) -> Report:
        """Compute what is shown about a certificate.

        Args:
            certificate: what the report is about.
            advice: what `certifying.advice.advise` found about it; by default nothing. `certificate.report()` asks
                for it.
            class_names: a name for each class; by default those that were recorded while training, else numbers.
            point_names: what each point is called, such as the name of its file or "row 17" of a table.
            pictures: 8-bit images of the points, points x height x width or points x channels x height x width.
            title: the title of the page.
            certificate_path: where the certificate was saved, for the command that checks it.
            check_with: shell commands that check the certificate, where `certificate_path` does not say enough.

        Raises:
            ConfigError: an argument does not fit the certificate.
            ArtifactError: the certificate claims what cannot be.

        >>> from mithridate import SampledGaussian, Votes, certify
        >>> votes = Votes.from_counts([[1000, 0], [10, 990]], mechanism=SampledGaussian(3.0, 0.001, 1000))
        >>> Report.of(certify(votes)).headline
        'Both predictions would stay the same if up to 181 training examples were added or removed; each of these \
claims holds with 99.9% confidence.'
        """
        check_claims(certificate)
        names = _names(certificate, class_names)
        called = None if point_names is None else checked_point_names(point_names, len(certificate.label))
        if check_with is None and certificate_path is not None:
            check_with = (f"mithridate verify {shlex.quote(str(certificate_path))}",)
        images = None if pictures is None else rendering.checked_pictures(pictures, len(certificate.label))
        return cls(
            certificate,
            advice,
            names,
            called,
            {} if images is None else rendering.encode(images, _pictured(certificate)),
            "Certified predictions" if title is None else str(title),
            tuple(check_with or ()),
        )

    @property
    def headline(self) -> str:
        """The claim that says most, in plain words."""
        return words.headline(self.certificate, self.class_names).text

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """The certificate and those it is compared with, in the order in which they are drawn."""
        return (self.certificate, *self.advice.others)

    @cached_property
    def curves(self) -> tuple[Curve, ...]:
        """A curve for each of `certificates`."""
        return tuple(Curve.of(certificate) for certificate in self.certificates)

    @cached_property
    def axis_limit(self) -> int:
        """The largest radius on the axis of a chart."""
        return axis_limit(self.certificates)

    @cached_property
    def histogram(self) -> Histogram:
        """Its radii, counted in bins."""
        return Histogram.of(self.certificate, self.axis_limit)

    @cached_property
    def moved(self) -> tuple[Certificate, ...]:
        """The certificate for every change of the input that its frontier has; empty where it has none."""
        frontier = self.certificate.frontier
        return () if frontier is None else tuple(self.certificate.at_input_change(each) for each in frontier.changes)

    @cached_property
    def moved_curves(self) -> tuple[Curve, ...]:
        """A curve for each of `moved`."""
        return tuple(Curve.of(certificate) for certificate in self.moved)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Why the certificate is weak or no guarantee, and what to do about it, a sentence or two each."""
        certificate = self.certificate
        return (
            *map(one_line, explained(certificate.conditions)),
            *cautions(certificate),
            *words.not_above_baseline(certificate),
            *words.weaknesses(certificate, self.advice),
            *words.tighter(certificate, self.advice.others),
        )

    @property
    def accuracy(self) -> float | None:
        """The share of labels that are correct; None where true labels are unknown."""
        correct = is_correct(self.certificate)
        return None if correct is None else float(correct.mean())

    def to_dict(self) -> dict[str, Any]:
        """Everything the report shows except pictures, as plain JSON values."""
        certificate, histogram = self.certificate, self.histogram
        found = words.headline(certificate, self.class_names)
        return {
            "schema": SCHEMA,
            "title": self.title,
            **unit_in_json(certificate.votes.unit),
            "headline": {**asdict(found), "rule": words.headline_rule(certificate.votes.unit_words)},
            "warnings": list(self.warnings),
            "claim": self._claim(),
            "examples": certificate.votes.examples,
            "instances": certificate.votes.instances,
            "class_names": list(self.class_names),
            "summary": {**certificate.summary(), "accuracy": self.accuracy},
            "curves": [self._curve(which) for which in range(len(self.curves))],
            "methods_left_out": list(self.advice.left_out),
            **self._frontier(),
            "histogram": {
                "start": histogram.start.tolist(),
                "width": histogram.width,
                "right": histogram.right.tolist(),
                "wrong": histogram.wrong.tolist(),
                "beyond": histogram.beyond,
                "abstained": int((certificate.radius < 0).sum()),
            },
            "per_class": [asdict(row) for row in per_class(certificate)],
            "points": self._points(),
            "pictured": sorted(self.pictures),
            **in_json(certificate.assumptions, certificate.threat),
            "assumptions": [str(sentence) for sentence in certificate.assumptions],
            "not_covered": list(words.not_covered(certificate)),
            "provenance": self._provenance(),
        }

    @property
    def _page(self) -> Any:
        from mithridate.reporting import report_page  # which needs what is computed here

        return report_page

    def html(self) -> str:
        """One self-contained page: no network, no other files."""
        return self._page.html(self)

    def markdown(self) -> str:
        """The headline, the tables, what was assumed and where it comes from, without the single points."""
        return self._page.markdown(self)

    def svg(self) -> str:
        """The curve of certified accuracy (or of certified shares) as a drawing that stands alone."""
        return self._page.draw(self).svg(alone=True)

    def png(self) -> bytes:
        """The curve as a PNG file.

        Raises:
            ConfigError: matplotlib is missing; the message names the extra that brings it.
        """
        return self._page.draw(self).png()

    def write(self, path: PathLike, format: str | None = None) -> None:
        """Write the report to a file that appears only when all of it is there.

        Args:
            path: the file.
            format: `html`, `md`, `json`, `svg` or `png`; by default what the extension says.

        Raises:
            ConfigError: the format is unknown, or needs a package that is missing.
            ArtifactError: the file cannot be written.
        """
        content = self.rendered(format_of(path) if format is None else format)
        with write_atomically(path) as file:
            file.write(content)

    def rendered(self, format: str) -> bytes:
        """The report in one of `FORMATS`, as the bytes of a file.

        Raises:
            ConfigError: the format is unknown, or needs a package that is missing.
        """
        match format:
            case "html":
                text = self.html()
            case "md":
                text = self.markdown()
            case "json":
                text = json.dumps(self.to_dict(), allow_nan=False) + "\n"
            case "svg":
                text = self.svg()
            case "png":
                return self.png()
            case _:
                raise ConfigError(f"Expected format to be one of {', '.join(FORMATS)}, got {format!r}.")
        # Half a character (a lone surrogate), which JSON lets through, has no place in UTF-8.
        return text.encode("utf-8", "replace")

    def _repr_html_(self) -> str:
        """The page in a frame of its own, so that it and the notebook cannot disturb each other."""
        return rendering.framed(self.html(), self.title, sandbox="allow-scripts")

    def _claim(self) -> dict[str, Any]:
        certificate = self.certificate
        return {
            "method": certificate.method.in_words(),
            "sound": certificate.method.is_sound,
            **unit_in_json(certificate.votes.unit),
            "threat": certificate.threat.value,
            "threat_in_words": certificate.threat.of(certificate.votes.unit_words),
            "failure_prob": certificate.failure_prob,
            "guaranteed_failure_prob": guaranteed_failure_prob(certificate),
            "confidence": confidence(certificate),
            "scope": certificate.scope.value,
            "on": certificate.on,
            "bounds": certificate.bounds,
            **({} if certificate.frontier is None else {"input_change": certificate.input_change}),
        }

    def _curve(self, which: int) -> dict[str, Any]:
        certificate, curve = self.certificates[which], self.curves[which]
        lower, upper = curve.band()
        return {
            "method": certificate.method.in_words(),
            "short": certificate.method.short_title,
            "own": which == 0,
            "sound": certificate.method.is_sound,
            "radius": curve.radius.tolist(),
            "certified": curve.certified.tolist(),
            "right": None if curve.right is None else curve.right.tolist(),
            "band_lower": lower.tolist(),
            "band_upper": upper.tolist(),
        }

    def _frontier(self) -> dict[str, Any]:
        """The curves by how far the input may move; nothing where it stays as it is."""
        frontier = self.certificate.frontier
        if frontier is None:
            return {}
        curves = [
            {
                "input_change": change,
                "radius": curve.radius.tolist(),
                "certified": curve.certified.tolist(),
                "right": None if curve.right is None else curve.right.tolist(),
            }
            for change, curve in zip(frontier.changes, self.moved_curves, strict=True)
        ]
        return {"frontier": {"input_change_of": frontier.of, "in_words": frontier.in_words, "curves": curves}}

    def _points(self) -> dict[str, Any]:
        certificate = self.certificate
        labels = certificate.votes.labels
        return {
            **({} if self.point_names is None else {"name": list(self.point_names)}),
            "label": certificate.label.tolist(),
            "true_label": None if labels is None else labels.tolist(),
            "top_share": top_share(certificate).tolist(),
            "radius": certificate.radius.tolist(),
            "status": certificate.status.tolist(),
            **({} if certificate.frontier is None else {"frontier": certificate.frontier.to_list()}),
        }

    def _provenance(self) -> dict[str, Any]:
        votes = self.certificate.votes
        return {
            "mechanism": votes.mechanism.to_dict(),
            "instances": votes.instances,
            "recipe": votes.recipe,
            "run_ids": list(votes.run_ids),
            "data_fingerprint": votes.data_fingerprint,
            "versions": {name: str(version) for name, version in self.certificate.versions.items()},
            "error_budget": {name: _finite(value) for name, value in self.certificate.error_budget.items()},
            "check_with": list(self.check_with),
        }


def format_of(path: PathLike) -> str:
    """The format that the extension of a file stands for."""
    suffix = Path(path).suffix.lower()
    if suffix not in _EXTENSIONS:
        raise ConfigError(
            f"The name {Path(path).name!r} does not say a format; end it in .html, .md, .json, .svg or .png."
        )
    return _EXTENSIONS[suffix]


def checked_point_names(names: Sequence[str], points: int) -> tuple[str, ...]:
    """A name for each point."""
    if isinstance(names, str) or getattr(names, "ndim", 1) != 1:
        raise ConfigError("Expected the names of the points as a list of strings, one for each point.")
    if len(names) != points:
        raise ConfigError(f"Expected a name for each of {points:,} points, got {len(names):,}.")
    return tuple(str(name) for name in names)


def _names(certificate: Certificate, given: Sequence[str] | None) -> tuple[str, ...]:
    classes = certificate.votes.classes
    if given is not None:
        if isinstance(given, str) or len(given) != classes:
            raise ConfigError(f"Expected a name for each of the {classes} classes, got {given!r}.")
        return tuple(printable(str(name)) for name in given)
    return certificate.votes.shown_class_names


def _pictured(certificate: Certificate) -> list[int]:
    """Which points get a picture: the least and the most certain, of all points and of the wrong ones."""
    order, correct = least_certain_first(certificate), is_correct(certificate)
    orders = [order] if correct is None else [order, order[~correct[order]]]
    groups = [points[:_OF_EACH] for some in orders for points in (some, some[::-1])]
    # A budget that runs out must not leave one end without pictures: take them in turns.
    turns = [int(group[i]) for i in range(_OF_EACH) for group in groups if i < len(group)]
    return list(dict.fromkeys(turns))


def _finite(value: Any) -> Any:
    """A number that JSON can write: infinity becomes a word."""
    return value if not isinstance(value, float | np.floating) or math.isfinite(value) else str(value)


# --- its numbers: plain arrays from a certificate, without words and without drawings ---------------------------------


@dataclass(frozen=True, eq=False)
class Histogram:
    """Radii of certified points counted in bins of equal width; all are `right` where true labels are unknown."""

    start: IntArray  # the smallest radius of each bin
    width: int  # how many radii a bin holds
    right: IntArray
    wrong: IntArray
    beyond: int  # points with a radius beyond the last bin

    @classmethod
    def of(cls, certificate: Certificate, limit: int) -> Histogram:
        """The histogram of all radii from 0 to `limit`."""
        width = -(-(limit + 1) // _BINS)
        start = np.arange(0, limit + 1, width)
        counted = (certificate.radius >= 0) & (certificate.radius <= limit)
        correct = is_correct(certificate)
        correct = np.ones(len(counted), dtype=np.bool_) if correct is None else correct
        return cls(
            start,
            width,
            np.bincount(certificate.radius[counted & correct] // width, minlength=len(start)),
            np.bincount(certificate.radius[counted & ~correct] // width, minlength=len(start)),
            int((certificate.radius > limit).sum()),
        )


@dataclass(frozen=True)
class ClassRow:
    """What is known about the points of one class: the true one, or the predicted one where that is all we have."""

    label: int
    points: int
    right: int | None  # None where true labels are unknown
    abstained: int
    # The largest radius to which at least half are certified, and correct where that is known; -1 where fewer are.
    median_radius: int


def per_class(certificate: Certificate) -> list[ClassRow]:
    """A row for every class that occurs."""
    correct, groups = is_correct(certificate), group_of(certificate)
    counted = certificate.radius if correct is None else np.where(correct, certificate.radius, -1)
    order = np.argsort(groups, kind="stable")
    present, starts = np.unique(groups[order], return_index=True)
    return [
        ClassRow(
            int(label),
            len(members),
            None if correct is None else int(correct[members].sum()),
            int((certificate.radius[members] < 0).sum()),
            int(np.sort(counted[members])[len(members) // 2]),
        )
        for label, members in zip(present, np.split(order, starts[1:]), strict=True)
    ]


def group_of(certificate: Certificate) -> IntArray:
    """The class by which each point is counted: the true one where known, else the predicted one."""
    return certificate.label if certificate.votes.labels is None else certificate.votes.labels


def top_share(certificate: Certificate) -> npt.NDArray[np.float64]:
    """The share of votes for each label (of weights, where votes have them), or its mean score."""
    votes, rows = certificate.votes, np.arange(len(certificate.label))
    if certificate.on == "scores" and votes.score_sums is not None:
        return votes.score_sums[rows, certificate.label].astype(np.float64) / votes.instances
    # Where all weights are zero, no label has a share.
    return votes.counts[rows, certificate.label] / np.maximum(votes.counts.sum(axis=1), 1)


def least_certain_first(certificate: Certificate) -> npt.NDArray[np.intp]:
    """The points by radius, then by share of votes, then by index."""
    return np.lexsort((top_share(certificate), certificate.radius))


def axis_limit(certificates: tuple[Certificate, ...]) -> int:
    """The largest radius that a chart shows: the largest found by any search that did not stop at its limit.

    A point that stops at the limit of the search (2^20) would press all others against the axis.
    """
    # Every radius is -1 or more.
    largest = int(max(c.radius[c.status != Status.SEARCH_LIMIT.value].max(initial=-1) for c in certificates))
    if largest < 1:
        largest = max(int(c.radius.max()) for c in certificates)
    return max(largest, 1)
