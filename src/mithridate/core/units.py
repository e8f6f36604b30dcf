"""What an attacker controls as a whole: one example, or all that a vendor, an annotator, a site or a user sent."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mithridate import _validate
from mithridate._text import plural, printable, shown
from mithridate.errors import ConfigError

_LONGEST_NAME = 80


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
    def one(self) -> str:
        """What one of them is called, for people."""
        return printable(self.name.strip())

    @property
    def many(self) -> str:
        """What several of them are called."""
        return plural(self.one)

    def counted(self, number: int) -> str:
        """So many of them."""
        return f"{number:,} {self.one if number == 1 else self.many}"

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)
