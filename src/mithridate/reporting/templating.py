"""What documents are made of: pages from templates, and Markdown. Whatever a value holds is shown as text."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


def rendered(template: str, *, styles: tuple[str, ...], scripts: tuple[str, ...] = (), **values: Any) -> str:
    """A self-contained page, which runs nothing but its own script.

    Args:
        template: a file of the folder `templates`.
        styles: files of the folder `assets` that make up the style of the page.
        scripts: files of the same folder that make up its script.
        values: what the template shows; strings are escaped.
    """
    style, script = ("".join(map(_asset, names)) for names in (styles, scripts))
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


def _asset(name: str) -> str:
    return resources.files("mithridate.reporting").joinpath("assets", name).read_text(encoding="utf-8")


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
