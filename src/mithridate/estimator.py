"""CertifiedClassifier: training, predictions and certificates behind the interface of scikit-learn."""

from __future__ import annotations

import copy
import hashlib
import inspect
import logging
import os
import re
import shutil
import sys
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import Pipeline
from sklearn.utils import assert_all_finite, get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, column_or_1d, validate_data

from mithridate import _validate
from mithridate._io.files import PathLike
from mithridate._progress import shown
from mithridate._text import did_you_mean, listed
from mithridate.certifying import certification
from mithridate.core.certificate import Certificate, Status
from mithridate.core.conditions import PUBLIC, Statement
from mithridate.core.mechanism import Threat
from mithridate.core.rule import ExactRule, Rule
from mithridate.core.votes import Votes
from mithridate.data import Examples, Table, frames, propose, read
from mithridate.data.examples import fitted_preprocessing
from mithridate.data.periods import unit_cells
from mithridate.data.units import Units
from mithridate.defences import Defence, defence
from mithridate.defences.automatic import decided, named
from mithridate.defences.base import kind_of_device
from mithridate.defences.prediction import predict
from mithridate.defences.registry import options
from mithridate.errors import ConfigError
from mithridate.features import Encoder, Pretrained, pick_encoder
from mithridate.training.order import Choice, Progress, RuntimeOptions, compose

Array = npt.NDArray[Any]
# scikit-learn has no types of its own, and those that are inferred from its defaults are wrong.
_check_array: Any = check_array
_validate_data: Any = validate_data

_log = logging.getLogger(__name__)

_MOST_NAMED = 20
# What a fit learns from the form of its inputs.
_OF_INPUTS = ("n_features_in_", "feature_names_in_", "schema_", "_columns", "_label", "_unit")
# Texts are held in an array of fixed width.
_MOST_TEXT_BYTES = 1 << 33


# What the defences declare, beside the arguments that have a meaning of their own here.
_CONSTANTS = tuple(name for name in options() if name not in ("model", "features", "classes"))


def _with_constants(init: Any) -> Any:
    """Show the declared constants in a signature, where `help`, `get_params` and `clone` look for them."""
    own = inspect.signature(init)
    *named, _ = own.parameters.values()
    declared = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in _CONSTANTS]
    init.__signature__ = own.replace(parameters=[*named, *declared])
    return init


