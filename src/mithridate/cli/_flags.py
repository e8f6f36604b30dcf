"""Flags as users type them: what was meant by one that there is not, and messages that call values by their flags."""

import argparse
import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from mithridate._text import did_you_mean, nearest, printable, shown

# The argument that is a configuration file, whose keys are the names that values have in Python.
CONFIG = "CONFIG.toml"


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line instead of repeating all flags, and what was meant."""

    @property
    def commands(self) -> "dict[str, Parser]":
        """The parsers of the commands by their names; none where this is that of a command."""
        return next((dict(action.choices) for action in self._actions if isinstance(action.choices, dict)), {})

    @property
    def summaries(self) -> dict[str, str]:
        """What the commands do, by their names."""
        listed = (action for action in self._actions if isinstance(action, argparse._SubParsersAction))
        return {each.dest: each.help or "" for action in listed for each in action._get_subactions()}

    @property
    def arguments(self) -> list[argparse.Action]:
        """All flags, and all arguments without one."""
        return list(self._actions)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and end."""
        if message.endswith("expected one argument"):  # or there is one, which looks like a flag
            message += ", after a = if it starts with -"
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Any = None, namespace: Any = None
    ) -> Any:
        """Parse, and refuse what is unknown: flags first, since whatever else is wrong may follow from those."""
        for word in _before_dashes(args or ()):
            if self.commands and not word.startswith("-"):
                break  # a command has flags of its own
            if word.startswith("--") and " " not in word and not self._actions_of(word):
                self._refuse(word)
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self._refuse(next((word for word in unknown if word.startswith("-")), unknown[0]))
        return found, unknown

    def flags_for(self, arguments: argparse.Namespace, words: list[str]) -> dict[str, str]:
        """What messages are to call values, by their names: as they were typed, where they were.

        A value that nobody typed is called by its flag, too, unless there is a configuration file: it may come from
        there, and has a key of its name.

        Args:
            arguments: what was parsed.
            words: of the command line.
        """
        has_file = any(each.metavar == CONFIG and getattr(arguments, each.dest) is not None for each in self._actions)
        flagged = [each for each in self._actions if each.option_strings]
        found = {} if has_file else {each.dest: _whole(each) for each in flagged}
        for word in _before_dashes(words):
            typed = word.partition("=")[0]
            found |= {
                each.dest: typed if typed in each.option_strings else _whole(each) for each in self._actions_of(word)
            }
        return found

    def _actions_of(self, word: str) -> list[argparse.Action]:
        """What a word may stand for: its flag, or those of which it is the beginning."""
        flag = word.partition("=")[0] if word.startswith("--") else word[:2]
        exact = self._option_string_actions.get(flag)
        if exact is not None or not word.startswith("--") or not self.allow_abbrev:
            return [] if exact is None else [exact]
        return [action for name, action in self._option_string_actions.items() if name.startswith(flag)]

    def _refuse(self, word: str) -> NoReturn:
        """Refuse a word that nobody expects."""
        if not word.startswith("-"):
            self.error(f"there is one argument too many, {shown(word)}")
        flag = word.partition("=")[0]
        near = nearest(flag, [name for name in self._option_string_actions if name.startswith("--")])
        self.error(f"there is no flag {printable(flag)}{'' if near is None else f'; did you mean {near}?'}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Require one of the choices, and say which was meant."""
        if action.choices is None or value in action.choices:
            return
        meant = did_you_mean(str(value), map(str, action.choices)).removesuffix(".")
        if isinstance(action.choices, dict):
            self.error(f"there is no command {shown(value)}; {meant}")
        raise argparse.ArgumentError(action, f"there is no {shown(value)}; {meant}")


def _before_dashes(words: Iterable[str]) -> Iterable[str]:
    """The words that can be flags."""
    return itertools.takewhile(lambda word: word != "--", words)


def _whole(action: argparse.Action) -> str:
    """The long form of a flag."""
    return next((name for name in action.option_strings if name.startswith("--")), action.option_strings[0])


# --- messages -------------------------------------------------------------------------------------------------------

# Where a name in a message is that of a value. Some names are English words, too: those count only where nothing but a
# value can be meant.
_PLACES = (
    r"\b{name} \(--[a-z-]+\)",  # has both already
    r"(?<![\w.'\"/-]){name}=(?:'(?P<text>[\w.:-]*)'|(?P<value>[\w+-]*(?:\.\w+)?))(?![\w(\[])",
    r"(?<=option )'{name}'",
    r"(?:^|(?<=Expected )|(?<=[Ll]eave )(?!out\b)|(?<=[Rr]aise )|(?<=[Ll]ower )){name}(?![\w-]|\.\w| (?:least|most)\b)",
    r"(?<=and ){name}(?= out\b)",
    r"(?<=\bits ){name}(?= is )",
    r"(?<![\w./'\"-])(?=\w+_){name}(?![\w/'\"-]|\.\w| =)",  # no English word has a line in it
)


def as_typed(message: str, flags: Mapping[str, str]) -> str:
    """A message in which values are called by their flags, in place of the names that they have in Python.

    Args:
        message: of the library, which does not know who calls it.
        flags: by the names of the values.

    >>> as_typed("Expected sample_rate in (0, 1], got 1.3.", {"sample_rate": "--sample-rate"})
    'Expected --sample-rate in (0, 1], got 1.3.'
    >>> as_typed("Scores are missing; certify on='votes', or leave on out.", {"on": "--on"})
    'Scores are missing; certify --on votes, or leave --on out.'
    >>> as_typed("Expected at from 0 to 9. Expected at most 9.", {"at": "--at"})
    'Expected --at from 0 to 9. Expected at most 9.'
    """
    names = "|".join(sorted(map(re.escape, flags), key=len, reverse=True))

    def flag(found: re.Match[str]) -> str:
        parts = found.groupdict()
        return " ".join(filter(None, (flags[parts["name"]], parts.get("text"), parts.get("value"))))

    for place in _PLACES if flags else ():
        message = re.sub(place.replace("{name}", f"(?P<name>{names})"), flag, message)
    return message
