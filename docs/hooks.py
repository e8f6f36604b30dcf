"""What mkdocs does beyond turning Markdown into pages.

The help of the command line comes from its own parsers, formulas become MathML that needs no script, and examples and
tables in docstrings are shown as they were typed.
"""

import argparse
import html
import os
import re
from typing import Any
from unittest import mock

import griffe
from latex2mathml.converter import convert

from mithridate.cli._shared import new_parser

COMMANDS = "<!-- commands -->"
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\[(\[](.*?)\\[)\]]\s*</\1>', flags=re.DOTALL)
# An example with its output, or a table between rules of equals signs; both end with their indentation or a blank line.
_VERBATIM = re.compile(
    r"^(?P<indent> *)(?P<block>>>> .*(?:\n(?P=indent)\S.*)*|={4,}.*\n(?:.*\n)*?(?P=indent)={4,}.*$)", flags=re.MULTILINE
)
_LINK_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./[^)]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the commands where a page asks for them; links to files that are not part of the site become plain text."""
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, command_reference())
    return _LINK_OUTSIDE.sub(r"\1", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Turn formulas into MathML, which browsers draw by themselves."""
    return _FORMULA.sub(_mathml, html)


def _mathml(found: re.Match[str]) -> str:
    display = "block" if found[1] == "div" else "inline"
    formula = convert(html.unescape(found[2]).strip(), display=display)
    return f"<p>{formula}</p>" if display == "block" else formula


def command_reference() -> str:
    """One section for every command, each with the help that the command prints."""
    parser = new_parser()
    with mock.patch.dict(os.environ, COLUMNS="100", NO_COLOR="1"):
        sections = [_section("mithridate", parser)]
        sections += [_section(f"mithridate {name}", command) for name, command in commands(parser).items()]
    return "\n".join(sections)


def commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands of a parser by their names."""
    return next(dict(action.choices) for action in parser._actions if isinstance(action.choices, dict))


def _section(title: str, parser: argparse.ArgumentParser) -> str:
    return f"## {title}\n\n```text\n{parser.format_help().strip()}\n```\n"


class Verbatim(griffe.Extension):
    """Docstrings whose examples and tables are code blocks."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(docstring: str) -> str:
    """A docstring with fences around what must be shown as it was typed."""

    def fence(found: re.Match[str]) -> str:
        indent, block = found["indent"], found["block"]
        language = "pycon" if block.startswith(">>>") else "text"
        return f"{indent}```{language}\n{indent}{block}\n{indent}```"

    return _VERBATIM.sub(fence, docstring)
