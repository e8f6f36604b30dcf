"""What every defence is: constants that change the certificate, how it trains, and the rule that certifies.

A defence is a frozen dataclass in a file of its own, which also has its mechanism (what it runs), its rule (how votes
become radii, with the theorem) and their words for reports. `register` makes it known by name, and every door offers
it from then on: `mithridate train --method NAME`, project and comparison files, `CertifiedClassifier(method=NAME)`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from mithridate import _validate
from mithridate._io.files import PathLike
from mithridate.certifying.certification import certify
from mithridate.core.certificate import Certificate, Scope
from mithridate.core.conditions import step_of
from mithridate.core.mechanism import Mechanism, Threat
from mithridate.core.rule import Rule
from mithridate.core.votes import Votes
from mithridate.data.examples import Examples
from mithridate.errors import ConfigError
from mithridate.features import Encoder
from mithridate.training.order import Choice, Facts, Order, Progress, RuntimeOptions, compose

if TYPE_CHECKING:
    from mithridate.defences.statistical import StatisticalBound

ALL_THREATS = tuple(Threat)
# The votes of a finished run on inputs.
Predictor = Callable[[Examples], Votes]


@dataclass(frozen=True)
class Option:
    """One constant of a defence, as flags and files name it.

    Attributes:
        words: what it is, in a few words, for help texts.
        kind: makes a value of the text of a flag.
        metavar: what stands for the value in help texts.
        choices: the only values, where there are few.
        count: how many values a flag takes, as argparse says it; None: one.
    """

    words: str
    kind: Callable[[str], Any] = str
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    count: int | str | None = None


def option(default: Any, words: str, kind: Callable[[str], Any] = str, metavar: str | None = None, **more: Any) -> Any:
    """A field of a defence that flags, files and estimators can set."""
    return field(default=default, metadata={"option": Option(words, kind, metavar, **more)})


@dataclass(frozen=True, kw_only=True)
class Defence:
    """A way to get certified predictions from data that is not fully trusted.

    Those who write one give it a `name`, a `summary`, the `mechanisms` of its votes and three methods: `choose`, `run`
    and `rule`; see docs/design.md.

    Attributes:
        name: as at every door.
        summary: what it does, in a sentence.
        threats: what it can certify against; the first is its default.
        per_prediction: whether it says something about each prediction, and not only about all of them on average.
        mechanisms: of which its votes can be.
        needs_torch: whether it trains models.
        weighs_votes: whether its rule can weigh votes by their label.
        weighs_losses: whether class weights are those of the losses in training, as its rule has none.
        takes_units: whether it can certify units of many examples each.
        units_refused: why it cannot, as a clause.
        num_train: the number of training examples, where it is fixed or public; else what follows it is capped.
        num_units: the same of units, where they are declared (`Examples.units`).
        unit_cap: how many examples of a unit enter at most, those with the smallest hashes; None: 1,000.
        size_step: the step of the number of training examples that its constants were chosen for, where that was not
            declared: radii end with it, and examples of another step are refused.
        classes: the number of labels, where it is known; else it is read off the data, which is a condition.
        class_weights: for rare labels: a whole number from 1 to a million for each; the prediction is the label with
            the largest weight x votes. Declared, and not found by looking at the training data. Where `weighs_losses`,
            they weigh the examples of the label in training instead.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    threats: ClassVar[tuple[Threat, ...]] = ALL_THREATS
    per_prediction: ClassVar[bool] = True
    mechanisms: ClassVar[tuple[type[Mechanism], ...]]
    needs_torch: ClassVar[bool] = False
    weighs_votes: ClassVar[bool] = False
    weighs_losses: ClassVar[bool] = False
    # A defence that was written without a thought of units would make false claims about them.
    takes_units: ClassVar[bool] = False
    units_refused: ClassVar[str] = "it does not bound what a unit of many examples can do"

    num_train: int | None = option(None, "number of training examples, where it is fixed or public", int, "N")
    num_units: int | None = option(None, "number of units, where they are declared and it is fixed or public", int, "N")
    unit_cap: int | None = option(None, "most examples of a unit that enter, by their hashes (1000)", int, "N")
    size_step: int | None = option(None, "size step that the constants were chosen for, as tune writes it", int, "N")
    classes: int | None = option(None, "number of labels, where it is known", int, "L")
    class_weights: Any = option(
        None,
        "for rare labels: votes for each label count so many times, such as 1 10 (run-off, smoothing: losses)",
        int,
        "W",
        count="+",
    )

    def __post_init__(self) -> None:
        check_declared(self.num_train, self.classes, self.size_step, self.num_units)
        if self.unit_cap is not None:
            _validate.positive_integer(unit_cap=self.unit_cap)
        if self.class_weights is not None:
            self._check_weights()

    def _check_weights(self) -> None:
        if not (self.weighs_votes or self.weighs_losses):
            raise ConfigError(
                f"The rule of {self.name} has no class_weights; leave them out, or use a method whose rule weighs "
                "votes, such as nearest-neighbours or dpa."
            )
        _validate.whole_weights(self.classes, class_weights=self.class_weights)
        object.__setattr__(self, "class_weights", tuple(int(each) for each in self.class_weights))

    # --- what those who write a defence say --------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """For a legend or a table."""
        return self.name

    def choose(self, facts: Facts) -> Choice:
        """Decide what is left open, by public facts alone."""
        raise NotImplementedError

    def run(self, order: Order, runtime: RuntimeOptions) -> Votes:
        """Train on `order.training`, and vote on `order.test`; this defence has nothing left open then.

        The votes carry `order.statements`, `order.size` and, in their recipe, `order.extra`.
        """
        raise NotImplementedError

    def rule(self) -> Rule:
        """What certifies its votes."""
        raise NotImplementedError

    @classmethod
    def predict(cls, run_dir: PathLike, test: Examples, **hints: Any) -> Votes:
        """Votes of a finished run on other inputs.

        Args:
            run_dir: what `run` left.
            test: the inputs, with their true labels where known.
            hints: `device`, and `model` or `features` where the run cannot hold them (a network of the user's own).
        """
        raise NotImplementedError

    @classmethod
    def predictor(cls, run_dir: PathLike, **hints: Any) -> Predictor:
        """What gives the votes of `predict` again and again: a defence that can load its run once does so here.

        Guarantee: the votes are those of `predict`, bit for bit where nothing is random.

        Args:
            run_dir: what `run` left.
            hints: as of `predict`.
        """
        return partial(cls.predict, run_dir, **hints)

    def prepare(self, order: Order, runtime: RuntimeOptions) -> Any:
        """Start a run of shards without training anything; what `run.json` says.

        Raises:
            ConfigError: it has no shards.
        """
        raise ConfigError(f"{self.name} trains nothing in shards; leave --prepare and --shards out.")

    @property
    def encoder(self) -> Encoder | None:
        """The features of a defence with nothing left open."""
        return None

    def recorded(self, training: Examples) -> dict[str, Any]:
        """What a recipe says of it, of its rule and of how the data was read."""
        return {"defence": self.to_dict(), "rule": self.rule().to_dict(), "source": training.source}

    def kept_bytes(self, order: Order) -> int:
        """About how many bytes a run directory keeps for `predict`, where that is a reason not to."""
        return 0

    # --- what all share ----------------------------------------------------------------------------------------------

    @classmethod
    def options(cls) -> dict[str, Option]:
        """Its constants by name, as flags and files give them."""
        return {one.name: one.metadata["option"] for one in dataclasses.fields(cls) if "option" in one.metadata}

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """A defence from what a table of a file says about it."""
        return cls(**options)

    def to_dict(self) -> dict[str, Any]:
        """Name and constants as plain JSON values; defences of equal constants can share votes."""
        values = {one.name: in_json(getattr(self, one.name)) for one in dataclasses.fields(self)}
        return {"name": self.name, **{name: value for name, value in values.items() if value is not None}}

    @property
    def training_key(self) -> dict[str, Any]:
        """How it trains, without how it certifies: defences of equal recipes can share votes."""
        own = () if self.weighs_losses else ("class_weights",)
        return {name: value for name, value in self.to_dict().items() if name not in own}

    def for_units(self) -> Self:
        """The same for training data with units, which then count wherever it speaks of examples.

        Raises:
            ConfigError: the number of examples is declared, which whoever controls a unit decides.
        """
        check_counts_units(self.num_train)
        return dataclasses.replace(self, num_train=self.num_units, num_units=None)

    def order(self, training_set: Any, test_set: Any, **more: Any) -> Order:
        """The order to train it on a pair of inputs and labels; see `compose`."""
        return compose(self, training_set, test_set, **more)

    def train(
        self,
        training_set: Any,
        test_set: Any,
        *,
        assumptions: Sequence[str] = (),
        root_seed: bytes | None = None,
        **runtime: Any,
    ) -> Votes:
        """Train on inputs with labels, and vote on test inputs.

        Args:
            training_set: a pair of inputs and labels, or `data.Examples`.
            test_set: inputs to vote on, or a pair with their true labels, or `data.Examples`.
            assumptions: what else has looked at the training data, a sentence each; every certificate repeats them.
            root_seed: 32 bytes that all randomness comes from; by default the operating system's.
            runtime: by the names of `RuntimeOptions`: `run_dir`, `device`, `in_flight`, `progress` and so on.
        """
        try:
            options = RuntimeOptions(**runtime)
        except TypeError as error:
            raise ConfigError(f"Training takes no such option: {error}.") from error
        device = kind_of_device(options.device)
        return self.order(training_set, test_set, assumptions=assumptions, device=device, root_seed=root_seed).run(
            options
        )

    def certify(
        self,
        votes: Votes,
        *,
        threat: Threat | str | None = None,
        failure_prob: float = 1e-3,
        scope: Scope | str = Scope.PREDICTION,
        input_change: float | Sequence[float] | None = None,
        progress: Progress | None = None,
    ) -> Certificate | StatisticalBound:
        """Certify votes of `train`; see `mithridate.certify`.

        Raises:
            ConfigError: they are not votes that this defence, with these constants, could have given.
        """
        check_votes(votes, self)
        return certify(
            votes,
            method=self.rule(),
            threat=threat,
            failure_prob=failure_prob,
            on=getattr(self, "on", "votes"),
            scope=scope,
            input_change=input_change,
            progress=progress,
        )


