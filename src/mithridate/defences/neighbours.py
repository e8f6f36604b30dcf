"""Defences without training: examples near an input vote with their labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

from mithridate.core.conditions import PUBLIC, Statement
from mithridate.core.mechanism import KernelSum, Mechanism, NearestExamples, checked_scales, listed_leads
from mithridate.core.votes import Votes
from mithridate.defences.base import (
    ALL_THREATS,
    Job,
    Trainable,
    check_training,
    in_json,
    network_for,
)
from mithridate.defences.neighbourhood import Kernel, check_mirrored, kernel_votes, neighbour_votes
from mithridate.errors import ArtifactError, ConfigError
from mithridate.recipes.choosing import public_size


@dataclass(frozen=True, kw_only=True)
class _Near(Trainable):
    """What the defences of this module share.

    Attributes:
        features: name of an encoder, an encoder, None for inputs as they are, or `auto`: those of the private ensemble.
        classes: number of labels; by default as many as have names, else one more than the largest in the data.
        mirrored: for images: an example is as near as it is to the input or to its mirror image.
    """

    features: Any = "auto"
    classes: int | None = None
    mirrored: bool = False
    threats = ALL_THREATS
    per_prediction = True

    def _votes(self, training_set: Any, test_set: Any, features: Any, **options: Any) -> Votes:
        raise NotImplementedError

    def _check(self) -> None:
        check_training(features=self.features, classes=self.classes)
        check_mirrored(self.mirrored)

    def _shared(self) -> dict[str, Any]:
        """What the recipes of both say alike."""
        mirrored = {"mirrored": True} if self.mirrored else {}
        return {"classes": self.classes, "features": in_json(self.features), **mirrored}

    def _train(self, job: Job) -> Votes:
        """Compare all inputs with all examples: there is nothing to train, and the device does not matter."""
        _, features = network_for("auto", self.features, job.examples)
        votes = self._votes(
            job.training_set,
            job.test_set,
            features,
            mirrored=self.mirrored,
            classes=job.declared_classes(self.classes),
            progress=job.progress,
            source=job.source,
            assumptions=job.assumptions,
        )
        if job.run_dir is not None:
            _save(votes, Path(job.run_dir))
        return votes


def _save(votes: Votes, run_dir: Path) -> None:
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArtifactError(f"Cannot make the folder {run_dir}: {error.strerror}. Use another one.") from error
    votes.save(run_dir / "votes.npz")


@dataclass(frozen=True)
class NearestNeighbours(_Near):
    """The nearest examples vote, each with one vote.

    Many neighbours certify large radii, few are more accurate. With several numbers, both: `neighbours=(2400, 100)` and
    `leads=(500,)` ask the 2,400 nearest, and where they agree by fewer than 500 votes, the 100 nearest.

    Guarantee: that of `Certificate`, without any probability of failure.

    Args:
        neighbours: how many examples vote; None: one in ten, at most 1,000. Several numbers, the largest first, are
            asked in turn until one label leads by enough; see `mithridate.core.mechanism.NearestExamples`.
        leads: how many votes are enough, for every one of several numbers but the last: a number, or a list with one
            for each label, such as `[[500, 900, 200]]`.

    References: Jia, Liu, Cao, Gong 2022 (arXiv 2012.03765).
    """

    neighbours: int | Sequence[int] | None = None
    leads: Sequence[int | Sequence[int]] = ()
    name = "nearest-neighbours"
    _mechanisms: ClassVar[tuple[type[Mechanism], ...]] = (NearestExamples,)

    def __post_init__(self) -> None:
        self._check()
        if self.neighbours is None:
            if self.leads not in ((), []):
                raise ConfigError("Leads are of numbers of neighbours; say neighbours, too, such as [2400, 600].")
            return
        neighbours, leads = checked_scales(self.neighbours, self.leads)
        object.__setattr__(self, "neighbours", neighbours)
        object.__setattr__(self, "leads", leads)

    @property
    def title(self) -> str:
        """For a legend."""
        match self.neighbours:
            case None:
                return "nearest neighbours"
            case int(count):
                return f"{count:,} nearest neighbours"
            case several:
                return f"{', '.join(f'{count:,}' for count in several[:-1])} or {several[-1]:,} nearest neighbours"

    @property
    def recipe(self) -> dict[str, Any]:
        """How it votes."""
        if not self.leads:
            return {"type": self.name, "neighbours": self.neighbours, **self._shared()}
        several = list(cast("Sequence[int]", self.neighbours))
        return {"type": self.name, "neighbours": several, "leads": listed_leads(self.leads), **self._shared()}

    def _votes(self, training_set: Any, test_set: Any, features: Any, **options: Any) -> Votes:
        count = self.neighbours
        if count is None:
            count = max(1, min(1000, public_size(len(training_set[0])) // 10))
            said = f"neighbours = {count} was chosen for the number of training examples, rounded; {PUBLIC}"
            options["assumptions"] = (*options["assumptions"], Statement(said, "size"))
        return neighbour_votes(training_set, test_set, neighbours=count, leads=self.leads, features=features, **options)


@dataclass(frozen=True)
class KernelVote(_Near):
    """Every example votes, with a weight that falls with its distance from the input.

    Guarantee: that of `Certificate`, without any probability of failure: an insertion adds at most one full weight to
    one label, a deletion removes at most the weight of the example.

    Args:
        kernel: a function of the cosine of two rows of features, from 0 to 1; see `neighbourhood`. By default that of
            the features.
    """

    kernel: Kernel | None = None
    name = "kernel-vote"
    _mechanisms: ClassVar[tuple[type[Mechanism], ...]] = (KernelSum,)

    def __post_init__(self) -> None:
        self._check()
        if self.kernel is not None and not (callable(self.kernel) and hasattr(self.kernel, "to_dict")):
            raise ConfigError(
                f"Expected kernel to be a function of cosines that has a to_dict, such as Exponential(0.1), got "
                f"{self.kernel!r}."
            )

    @property
    def title(self) -> str:
        """For a legend."""
        return "kernel vote"

    @property
    def recipe(self) -> dict[str, Any]:
        """How it votes."""
        return {"type": self.name, "kernel": in_json(self.kernel), **self._shared()}

    def _votes(self, training_set: Any, test_set: Any, features: Any, **options: Any) -> Votes:
        return kernel_votes(training_set, test_set, kernel=self.kernel, features=features, own=True, **options)
