"""Which defence, where nobody names one: by declared, public facts only.

The choice looks at what was decided already (constants that only some methods have, a network that is named, whether
the models must be private), at the radius wanted, and at the facts of `Facts`. It never looks at the data: as far as it
depends on the number of examples, it follows their size step, like every other constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mithridate import _validate
from mithridate.core.units import UnitWords
from mithridate.core.votes import Votes
from mithridate.defences.base import Defence, check_counts_units, check_declared
from mithridate.defences.registry import defence, kind_of, methods_with
from mithridate.errors import ConfigError
from mithridate.training.order import Choice, Facts, Order, RuntimeOptions

AUTO = "auto"
# The methods that are offered, the first that has all constants that were given.
_OFFERED = ("nearest-neighbours", "fdp")
# Up to a radius of one in so many examples, ridge regression was the more accurate method on most of 17 tables; from
# one in 200 on, neighbours were.
_FEW_CHANGES = 500
# Half of the voters may be needed to certify a radius; so many more are asked that most predictions reach it.
_VOTERS_FOR_A_RADIUS = 3


@dataclass(frozen=True, kw_only=True)
class Auto:
    """A defence that is still to be chosen; it takes the place of one in an order.

    Attributes:
        constants: what the user decided, by the names of the options of the methods.
        radius: how many changes predictions should withstand, where the user says so.
        private: whether the models themselves must be private.
    """

    constants: Mapping[str, Any]
    radius: int | None = None
    private: bool = False

    def __post_init__(self) -> None:
        check_declared(self.num_train, self.classes, self.size_step, self.num_units)
        if self.radius is not None:
            _validate.positive_integer(radius=self.radius)
        # What does not go together is refused before any data is read.
        _ = self._by_constants() or self._built("nearest-neighbours")

    @property
    def num_train(self) -> int | None:
        """As declared."""
        return self.constants.get("num_train")

    @property
    def num_units(self) -> int | None:
        """Likewise."""
        return self.constants.get("num_units")

    @property
    def unit_cap(self) -> int | None:
        """Likewise."""
        return self.constants.get("unit_cap")

    def for_units(self) -> Auto:
        """See `Defence.for_units`."""
        check_counts_units(self.num_train)
        others = {name: value for name, value in self.constants.items() if name != "num_units"}
        declared = {} if self.num_units is None else {"num_train": self.num_units}
        return replace(self, constants={**others, **declared})

    @property
    def size_step(self) -> int | None:
        """Likewise."""
        return self.constants.get("size_step")

    @property
    def classes(self) -> int | None:
        """Likewise."""
        return self.constants.get("classes")

    def choose(self, facts: Facts) -> Choice:
        """The choice of the method, and then that of its constants."""
        chosen, reason = self.pick(facts)
        choice = chosen.choose(facts)
        words = f"Method: {chosen.name}, because {reason}.\n{choice.words}"
        details = {**choice.details, "method": chosen.name, "reason": reason}
        return Choice(choice.defence, True, choice.statements, words, choice.warnings, details)

    def pick(self, facts: Facts) -> tuple[Defence, str]:
        """The method for a task, and why, as a clause."""
        return self._by_constants() or self._nearest(facts)

    def _by_constants(self) -> tuple[Defence, str] | None:
        """The method that what was decided asks for; None where the examples themselves can vote."""
        if self.private:
            return self._built("fdp"), "the models must be private"
        offered = [name for name in _OFFERED if self._has(name)]
        if "model" in self.constants:
            return self._built("fdp"), "a network is named"
        if not offered:
            raise ConfigError(f"{self._strangest()} Say which one, with --method NAME (method = ...).")
        if offered[0] == "fdp":
            return self._built("fdp"), "constants of private training are given"
        return None

    def _nearest(self, facts: Facts) -> tuple[Defence, str]:
        counted = UnitWords.of(facts.unit)
        about = f"{counted.many} near an input certify the most without any training"
        if facts.unit is not None:
            about = f"{counted.many} near an input certify much without any training"
            if facts.is_table and "neighbours" not in self.constants and self._has("kernel-vote"):
                return self._built("kernel-vote"), (
                    f"all {counted.many} vote, the more the nearer they are, which certifies most on tables"
                )
        if self.radius is None or "neighbours" in self.constants:
            return self._built("nearest-neighbours"), about
        if (
            facts.unit is None
            and facts.is_table
            and self._has("ridge")
            and self.radius <= facts.num_train // _FEW_CHANGES
        ):
            return self._built("ridge"), (
                f"a linear model of declared columns is the most accurate for a radius as small as {self.radius:,}"
            )
        voters = _VOTERS_FOR_A_RADIUS * self.radius
        if facts.unit is not None:
            return self._nearest_units(facts, voters), about
        if facts.num_train < enough_examples(self.radius, facts.classes):
            return self._built("kernel-vote"), (
                f"a radius of {self.radius:,} is much for {counted.counted(facts.num_train)} of {facts.classes} classes"
            )
        usual = defence("nearest-neighbours").choose(facts).defence.neighbours
        return self._built("nearest-neighbours", neighbours=max(usual, voters)), (
            f"{about}, and {max(usual, voters):,} of them can certify a radius of {self.radius:,}"
        )

    def _nearest_units(self, facts: Facts, voters: int) -> Defence:
        """So many nearest units at least. Unlike an example, a unit may have what is near to inputs of every class."""
        usual = self._built("nearest-neighbours")
        settled = usual.choose(facts).defence
        most = max(settled.neighbours if isinstance(settled.neighbours, tuple) else (settled.neighbours,))
        return usual if voters <= most else self._built("nearest-neighbours", neighbours=min(voters, facts.num_train))

    def _has(self, name: str) -> bool:
        """Whether a method has all constants that were given."""
        return all(one in kind_of(name).options() for one in self.constants)

    def _built(self, name: str, **more: Any) -> Defence:
        return defence(name, **{**self.constants, **more})

    def _strangest(self) -> str:
        """The constant that none of the offered methods has, and who has it."""
        for constant in self.constants:
            own = methods_with(constant)
            if not set(own) & set(_OFFERED):
                return f"{constant} belongs to {', '.join(own) or 'no method'}."
        return "No single method has all of the constants " + ", ".join(self.constants) + "."

    def run(self, order: Order, runtime: RuntimeOptions) -> Votes:
        """Never: an order holds what was chosen."""
        raise NotImplementedError


def enough_examples(radius: int, classes: int) -> int:
    """How many examples there should be for most predictions to be certified to a radius: a rule of thumb.

    The examples nearest to an input can then be asked, and half as many again of each label are left over.
    """
    return 2 * _VOTERS_FOR_A_RADIUS * radius * max(2, classes)


def too_few(radius: int, num_train: int, classes: int, many: str = "examples") -> str | None:
    """That examples (or units, called `many`) are few for a radius, and what to do; None where they may do.

    >>> too_few(50, 400, 3)
    'A radius of 50 is much for 400 examples of 3 classes: about 900 would do, or a radius of up to 22.'
    """
    _validate.positive_integer(radius=radius)
    enough = enough_examples(radius, classes)
    if num_train >= enough:
        return None
    largest = num_train // enough_examples(1, classes)
    less = f", or a radius of up to {largest:,}" if largest else ""
    about = f"{num_train:,} {many} of {classes} classes"
    return f"A radius of {radius:,} is much for {about}: about {enough:,} would do{less}."


def decided(constants: Mapping[str, Any]) -> dict[str, Any]:
    """The constants but for those that `auto` leaves open: that is what they are where nobody gives them.

    >>> decided({"model": "auto", "features": "unit-norm"})
    {'features': 'unit-norm'}
    """
    left_open = [
        each for each in ("model", "features") if isinstance(constants.get(each), str) and constants[each] == AUTO
    ]
    return {name: value for name, value in constants.items() if name not in left_open}


def named(method: str | None, constants: Mapping[str, Any], *, radius: int | None = None, private: bool = False) -> Any:
    """The defence of a name with some constants, or one that is still to be chosen.

    Raises:
        ConfigError: the method or a constant is unknown, or does not go with what was asked for.
    """
    constants = decided(constants)
    if method is None or method == AUTO:
        return Auto(constants=constants, radius=radius, private=private)
    if private and "noise_multiplier" not in kind_of(method).options():
        raise ConfigError(f"The models of {method} are not private; leave private out, or use fdp.")
    return defence(method, **constants)