class CertifiedClassifier(ClassifierMixin, BaseEstimator):  # pyright: ignore[reportUntypedBaseClass]
    """A classifier each of whose predictions comes with a certificate against changes of its training data.

    Guarantee: for every row of `certify(X)` with `radius >= 0`, the label that gets the most votes under the mechanism
    stays the same for every training set that differs by up to `radius` units of `threat`, each with probability at
    least `1 - failure_prob` over training; see `Certificate`.

    Assumes: what `certify(X).assumptions` lists. Above all, nothing but `fit` has looked at the training data. A
    scaler, an imputer, a feature selection or a vocabulary that was *fitted* on the training data, in a pipeline before
    this estimator or by hand, is not covered, and neither is choosing the parameters by cross-validation on that data:
    the certificate is then *conditional* (`certify(X).conditions`). A search or a pipeline of scikit-learn around this
    estimator is noticed, and so are columns that were scaled on the training data; say the rest yourself in
    `assumptions`. Scale by constants that you know:
    `features=UnitNorm(center=..., scale=...)`, or declare the columns: `schema=Table(...)`.

    Args:
        method: the name of a method (`mithridate.defences.names()`), one of `mithridate.defences` with its constants,
            a rule for a private ensemble (`FDP()`, `RDP(...)`, `ADP(...)`), or `auto`: chosen by public facts.
        model: `auto` (a linear model on fixed features), `linear`, `mlp`, `lenet5`, `opa-tut`, `resnet18`, a
            `torch.nn.Module`, or a function that builds one; a network that is named asks for `fdp`.
        features: the name of a fixed encoder, one of `mithridate.features`, None for the inputs as they are, or `auto`:
            chosen, as on the command line (where model and constants are all given, the inputs as they are).
        classes: all labels there can be. None takes those that are in the training labels, and every certificate then
            says that this set of labels is assumed public.
        threat: how the training data may have been changed; None: what the method certifies against by default, and
            `edit` where units are declared, which radii then count.
        failure_prob: probability with which the claim about one prediction may fail, over training.
        device: `cpu`, `cuda`, `mps`, or `auto`: an NVIDIA GPU if there is one, else the CPU.
        random_state: None draws the randomness from the operating system, as it should be. A number (or a generator)
            makes the result repeatable, and every certificate then assumes that the attacker does not know it.
        run_dir: where the run is kept, so that it can go on after an interruption; None: nowhere that lasts. Keep the
            directory as long as the estimator, which reads its models from there.
        schema: how the columns of a data frame become numbers, a `mithridate.data.Table`; its `label`, `classes` and
            `unit` serve where `y`, `classes` and `units` are left out. None: columns that are all numbers, none of them
            missing, are taken as they are, and others are read by a proposal from the training data (`schema_`).
            Certificates are then conditional on that (`proposed-schema`).
        verbose: 0 prints nothing; from 1 on `fit` says what was chosen and shows its progress.
        radius: for `auto`: how many changes predictions should withstand.
        private: for `auto`: whether the models themselves must be private.
        assumptions: what else has looked at the training data, a sentence each, such as a search for parameters by
            cross-validation; every certificate repeats them, and is conditional on them.
        constants: those that the method declares, by the names of its flags in `mithridate train --help`: `neighbours`
            of nearest neighbours, `partitions` of DPA, `noise_multiplier` of a private ensemble, and so on (those of a
            defence that is registered after this class was imported go into the object). None: chosen. `num_train`
            is the number of training examples, where it is fixed or public; without it, what follows that number
            follows its step, and no radius goes beyond the step. With units, `num_units` is that of units.

    Attributes:
        classes_: the labels, sorted; certificates have predictions by their position, `classes_[certificate.label]`,
            and take true labels as they are, `certificate.accuracy(y, radii)`.
        defence_: what was trained, with all its constants.
        choice_: how they were chosen: `choice_.words` for people, `choice_.details` as plain JSON values.
        schema_: how the columns of a data frame were read; None where inputs were taken as they are. A proposal that
            you have compared with what you know is declared by `schema=replace(schema_, proposed=False)`.
        n_features_in_: number of columns, where the inputs are a table.
        feature_names_in_: names of the columns, where the table has names.

    Edge cases:
        ============================  ======================================================================
        inputs                        tables of numbers, images uint8 [n, H, W] or [n, channels, H, W],
                                      lists or arrays of text, lists of arrays of one type and shape,
                                      data frames of pandas and polars, data sets of Hugging Face
        data frames                   numbers, categories, booleans, dates, text and missing values; read by
                                      `schema`, or by a proposal; later ones need the same columns, in any
                                      order (in that order where all were numbers)
        y                             one label an input, or the name of a column of the data frame
        units                         one name an input, or the name of a column of the data frame
        missing values                in arrays refused, as everywhere in scikit-learn; in data frames read
        ties                          go to the smaller label, as in the certificate
        sample weights                not supported
        ============================  ======================================================================

    Passes scikit-learn's `check_estimator`.

    >>> import numpy as np
    >>> X, y = np.array([[-1.0, -1.0], [-1.0, -0.8], [1.0, 1.0], [0.8, 1.0]] * 50), ["no", "no", "yes", "yes"] * 50
    >>> classifier = CertifiedClassifier("nearest-neighbours", classes=["no", "yes"]).fit(X, y)
    >>> classifier.predict([[-1.0, -0.9]]).tolist(), bool(classifier.certify([[-1.0, -0.9]]).radius[0] > 0)
    (['no'], True)
    """

    classes_: Array
    defence_: Defence
    choice_: Choice
    schema_: Table | None
    n_features_in_: int
    feature_names_in_: Array
    _run: _Run
    _columns: tuple[str, ...]
    _label: str | None
    _unit: str | None

    @_with_constants
    def __init__(
        self,
        method: Any = "auto",
        *,
        model: Any = "auto",
        features: str | Encoder | None = "auto",
        classes: Any = None,
        threat: Threat | str | None = None,
        failure_prob: float = 1e-3,
        device: str = "auto",
        random_state: Any = None,
        run_dir: PathLike | None = None,
        schema: Table | None = None,
        verbose: int = 0,
        radius: int | None = None,
        private: bool = False,
        assumptions: Sequence[str] = (),
        **constants: Any,
    ) -> None:
        self.method = method
        self.model = model
        self.features = features
        self.classes = classes
        self.threat = threat
        self.failure_prob = failure_prob
        self.device = device
        self.random_state = random_state
        self.run_dir = run_dir
        self.schema = schema
        self.verbose = verbose
        self.radius = radius
        self.private = private
        self.assumptions = assumptions
        for name in constants:
            if name not in _CONSTANTS:
                raise ConfigError(
                    f"CertifiedClassifier has no argument {name!r}; {did_you_mean(name, self._get_param_names())}"
                )
        for name in _CONSTANTS:
            setattr(self, name, constants.get(name))

    def fit(self, X: Any, y: Any = None, units: Any = None) -> CertifiedClassifier:
        """Train all instances; a fit that fails leaves what was fitted before as it was.

        Nothing is printed unless `verbose` asks for it: `choice_.words` says what was chosen, and so does the log
        (`mithridate.estimator`, at level INFO) before training starts. Warnings are given once in a search or a
        cross-validation of scikit-learn (once in each of its processes, where it has several), not once a fold.

        Args:
            X: training inputs.
            y: their labels, or the name of the column of `X` that holds them; None where `schema` names it.
            units: who sent each of them, such as a vendor: a name for every input, or the name of the column of `X`
                that holds them, which is no input; or `Units`. Radii then count vendors with all their inputs, and no
                single inputs. None: `schema` names the column, or there are no units.

        Raises:
            ValueError: the inputs or labels are not what they should be (as scikit-learn words it), or a parameter is
                outside its range (`ConfigError`, which is a ValueError too).
        """
        # What `certify` could not claim is refused before anything is trained for it.
        self._check_parameters()
        fitted = copy.copy(self)
        for name in _OF_INPUTS:  # of earlier inputs
            vars(fitted).pop(name, None)
        X, owners = fitted._units_apart(X, y, units)
        training, classes = fitted._training(X, y)
        training = replace(training, units=owners)
        looks = _looks_of_callers()
        training = replace(training, assumptions=(*looks, *training.assumptions))
        seen = (*fitted_preprocessing(training.x, training.source), *looks)  # An order says the first by itself.
        defence = self._defence()
        order = compose(
            defence,
            training,
            Examples(training.x[:1], None),  # a run votes on something
            assumptions=self.assumptions,
            device=kind_of_device(self.device) if getattr(defence, "needs_torch", True) else "cpu",
            root_seed=_root_seed(self.random_state),
        )
        _log.info("%s", order.choice.words)
        _warn(
            *_labels_among_inputs(X, y, fitted._label, fitted.schema_),
            *(f"The certificates will be conditional: {statement} {statement.remedy}" for statement in seen),
            *(f"Certificates will be weak: {sentence}" for sentence in order.choice.warnings),
        )
        run = _Run(self.run_dir)
        with self._watched("training", "model-steps", order.choice.words) as progress:
            runtime = RuntimeOptions(run_dir=run.folder(), device=self.device, keep_models=True, progress=progress)
            _with_advice(order.run, runtime)
        run.forget_seed()
        fitted.classes_, fitted.defence_, fitted.choice_, fitted._run = classes, order.defence, order.choice, run
        self.__dict__ = fitted.__dict__  # all at once and at the end, so that a fit that fails changes nothing
        return self

    def _check_parameters(self) -> None:
        _validate.sentences(assumptions=self.assumptions)
        _validate.number_in(0, 1, low_open=True, high_open=True, failure_prob=self.failure_prob)
        if self.threat is not None:
            _validate.one_of(tuple(Threat), threat=self.threat)
        if not isinstance(self.schema, Table | None):
            raise ConfigError(
                f"Expected schema as a mithridate.data.Table, or None to propose one, got {self.schema!r}."
            )
        if not isinstance(self.verbose, Real):
            raise ConfigError(f"Expected verbose as a number, 0 for silence, got {self.verbose!r}.")

    def _watched(self, what: str, unit: str, *words: str) -> AbstractContextManager[Progress | None]:
        """Where progress is shown; nowhere unless it was asked for."""
        return shown(what, unit, words) if self.verbose > 0 else nullcontext()

    def _defence(self) -> Any:
        """What the parameters ask for, by the road that every other door takes."""
        given = {name: getattr(self, name) for name in ("model", *_CONSTANTS)}
        given["features"] = "none" if self.features is None else self._features()
        constants = decided({name: value for name, value in given.items() if value is not None})
        if isinstance(self.method, Rule):
            if "class_weights" in constants:
                raise ConfigError("class_weights belong into the rule that is given as method: FDP(class_weights=...).")
            return defence("fdp", **constants)
        if isinstance(self.method, str):
            return named(self.method, constants, radius=self.radius, private=self.private)
        if not hasattr(self.method, "choose"):
            raise ConfigError(f"Expected method as a name, a defence or a rule, got {self.method!r}.")
        for name in constants:
            raise ConfigError(f"{name} belongs into the defence that is given as method; leave it out beside it.")
        return self.method

    def _features(self) -> Any:
        """The features that are asked for; those of a pretrained encoder on the device asked for."""
        if isinstance(self.features, str) and self.features in ("auto", "none"):
            return self.features
        chosen = pick_encoder(self.features)
        return chosen.on(self.device) if isinstance(chosen, Pretrained) else self.features

    def _rule(self) -> Rule:
        """What certifies: the rule that is given, or that of the defence."""
        return self.method if isinstance(self.method, Rule) else self.defence_.rule()

    def predict(self, X: Any) -> Array:
        """The label with the most votes for each input, by their class weights; ties go to the smaller label."""
        votes, rule = self.votes(X), self._rule()
        top = (
            rule.decide(votes, certification.default_threat(votes)).label
            if isinstance(rule, ExactRule)
            else rule.weighed(votes.counts).argmax(axis=1)
        )
        return self.classes_[top]

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """The share of the votes for each class, by their class weights, in the order of `classes_`."""
        votes = self.votes(X)
        counts = self._rule().weighed(votes.counts)
        total = counts.sum(axis=1, keepdims=True)
        # Where no example weighs anything, no class is likelier than another.
        return np.where(total > 0, counts / np.maximum(total, 1), 1 / counts.shape[1])

    def certify(self, X: Any, y: Any = None, *, input_change: float | Sequence[float] | None = None) -> Certificate:
        """How many changes of the training data each prediction is proved to withstand.

        Args:
            X: inputs.
            y: their true labels, or the name of their column, where known; they change no radius and let the
                certificate speak of accuracy.
            input_change: how far inputs may move, too, in Euclidean length, one or several; with `input_noise`, or
                `moving_inputs` for neighbours and kernels. See `Certificate.frontier`.

        Returns:
            The certificate; its labels are positions in `classes_`, and `certificate.to_frame()` has their names.
        """
        votes = self.votes(X, y)
        with self._watched("certifying", "predictions") as progress:
            certificate = certification.certify(
                votes,
                method=self._rule(),
                threat=self.threat,
                failure_prob=self.failure_prob,
                on=getattr(self.defence_, "on", "votes"),
                input_change=input_change,
                progress=progress,
            )
        cut = int((certificate.status == Status.SIZE_LIMIT.value).sum())
        if 2 * cut > len(certificate.radius) and votes.size is not None:
            _warn(
                f"{cut} of {len(certificate.radius)} radii end at {votes.size.limit(certificate.threat)}, because the "
                f"number of {votes.unit_words.many_in_full} was not declared. Declare {votes.unit_words.declared_as}, "
                "where it is fixed or public."
            )
        abstained = int((certificate.radius < 0).sum())
        if 2 * abstained > len(certificate.radius):
            _warn(
                f"{abstained} of {len(certificate.radius)} predictions are not certified: their votes are too close. "
                f"Raise instances, lower noise_multiplier, or train on more {votes.unit_words.many}."
            )
        return certificate

    def votes(self, X: Any, y: Any = None) -> Votes:
        """How all instances vote, for `mithridate.certify` with other methods or threats.

        Args:
            X: inputs.
            y: their true labels, or the name of their column, where known.
        """
        check_is_fitted(self, "defence_")
        X, y = _apart(self._without_units(X), y, self._label)
        inputs = self._inputs(X, reset=False)
        labels = None if y is None else _positions(column_or_1d(_as_typed(y)), self.classes_, "The true labels")
        # A run keeps what its models saw, and neither a network nor a learner of the user's own.
        model = getattr(self.defence_, "learner", None) or getattr(self.defence_, "model", "auto")
        features = getattr(self.defence_, "features", None)
        return _with_advice(
            predict,
            self._run.folder(),
            Examples(inputs, labels),
            model=None if isinstance(model, str) else model,
            features=None if isinstance(features, str) else features,
            device=self.device,
        )

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy of the predictions.

        Args:
            X: inputs.
            y: their true labels, or the name of their column.
            sample_weight: how much each input counts.
        """
        check_is_fitted(self, "defence_")
        X, y = _apart(self._without_units(X), y, self._label)
        return float(super().score(X, y, sample_weight))

    def _units_apart(self, X: Any, y: Any, units: Any) -> tuple[Any, Units | None]:
        """Training inputs without the column of units, and the units."""
        schema = self.schema
        given = schema.unit if units is None and schema is not None else units
        self._unit = given if isinstance(given, str) else None
        if given is None:
            return X, None
        frame, name = frames.as_frame(X), getattr(given, "name", None)
        if self._unit is not None:
            label = schema.label if y is None and schema is not None else y
            if isinstance(label, str) and label == self._unit:
                raise ConfigError(f"The column {label!r} cannot be both label and unit; name another one as units.")
            if frame is None:
                raise ConfigError(
                    f"The units are named as the column {self._unit!r}, but X is no data frame ({type(X).__name__}); "
                    "give one, or a name for every input."
                )
            name = self._unit
            if schema is not None and name not in frames.column_names(frame):
                rows = frames.frame_of(frame)
                assert rows is not None
                return X, Units.of(unit_cells(rows, replace(schema, unit=name)), name, "input")
            given = frames.column_of(frame, name)
            X = frames.without_column(frame, name)
        elif frame is not None and name in frames.column_names(frame) and schema is None:
            renamed = "Units.of(names, 'month')" if isinstance(given, Units) else "units.rename('month')"
            raise ConfigError(
                f"The units are called {name}, and so is an input. If they are another thing than that column, rename "
                f"them, as in {renamed}; else give units={name!r}, which leaves the column out: new inputs have other "
                "units."
            )
        if isinstance(given, Units):
            return X, given
        return X, Units.of(given, name if isinstance(name, str) and name.strip() else "unit", "input")

    def _without_units(self, X: Any) -> Any:
        """Later inputs, which may have the column of units or not."""
        frame = frames.as_frame(X)
        return X if frame is None or self._unit is None else _apart(X, None, self._unit)[0]

    def _training(self, X: Any, y: Any) -> tuple[Examples, Array]:
        """Training examples, with all that was assumed when they were read, and the classes."""
        schema = self.schema
        self._label = y if isinstance(y, str) else None if schema is None else schema.label
        X, y = _apart(X, self._label if y is None else y, self._label)
        inputs = self._inputs(X, reset=True, y=y)
        y = column_or_1d(_as_typed(y), warn=True)
        check_consistent_length(inputs, y)
        _require_known(y)
        check_classification_targets(y)
        declared = self.classes if self.classes is not None or schema is None else _named_by(schema.classes, y)
        classes, labels = _encoded(y, declared)
        used = self.schema_
        assumed = _numbers_read_off(X) if used is None else replace(used, classes=None).assumptions
        if declared is None:
            known = listed(map(str, classes), _MOST_NAMED)
            sentence = f"The set of classes ({known}) was read off the training labels; {PUBLIC}"
            assumed = (Statement(sentence, "class-list"), *assumed)
        elif self.classes is None and used is not None:
            assumed = used.assumptions
        # Each class of its own kind, as far as JSON goes, so that certificates know labels as `y` has them.
        names: Any = tuple(name if isinstance(name, str | int | float) else str(name) for name in classes.tolist())
        declaration = None if used is None else replace(used, label=self._label, unit=self._unit)
        return Examples(inputs, labels, names, assumptions=assumed, declaration=declaration), classes

    def _inputs(self, X: Any, *, reset: bool, y: Any = "no_validation") -> Array:
        """Inputs as an array of text, images or numbers."""
        frame = frames.as_frame(X)
        if reset:
            self.schema_ = _schema_for(X, frame, self.schema)
        if self.schema_ is not None:
            _require_labels(self, y)
            return self._rows(X, frame, self.schema_, reset=reset)
        if (texts := _as_texts(X)) is not None:
            _require_labels(self, y)
            return texts
        X = _stacked(X)
        _refuse_words(X)
        if _dtype_name(X) == "uint8" and np.ndim(X) > 2:
            _require_labels(self, y)
            return _check_array(np.asarray(X), dtype=np.uint8, allow_nd=True)
        checked = _validate_data(
            self, X, y, reset=reset, dtype=(np.float64, np.float32), allow_nd=True, ensure_all_finite=False
        )
        numbers = checked[0] if isinstance(checked, tuple) else checked
        _require_finite(numbers)
        return numbers

    def _rows(self, X: Any, frame: Any, schema: Table, *, reset: bool) -> Array:
        """The rows of a data frame as its schema reads them."""
        if frame is None:
            raise ConfigError(
                f"Expected a data frame with the columns {listed(column.name for column in schema.columns)}, which the "
                f"schema reads, got {type(X).__name__}."
            )
        names = frames.column_names(frame)
        if reset:
            self._columns, self.n_features_in_ = names, len(names)
            if all(isinstance(name, str) for name in getattr(frame, "columns", names)):
                self.feature_names_in_ = np.array(names, dtype=object)
        else:
            _check_columns(names, self._columns)
        examples = read(frame, replace(schema, label=None), labels=False)
        for note in examples.notes:
            _log.info("%s", note)
        return examples.x


def _with_advice(function: Callable[..., Votes], *arguments: Any, **options: Any) -> Votes:
    """Call what may need torch, which is imported late: looking at parameters needs none."""
    try:
        return function(*arguments, **options)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "safetensors"):
            raise
        raise ModuleNotFoundError(
            f"CertifiedClassifier needs {error.name}; install it with: pip install 'mithridate[train]'", name=error.name
        ) from error


# --- where the models are -------------------------------------------------------------------------------------------


class _Run:
    """The directory of a run: the user's, or a temporary one that ends with this object and travels in its pickle."""

    def __init__(self, path: PathLike | None) -> None:
        if path is not None and not isinstance(path, str | os.PathLike):
            raise ConfigError(f"Expected run_dir as the path of a directory, or None to keep no run, got {path!r}.")
        self._given = None if path is None else Path(path).absolute()  # the working directory may change
        self._temporary: Path | None = None
        self._files: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def folder(self) -> Path:
        """Where the run is; a temporary one is written anew after unpickling."""
        if self._given is not None:
            return self._given
        with self._lock:
            if self._temporary is None:
                self._temporary = self._written()
                self._files = {}
            return self._temporary

    def _written(self) -> Path:
        """A new temporary directory with all files in it."""
        root = Path(tempfile.mkdtemp(prefix="mithridate-"))
        weakref.finalize(self, shutil.rmtree, root, ignore_errors=True)
        for name, content in self._files.items():
            target = root / name
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(content)
        return root

    def forget_seed(self) -> None:
        """Delete the private seed of a temporary run: it is done, and nothing needs it any more."""
        if self._given is None:
            (self.folder() / "seed").unlink(missing_ok=True)

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            files = self._files
            if self._temporary is not None:
                root = self._temporary
                needed = [root / "run.json", *sorted((root / "models").glob("*")), *root.glob("examples.npz")]
                files = {path.relative_to(root).as_posix(): path.read_bytes() for path in needed}
        return {"_given": self._given, "_temporary": None, "_files": files}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())


