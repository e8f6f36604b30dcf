"""Defences whose models are trained without privacy: on parts of the data, on samples of it, or on noisy data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mithridate import _validate
from mithridate.core.conditions import PUBLIC, Statement, tuned_constants
from mithridate.core.mechanism import (
    Bagged,
    Mechanism,
    NoisyFeatures,
    NoisyLabels,
    Partitioned,
    SpreadPartitions,
    Threat,
)
from mithridate.core.rule import Rule
from mithridate.core.votes import Votes
from mithridate.defences.base import (
    ALL_THREATS,
    Job,
    Trainable,
    check_training,
    in_json,
    network_for,
)
from mithridate.defences.partition_rules import RunOffRule
from mithridate.defences.smoothing_rules import FeatureNoiseRule
from mithridate.errors import ConfigError
from mithridate.recipes.choosing import public_size
from mithridate.training.plain_config import (
    Bootstrap,
    FlippedLabels,
    NoisedFeatures,
    Parts,
    PlainConfig,
    Plan,
    SpreadParts,
)

# Up to so many labels, how often one is preferred to another is counted beside the votes, for a run-off election.
_FEW_LABELS = 100


@dataclass(frozen=True, kw_only=True)
class _Trained(Trainable):
    """What the defences of this module share.

    Attributes:
        model: name of a network, a `torch.nn.Module`, or `auto`: that of the private ensemble.
        features: name of an encoder, an encoder, None for inputs as they are, or `auto`.
        options: how each model learns, by the names of `PlainConfig`; the rest is chosen for its kind of model.
        in_flight: how many models are trained at a time; by default as many as fit into memory.
        precision: of matrix products; see `mithridate.train`.
    """

    model: Any = "auto"
    features: Any = "auto"
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    in_flight: int | None = None
    precision: str = "auto"
    threats = ALL_THREATS
    per_prediction = True
    # Constants of the plan that follow the number of examples where they are left open.
    _follows_size: ClassVar[tuple[str, ...]] = ("partitions", "draws")

    def _plan(self, num_train: int, classes: int) -> Plan:
        raise NotImplementedError

    def _constants(self) -> dict[str, Any]:
        """What decides the plan, for the recipe."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        for name in ("partitions", "spread", "draws", "instances"):
            if getattr(self, name, None) is not None:
                _validate.positive_integer(**{name: getattr(self, name)})
        check_training(self.model, self.features, self.in_flight, self.precision)
        config_for(self.model, self.options)

    def _assumed(self, plan: Plan) -> tuple[Statement, ...]:
        """What a claim is conditional on where a constant of the plan was left open."""
        chosen = {name: value for name, value in vars(plan).items() if getattr(self, name, value) is None}
        return tuple(
            Statement(f"{name} = {value:g} was chosen for the number of training examples, rounded; {PUBLIC}", "size")
            for name, value in chosen.items()
            if name in self._follows_size
        )

    def _tuned(self, model: Any, shape: tuple[int, ...], classes: int) -> tuple[Statement, ...]:
        """What the default constants of linear models were tuned on, where they are used; see `config_for`."""
        if model != "linear" or "learning_rate" in self.options:
            return ()
        what = "The learning rate and the other constants of the training"
        return (tuned_constants(what, ("MNIST", "Fashion-MNIST", "CIFAR-10"), math.prod(shape), classes),)

    @property
    def recipe(self) -> dict[str, Any]:
        """How it trains."""
        options = {name: in_json(value) for name, value in sorted(self.options.items())}
        network = {"model": in_json(self.model), "features": in_json(self.features), "options": options}
        return {**self._constants(), **network, "in_flight": self.in_flight, "precision": self.precision}

    def _train(self, job: Job) -> Votes:
        from mithridate.training.plain import train_plain

        examples = job.examples
        assert examples.y is not None
        features = None if self.model != "auto" and self.features == "auto" else self.features
        model, encoder = network_for(self.model, features, examples)
        declared = job.declared_classes(self.options.get("classes"))
        classes = declared or max(2, int(examples.y.max()) + 1)
        plan = self._plan(len(examples.x), classes)
        return train_plain(
            job.training_set,
            job.test_set,
            model=model,
            plan=plan,
            config=config_for(model, {**self.options, "classes": declared}),
            run_dir=job.run_dir,
            device=job.device,
            features=encoder,
            in_flight=self.in_flight,
            precision=self.precision,
            progress=job.progress,
            source=job.source,
            assumptions=(*job.assumptions, *self._assumed(plan), *self._tuned(model, examples.x.shape[1:], classes)),
            preferences=isinstance(plan, Parts) and (classes <= _FEW_LABELS or isinstance(self, RunOffElection)),
        )


