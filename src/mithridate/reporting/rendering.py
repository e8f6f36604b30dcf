"""What reports are made of: pages from templates, Markdown, charts, and pictures of test points.

Whatever a value holds is shown as text. A chart is a list of shapes in pixels, rendered as SVG (by no package) or PNG
(by matplotlib); `Plane` knows where radii and shares go.
"""

from __future__ import annotations

import base64
import hashlib
import io
import math
import re
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mithridate.errors import ConfigError

if TYPE_CHECKING:
    from jinja2 import Environment

FloatArray = npt.NDArray[np.float64]
Pixels = npt.NDArray[np.uint8]
Point = tuple[float, float]

BASELINE_DASH = "1 4"
_INK, _PAPER, _FONT_SIZE = "#1d2126", "#ffffff", 13
# matplotlib measures in points of 1/72 inch; a pixel is 1/100 inch here, and two dots of the PNG.
_POINTS, _DOTS = 0.72, 200
# Bytes of all pictures together; as text in the page they take a third more.
_BUDGET = 3_000_000
# Longer sides are averaged down to at most this.
_SIDE = 64
# What PNG calls pictures of one, three and four channels.
_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}


def page(template: str, *, styles: tuple[str, ...], scripts: tuple[str, ...] = (), **values: Any) -> str:
    """A self-contained page, which runs nothing but its own script.

    Args:
        template: a file of the folder `templates`.
        styles: files of the folder `assets` that make up the style of the page.
        scripts: files of the same folder that make up its script.
        values: what the template shows; strings are escaped.
    """
    assets = resources.files("mithridate.reporting").joinpath("assets")
    style, script = (
        "".join(assets.joinpath(name).read_text(encoding="utf-8") for name in names) for names in (styles, scripts)
    )
    return (
        environment()
        .get_template(template)
        .render(style=style, script=script, policy=_policy(style=style, script=script), **values)
    )


def framed(page: str, title: str, *, sandbox: str) -> str:
    """A page in a frame of its own, so that it and a notebook cannot disturb each other."""
    return environment().get_template("frame.html").render(page=page, title=title, sandbox=sandbox)


