"""What an attacker controls as a whole: one example, or all that a vendor, an annotator, a site or a user sent."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from mithridate import _validate
from mithridate._text import one_line, plural, shortened, shown, with_article
from mithridate.errors import ConfigError

_LONGEST_NAME = 80
# What of a name has room beside an axis or above a column.
_SHORT = 24


@dataclass(frozen=True)
class UnitWords:
    """How people speak of what radii count: the only place that knows the words, so that all sentences agree.

    Attributes:
        one: what one of them is called.
        many: what several of them are called.
        one_in_full: the same where a reader might think of test inputs.
        many_in_full: likewise.
        known_by: what says which of them it is: the content of an example, the name of a unit.
        declared_as: the constant that says how many there are.
        are_named: whether they are units that somebody named, and not single examples.

    >>> EXAMPLES.changes, Unit("vendor", 1000).words.changes
    ('changes', 'changed vendors')
    """

    one: str
    many: str
    one_in_full: str
    many_in_full: str
    known_by: str
    declared_as: str
    are_named: bool

    @classmethod
    def of(cls, name: str | None) -> UnitWords:
        """The words for units of this name; for examples, where it is None."""
        if name is None:
            return EXAMPLES
        one = one_line(name)
        many = plural(one)
        return cls(one, many, one, many, "name", "num_units", are_named=True)

    @property
    def a(self) -> str:
        """One of them, with its article."""
        return with_article(self.one)

    @property
    def change(self) -> str:
        """What a radius of 1 allows, in short."""
        return f"changed {self.one}" if self.are_named else "change"

    @property
    def changes(self) -> str:
        """What larger radii allow."""
        return f"changed {self.many}" if self.are_named else "changes"

    @property
    def short(self) -> UnitWords:
        """The same where there is little room."""
        one, many = shortened(self.one, _SHORT), shortened(self.many, _SHORT)
        return replace(self, one=one, many=many, one_in_full=one, many_in_full=many) if self.are_named else self

    def radius(self, called: str = "radius") -> str:
        """A radius above a column, with what it counts.

        >>> EXAMPLES.radius(), Unit("vendor", 1000).words.radius("largest radius")
        ('radius', 'largest radius (vendors)')
        """
        return f"{called} ({self.short.many})" if self.are_named else called

    def after(self, radius: int) -> str:
        """What follows a radius in a sentence.

        >>> f"r = 5{EXAMPLES.after(5)}, r = 1{Unit('vendor', 1000).words.after(1)}"
        'r = 5, r = 1 vendor'
        """
        return f" {self.one if radius == 1 else self.many}" if self.are_named else ""

    def counted(self, number: int) -> str:
        """So many of them."""
        return f"{number:,} {self.one if number == 1 else self.many}"


EXAMPLES = UnitWords(
    "example", "examples", "training example", "training examples", "content", "num_train", are_named=False
)


@dataclass(frozen=True)
class Unit:
    """The units that radii count, where they are not single examples.

    A threat speaks of units: one is inserted with all its examples, deleted with all of them, or changed under its old
    name, whatever number of examples it had or has. A unit that comes back under another name is one that was deleted
    and one that was inserted.

    Attributes:
        name: what the user calls one of them, such as `vendor`.
        count: how many there are in the training data.

    >>> Unit("vendor", 1000).many, Unit("vendor", 1000).counted(1)
    ('vendors', '1 vendor')
    """

    name: str
    count: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip() or len(self.name) > _LONGEST_NAME:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"Expected the name of a unit as a word such as vendor, of at most {_LONGEST_NAME} letters, got "
                f"{shown(self.name)}."
            )
        _validate.positive_integer(count=self.count)
        object.__setattr__(self, "count", int(self.count))

    @property
    def words(self) -> UnitWords:
        """How people speak of them."""
        return UnitWords.of(self.name)

    @property
    def one(self) -> str:
        """What one of them is called, for people."""
        return self.words.one

    @property
    def many(self) -> str:
        """What several of them are called."""
        return self.words.many

    def counted(self, number: int) -> str:
        """So many of them."""
        return self.words.counted(number)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


def words_of(unit: Unit | None) -> UnitWords:
    """How people speak of what radii count, where that may be single examples."""
    return EXAMPLES if unit is None else unit.words


def unit_in_json(unit: Unit | None) -> dict[str, Any]:
    """`unit`, as every JSON output of mithridate has it; nothing where a unit is an example."""
    return {} if unit is None else {"unit": unit.to_dict()}
