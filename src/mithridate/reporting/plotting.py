"""The curve of a certificate on axes of matplotlib, for notebooks and papers of one's own; reports need none."""

from __future__ import annotations

from typing import Any

import numpy as np

from mithridate._text import percent, shortened
from mithridate.core.certificate import Certificate, Curve, check_claims, is_guarantee
from mithridate.core.conditions import listed_ids
from mithridate.core.labels import Commonest
from mithridate.errors import ConfigError
from mithridate.reporting import sentences as words
from mithridate.reporting.report import axis_limit

_NAMED = 30


def plot_curve(certificate: Certificate, ax: Any, style: dict[str, Any]) -> Any:
    """Draw the share that is certified (and correct, where that is known) at least to each radius.

    Args:
        certificate: what is drawn.
        ax: where; None for a new figure.
        style: of the curve, as `Axes.plot` takes it.
    """
    check_claims(certificate)
    ax = _new_axes() if ax is None else ax
    farthest = ax.get_xlim()[1] if ax.lines else 0  # of what is drawn there already
    ax.plot(*_corners(Curve.of(certificate)), **{"label": _name(certificate), "drawstyle": "steps-post", **style})
    known = words.baseline(certificate)
    if known is not None:
        _draw_baseline(ax, known, certificate.votes.shown_class_names[known.label])
    ax.set(
        xlabel=_inert(f"radius r: {certificate.threat.counts(certificate.votes.unit_words.short)}"),
        ylabel="certified" if known is None else "correct and certified",
        xlim=(0, max(axis_limit((certificate,)) + 1, farthest)),
        ylim=(0, 1),
    )
    ax.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    ax.legend(fontsize="small")
    return ax


def _corners(curve: Curve) -> tuple[list[int], list[float]]:
    """Where a level begins, and its height: the share that is certified to that radius, and on up to the next."""
    starts = np.unique([0, *(curve.radius + 1)])
    return starts.tolist(), (curve.at(curve.shown, starts) / curve.total).tolist()


def _draw_baseline(ax: Any, known: Commonest, name: str) -> None:
    said = f"baseline: always '{_inert(shortened(name, _NAMED))}', {percent(known.count, known.total)}"
    if said not in (line.get_label() for line in ax.lines):  # of another certificate on the same inputs
        ax.axhline(known.share, color="grey", linewidth=1.25, linestyle=":", label=said)


def _new_axes() -> Any:
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        raise ConfigError("A plot needs matplotlib; install it with: pip install 'mithridate[report]'") from error
    return pyplot.subplots()[1]


def _name(certificate: Certificate) -> str:
    """What the curve is called: by which method, and what its claims rest on."""
    said = [certificate.method.short_title]
    if not is_guarantee(certificate):
        said.append("not a guarantee")
    if certificate.conditional:
        said.append(f"conditional on {listed_ids(certificate.conditions)}")
    return _inert(", ".join(said))


def _inert(text: str) -> str:
    """Text in which matplotlib finds no formula."""
    return text.replace("$", r"\$")
