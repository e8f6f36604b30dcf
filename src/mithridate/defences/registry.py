"""Defences by name: the one list, from which every door takes its names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from mithridate._text import did_you_mean
from mithridate.core import registry
from mithridate.defences.base import Defence, Option
from mithridate.errors import ConfigError


@dataclass(frozen=True)
class _Entry:
    """What a name stands for."""

    kind: type[Defence]
    constants: Mapping[str, Any]


_KNOWN: dict[str, _Entry] = {}


Kind = TypeVar("Kind", bound=type[Defence])


def register(kind: Kind, *names: str, **constants: Any) -> Kind:
    """Make a defence known by its name, or by other names that fix some of its constants.

    Raises:
        ValueError: a name is taken by another defence.
    """
    for name in names or (kind.name,):
        known = _KNOWN.get(name)
        if known is not None and registry.place(known.kind) != registry.place(kind):
            raise ValueError(f"the name {name!r} is taken by {known.kind.__name__}; choose another one")
        _KNOWN[name] = _Entry(kind, constants)
    return kind


def names() -> tuple[str, ...]:
    """The names of all defences."""
    registry.load()
    return tuple(_KNOWN)


def defence(name: str, **options: Any) -> Defence:
    """The defence of a name, with what a table of a configuration file says about it.

    Args:
        name: one of `names()`.
        options: its own constants, and beside them how its models are trained.

    Raises:
        ConfigError: the name or an option is not known, or a value is not what it should be.

    >>> defence("bagging", draws=500, steps=200).title
    'bagging, 500 draws'
    """
    entry = _entry(name)
    known = tuple(entry.kind.options())
    for given in options:
        if given not in known:
            raise ConfigError(f"The method {name} has no option {given!r}; {did_you_mean(given, known)}")
    try:
        return entry.kind.from_options({**options, **entry.constants})
    except TypeError as error:  # a value of a kind that nobody expects there
        raise ConfigError(f"An option of {name} is of the wrong kind: {error}.") from error


def kind_of(name: str) -> type[Defence]:
    """The class of a name.

    Raises:
        ConfigError: it is not known.
    """
    return _entry(name).kind


def _entry(name: Any) -> _Entry:
    if not isinstance(name, str) or name not in names():
        raise ConfigError(f"There is no method {name!r}; {did_you_mean(str(name), names())}")
    return _KNOWN[name]


def options() -> dict[str, Option]:
    """The constants of all defences, by name; where several have one of a name, the first says what it is."""
    found: dict[str, Option] = {}
    for entry in (_KNOWN[name] for name in names()):
        found = {**entry.kind.options(), **found}
    return found


def methods_with(option: str) -> tuple[str, ...]:
    """The names of the defences that have a constant of this name."""
    return tuple(name for name in names() if option in _KNOWN[name].kind.options())