def _root_seed(random_state: Any) -> bytes | None:
    """32 bytes that all randomness comes from; None leaves them to the operating system."""
    if random_state is None:
        return None
    if isinstance(random_state, Integral) and not isinstance(random_state, bool):
        return hashlib.sha256(f"mithridate.CertifiedClassifier {int(random_state)}".encode()).digest()
    if isinstance(random_state, np.random.RandomState | np.random.Generator):
        return random_state.bytes(32)
    raise ConfigError(f"Expected random_state to be None, a whole number or a numpy generator, got {random_state!r}.")


# --- labels ---------------------------------------------------------------------------------------------------------


def _encoded(y: Array, declared: Any) -> tuple[Array, npt.NDArray[np.int64]]:
    """The classes, sorted, and the position of every label among them."""
    if declared is None:
        classes = np.unique(y)
        if len(classes) < 2:
            raise ConfigError(
                f"The training labels hold one class only ({classes[0]!s}), and there is nothing to certify; give "
                "examples of at least 2 classes, or declare classes=[...]."
            )
    else:
        classes = _declared(declared)
    return classes, _positions(y, classes, "The training labels")


def _declared(classes: Any) -> Array:
    """The classes that the user names, sorted."""
    given = [] if isinstance(classes, str) or not isinstance(classes, Iterable) else list(classes)
    alike = any(all(isinstance(name, kind) for name in given) for kind in (str, Real | np.bool_))
    names = np.unique(np.array(given if alike else []))
    if len(names) < 2 or len(names) != len(given):
        raise ConfigError(
            f"Expected classes as a list of at least 2 different labels, all words or all numbers, got {classes!r}."
        )
    return names