def check_counts_units(num_train: Any) -> None:
    """Refuse a number of examples where units are declared."""
    if num_train is not None:
        raise ConfigError(
            f"num_train={num_train} counts examples, whose number is the attacker's where units are declared; declare "
            "num_units instead."
        )


def check_declared(num_train: Any, classes: Any, size_step: Any = None, num_units: Any = None) -> None:
    """Require whole numbers where something is declared.

    Raises:
        ConfigError: one is something else, there is one class only, or constants follow two sizes.
    """
    given = {"num_train": num_train, "num_units": num_units, "classes": classes, "size_step": size_step}
    for name, value in given.items():
        if value is not None:
            _validate.positive_integer(**{name: value})
    if classes == 1:
        raise ConfigError("Expected classes of at least 2; with one class there is nothing to certify.")
    if num_train is not None and num_units is not None:
        raise ConfigError("num_train counts examples and num_units counts units; declare one of the two.")
    num_train = num_train or num_units
    if size_step is not None and num_train is not None:
        raise ConfigError(
            f"Constants follow num_train={num_train} or size_step={size_step}, not both; leave size_step out where the "
            "number is declared."
        )
    if size_step is not None and step_of(size_step) != size_step:
        raise ConfigError(f"Expected size_step to be a step such as {step_of(size_step):,}, got {size_step}.")


