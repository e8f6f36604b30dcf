"""What every encoder is and uses: how it is named, and arithmetic on rows in chunks that bound memory."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from scipy.sparse import csr_array

from mithridate import _validate
from mithridate.core.conditions import Statement, tuned_constants
from mithridate.errors import ArtifactError, ConfigError

# The encoders of this package, by name. Nothing else gets in: what is not data-independent voids a certificate.
_KNOWN: dict[str, type[Encoder]] = {}


@dataclass(frozen=True)
class Encoder(ABC):
    """A fixed function from inputs to rows of numbers; its fields are all the constants that it has.

    Assumes:
        Each row of the result is a function of that input and the constants alone. Every encoder of this package keeps
        to it, but for `Frozen`, which is trusted to.

    Attributes:
        name: how configurations and files call it.
        tuned_on: data sets that its defaults were chosen on.
        trusted: whether it is the user who answers for it.
    """

    name: ClassVar[str]
    tuned_on: ClassVar[tuple[str, ...]] = ()
    trusted: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__module__.startswith(f"{__package__}.") and "name" in vars(cls):
            _KNOWN[cls.name] = cls

    @abstractmethod
    def transform(self, x: Any) -> np.ndarray:
        """Features of inputs, float32, one row each."""

    def compared(self, x: Any) -> np.ndarray | csr_array:
        """Features for methods that compare examples: those of `transform`, unless there are sparse ones of norm 1."""
        return self.transform(x)

    def check_here(self) -> None:
        """Require what it computes with.

        Raises:
            ConfigError: a library is not installed.
        """
        return

    def for_noise(self, deviation: float) -> Self:
        """The same encoder for inputs with Gaussian noise of this deviation."""
        del deviation
        return self

    def looks(self, x: Any) -> tuple[Statement, ...]:
        """What a certificate on training inputs `x` has to say about looks at them when its constants were chosen."""
        del x
        return ()

    def keep(self, folder: Path) -> None:
        """Put into the directory of a run what its description cannot hold, for `from_dict`."""
        del folder

    @classmethod
    def found_again(cls, values: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
        """What `to_dict` wrote, with what `keep` put into the directory of a run.

        Raises:
            ArtifactError: that is missing or damaged.
        """
        del folder
        return dict(values)

    def to_dict(self) -> dict[str, Any]:
        """The encoder as plain JSON values, enough for `from_dict`."""
        values = {constant.name: getattr(self, constant.name) for constant in fields(self)}
        return {"name": self.name, **{key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}}

    def statements(self, shape: tuple[int, ...], classes: int) -> tuple[Statement, ...]:
        """What a certificate has to say about this encoder, for raw inputs of this shape and so many labels."""
        if not self.tuned_on:
            return ()
        what = f"The constants of {self.name} features"
        return (tuned_constants(what, self.tuned_on, math.prod(shape), classes),)

    def _use_plain_numbers(self) -> None:
        """Turn checked numbers into Python's own, so that JSON takes them and equal is equal."""
        for constant in fields(self):
            kind = {"int": int, "float": float}.get(str(constant.type).removesuffix(" | None"))
            if kind is not None and getattr(self, constant.name) is not None:
                object.__setattr__(self, constant.name, kind(getattr(self, constant.name)))


def encoder_names() -> tuple[str, ...]:
    """The names of all encoders, sorted."""
    return tuple(sorted(_KNOWN))


def encoder(name: str, **constants: Any) -> Encoder:
    """The encoder of this name with these constants; what is left out has its default.

    Raises:
        ConfigError: the name or a constant is not known, is missing, or is outside its range.

    >>> encoder("unit-norm", bias=0.5)
    UnitNorm(bias=0.5, center=0.0, scale=1.0)
    """
    family, separator, source = name.partition(":") if isinstance(name, str) else (name, "", "")
    if separator and family in _KNOWN and "source" in {each.name for each in fields(_KNOWN[family])}:
        name, constants = family, {"source": source, **constants}
    _validate.one_of(encoder_names(), features=name)
    kind = _KNOWN[name]
    known = [constant.name for constant in fields(kind)]
    foreign = sorted(set(constants) - set(known))
    if foreign:
        raise ConfigError(f"The encoder {name} has no {', '.join(foreign)}; it has {', '.join(known)}.")
    missing = [each.name for each in fields(kind) if each.default is MISSING and each.name not in constants]
    if missing:
        remedy = f"write {name}:SOURCE" if "source" in missing else "a file cannot hold its function"
        raise ConfigError(f"The encoder {name} needs {', '.join(missing)}; {remedy}.")
    return kind(**constants)


def is_installed(name: str) -> bool:
    """Whether the encoder of a name can be used here: its libraries and its weights are there."""
    try:
        encoder(name).check_here()
    except (ConfigError, ArtifactError):
        return False
    return True


def pick_encoder(features: Any) -> Encoder | None:
    """The encoder of a name, of a table with its name and other constants, or the encoder itself.

    Raises:
        ConfigError: it is none of these.

    >>> pick_encoder({"name": "unit-norm", "bias": 0.5})
    UnitNorm(bias=0.5, center=0.0, scale=1.0)
    """
    if features is None:
        return None
    if isinstance(features, str):
        return encoder(features)
    if isinstance(features, dict) and isinstance(features.get("name"), str):
        return encoder(**{str(key): value for key, value in features.items()})
    if not isinstance(features, Encoder) or type(features) is not _KNOWN.get(features.name):
        raise ConfigError(
            f"Expected features to be a name, a table with a name and constants, or an encoder of mithridate.features, "
            f"got {features!r}; put an encoder of your own into features.Frozen."
        )
    return features