def _as_typed(y: Any) -> Any:
    """Labels that may be missing by their type, and are not, in the plain type: 1 instead of 1.0, True instead of 1."""
    plain = getattr(getattr(y, "dtype", None), "numpy_dtype", None)
    may_convert = plain is not None and getattr(plain, "kind", "O") in "iub" and not y.isna().any()
    return y.to_numpy(dtype=plain) if may_convert else y


def _require_known(labels: Array) -> None:
    """Refuse labels that are missing; scikit-learn does not always say that it speaks of the labels."""
    try:
        assert_all_finite(labels, input_name="y")
    except ValueError as error:
        if "NaN" not in str(error):
            raise
        raise ConfigError(
            "Input y contains NaN: some training labels are missing; find them, or leave these examples out."
        ) from error


def _labels_among_inputs(X: Any, y: Any, label: str | None, schema: Table | None) -> tuple[str, ...]:
    """That the column which the labels were taken from is an input as well, where their name says so."""
    frame, name = frames.as_frame(X), getattr(y, "name", None)
    if frame is None or not isinstance(name, str) or name == label:
        return ()
    inputs = frames.column_names(frame) if schema is None else tuple(column.name for column in schema.columns)
    if name not in inputs:
        return ()
    return (
        f"The labels are called {name}, and so is an input, which gives them away: leave it out, or fit(X, {name!r}).",
    )


def _positions(labels: Array, classes: Array, what: str) -> npt.NDArray[np.int64]:
    try:
        known = np.isin(labels, classes)
        places = np.searchsorted(classes, labels)
    except (TypeError, ValueError):  # words and numbers cannot be compared
        known, places = np.zeros(len(labels), dtype=np.bool_), np.zeros(0)
    if not known.all():
        first = labels[int(np.argmin(known))]
        raise ConfigError(
            f"{what} hold {first!s}, which is none of the classes {listed(map(str, classes), _MOST_NAMED)}; name all "
            "of them in classes=[...]."
        )
    return places.astype(np.int64)


# --- inputs ---------------------------------------------------------------------------------------------------------


def _as_texts(inputs: Any) -> Array | None:
    """Texts as an array, or None where the inputs are something else."""
    if isinstance(inputs, list | tuple):
        if not inputs or not isinstance(inputs[0], str):
            return None
        values = list(inputs)
    else:
        is_series = hasattr(inputs, "to_numpy") and len(getattr(inputs, "shape", ())) == 1
        array = np.asarray(inputs) if getattr(inputs, "ndim", None) == 1 or is_series else None
        if array is None or array.dtype.kind not in "UTO" or not len(array) or not isinstance(array[0], str):
            return None
        values = array.tolist()
    for row, value in enumerate(values):
        if not isinstance(value, str):
            raise ConfigError(f"Row {row} of the texts is {value!r}; give text in every row, '' where there is none.")
    longest = max(map(len, values))
    if 4 * longest * len(values) > _MOST_TEXT_BYTES:
        raise ConfigError(
            f"The longest text has {longest:,} characters, and room is needed for {len(values):,} of that length; cut "
            "every text to a length that you know to be enough."
        )
    return np.array(values, dtype=np.str_)


def _stacked(inputs: Any) -> Any:
    """A list of arrays as one array; anything else as it is.

    Arrays of different kinds are refused: one example would decide how all others are read, which no radius covers.
    """
    if not isinstance(inputs, list | tuple) or not any(map(_is_array, inputs)):
        return inputs
    first = _described(inputs[0])
    for row, item in enumerate(inputs):
        if _described(item) != first:
            raise ConfigError(
                f"Item {row} of X is {_described(item)}, but item 0 is {first}; give all examples in one type and "
                "shape, converted each by itself."
            )
    return np.stack([np.asarray(item) for item in inputs])


def _is_array(item: Any) -> bool:
    return hasattr(item, "dtype") and len(getattr(item, "shape", ())) > 0


def _described(item: Any) -> str:
    return f"{_dtype_name(item)} of shape {tuple(item.shape)}" if _is_array(item) else f"a {type(item).__name__}"


def _dtype_name(array: Any) -> str:
    return str(getattr(array, "dtype", "")).removeprefix("torch.")


def _require_finite(inputs: Array) -> None:
    """Refuse missing and infinite numbers; scikit-learn would advise an imputer, which no certificate covers."""
    finite = np.isfinite(inputs)
    if finite.all():
        return
    row = int(np.argmin(finite.reshape(len(inputs), -1).all(axis=1)))
    found = "NaN" if np.isnan(inputs[row]).any() else "infinity"
    raise ConfigError(
        f"Input X contains {found} in row {row}; repair or leave out such rows, or declare how missing values are read "
        "(mithridate.data). An imputer that was fitted on the training data voids the certificate."
    )


def _require_labels(estimator: CertifiedClassifier, y: Any) -> None:
    if y is None:
        raise ConfigError(
            f"This {type(estimator).__name__} estimator requires y to be passed, but the target y is None. Give the "
            "labels; of a data frame, the name of their column serves."
        )


def _refuse_words(inputs: Any) -> None:
    """Refuse words where numbers are expected."""
    if isinstance(inputs, np.ndarray) and inputs.dtype.kind in "UT":
        raise ConfigError(
            f"Expected numbers, or text as a list with one text for each example, got text of shape {inputs.shape}; "
            "give a data frame, and say how to read it by a declaration of mithridate.data: schema=Table(...)."
        )
    frame = frames.as_frame(inputs)
    for name in () if frame is None else frames.column_names(frame):
        column = np.asarray(frames.column_of(frame, name))
        if column.dtype.kind not in "fiub" and any(isinstance(value, str) for value in column.tolist()):
            raise ConfigError(f"Column {name!r} holds words, but in fit it held numbers; give numbers, or fit again.")


# --- data frames ----------------------------------------------------------------------------------------------------

_ALL_NUMBERS = Statement(
    f"The columns of the data frame were taken as numbers, since all of them are and none is missing; {PUBLIC}",
    "proposed-schema",
)


def _apart(X: Any, y: Any, label: str | None) -> tuple[Any, Any]:
    """Inputs without the column of labels, and the labels; `label` is what the column was called in `fit`."""
    frame = frames.as_frame(X)
    if isinstance(y, str):
        if frame is None:
            raise ConfigError(
                f"The labels are named as the column {y!r}, but X is no data frame ({type(X).__name__}); give one, or "
                "the labels themselves."
            )
        label, y = y, frames.column_of(frame, y)
    if frame is None or label not in frames.column_names(frame):
        return X, y
    return frames.without_column(frame, label), y


def _schema_for(X: Any, frame: Any, declared: Table | None) -> Table | None:
    """How the columns of training inputs are read; None for numbers, which are taken as they are."""
    if declared is not None or frame is None or _are_numbers(frame):
        return declared
    found = propose((frame, None))
    assert isinstance(found, Table)
    return found


def _are_numbers(frame: Any) -> bool:
    """Whether all columns are numbers by their type, none of them missing."""
    if frames.is_hugging_face(frame):
        return False
    columns = (frames.column_of(frame, name) for name in frames.column_names(frame))
    cells = (frames.cells_of(column, "The column") for column in columns)
    return all(each.dtype != object and not np.isnan(each).any() for each in cells)


def _numbers_read_off(X: Any) -> tuple[Statement, ...]:
    """What is assumed of a data frame whose columns were taken as they are: for others, a schema is proposed."""
    return () if frames.as_frame(X) is None else (_ALL_NUMBERS,)


def _check_columns(names: tuple[str, ...], known: tuple[str, ...]) -> None:
    """Require the columns of `fit`, in any order."""
    missing, extra = ([name for name in one if name not in other] for one, other in ((known, names), (names, known)))
    if missing or extra:
        lacks = f"lacks {listed(missing)}" if missing else ""
        has = f"has {listed(extra)}, which fit did not see" if extra else ""
        said = " and ".join(filter(None, (lacks, has)))
        raise ConfigError(f"The data frame {said}; give the columns of fit, in any order.")


def _named_by(names: tuple[str, ...] | None, y: Array) -> list[Any] | None:
    """The declared names of classes in the kind of the labels: a schema has them as text."""
    if names is None or y.dtype.kind not in "iufb":
        return None if names is None else list(names)
    kinds = {"b": lambda name: {"true": True, "false": False}[name.lower()], "f": float}
    try:
        return [kinds.get(y.dtype.kind, int)(name) for name in names]
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"The labels are {y.dtype}, but the schema declares the classes {listed(names, _MOST_NAMED)}; give labels "
            "by these names, or declare classes=[...] as the labels have them."
        ) from error


# --- what else has looked at the training data ----------------------------------------------------------------------


def _looks_of_callers() -> tuple[Statement, ...]:
    """Searches and pipelines of scikit-learn that call `fit`.

    They tell the estimator nothing, so the callers on the stack are all there is to see. What is not seen here (a
    search that ran before, a transformer that was applied by hand) is up to the user to say.
    """
    found: dict[str, Statement] = {}
    frame = sys._getframe(1)
    while frame is not None:
        # Only there: whoever asks for the variables of a frame keeps all of them alive as long as it runs.
        if frame.f_code.co_name == "fit" and str(frame.f_globals.get("__name__")).startswith("sklearn."):
            caller = frame.f_locals.get("self")
            statement = _look_of(caller)
            if statement is not None:
                found[str(statement)] = statement
        frame = frame.f_back
    return tuple(found.values())


def _look_of(caller: Any) -> Statement | None:
    """What a search does, or a pipeline before its last step; transformers that need no fit see one example each."""
    if isinstance(caller, BaseSearchCV):
        return Statement(
            f"The parameters were chosen by {type(caller).__name__} on the training data, which the certificate does "
            "not cover.",
            "tuned-on-training-data",
        )
    if not isinstance(caller, Pipeline):
        return None
    steps = (step for _, step in caller.steps[:-1] if step is not None and not isinstance(step, str))
    fitted = [type(step).__name__ for step in steps if get_tags(step).requires_fit]
    if not fitted:
        return None
    return Statement(
        f"{' and '.join(fitted)} {'was' if len(fitted) == 1 else 'were'} fitted on the training data before it was "
        "trained on, which the certificate does not cover.",
        "fitted-preprocessing",
    )


# --- what is said while it is fitted ----------------------------------------------------------------------------------

# What was said in a search, by the object that runs its folds, which lives as long as the search does.
_said: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()
# The same in a process that runs folds for a search elsewhere.
_said_here: set[str] = set()
_FOLDS = ("_fit_and_score", "_fit_and_predict", "_incremental_fit_estimator")


def _warn(*sentences: str) -> None:
    """Warn in one go; inside a search or a cross-validation, of what it has not heard yet."""
    said = _said_in_search()
    # Numbers differ from fold to fold.
    kinds = {re.sub(r"[\d.,]+", "#", sentence): sentence for sentence in sentences}
    new = [sentence for kind, sentence in kinds.items() if said is None or kind not in said]
    if said is not None:
        said.update(kinds)
    if new:
        warnings.warn(" ".join(new), stacklevel=3)


def _said_in_search() -> set[str] | None:
    """What the outermost search that this is a part of has heard; None outside of any."""
    found: set[str] | None = None
    frame = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("sklearn.model_selection."):
            runner = frame.f_locals.get("parallel") if frame.f_code.co_name not in _FOLDS else None
            if runner is not None:
                found = _said.setdefault(runner, set())
            elif found is None and frame.f_code.co_name in _FOLDS:
                found = _said_here
        frame = frame.f_back
    return found