def config_for(model: Any, options: Mapping[str, Any]) -> PlainConfig:
    """How a model learns: as the options say, else by the defaults of `PlainConfig`; linear ones take longer steps.

    Those of linear models were chosen on held-out parts of the training sets of MNIST, Fashion-MNIST and CIFAR-10, with
    oriented gradients.

    Raises:
        ConfigError: an option is not what it should be.
    """
    defaults = {"learning_rate": 20.0, "momentum": 0.0, "weight_decay": 0.0} if model == "linear" else {}
    try:
        return PlainConfig(**{**defaults, **options})
    except TypeError as error:
        raise ConfigError(f"The options are not those of PlainConfig: {error}.") from error


def _partitions_for(num_train: int) -> int:
    """About 50 examples in each of 10 to 250 parts, for a number of examples that is rounded, hence public."""
    return max(1, min(250, max(10, public_size(num_train) // 50), num_train))


@dataclass(frozen=True)
class DPA(_Trained):
    """Deep partition aggregation: a deterministic model for each part of the data; the majority wins.

    Guarantee: that of `Certificate`, without any probability of failure: a changed example touches one part.

    Args:
        partitions: number of parts; None: about one for every 50 examples, from 10 to 250.

    References: Levine, Feizi 2021 (arXiv 2006.14768).
    """

    partitions: int | None = None
    name = "dpa"
    _mechanisms: ClassVar[tuple[type[Mechanism], ...]] = (Partitioned,)

    @property
    def title(self) -> str:
        """For a legend."""
        return "DPA" if self.partitions is None else f"DPA, {self.partitions:,} partitions"

    def _plan(self, num_train: int, classes: int) -> Plan:
        return Parts(self.partitions or _partitions_for(num_train))

    def _constants(self) -> dict[str, Any]:
        return {"type": "parts", "partitions": self.partitions}


@dataclass(frozen=True)
class RunOffElection(DPA):
    """Partition aggregation in two rounds: the two labels with most votes meet in a run-off.

    Guarantee: as `DPA`; the models are the same.

    References: Rezaei, Banihashem, Chegini, Feizi 2023 (arXiv 2302.02300).
    """

    name = "run-off-election"

    @property
    def title(self) -> str:
        """For a legend."""
        return "run-off election" if self.partitions is None else f"run-off election, {self.partitions:,} partitions"

    def _rule(self) -> Rule | None:
        return RunOffRule()


@dataclass(frozen=True)
class FiniteAggregation(_Trained):
    """Partition aggregation with small overlapping parts: each example is seen by `spread` models.

    Guarantee: as `DPA`.

    Args:
        partitions: parts that models of the same size would need without overlap; None: as `DPA`.
        spread: how many models see each example; `partitions * spread` models are trained.

    References: Wang, Levine, Feizi 2022 (arXiv 2202.02628).
    """

    partitions: int | None = None
    spread: int = 4
    name = "finite-aggregation"
    _mechanisms: ClassVar[tuple[type[Mechanism], ...]] = (SpreadPartitions,)

    @property
    def title(self) -> str:
        """For a legend."""
        of = "" if self.partitions is None else f"{self.partitions:,} x "
        return f"finite aggregation, {of}{self.spread}"

    def _plan(self, num_train: int, classes: int) -> Plan:
        return SpreadParts(self.partitions or _partitions_for(num_train), self.spread)

    def _constants(self) -> dict[str, Any]:
        return {"type": "spread-parts", "partitions": self.partitions, "spread": self.spread}


@dataclass(frozen=True)
class Bagging(_Trained):
    """Each model trains on examples drawn with replacement; the majority wins.

    Guarantee: that of `Certificate`. Its own threat, `edit`, counts a changed example once, as its authors do.

    Args:
        draws: how many examples each model draws; None: one in twenty, from 20 to 500.
        instances: number of models.

    References: Jia, Cao, Gong 2021 (arXiv 2008.04495).
    """

    draws: int | None = None
    instances: int = 1000
    name = "bagging"
    _mechanisms: ClassVar[tuple[type[Mechanism], ...]] = (Bagged,)
    threats = (Threat.EDIT, *(threat for threat in Threat if threat is not Threat.EDIT))

    @property
    def title(self) -> str:
        """For a legend."""
        return "bagging" if self.draws is None else f"bagging, {self.draws:,} draws"

    def _plan(self, num_train: int, classes: int) -> Plan:
        chosen = max(1, min(500, max(20, public_size(num_train) // 20), num_train))
        return Bootstrap(self.instances, self.draws or chosen)

    def _constants(self) -> dict[str, Any]:
        return {"type": "bootstrap", "draws": self.draws, "instances": self.instances}


@dataclass(frozen=True)
class LabelSmoothing(_Trained):
    """Each model trains on labels of which some are replaced at random; the majority wins.

    Guarantee: that of `Certificate`, against changed labels only: inputs are taken as they are.

    Args:
        flip_prob: probability of a label to be replaced by another one; None: 0.7 of the largest that makes sense,
            (classes - 1) / classes, at which labels say nothing.
        instances: number of models.

    References: Rosenfeld, Winston, Ravikumar, Kolter 2020 (arXiv 2002.03018).
    """

    flip_prob: float | None = None
    instances: int = 1000
    name = "label-smoothing"
    threats = (Threat.LABELS,)
    _mechanisms: ClassVar[tuple[type[Mechanism], ...]] = (NoisyLabels,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.flip_prob is not None:
            _validate.number_in(0, 1, low_open=True, high_open=True, flip_prob=self.flip_prob)

    @property
    def title(self) -> str:
        """For a legend."""
        return "label smoothing" if self.flip_prob is None else f"label smoothing, {self.flip_prob:g}"

    def _plan(self, num_train: int, classes: int) -> Plan:
        chosen = 0.7 * (classes - 1) / classes if self.flip_prob is None else self.flip_prob
        return FlippedLabels(self.instances, chosen)

    def _constants(self) -> dict[str, Any]:
        return {"type": "flipped-labels", "flip_prob": self.flip_prob, "instances": self.instances}


@dataclass(frozen=True)
class FeatureSmoothing(_Trained):
    """Each model trains on inputs with Gaussian noise; the majority wins.

    Guarantee: that of `Certificate`, against inputs of the training set that moved by at most `max_change` each (l2
    distance, as they reach the model): labels and the number of examples are taken as they are.

    Args:
        noise: standard deviation of the noise.
        max_change: how far one input may have moved.
        instances: number of models.

    References: Weber, Xu, Karlas, Zhang, Li 2023 (RAB, arXiv 2003.08904).
    """

    noise: float = 0.5
    max_change: float = 0.5
    instances: int = 1000
    name = "feature-smoothing"
    threats = (Threat.FEATURES,)
    _mechanisms: ClassVar[tuple[type[Mechanism], ...]] = (NoisyFeatures,)

    def __post_init__(self) -> None:
        super().__post_init__()
        NoisyFeatures(self.noise)
        FeatureNoiseRule(self.max_change)

    @property
    def title(self) -> str:
        """For a legend."""
        return f"feature smoothing, noise {self.noise:g}, moves up to {self.max_change:g}"

    def _plan(self, num_train: int, classes: int) -> Plan:
        return NoisedFeatures(self.instances, self.noise)

    def _constants(self) -> dict[str, Any]:
        return {"type": "noised-features", "noise": self.noise, "instances": self.instances}

    def _rule(self) -> Rule | None:
        return FeatureNoiseRule(self.max_change)
