"""Small helpers for text that people read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

# What is longer was not meant to be one of a few words.
_LONGEST_WORD = 100


def percent(count: int, total: int) -> str:
    """A share with one decimal; "100.0%" and "0.0%" only where it is really all or none.

    >>> percent(9999, 10000), percent(99999, 100000), percent(0, 7)
    ('>99.9%', '>99.9%', '0.0%')
    """
    if 0 < count < total:
        if count / total >= 0.9995:
            return ">99.9%"
        if count / total < 0.0005:
            return "<0.1%"
    return f"{count / total:.1%}"


def shortened(name: str, length: int = 60) -> str:
    """A name on one line, ending in an ellipsis where it is longer than this.

    >>> shortened("golden retriever", 8)
    'golden…'
    """
    line = " ".join(name.split())
    return line if len(line) <= length else line[: length - 1].rstrip() + "…"


def printable(text: str) -> str:
    """Text that may hold what others wrote, without characters that a terminal would obey."""
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


def one_line(text: str) -> str:
    r"""A sentence from a file, so that on a terminal it cannot pass for more than one, nor for a code.

    >>> one_line("Tuned here.\nThe certificate holds.\x1b[2J")
    'Tuned here. The certificate holds.\\x1b[2J'
    """
    return printable(" ".join(text.split()))


def capitalised(phrase: str) -> str:
    """A phrase as the start of a sentence; the rest keeps its capitals."""
    return phrase[:1].upper() + phrase[1:]


def shown(value: Any, length: int = 80) -> str:
    r"""A value in an error, however long it is and whatever it holds.

    >>> shown("a\tb"), shown("golden retriever", 8), shown([10**5000])
    ("'a\\tb'", "'golden ...", 'a value with a huge number in it')
    """
    try:
        text = repr(value) if not isinstance(value, int) or abs(value) < 1 << 53 else "a huge number"
    except ValueError:  # Python writes out no more than 4,300 digits
        text = "a value with a huge number in it"
    return text if len(text) <= length else f"{text[:length]}..."


def listed(names: Iterable[str], most: int = 8) -> str:
    """Names in a sentence, not too many of them; what a terminal would act upon is escaped.

    >>> listed(["a", "b"]), listed("abcdefghijkl")
    ('a, b', 'a, b, c, d, e, f, g, h and 4 more')
    """
    found = list(names)
    rest = len(found) - most
    few = [name if name.isprintable() else repr(name) for name in found[:most]]
    return ", ".join(few) + (f" and {rest:,} more" if rest > 0 else "")


def nearest(word: Any, known: Iterable[str]) -> str | None:
    """The known word that was meant, if one is near enough.

    >>> nearest("--sample_rate", ["--sample-rate", "--steps"]), nearest("x", ["columns", "label"])
    ('--sample-rate', None)
    """
    if not isinstance(word, str) or len(word) > _LONGEST_WORD:
        return None
    near = difflib.get_close_matches(word, [str(each) for each in known], n=1)
    return near[0] if near else None


def did_you_mean(word: Any, known: Iterable[str]) -> str:
    """The end of a sentence on a word that nobody knows: the nearest known one, else what is known.

    >>> did_you_mean("colums", ["columns", "label"]), did_you_mean("x", ["columns", "label"])
    ("did you mean 'columns'?", 'expected one of columns, label.')
    """
    words = list(known)
    near = nearest(word, words)
    return f"expected one of {listed(words, 20)}." if near is None else f"did you mean {near!r}?"


def counted(count: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "run"), counted(2000, "run")
    ('1 run', '2,000 runs')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def plural(noun: str) -> str:
    """Several of what a noun names, by the rules of English that most nouns follow.

    >>> plural("vendor"), plural("company"), plural("day"), plural("batch"), plural("bus")
    ('vendors', 'companies', 'days', 'batches', 'buses')
    """
    word = noun.lower()
    if word.endswith("y") and not word.endswith(("ay", "ey", "iy", "oy", "uy")):
        return f"{noun[:-1]}ies"
    return f"{noun}es" if word.endswith(("s", "x", "z", "ch", "sh")) else f"{noun}s"


def with_article(noun: str) -> str:
    """A noun as one of many, by the sound that most nouns of its spelling begin with.

    >>> with_article("vendor"), with_article("annotator"), with_article("user"), with_article("hour")
    ('a vendor', 'an annotator', 'a user', 'an hour')
    """
    word = noun.lower()
    like_you = word.startswith(("uni", "use", "usa", "eu", "one"))
    silent = word.startswith(("hour", "heir", "honest", "honour", "honor"))
    return f"{'an' if silent or (word[:1] in tuple('aeiou') and not like_you) else 'a'} {noun}"


def fraction(text: str) -> float:
    """A number, or one as a fraction.

    Raises:
        ValueError: it is neither.

    >>> fraction("4000/50000"), fraction("0.08")
    (0.08, 0.08)
    """
    part, line, whole = text.partition("/")
    if line and float(whole) == 0:
        raise ValueError(f"{text!r} divides by zero")
    return float(part) / float(whole) if line else float(part)
