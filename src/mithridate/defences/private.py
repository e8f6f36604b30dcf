"""The private ensemble: many models trained by DP-SGD vote, and their privacy becomes a radius.

One ensemble, several ways to account for it: `fdp`, `rdp` (with `rdp-standard` and the paper's `rdp-paper`), `adp`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from mithridate import _validate
from mithridate._text import fraction
from mithridate.accounting import ADP, FDP, RDP, Method
from mithridate.core.conditions import step_of
from mithridate.core.mechanism import SampledGaussian, Subsampled
from mithridate.core.rule import Rule
from mithridate.defences._trained import TrainedDefence
from mithridate.defences.base import option
from mithridate.defences.registry import register
from mithridate.errors import ConfigError
from mithridate.recipes import choosing, presets
from mithridate.recipes.choosing import Recipe
from mithridate.training.config import UNIT_ROWS, TrainConfig
from mithridate.training.order import Choice, Facts

METHODS: dict[str, FDP | RDP | ADP] = {
    "fdp": FDP(),
    "rdp": RDP("mixture", complement=True),
    "rdp-paper": RDP("paper"),
    "rdp-standard": RDP("standard"),
    "adp": ADP(),
}
_TITLES = {
    "fdp": "f-DP",
    "rdp": "RDP",
    "rdp-paper": "RDP, the paper's group rule",
    "rdp-standard": "RDP, standard group privacy",
    "adp": "(eps, delta)-DP",
}
# What decides the mechanism and the first thing one would tune: a recipe that names all of these is complete.
_ESSENTIAL = ("noise_multiplier", "sample_rate", "steps", "max_grad_norm", "learning_rate")
# What stands in for constants that are left open, while the others are checked.
_PLACEHOLDERS = {
    "instances": 1,
    "noise_multiplier": 1.0,
    "sample_rate": 1.0,
    "steps": 1,
    "max_grad_norm": 1.0,
    "learning_rate": 1.0,
}


@dataclass(frozen=True, kw_only=True)
class PrivateDefence(TrainedDefence):
    """A private ensemble; what is None or `auto` is chosen from the size of the task and the time there is.

    Attributes:
        recipe: a preset, whose constants hold where no others are given.
        seconds: about how long training may take; where it is not enough, batches shrink.
    """

    mechanisms = (SampledGaussian, Subsampled)
    takes_units = True
    takes_input_noise = True

    instances: int | None = option(None, "number of models that vote (1000)", int, "P")
    noise_multiplier: float | None = option(None, "noise / clipping norm", float, "S")
    sample_rate: float | None = option(None, "chance to enter a batch", float, "Q")
    keep: float | None = option(None, "chance of an example to be kept by an instance before training", fraction, "M/N")
    divisor: float | None = option(None, "of every noisy sum (sample rate x number)", float, "D")
    unit_rows: int | None = option(
        None, "where units are declared: examples of a unit whose mean gradient is clipped, drawn anew (16)", int, "N"
    )
    seconds: float | None = option(None, "about how long training may take (60)", float, "S")
    recipe: str | None = option(None, f"a preset: {', '.join(presets.NAMES)}", metavar="NAME")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.recipe is not None:
            presets.preset(self.recipe)
        if self.seconds is not None:
            _validate.number_in(0, float("inf"), low_open=True, seconds=self.seconds)
        self._config(_PLACEHOLDERS)

    def _config(self, others: dict[str, Any]) -> TrainConfig:
        """Its constants, with others in the place of those that are left open."""
        try:
            return TrainConfig(**{**others, **self.given(TrainConfig)})
        except TypeError as error:
            raise ConfigError(f"An option is of the wrong kind: {error}.") from error

    @property
    def config(self) -> TrainConfig:
        """How every instance is trained, of a defence with nothing left open."""
        return self._config({})

    @property
    def training_key(self) -> dict[str, Any]:
        """How it trains: alike for all that account for the same models."""
        own = ("name", "method", "on", "delta", "class_weights")
        return {"name": "private", **{name: value for name, value in self.to_dict().items() if name not in own}}

    def choose(self, facts: Facts) -> Choice:
        """The recipe: what was decided, and the rest for the size of the task and the time there is.

        Constants that name the noise, the rate, the steps, the clipping norm and the step size are complete: nothing
        else is changed from the defaults of `TrainConfig`. Those of a preset hold where no other is given.
        """
        if facts.unit is not None and self.unit_rows != self._rows_of_units:
            return replace(self, unit_rows=self._rows_of_units).choose(facts)
        if self.recipe is not None:
            return self._by_preset(facts)
        complete = all(getattr(self, name) is not None for name in _ESSENTIAL)
        recipe = self._recipe_for(facts, complete=complete)
        constants = {one.name: getattr(recipe.config, one.name) for one in fields(TrainConfig)}
        settled = replace(
            self, model=recipe.model, features=recipe.features or "none", seconds=None, recipe=None, **constants
        )
        follows = not complete or self.divisor is None
        words = recipe.in_words(by_step=self.num_train is None and step_of(facts.num_train) == facts.num_train)
        return Choice(settled, follows, recipe.assumptions, words, recipe.warnings, recipe.to_dict())

    @property
    def _rows_of_units(self) -> int:
        """How many examples of a unit form its gradient: no more than may enter, which is a constant, too."""
        rows = self.unit_rows or UNIT_ROWS
        return rows if self.unit_cap is None else min(rows, self.unit_cap)

    def _recipe_for(self, facts: Facts, *, complete: bool) -> Recipe:
        """What `choosing.choose` makes of the constants that are given; nothing that matters is open if complete."""
        named = not (isinstance(self.model, str) and self.model == "auto")
        features = self.features
        if isinstance(features, str) and features == "auto" and complete and named:
            features = "none"
        open_to_choice: dict[str, Any] = {name: getattr(self, name) for name in _ESSENTIAL}
        open_to_choice |= {n: getattr(self, n) for n in ("seconds", "instances") if getattr(self, n) is not None}
        recipe = choosing.choose(
            num_train=facts.num_train,
            classes=facts.classes,
            shape=facts.shape,
            kind=facts.kind,
            device=facts.device,
            model=self.model,
            features=None if isinstance(features, str) and features == "none" else features,
            # Adam has none; a momentum that is given changes the step size.
            momentum=0.0 if self.optimizer == "adam" else self.momentum,
            keep=self.keep,
            unit_rows=self.unit_rows,
            unit=facts.unit,
            method=self.accounting(),
            **open_to_choice,
        )
        given = {**self.given(TrainConfig), "classes": facts.classes, "num_train": facts.num_train}
        if complete:
            given = {"instances": recipe.config.instances, **given}
            return replace(recipe, config=TrainConfig(**given))
        return replace(recipe, config=replace(recipe.config, **given))

    def _by_preset(self, facts: Facts) -> Choice:
        """The choice of a preset, with the constants that are given beside it."""
        preset = presets.preset(str(self.recipe))
        number = self.num_train or preset.size_for(facts.num_train)
        decided = preset.options(number)
        left_open = {name: value for name, value in decided.items() if getattr(self, name, None) in (None, "auto")}
        settled = replace(self, recipe=None, **{**left_open, "num_train": self.num_train})
        choice = settled.choose(replace(facts, num_train=number))
        said = preset.assumption(facts.shape, facts.classes)
        reason = f"The constants are those of the recipe {preset.name}. {preset.description}"
        details = {**choice.details, "reasons": [*choice.details["reasons"], reason]}
        return replace(choice, follows_size=True, statements=(said,), details=details)

    def accounting(self) -> Method:
        """How privacy becomes a radius, for what is said about the radius that could be reached."""
        return FDP()

    @property
    def models(self) -> int:
        """Number of instances."""
        assert self.instances is not None
        return self.instances


@dataclass(frozen=True)
class PrivateEnsemble(PrivateDefence):
    """Many models trained by DP-SGD vote, and their privacy becomes a radius.

    Guarantee: that of `Certificate`.

    Args:
        method: `fdp`, `rdp`, `rdp-paper` (not sound, for comparison), `rdp-standard` or `adp`.
        on: certify the majority of `votes`, or the mean of `scores`.

    References: Liu et al. 2023 (AAAI), and the docstrings of `FDP`, `RDP`, `ADP`.
    """

    summary = "Many models trained by DP-SGD vote, and their privacy becomes a radius."
    weighs_votes = True

    method: str = "fdp"
    on: str = option("votes", "what is certified: the majority of votes, or the mean of scores (votes)")
    delta: float | None = option(None, "adp: delta of one example (1e-5)", float, "D")

    def __post_init__(self) -> None:
        _validate.one_of(tuple(METHODS), method=self.method)
        _validate.one_of(("votes", "scores"), on=self.on)
        if self.delta is not None and self.method != "adp":
            raise ConfigError(f"delta belongs to the method adp, not to {self.method}; leave it out.")
        if self.class_weights is not None and self.on != "votes":
            raise ConfigError("class_weights weigh votes; certify on='votes', or leave them out.")
        self.accounting()  # checks its own constants
        super().__post_init__()

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As at every door."""
        return self.method

    @property
    def title(self) -> str:
        """For a legend."""
        return f"{_TITLES[self.method]} on {self.on}"

    def accounting(self) -> Method:
        """As named."""
        method = METHODS[self.method] if self.delta is None else ADP(self.delta)
        return replace(method, class_weights=self.class_weights)

    def rule(self) -> Rule:
        """As named."""
        return self.accounting()


for _name in METHODS:
    register(PrivateEnsemble, _name, method=_name)