@cache
def environment() -> Environment:
    """What reads templates: everything is escaped, and a value that is missing is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("mithridate.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return made


def _policy(**allowed: str) -> str:
    """Only this very style and this very script, pictures from inside the page, and no network."""
    sources = [
        f"{kind}-src 'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'; "
        for kind, text in allowed.items()
        if text
    ]
    return f"default-src 'none'; img-src data:; {''.join(sources)}base-uri 'none'; form-action 'none'"


# --- Markdown ---------------------------------------------------------------------------------------------------------


def section(title: str, content: str) -> str:
    """A heading and what belongs to it; nothing where that is empty."""
    return f"## {title}\n\n{content}" if content else ""


def bullets(sentences: tuple[str, ...]) -> str:
    """A list of sentences."""
    return "\n".join(f"- {plain_text(str(sentence))}" for sentence in sentences)


def rendered_table(header: list[str], rows: list[list[str]], *, numbers: bool = True) -> str:
    """A table, all columns but the first aligned to the right where they are numbers."""
    lines = [header, ["---"] + ["---:" if numbers else "---"] * (len(header) - 1), *rows]
    cells = [[cell if number == 1 else plain_text(cell) for cell in line] for number, line in enumerate(lines)]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def plain_text(text: str) -> str:
    """Text in which nothing is markup, on one line."""
    return re.sub(r"([\\`*_\[\]<>|&#~])", r"\\\1", " ".join(text.split()))


# --- charts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Path:
    """Straight pieces between two or more points; `css` is what a style sheet calls them."""

    points: Sequence[Point]
    css: str = ""
    colour: str | None = None  # that of the text around the chart
    width: float = 1.0  # 0 for no stroke
    dash: str = ""  # lengths of strokes and gaps, as SVG writes them
    opacity: float = 1.0
    is_filled: bool = False
    is_closed: bool = False


@dataclass(frozen=True)
class ChartText:
    """A line of text; `anchor` is which part of it stands at x: `start`, `middle` or `end`."""

    x: float
    y: float
    text: str
    css: str = ""
    colour: str | None = None
    anchor: str = "start"
    is_bold: bool = False


Shape = Path | ChartText


@dataclass(frozen=True)
class Chart:
    """A drawing: what is on it, in the order in which it is drawn, and what it shows in words."""

    width: int
    height: int
    title: str
    description: str
    shapes: Sequence[Shape]

    def svg(self, *, alone: bool = False) -> str:
        """An SVG element for a page, in the colour of the text around it; or a file of its own, dark on white."""
        size = f' width="{self.width}" height="{self.height}"'
        attributes, sheet = (f' color="{_INK}"{size}', f'<rect{size} fill="{_PAPER}"/>') if alone else ("", "")
        drawn = "".join(_svg_text(shape) if isinstance(shape, ChartText) else _svg_path(shape) for shape in self.shapes)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'font-family="system-ui, sans-serif" font-size="{_FONT_SIZE}" fill="currentColor"{attributes}>{sheet}'
            f"<title>{escape(self.title)}</title><desc>{escape(self.description)}</desc>{drawn}</svg>\n"
        )

    def png(self) -> bytes:
        """A PNG file, dark on white.

        Raises:
            ConfigError: matplotlib is missing.
        """
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError as error:
            raise ConfigError("A PNG needs matplotlib; install it with: pip install 'mithridate[report]'") from error
        figure = Figure(figsize=(self.width / 100, self.height / 100), dpi=_DOTS, facecolor=_PAPER)
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, self.width), ylim=(self.height, 0))
        axes.set_axis_off()
        for shape in self.shapes:
            colour = shape.colour or _INK
            if isinstance(shape, ChartText):
                side = {"start": "left", "middle": "center", "end": "right"}[shape.anchor]
                font = {"size": _POINTS * _FONT_SIZE, "weight": "bold" if shape.is_bold else "normal"}
                axes.text(shape.x, shape.y, shape.text, color=colour, ha=side, fontdict=font, parse_math=False)
                continue
            x, y = zip(*shape.points, *shape.points[: int(shape.is_closed)], strict=True)
            if shape.is_filled:
                axes.fill(x, y, color=colour, alpha=shape.opacity, linewidth=0)
            if shape.width:
                # matplotlib counts lengths of dashes in widths of the line.
                gaps = [float(length) / shape.width for length in shape.dash.split()]
                style = (0, gaps) if gaps else "solid"
                axes.plot(x, y, color=colour, alpha=shape.opacity, linewidth=_POINTS * shape.width, linestyle=style)
        file = io.BytesIO()
        figure.savefig(file, format="png")
        return file.getvalue()


def _svg_path(path: Path) -> str:
    attributes = {
        "class": path.css,
        "d": _pen(path.points) + ("Z" if path.is_closed else ""),
        "color": path.colour or "",
        "fill": "currentColor" if path.is_filled else "none",
        "stroke": "currentColor" if path.width else "",
        "stroke-width": f"{path.width:g}" if path.width else "",
        "stroke-dasharray": path.dash,
        "opacity": f"{path.opacity:g}" if path.opacity < 1 else "",
    }
    return f"<path{_written(attributes)}/>"


def _svg_text(text: ChartText) -> str:
    attributes = {
        "class": text.css,
        "x": f"{text.x:.1f}",
        "y": f"{text.y:.1f}",
        "color": text.colour or "",
        "fill": "currentColor" if text.colour else "",
        "text-anchor": text.anchor if text.anchor != "start" else "",
        "font-weight": "600" if text.is_bold else "",
    }
    return f"<text{_written(attributes)}>{escape(text.text)}</text>"


def _written(attributes: dict[str, str]) -> str:
    return "".join(f' {name}="{escape(value)}"' for name, value in attributes.items() if value)


def _pen(points: Iterable[Point]) -> str:
    """Points as the moves of a pen; level and upright ones take half the room."""
    moves: list[str] = []
    last = None
    for x, y in ((f"{x:.1f}", f"{y:.1f}") for x, y in points):
        if last is None:
            moves.append(f"M{x} {y}")
        elif last[1] == y:
            moves.append(f"H{x}")
        else:
            moves.append(f"V{y}" if last[0] == x else f"L{x} {y}")
        last = x, y
    return "".join(moves)


# --- radii and shares -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plane:
    """Where radii and shares are drawn: a radius takes the room from x(r) to x(r + 1), a share of 1 is at the top."""

    left: float
    right: float
    top: float
    bottom: float
    limit: int  # the last radius; larger ones are drawn at the right end
    is_logarithmic: bool = False  # whether the axis of radii goes by powers

    def x(self, radius: npt.ArrayLike) -> FloatArray:
        """Where a radius begins."""
        end, inside = self.limit + 1, np.minimum(np.asarray(radius, dtype=np.float64), self.limit + 1)
        share = np.log1p(inside) / math.log1p(end) if self.is_logarithmic else inside / end
        return self.left + (self.right - self.left) * share

    def radius(self, x: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """The radius that is drawn at some place."""
        share = np.clip((np.asarray(x) - self.left) / (self.right - self.left), 0, 1)
        end = self.limit + 1
        edge = np.expm1(share * math.log1p(end)) if self.is_logarithmic else share * end
        return np.minimum(np.floor(edge + 1e-9), self.limit).astype(np.int64)

    def y(self, share: npt.ArrayLike) -> FloatArray:
        """The height of a share."""
        return self.bottom - (self.bottom - self.top) * np.asarray(share, dtype=np.float64)

    def axes(self, ticks: Iterable[int], title: str) -> list[Shape]:
        """Lines across at every fifth, radii below, and what they count."""
        shapes: list[Shape] = []
        for share in range(0, 101, 20):
            height = float(self.y(share / 100))
            shapes.append(Path([(self.left, height), (self.right, height)], opacity=0.15))
            shapes.append(ChartText(self.left - 8, height + 4, f"{share}%", anchor="end"))
        for radius in ticks:
            at = float(self.x(radius + 0.5))
            shapes.append(Path([(at, self.bottom), (at, self.bottom + 5)], opacity=0.5))
            shapes.append(ChartText(at, self.bottom + 19, f"{radius:,}", anchor="middle"))
        return [
            *shapes,
            ChartText((self.left + self.right) / 2, self.bottom + 39, f"radius r: {title}", anchor="middle"),
        ]

    def baseline(self, share: float) -> Path:
        """A line across at what always saying the commonest label scores."""
        height = float(self.y(share))
        across = [(self.left, height), (self.right, height)]
        return Path(across, "baseline", width=1.25, dash=BASELINE_DASH, opacity=0.75)


@dataclass(frozen=True, eq=False)
class Steps:
    """A step curve in pixels, level to the end of each distinct radius and then down to the next level."""

    edges: FloatArray  # where each level ends, from left to right
    heights: FloatArray
    is_ended: bool  # whether the curve falls to nothing inside the axis
    plane: Plane

    @classmethod
    def of(cls, radii: npt.NDArray[np.int64], shares: FloatArray, plane: Plane) -> Steps:
        """The curve of shares that hold up to each of some ascending radii."""
        edges = plane.x(radii + 1)
        # Of several steps within half a pixel the last one is drawn.
        last = np.flatnonzero(np.diff(np.round(2 * edges), append=np.inf))
        return cls(edges[last], plane.y(shares[last]), len(radii) > 0 and int(radii[-1]) <= plane.limit, plane)

    @property
    def corners(self) -> list[Point]:
        """The two ends of every level; none where there is no curve."""
        starts = [self.plane.left, *self.edges[:-1].tolist()][: len(self.edges)]
        levels = zip(starts, self.edges.tolist(), self.heights.tolist(), strict=True)
        return [corner for start, end, height in levels for corner in ((start, height), (end, height))]

    @property
    def line(self) -> list[Point]:
        """The corners, and the bottom where the curve ends."""
        return [*self.corners, (float(self.edges[-1]), self.plane.bottom)] if self.is_ended else self.corners

    def at(self, x: npt.ArrayLike) -> FloatArray:
        """Heights at some places, the bottom where the curve has ended."""
        return np.append(self.heights, self.plane.bottom)[np.searchsorted(self.edges, np.asarray(x) + 1e-6)]


# --- pictures of test points ------------------------------------------------------------------------------------------


def checked_pictures(pictures: npt.ArrayLike, points: int) -> Pixels:
    """Pictures as points x channels x height x width."""
    array = np.asarray(pictures)
    if array.dtype != np.uint8 or array.ndim not in (3, 4):
        raise ConfigError(
            "Expected pictures as 8-bit images, points x height x width or points x channels x height x width, "
            f"got {array.dtype} of shape {array.shape}."
        )
    if len(array) != points:
        raise ConfigError(f"Expected one picture for each of {points:,} points, got {len(array):,}.")
    array = array[:, None] if array.ndim == 3 else array
    if array.shape[1] not in _COLOUR_TYPES or 0 in array.shape:
        raise ConfigError(
            f"Expected pictures with 1, 3 or 4 channels, points x channels x height x width, got shape {array.shape}; "
            "if the channels come last, use np.moveaxis(pictures, -1, 1)."
        )
    return array


def encode(pictures: Pixels, chosen: list[int]) -> dict[int, bytes]:
    """PNG files of the chosen points, in their order, until the budget is spent."""
    encoded: dict[int, bytes] = {}
    spent = 0
    for point in chosen:
        file = png(reduced(pictures[point]))
        spent += len(file)
        if spent > _BUDGET:
            break
        encoded[point] = file
    return encoded


def reduced(picture: Pixels) -> Pixels:
    """A picture averaged over square blocks, so that no side is longer than 64."""
    channels, height, width = picture.shape
    block = -(-max(height, width) // _SIDE)
    if block == 1:
        return picture
    padded = np.pad(picture, ((0, 0), (0, -height % block), (0, -width % block)), mode="edge")
    blocks = padded.reshape(channels, padded.shape[1] // block, block, padded.shape[2] // block, block)
    return blocks.mean(axis=(2, 4)).round().astype(np.uint8)


def png(picture: Pixels) -> bytes:
    """A PNG file of one picture, channels x height x width.

    References: Portable Network Graphics, W3C Recommendation, sections 11.2 (chunks) and 9.2 (filter type 0).
    """
    channels, height, width = picture.shape
    rows = np.moveaxis(picture, 0, -1).reshape(height, width * channels)
    raw = np.hstack([np.zeros((height, 1), dtype=np.uint8), rows]).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )
