"""What defences that train models share: the network, the features, and how a model learns."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from mithridate import _validate
from mithridate._io.files import PathLike
from mithridate.core.conditions import Statement, tuned_constants
from mithridate.core.input_change import NOISE_RANGE
from mithridate.core.votes import Votes
from mithridate.data.examples import Examples
from mithridate.defences.base import Defence, Predictor, option
from mithridate.errors import ConfigError
from mithridate.features import Encoder, Pretrained, pick_encoder
from mithridate.recipes import choosing
from mithridate.training.config import OPTIMIZERS, SCHEDULES, PlainConfig, PlainRecipe, TrainConfig, ViewPlan
from mithridate.training.learners import pick_learner
from mithridate.training.order import Choice, Facts, Order, RuntimeOptions

_TUNED_ON = ("MNIST", "Fashion-MNIST", "CIFAR-10")
# What help texts say of features.
FEATURES = (
    "fixed features: oriented-, object-, photo- or layered-gradients, unit-norm, hashed-words, none; or those of a "
    "trusted encoder: efficientnet-lite2, efficientnet-lite0, minilm, wordllama, onnx:FILE, torchvision:NAME, "
    "transformers:NAME"
)


@dataclass(frozen=True, kw_only=True)
class TrainedDefence(Defence):
    """A defence that trains models; what is None or `auto` is chosen for the size of the task.

    Attributes:
        model: `auto`, the name of a network, a `torch.nn.Module`, or a function that builds one.
        features: `auto`, the name of a fixed encoder, one of `mithridate.features`, or `none` for inputs as they are.
    """

    model: Any = option("auto", "auto, linear, mlp, lenet5, opa-tut or resnet18", metavar="NAME")
    features: Any = option(
        "auto",
        f"train on {FEATURES}",
        metavar="NAME",
    )
    steps: int | None = option(None, "number of steps", int, "T")
    learning_rate: float | None = option(None, "step size", float, "LR")
    optimizer: str | None = option(None, "sgd or adam", choices=OPTIMIZERS)
    momentum: float | None = option(None, "of sgd", float, "M")
    weight_decay: float | None = option(None, "pull of the weights towards zero", float, "W")
    betas: Any = option(None, "of adam", float, "B", count=2)
    schedule: str | None = option(None, "of the step size", choices=SCHEDULES)
    average_iterates: bool | None = option(None, "vote with the mean of the weights of all steps", bool)
    max_grad_norm: float | None = option(None, "largest norm of the gradient of one example", float, "C")
    pixel_mean: Any = option(None, "of 8-bit images, one or one a channel", float, "X", count="+")
    pixel_std: Any = option(None, "likewise", float, "X", count="+")
    score_bins: int | None = option(None, "bins of the score histograms, 0: none", int, "N")
    input_noise: float | None = option(
        None,
        "models vote on the input plus Gaussian noise, with this standard deviation (pixels: 0 to 1), and train on "
        "noisy examples, so that certify --input-change covers inputs that change (fdp, bagging, dpa)",
        float,
        "S",
    )
    loss_weights: Any = option(
        None, "for rare labels: the loss of an example times a number by its label", float, "W", count="+"
    )

    needs_torch = True
    # Whether preferences between labels are counted beside votes.
    wants_preferences: ClassVar[bool] = False
    # Whether its rule is proved for votes on noisy inputs.
    takes_input_noise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.input_noise is not None:
            self._check_input_noise()
        if self.weighs_losses and self.class_weights is not None and self.loss_weights is not None:
            raise ConfigError(f"The class_weights of {self.name} are its loss_weights; give one of the two.")
        if isinstance(self.model, str):
            _validate.one_of(choosing.MODELS, model=self.model)
        elif not callable(self.model):
            names = ", ".join(choosing.MODELS)
            raise ConfigError(f"Expected model to be one of {names} or a torch.nn.Module, got {self.model!r}.")
        if self.features is None:
            object.__setattr__(self, "features", "none")
        if not isinstance(self.features, str) or self.features not in ("auto", "none"):
            pick_encoder(self.features)

    def _check_input_noise(self) -> None:
        _validate.number_in(*NOISE_RANGE, input_noise=self.input_noise)
        if not self.takes_input_noise:
            raise ConfigError(
                f"{self.name} cannot certify votes on noisy inputs; leave input_noise out, or use fdp, bagging or dpa."
            )
        if getattr(self, "learner", None) is not None:
            raise ConfigError("input_noise is for networks, and a learner trains none; leave one of both out.")

    def given(self, kind: Any) -> dict[str, Any]:
        """Those of its constants that are decided, by the names of a configuration."""
        names = {one.name for one in fields(kind)}
        decided = {one.name: getattr(self, one.name) for one in fields(self) if one.name in names}
        if self.weighs_losses and self.class_weights is not None:
            decided["loss_weights"] = self.class_weights
        return {name: value for name, value in decided.items() if value is not None}

    @property
    def encoder(self) -> Encoder | None:
        """The features of a defence with nothing left open."""
        if isinstance(self.features, str):
            return None
        noise = self.input_noise
        return self.features if noise is None or self.features is None else self.features.for_noise(noise)

    def kept_bytes(self, order: Order) -> int:
        """The weights of all models."""
        from mithridate.training import models

        encoder, x = self.encoder, order.training.x
        if isinstance(encoder, Pretrained):
            shape: tuple[int, ...] = (encoder.width,)
        else:
            shape = x.shape[1:] if encoder is None else encoder.transform(x[:1]).shape[1:]
        channel_axis = (1, *shape) if len(shape) == 2 else shape
        network = models.build(self.model, channel_axis, order.facts.classes, bias=encoder is None)
        return 4 * sum(parameter.numel() for parameter in network.parameters()) * self.models

    @property
    def models(self) -> int:
        """How many models vote, of a defence with nothing left open."""
        raise NotImplementedError

    @classmethod
    def predict(cls, run_dir: PathLike, test: Examples, **hints: Any) -> Votes:
        """The votes of the models that a run kept."""
        from mithridate.training.run import predict

        return predict(run_dir, test, **hints)

    @classmethod
    def predictor(cls, run_dir: PathLike, **hints: Any) -> Predictor:
        """The same again and again, of models that were read once; those of a learner are trained anew every time."""
        from mithridate.training.run import KeptModels

        return KeptModels.of_run(run_dir, **hints).loaded()

    @property
    def config(self) -> TrainConfig | PlainRecipe:
        """How every instance is trained, of a defence with nothing left open."""
        raise NotImplementedError

    def run(self, order: Order, runtime: RuntimeOptions) -> Votes:
        """Train all models by the shared engine, and count their votes."""
        from mithridate.training.run import carry_out

        return carry_out(order, runtime)

    def prepare(self, order: Order, runtime: RuntimeOptions) -> Any:
        """Start the run without training anything."""
        from mithridate.training.run import prepare

        return prepare(order, runtime)


def network_for(model: Any, features: Any, facts: Facts) -> tuple[Any, Encoder | None]:
    """Model and features where they are left open: those of the private ensemble, by the facts alone."""
    asked = None if isinstance(features, str) and features == "none" else features
    is_open = isinstance(model, str) and model == "auto"
    if not is_open and not (isinstance(asked, str) and asked == "auto"):
        return model, pick_encoder(asked)
    return "linear" if is_open else model, choosing.features_for(model, asked, facts.shape, facts.kind)[0]


@dataclass(frozen=True, kw_only=True)
class PlainDefence(TrainedDefence):
    """A defence whose models learn without privacy: what each of them sees of the data is what certifies.

    Attributes:
        learner: None for a network; else a name of `training.learners.LEARNERS`, a table with a name and constants, or
            an unfitted classifier with scikit-learn's interface.
        batch_size: examples in each step.
        shift: images are moved by up to so many pixels, anew at every visit.
    """

    learner: Any = option(
        None,
        "train a classifier of scikit-learn instead of a network: hist-gradient-boosting, random-forest, extra-trees, "
        "logistic, complement-naive-bayes, xgboost or lightgbm",
        metavar="NAME",
    )
    batch_size: int | None = option(None, "examples in each step", int, "B")
    shift: int | None = option(None, "pixels by which images are moved at random", int, "N")
    # The constants that follow the number of examples where they are left open.
    sized: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("partitions", "spread", "draws", "instances"):
            if getattr(self, name, None) is not None:
                _validate.positive_integer(**{name: getattr(self, name)})
        if self.learner is not None:
            object.__setattr__(self, "learner", pick_learner(self.learner))
            self._check_learner()
        config_for(self.model, self.given(PlainConfig))

    def _check_learner(self) -> None:
        """A learner takes the place of a network and of all that says how one learns."""
        given = [name for name in (*self.given(PlainConfig), "model") if name not in ("classes", "score_bins")]
        extra = [name for name in given if name != "model" or self.model != "auto"]
        if "loss_weights" in extra:
            raise ConfigError("Losses of learners are not weighed here; give the learner a class_weight of its own.")
        if extra:
            raise ConfigError(f"{extra[0]} is of networks, and a learner trains none; leave one of both out.")

    def decided(self, facts: Facts) -> dict[str, Any]:
        """The constants of its own that were left open, by the facts."""
        raise NotImplementedError

    def plan(self) -> ViewPlan:
        """What each model sees of the data."""
        raise NotImplementedError

    def choose(self, facts: Facts) -> Choice:
        """Network, features and the constants that were left open."""
        named = not (isinstance(self.model, str) and self.model == "auto")
        # Numbers are fit for a learner as they are; so are raw inputs for a network that somebody chose.
        raw = named or (self.learner is not None and facts.kind in ("float", "integer"))
        features = "none" if raw and isinstance(self.features, str) and self.features == "auto" else self.features
        model, encoder = network_for(self.model, features, facts)
        if self.learner is not None:
            model = "auto"
        own = {name: value for name, value in self.decided(facts).items() if getattr(self, name) is None}
        said = self._tuned(model, facts)
        settled = replace(self, model=model, features=encoder or "none", classes=facts.classes, **own)
        follows = any(name in self.sized for name in own)
        return Choice(settled, follows, said, words=settled._in_words(facts), details=settled.to_dict())

    def _in_words(self, facts: Facts) -> str:
        on = "the inputs as they are" if self.encoder is None else f"{self.encoder.name} features"
        model = self.model if isinstance(self.model, str) else "your network"
        model = model if self.learner is None else self.learner.name
        return f"{self.title}: {self.plan().models:,} models ({model} on {on}), {facts.classes} classes."

    def _tuned(self, model: Any, facts: Facts) -> tuple[Statement, ...]:
        """What the default constants of linear models were tuned on, where they are used; see `config_for`."""
        if self.learner is not None or not (isinstance(model, str) and model == "linear") or self.learning_rate:
            return ()
        what = "The learning rate and the other constants of the training"
        return (tuned_constants(what, _TUNED_ON, math.prod(facts.shape), facts.classes),)

    @property
    def models(self) -> int:
        """As the plan says."""
        return self.plan().models

    def kept_bytes(self, order: Order) -> int:
        """The weights of all models, or the examples that learners are trained on again."""
        return super().kept_bytes(order) if self.learner is None else order.training.x.nbytes

    @property
    def config(self) -> PlainRecipe:
        """How every model learns, and what it sees, of a defence with nothing left open."""
        return PlainRecipe.of(config_for(self.model, self.given(PlainConfig)), self.plan())


def config_for(model: Any, options: dict[str, Any]) -> PlainConfig:
    """How a model learns: as the options say, else by the defaults of `PlainConfig`; linear ones take longer steps.

    Those of linear models were chosen on held-out parts of the training sets of MNIST, Fashion-MNIST and CIFAR-10, with
    oriented gradients.

    Raises:
        ConfigError: an option is not what it should be.
    """
    is_linear = isinstance(model, str) and model == "linear"
    defaults = {"learning_rate": 20.0, "momentum": 0.0, "weight_decay": 0.0} if is_linear else {}
    try:
        return PlainConfig(**{**defaults, **options})
    except TypeError as error:
        raise ConfigError(f"The options are not those of PlainConfig: {error}.") from error