def kind_of_device(name: Any) -> str:
    """`cpu`, `cuda` or `mps`, of a name that may say more or leave it open; without torch it is the CPU."""
    try:
        from mithridate._torch import pick_device
    except ModuleNotFoundError:
        return "cpu"
    return pick_device(name).type


def check_votes(votes: Votes, defence: Any) -> None:
    """Require votes that this defence, with these constants, could have given.

    Raises:
        ConfigError: they are of another one.
    """
    if not isinstance(votes, Votes):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"Expected the votes that {defence.name} gave when it was trained, got {votes!r}.")
    if not isinstance(votes.mechanism, defence.mechanisms):
        needed = " or ".join(mechanism.__name__ for mechanism in defence.mechanisms)
        raise ConfigError(
            f"These votes come from {type(votes.mechanism).__name__}, and {defence.name} needs those of {needed}; "
            "use what trained them, or mithridate.certify."
        )
    for name, value in vars(votes.mechanism).items():
        own = getattr(defence, name, None)
        if own not in (None, value):
            raise ConfigError(f"These votes were trained with {name}={value!r}, not {own!r}; use what trained them.")


def in_json(value: Any) -> Any:
    """A constant as plain JSON values."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, list | tuple):
        return [in_json(each) for each in cast("Sequence[Any]", value)]
    if isinstance(value, str | int | float | bool | None):
        return value
    if callable(value):  # a network, or a function that builds one: its words may be those of another one
        from mithridate.training.models import Model, describe

        return describe(cast("Model", value))
    return repr(value)
