"""Defences by differential privacy: one ensemble, several ways to account for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mithridate import _validate
from mithridate.accounting import ADP, FDP, RDP, Method
from mithridate.core.certificate import Scope
from mithridate.core.mechanism import Mechanism, SampledGaussian, Subsampled, Threat
from mithridate.core.rule import Rule
from mithridate.core.votes import Votes
from mithridate.defences.base import ALL_THREATS, Job, Progress, Trainable, check_training, check_votes, in_json
from mithridate.defences.statistical_bound import StatisticalBound, statistical_dp
from mithridate.errors import ConfigError
from mithridate.recipes.project import CONFIG_NAMES, compose, follows_size, refuse_unknown
from mithridate.training.config import TrainConfig

METHODS: dict[str, Method] = {
    "fdp": FDP(),
    "rdp": RDP("mixture", complement=True),
    "rdp-paper": RDP("paper"),
    "rdp-standard": RDP("standard"),
    "adp": ADP(),
}
# What can be said about training beside `TrainConfig`.
OPTIONS = ("model", "features", "seconds", "in_flight", "precision")
# What stands in for options that are left open, while the others are checked.
_PLACEHOLDERS = {
    "instances": 1,
    "noise_multiplier": 1.0,
    "sample_rate": 1.0,
    "steps": 1,
    "max_grad_norm": 1.0,
    "learning_rate": 1.0,
}
_TITLES = {
    "fdp": "f-DP",
    "rdp": "RDP",
    "rdp-paper": "RDP, the paper's group rule",
    "rdp-standard": "RDP, standard group privacy",
    "adp": "(eps, delta)-DP",
}


@dataclass(frozen=True)
class _Private(Trainable):
    """A private ensemble; what `options` leave out is chosen from the size of the task and the time there is.

    Attributes:
        options: how to train, by the names of `TrainConfig` and of the flags of `mithridate train` (`model`,
            `features`, `seconds`, `in_flight`, `precision`).
    """

    options: Mapping[str, Any] = field(default_factory=dict[str, Any], kw_only=True)
    threats = ALL_THREATS
    _mechanisms: ClassVar[tuple[type[Mechanism], ...]] = (SampledGaussian, Subsampled)

    def _check_options(self) -> None:
        """Refuse what no run could use, before anything is trained."""
        refuse_unknown(self.options, (*CONFIG_NAMES, *OPTIONS), "among the options of a private ensemble")
        known = {name: value for name, value in self.options.items() if name in CONFIG_NAMES and value is not None}
        check_training(**{name: value for name, value in self.options.items() if name in OPTIONS and value is not None})
        try:
            TrainConfig(**{**_PLACEHOLDERS, **known})
        except TypeError as error:
            raise ConfigError(f"An option is of the wrong kind: {error}.") from error

    @property
    def recipe(self) -> dict[str, Any]:
        """How it trains."""
        return {"type": "private", **{name: in_json(value) for name, value in sorted(self.options.items())}}

    def _train(self, job: Job) -> Votes:
        from mithridate.training.run import pick_device, train

        chosen = compose(self.options, job.examples, pick_device(job.device).type)
        runtime = {name: self.options[name] for name in ("in_flight", "precision") if name in self.options}
        return train(
            job.training_set,
            job.test_set,
            model=chosen.model,
            features=chosen.features,
            config=chosen.config,
            run_dir=job.run_dir,
            device=job.device,
            progress=job.progress,
            source=job.source,
            assumptions=(
                *job.assumptions,
                *chosen.assumptions,
                *((chosen.assumption,) if follows_size(self.options) else ()),
            ),
            **runtime,
        )


@dataclass(frozen=True)
class PrivateEnsemble(_Private):
    """Many models trained by DP-SGD vote, and their privacy becomes a radius.

    Guarantee: that of `Certificate`.

    Args:
        method: `fdp`, `rdp`, `rdp-paper` (not sound, for comparison), `rdp-standard` or `adp`.
        on: certify the majority of `votes`, or the mean of `scores`.
        options: see the class.

    References: Liu et al. 2023 (AAAI), and the docstrings of `FDP`, `RDP`, `ADP`.
    """

    method: str = "fdp"
    on: str = "votes"
    per_prediction = True

    def __post_init__(self) -> None:
        _validate.one_of(tuple(METHODS), method=self.method)
        _validate.one_of(("votes", "scores"), on=self.on)
        self._check_options()

    @property
    def name(self) -> str:
        """As on the command line."""
        return self.method

    @property
    def title(self) -> str:
        """For a legend."""
        return f"{_TITLES[self.method]} on {self.on}"

    def _rule(self) -> Rule | None:
        return METHODS[self.method]


@dataclass(frozen=True)
class StatisticalDP(_Private):
    """The statistical bound of differential privacy: on the mean accuracy of one model, on no prediction.

    Guarantee: that of `StatisticalBound`.

    Args:
        delta: the delta of one example, in (0, 1).
        options: see the class.

    References: Ma, Zhu, Hsu 2019 (arXiv 1903.09860).
    """

    delta: float = 1e-5
    name = "statistical-dp"
    title = "statistical DP"
    per_prediction = False

    def __post_init__(self) -> None:
        _validate.number_in(0, 1, low_open=True, high_open=True, delta=self.delta)
        self._check_options()

    def certify(  # pyright: ignore[reportIncompatibleMethodOverride]  (no prediction is certified)
        self,
        votes: Votes,
        *,
        threat: Threat | str | None = None,
        failure_prob: float = 1e-3,
        scope: Scope | str = Scope.PREDICTION,
        progress: Progress | None = None,
    ) -> StatisticalBound:
        """Bound the accuracy of one instance; `scope` does not matter, since no prediction is certified."""
        check_votes(votes, self, self._mechanisms)
        return statistical_dp(
            votes, failure_prob=failure_prob, delta=self.delta, threat=threat or Threat.SYMMETRIC_DIFFERENCE
        )
