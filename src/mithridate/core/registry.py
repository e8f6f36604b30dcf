"""What is found by a word: values that files name, and what rooms above this one do with a value.

A defence defines its mechanism and its rule in its own file, above this room. So that a votes file can be read wherever
it turns up, the rooms that define some are loaded when a word comes up that nobody has explained yet, and so are
packages that offer defences of their own (entry points of the group `mithridate.defences`). In the same way a
certificate shows itself in a notebook, but knows nothing of pages.
"""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module, metadata
from typing import Any, ClassVar, Self, cast

# Names and no imports: nothing here depends on what they hold.
_ROOMS = ("mithridate.accounting", "mithridate.defences")
_GROUP = "mithridate.defences"
_HOOKS = {
    "advise": "mithridate.certifying.advice",
    "Report": "mithridate.reporting.report",
    "AuditReport": "mithridate.reporting.audit",
    "ComparisonReport": "mithridate.reporting.comparison",
    "TuningReport": "mithridate.reporting.tuning",
    "plot_curve": "mithridate.reporting.plotting",
}


def place(value: Any) -> tuple[str, str]:
    """Where something is defined: a module that is loaded again defines the same thing again."""
    return value.__module__, value.__qualname__


class Named:
    """Values by the word that files use for them.

    Args:
        key: under what files write the word.
    """

    def __init__(self, key: str) -> None:
        self.key = key
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
        """What a word stands for; None where nobody knows it.

        Rooms are loaded one after the other until one explains it: what is private needs no other defences.
        """
        if not isinstance(name, str):
            return None
        for room in _ROOMS:
            if name not in self._known:
                import_module(room)
        if name not in self._known:
            load()
        return self._known.get(name)


mechanisms = Named("type")
rules = Named("name")
views = Named("type")
_loaded: set[str] = set()


class Tagged:
    """A value that files hold as its word and its fields; frozen dataclasses inherit it by way of their family.

    A family names its table, `class Rule(Tagged, table=rules)`; a member has its word as a class attribute.
    """

    _table: ClassVar[Named]

    def __init_subclass__(cls, *, table: Named | None = None) -> None:
        if table is not None:
            cls._table = table
        word = vars(cls).get(cls._table.key)
        if isinstance(word, str):
            cls._table.add(word, cls)

    def to_dict(self) -> dict[str, Any]:
        """Its word and its fields as plain JSON values, without what is None by default or tells none from another."""
        values = {one.name: (getattr(self, one.name), one) for one in fields(cast("Any", self)) if one.compare}
        plain = {
            name: list(value) if isinstance(value, tuple) else value
            for name, (value, one) in values.items()
            if value is not None or one.default is not None
        }
        return {self._table.key: getattr(self, self._table.key), **plain}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Read back what `to_dict` wrote, without its word."""
        return cls(**values)


def load() -> None:
    """Load every room and package that defines some; once."""
    if _loaded:
        return
    _loaded.update(_ROOMS)
    for room in _ROOMS:
        import_module(room)
    for plugin in metadata.entry_points(group=_GROUP):
        plugin.load()


def hook(name: str) -> Any:
    """The function or class of a room above that a word stands for."""
    return getattr(import_module(_HOOKS[name]), name)
