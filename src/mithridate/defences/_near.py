"""What defences without training share: examples near an input vote with their labels."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from mithridate._io.files import PathLike
from mithridate.core.conditions import Statement
from mithridate.core.votes import Votes
from mithridate.data.examples import Examples
from mithridate.defences._nearness import MIRROR_MOVES, StoredExamples, check_mirrored
from mithridate.defences._places import HERE, Comparing, on_device, place_for
from mithridate.defences._trained import FEATURES, network_for
from mithridate.defences.base import Defence, Predictor, option
from mithridate.defences.kept_run import KeptRun, damaged
from mithridate.errors import ConfigError
from mithridate.features import Encoder, pick_encoder
from mithridate.training.order import Choice, Facts, Order, Progress, RuntimeOptions


@dataclass(frozen=True, kw_only=True)
class ExamplesDefence(Defence):
    """A defence that needs nothing but the features of the examples, and their labels.

    Attributes:
        sparse_rows: whether features may come as sparse rows.
        compares: whether inputs are compared with all examples, which can be done elsewhere.
        features: `auto`: those of the private ensemble; the name of an encoder, an encoder, or `none`: inputs as they
            are.
    """

    sparse_rows: ClassVar[bool] = True
    compares: ClassVar[bool] = True

    features: Any = option(
        "auto",
        FEATURES,
        metavar="NAME",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.features is None:
            object.__setattr__(self, "features", "none")
        if not isinstance(self.features, str) or self.features not in ("auto", "none"):
            pick_encoder(self.features)

    def decided(self, facts: Facts) -> dict[str, Any]:
        """The constants of its own that were left open, by the facts; all of them follow the size."""
        raise NotImplementedError

    def votes(
        self,
        examples: StoredExamples,
        test_set: Any,
        progress: Progress | None = None,
        place: Comparing = HERE,
    ) -> Votes:
        """How the examples vote on some inputs."""
        raise NotImplementedError

    def choose(self, facts: Facts) -> Choice:
        """Features, and the constants that were left open."""
        _, encoder = network_for("auto", self.features, facts)
        own = {name: value for name, value in self.decided(facts).items() if getattr(self, name) is None}
        settled = replace(self, features=encoder or "none", classes=facts.classes, **own)
        on = "the inputs as they are" if encoder is None else f"{encoder.name} features"
        words = f"{settled.title} on {on}, {facts.classes} classes; nothing is trained."
        return Choice(settled, bool(own), self.about(facts, own), words, details=settled.to_dict())

    def about(self, facts: Facts, own: dict[str, Any]) -> tuple[Statement, ...]:
        """What certificates say of the constants that were left open."""
        return ()

    @property
    def encoder(self) -> Encoder | None:
        """The features of a defence with nothing left open."""
        return None if isinstance(self.features, str) else self.features

    def run(self, order: Order, runtime: RuntimeOptions) -> Votes:
        """Compare all inputs with all examples; neither the device nor who compares matters."""
        if runtime.shards is not None:
            raise ConfigError(f"{self.name} trains nothing, and has no shards; leave them out.")
        examples = StoredExamples.of(
            order.training,
            self.encoder,
            order.facts.classes,
            order.statements,
            sparse=self.sparse_rows,
            data=order.training_data,
        )
        with place_for(runtime) if self.compares else nullcontext(HERE) as place:
            votes = self.votes(examples, order.test, runtime.progress, place)
        votes = replace(votes, recipe={**(votes.recipe or {}), **order.extra}, size=order.size)
        if runtime.run_dir is not None:
            examples.as_run(votes).save(runtime.run_dir, votes)
        return votes

    @classmethod
    def predict(cls, run_dir: PathLike, test: Examples, **hints: Any) -> Votes:
        """The votes of the examples that a run kept."""
        return cls._loaded(run_dir, often=False, **hints)(test)

    @classmethod
    def predictor(cls, run_dir: PathLike, **hints: Any) -> Predictor:
        """The same again and again, of examples that were read once."""
        return cls._loaded(run_dir, often=True, **hints)

    @classmethod
    def _loaded(cls, run_dir: PathLike, *, often: bool, **hints: Any) -> Predictor:
        run = KeptRun.load(run_dir)
        try:
            examples = StoredExamples.of_run(run, hints.get("features"), sparse=cls.sparse_rows)
            said = {name: value for name, value in run.recipe["defence"].items() if name not in ("name", "features")}
            defence = cls.from_record({**said, "features": examples.encoder})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise damaged(run_dir, error) from error
        examples = examples.asked_often() if often else examples
        place = on_device(hints["device"]) if cls.compares and hints.get("device") else HERE
        return lambda test: run.votes_of_run(defence.votes(examples, test, place=place))

    @classmethod
    def from_record(cls, values: dict[str, Any]) -> Self:
        """A defence from the constants that a run recorded."""
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class NearDefence(ExamplesDefence):
    """A defence whose voters are the examples that are near.

    Attributes:
        mirrored: for images: an example is as near as it is to the input or to its mirror image.
        moving_inputs: votes carry what certificates need in which the input may move, too (`certify` with
            `input_change`). Votes, labels and radii without it are the same.
    """

    takes_units = True

    mirrored: bool = option(False, "for images: the mirror image of an input counts as the input", bool)
    moving_inputs: bool = option(
        False, "nearest-neighbours, kernel-vote: keep what certify --input-change needs, for inputs that move", bool
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_mirrored(self.mirrored)
        if not isinstance(self.moving_inputs, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Expected moving_inputs to be true or false, got {self.moving_inputs!r}.")
        if self.moving_inputs and self.mirrored:
            raise ConfigError(MIRROR_MOVES)

    def to_dict(self) -> dict[str, Any]:
        """Whether inputs may move only where they may."""
        said = super().to_dict()
        return said if self.moving_inputs else {name: value for name, value in said.items() if name != "moving_inputs"}
