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
from mithridate._text import printable
from mithridate.core.certificate import (
    Advice,
    Certificate,
    Curve,
    cautions,
    confidence,
    guaranteed_failure_prob,
    is_correct,
)
from mithridate.core.conditions import in_json
from mithridate.core.mechanism import SEARCH_LIMIT
from mithridate.errors import ArtifactError, ConfigError
from mithridate.reporting import pictures as pictures_module
from mithridate.reporting import report_chart, summary, templating
from mithridate.reporting import sentences as words

SCHEMA = "mithridate.report/1"
FORMATS = ("html", "md", "json", "svg", "png")

_NO_ADVICE = Advice()
_EXTENSIONS = {".html": "html", ".htm": "html", ".md": "md", ".json": "json", ".svg": "svg", ".png": "png"}


@dataclass(frozen=True, eq=False)
class Report:
    """What is shown about a certificate; make one with `Report.of`.

    Attributes:
        certificate: what the report is about.
        advice: what other methods certify from the same votes, and what more instances could.
        class_names: a name for each class.
        point_names: what the user calls each point, where that is known.
        pictures: PNG files of some points, by index.
        title: the title of the page.
        check_with: shell commands by which anyone checks the certificate.
    """

    certificate: Certificate
    advice: Advice
    class_names: tuple[str, ...]
    point_names: tuple[str, ...] | None
    pictures: dict[int, bytes]
    title: str
    check_with: tuple[str, ...]

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
        'Both predictions would stay the same if up to 179 training examples were added or removed; each of these \
claims holds with 99.9% confidence.'
        """
        _check_claims(certificate)
        names = _names(certificate, class_names)
        called = None if point_names is None else checked_point_names(point_names, len(certificate.label))
        images = None if pictures is None else pictures_module.checked_pictures(pictures, len(certificate.label))
        return cls(
            certificate,
            advice,
            names,
            called,
            {} if images is None else _pictures(certificate, images),
            "Certified predictions" if title is None else str(title),
            tuple(check_with) if check_with is not None else _check_with(certificate_path),
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
        return summary.axis_limit(self.certificates)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Why the certificate is weak or no guarantee, and what to do about it, a sentence or two each."""
        certificate = self.certificate
        return (
            *words.conditional_on(certificate),
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
        certificate, found = self.certificate, words.headline(self.certificate, self.class_names)
        histogram = summary.Histogram.of(certificate, self.axis_limit)
        return {
            "schema": SCHEMA,
            "title": self.title,
            "headline": {**asdict(found), "rule": words.HEADLINE_RULE},
            "warnings": list(self.warnings),
            "claim": self._claim(),
            "examples": certificate.votes.examples,
            "instances": certificate.votes.instances,
            "class_names": list(self.class_names),
            "summary": {**certificate.summary(), "accuracy": self.accuracy},
            "curves": [self._curve(which) for which in range(len(self.curves))],
            "methods_left_out": list(self.advice.left_out),
            "histogram": {
                "start": histogram.start.tolist(),
                "width": histogram.width,
                "right": histogram.right.tolist(),
                "wrong": histogram.wrong.tolist(),
                "beyond": histogram.beyond,
                "abstained": int((certificate.radius < 0).sum()),
            },
            "per_class": [asdict(row) for row in summary.per_class(certificate)],
            "points": self._points(),
            "pictured": sorted(self.pictures),
            **in_json(certificate.assumptions, certificate.threat),
            "assumptions": [str(sentence) for sentence in certificate.assumptions],
            "not_covered": list(words.not_covered(certificate)),
            "provenance": self._provenance(),
        }

    def html(self) -> str:
        """One self-contained page: no network, no other files."""
        from mithridate.reporting.report_page import render

        return render(self)

    def markdown(self) -> str:
        """The headline, the tables, what was assumed and where it comes from, without the single points."""
        from mithridate.reporting.markdown import render

        return render(self)

    def svg(self) -> str:
        """The curve of certified accuracy (or of certified shares) as a drawing that stands alone."""
        return report_chart.draw(self).svg_file()

    def png(self) -> bytes:
        """The curve as a PNG file.

        Raises:
            ConfigError: matplotlib is missing; the message names the extra that brings it.
        """
        return report_chart.draw(self).png()

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
        return templating.framed(self.html(), self.title, sandbox="allow-scripts")

    def _claim(self) -> dict[str, Any]:
        certificate = self.certificate
        return {
            "method": certificate.method.in_words(),
            "sound": certificate.method.is_sound,
            "threat": certificate.threat.value,
            "threat_in_words": certificate.threat.in_words,
            "failure_prob": certificate.failure_prob,
            "guaranteed_failure_prob": guaranteed_failure_prob(certificate),
            "confidence": confidence(certificate),
            "scope": certificate.scope.value,
            "on": certificate.on,
            "bounds": certificate.bounds,
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

    def _points(self) -> dict[str, Any]:
        certificate = self.certificate
        labels = certificate.votes.labels
        return {
            **({} if self.point_names is None else {"name": list(self.point_names)}),
            "label": certificate.label.tolist(),
            "true_label": None if labels is None else labels.tolist(),
            "top_share": summary.top_share(certificate).tolist(),
            "radius": certificate.radius.tolist(),
            "status": certificate.status.tolist(),
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
    """The format that the extension of a file stands for.

    Raises:
        ConfigError: it stands for none.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in _EXTENSIONS:
        raise ConfigError(
            f"The name {Path(path).name!r} does not say a format; end it in .html, .md, .json, .svg or .png."
        )
    return _EXTENSIONS[suffix]


def checked_point_names(names: Sequence[str], points: int) -> tuple[str, ...]:
    """A name for each point.

    Raises:
        ConfigError: there is not one for each point.
    """
    if isinstance(names, str) or getattr(names, "ndim", 1) != 1:
        raise ConfigError("Expected the names of the points as a list of strings, one for each point.")
    if len(names) != points:
        raise ConfigError(f"Expected a name for each of {points:,} points, got {len(names):,}.")
    return tuple(str(name) for name in names)


def _check_claims(certificate: Certificate) -> None:
    """Refuse what no search could have found; whether the rest is true is for `verify` to say."""
    labels, radii = certificate.label, certificate.radius
    if labels.min() < 0 or labels.max() >= certificate.votes.classes or radii.min() < -1 or radii.max() > SEARCH_LIMIT:
        raise ArtifactError("This certificate claims labels or radii that cannot be; run mithridate verify on it.")


def _names(certificate: Certificate, given: Sequence[str] | None) -> tuple[str, ...]:
    classes = certificate.votes.classes
    if given is not None:
        if isinstance(given, str) or len(given) != classes:
            raise ConfigError(f"Expected a name for each of the {classes} classes, got {given!r}.")
        return tuple(printable(str(name)) for name in given)
    return certificate.votes.shown_class_names


def _pictures(certificate: Certificate, images: pictures_module.Pixels) -> dict[int, bytes]:
    correct = is_correct(certificate)
    wrong = None if correct is None else ~correct
    return pictures_module.encode(images, pictures_module.choose(summary.least_certain_first(certificate), wrong))


def _check_with(path: PathLike | None) -> tuple[str, ...]:
    return () if path is None else (f"mithridate verify {shlex.quote(str(path))}",)


def _finite(value: Any) -> Any:
    """A number that JSON can write: infinity becomes a word."""
    return value if not isinstance(value, float | np.floating) or math.isfinite(value) else str(value)