def beside(features: Any, folder: Path) -> Any:
    """Features as a file names them, in which files of encoders are looked for beside that file.

    >>> beside("onnx:net.onnx", Path("projects"))
    'onnx:projects/net.onnx'
    """
    if isinstance(features, dict):
        named = {"name": beside(features["name"], folder)} if isinstance(features.get("name"), str) else {}
        files = {key: str(folder / features[key]) for key in ("file",) if isinstance(features.get(key), str)}
        if isinstance(features.get("source"), str):
            whole = beside(f"{features.get('name')}:{features['source']}", folder)
            files["source"] = whole.partition(":")[2]
        return {**features, **named, **files}
    if not isinstance(features, str):
        return features
    family, separator, source = features.partition(":")
    is_file = family == "onnx" or (family == "transformers" and (folder / source).is_dir())
    return f"{family}:{folder / source}" if separator and is_file else features


def is_same(one: dict[str, Any] | None, other: dict[str, Any] | None) -> bool:
    """Whether two descriptions are of one encoder, wherever its files lie: their hash is in both."""
    places = ("source", "file")
    return {key: value for key, value in (one or {}).items() if key not in places} == {
        key: value for key, value in (other or {}).items() if key not in places
    }


def about_encoder(chosen: Encoder | None, x: np.ndarray, classes: int) -> tuple[Statement, ...]:
    """What a certificate has to say about an encoder: that it is trusted, or what its constants were tuned on."""
    return () if chosen is None else (*chosen.statements(x.shape[1:], classes), *chosen.looks(x))


def from_dict(
    values: dict[str, Any], *, function: Callable[[Any], Any] | None = None, folder: Path | None = None
) -> Encoder:
    """Read back what `to_dict` wrote.

    Args:
        values: what `to_dict` wrote.
        function: the function of a frozen encoder, which no file can hold.
        folder: the directory of the run that wrote it, where there is one.

    Raises:
        ArtifactError: this is not what `to_dict` wrote.
        ConfigError: a constant is outside its range, or a frozen encoder comes without its function.

    >>> from_dict({"name": "unit-norm", "bias": 0.5, "center": 0.0, "scale": 1.0})
    UnitNorm(bias=0.5, center=0.0, scale=1.0)
    """
    if not isinstance(values, dict) or values.get("name") not in _KNOWN:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArtifactError(
            f"Expected an encoder named {', '.join(encoder_names())}, got {values!r}; is the file from a newer one?"
        )
    found = _KNOWN[values["name"]].found_again(values, folder)
    return encoder(**(found if function is None else {**found, "function": function}))


# --- rows -------------------------------------------------------------------------------------------------------------

# Numbers held per chunk of rows: 32 MiB of float64. It bounds memory and cannot change a result.
_CHUNK_NUMBERS = 1 << 22


def numbers(x: Any, what: str) -> np.ndarray:
    try:
        array = np.asarray(x)
    except ValueError as error:
        raise ConfigError(f"Expected {what} as one array of numbers, got rows of different shapes.") from error
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
        raise ConfigError(f"Expected {what} as an array of numbers, got {array.dtype}; convert it with .astype(float).")
    return array


def scaled(values: np.ndarray, dtype: type) -> np.ndarray:
    with np.errstate(over="ignore"):  # too large for float32 is found by the check that follows
        converted = values.astype(dtype)
    return converted / dtype(255) if values.dtype == np.uint8 else converted


class BadRow(ConfigError):
    """What is wrong with a row, for whoever gave an encoder some of their rows and knows which they were."""

    def __init__(self, row: int, words: str) -> None:
        super().__init__(row, words)
        self.row, self.words = row, words

    def __str__(self) -> str:
        return f"Row {self.row} {self.words}"


def check_finite(values: np.ndarray, first_row: int, largest: float = math.inf) -> None:
    bad = ~np.isfinite(values) | (np.abs(values) > largest)
    if bad.any():
        row = first_row + int(bad.reshape(len(values), -1).any(axis=1).argmax())
        limit = "" if math.isinf(largest) else f" of at most {largest:g}"
        raise BadRow(row, f"holds a number that is not finite or too large; expected numbers{limit}. Mend it.")


def chunks(rows: int, numbers_per_row: int) -> Iterator[slice]:
    size = max(1, _CHUNK_NUMBERS // max(1, numbers_per_row))
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def with_bias(rows: np.ndarray, bias: float) -> np.ndarray:
    return np.concatenate([rows, np.full((len(rows), 1), bias)], axis=1) if bias else rows


def unit_rows(rows: np.ndarray, least: float = 0.0) -> np.ndarray:
    """Rows scaled to norm 1; those of norm below `least` are divided by `least`, and zero stays zero."""
    # Divided by the largest entry first: squares neither overflow nor vanish.
    peak = np.abs(rows).max(axis=1, keepdims=True)
    small = rows / np.where(peak > 0, peak, 1.0)
    norm = np.sqrt((small * small).sum(axis=1, keepdims=True))
    return np.divide(small, np.where(norm > 0, norm, 1.0)) * np.minimum(1.0, norm * peak / least if least else 1.0)
