"""What files name by a word: mechanisms, rules, and what instances see, each known from the one place that defines it.

A defence defines its mechanism and its rule in its own file, above this room. So that a votes file can be read wherever
it turns up, the rooms that define some are loaded when a word comes up that nobody has explained yet, and so are
packages that offer defences of their own (entry points of the group `mithridate.defences`).
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import Any

# Names and no imports: nothing here depends on what they hold.
_ROOMS = ("mithridate.accounting", "mithridate.defences")
_GROUP = "mithridate.defences"


def place(value: Any) -> tuple[str, str]:
    """Where something is defined: a module that is loaded again defines the same thing again."""
    return value.__module__, value.__qualname__


class Named:
    """Values by the word that files use for them."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def add(self, name: str, value: Any) -> None:
        """Explain a word; two values of one name would make files ambiguous.

        Raises:
            ValueError: the name is taken by something else.
        """
        known = self._known.setdefault(name, value)
        if place(known) != place(value):
            raise ValueError(f"the name {name!r} is taken by {known!r}; choose another one")
        self._known[name] = value

    def find(self, name: Any) -> Any:
        """What a word stands for; None where nobody knows it."""
        if not isinstance(name, str):
            return None
        if name not in self._known:
            load()
        return self._known.get(name)

    def names(self) -> tuple[str, ...]:
        """All that are known, in the order in which they were explained."""
        load()
        return tuple(self._known)


mechanisms = Named()
rules = Named()
views = Named()
_loaded: set[str] = set()


def load() -> None:
    """Load every room and package that defines some; once."""
    if _loaded:
        return
    _loaded.update(_ROOMS)
    for room in _ROOMS:
        import_module(room)
    for plugin in metadata.entry_points(group=_GROUP):
        plugin.load()
