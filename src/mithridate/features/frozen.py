"""An encoder of the user's, which is trusted, and checked as far as that can be."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from mithridate import _validate
from mithridate.core.conditions import Statement
from mithridate.errors import ConfigError
from mithridate.features._encoder import Encoder, scaled

_ROUNDING = Statement(
    "Inputs were encoded together, and the bits of a row may depend on the others; the certificate assumes that they "
    "do not.",
    "encoder-rounding",
)


@dataclass(frozen=True)
class Frozen(Encoder):
    """An encoder that the user vouches for, such as a network trained elsewhere.

    Guarantee:
        The result is recorded as resting on this encoder, with `trained_on` in the user's words. With a `batch_size` of
        1 every row is computed alone and twice, and refused if a bit differs: then it is a function of its input.

    Assumes:
        Nothing that it was trained on is open to the attacker or was drawn from the training set (condition
        `trusted-encoder`). With a larger `batch_size`, the function treats every row by itself, to the last bit
        (condition `encoder-rounding`), which libraries of matrix products do not promise; of that only the first rows
        are tried, in another order and number, with room for rounding.

    Args:
        function: array [k, ...] to array [k, ...], one row for each; or a `torch.nn.Module`, which is called in
            evaluation mode without gradients on its own device, 8-bit numbers divided by 255.
        title: what the encoder is called, as a reader of the certificate may look it up.
        trained_on: what it was trained on, in words; the certificate repeats it.
        version: optional, such as a release or a commit.
        digest: optional, such as the SHA-256 of the weights.
        batch_size: most rows that the function is called with; 1 needs no condition about rounding.

    >>> halves = Frozen(lambda rows: rows / 2, title="halves", trained_on="nothing")
    >>> halves.transform(np.ones((2, 3)))
    array([[0.5, 0.5, 0.5],
           [0.5, 0.5, 0.5]], dtype=float32)
    """

    name: ClassVar[str] = "frozen"
    trusted: ClassVar[bool] = True

    function: Callable[[Any], Any] = field(repr=False)
    title: str
    trained_on: str
    version: str | None = None
    digest: str | None = None
    batch_size: int = 1

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError(f"Expected function to be callable, array in and array out, got {self.function!r}.")
        for name in ("title", "trained_on"):
            _check_statement(name, getattr(self, name))
        for name in ("version", "digest"):
            if getattr(self, name) is not None:
                _check_statement(name, getattr(self, name))
        _validate.positive_integer(batch_size=self.batch_size)
        self._use_plain_numbers()

    @property
    def assumption(self) -> Statement:
        """What a certificate on these features assumes, as a sentence."""
        version = f" {self.version}" if self.version else ""
        return Statement(
            f"The encoder {self.title!r}{version} is trusted. It is said to be trained on: {self.trained_on}. "
            "The certificate does not cover changes to that data.",
            "trusted-encoder",
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything but the function as plain JSON values; `from_dict` needs the function again."""
        return {key: value for key, value in super().to_dict().items() if key != "function"}

    def statements(self, shape: tuple[int, ...], classes: int) -> tuple[Statement, ...]:
        """That it is trusted, and that its rounding is, where inputs are encoded together."""
        return (self.assumption,) if self.batch_size == 1 else (self.assumption, _ROUNDING)

    def transform(self, x: np.ndarray) -> np.ndarray:
        """What the function makes of the rows, checked.

        Args:
            x: array [n, ...] with at least one row.

        Returns:
            float32 array [n, d] (or [n, ...], as the function gives it).

        Raises:
            ConfigError: the function gives no finite numbers, or not one row for each, or other numbers for the same
                rows when they are computed again.
        """
        rows = np.ascontiguousarray(x)  # in one order in memory, on which rounding may depend
        if np.ndim(x) < 1 or not len(rows):
            raise ConfigError(f"Expected at least one row for the encoder {self.title!r}, got shape {rows.shape}.")
        if rows.dtype == object:
            raise ConfigError(
                "Expected an array of numbers or text, got Python objects; convert it with .astype first."
            )
        if self.batch_size == 1:
            # A text by itself: in an array it is as wide as the longest one. And a copy, which the function may change.
            alone = [np.array([str(row)]) for row in rows] if rows.dtype.kind == "U" and rows.ndim == 1 else None
            parts = alone or [rows[i : i + 1] for i in range(len(rows))]
            once, again = (
                np.concatenate([self._call(part.copy()) for part in order]) for order in (parts, parts[::-1])
            )
            self._refuse_other_bits(once, again[::-1])
            return once
        out = np.concatenate([self._call(rows[i : i + self.batch_size]) for i in range(0, len(rows), self.batch_size)])
        self._check_repeats(rows[:8], out[:8])
        return out

    def _refuse_other_bits(self, once: np.ndarray, again: np.ndarray) -> None:
        if once.shape != again.shape or once.tobytes() != np.ascontiguousarray(again).tobytes():
            raise ConfigError(
                f"The encoder {self.title!r} gave other numbers when it encoded the same inputs again; it must treat "
                "every row by itself and draw no random numbers (no dropout, no batch statistics)."
            )

    def _call(self, rows: np.ndarray) -> np.ndarray:
        given = _call_module(self.function, rows) if _is_module(self.function) else self.function(rows)
        result = np.asarray(given)
        if result.dtype.kind not in "fiu" or result.ndim < 2 or len(result) != len(rows):
            raise ConfigError(
                f"The encoder {self.title!r} gave {result.dtype} of shape {result.shape} for {len(rows)} rows; "
                f"expected real numbers of shape ({len(rows)}, d)."
            )
        with np.errstate(over="ignore"):  # too large for float32 is found below
            result = result.astype(np.float32)
        if not np.isfinite(result).all():
            raise ConfigError(f"The encoder {self.title!r} gave numbers that are not finite; mend it or its input.")
        return result

    def _check_repeats(self, rows: np.ndarray, features: np.ndarray) -> None:
        # Room for the rounding of another batch size on a GPU, none for dropout or batch statistics.
        middle = len(rows) // 2
        parts = [part[::-1] for part in (rows[middle:], rows[:middle]) if len(part)]
        again = np.concatenate([self._call(np.ascontiguousarray(part)) for part in parts])[::-1]
        room = 1e-3 * max(float(np.abs(features).max(initial=0.0)), 1e-30)
        if again.shape != features.shape or np.abs(again - features).max(initial=0.0) > room:
            raise ConfigError(
                f"The encoder {self.title!r} gave other numbers for the same rows in another order; it must treat "
                "every row by itself and draw no random numbers (no dropout, no batch statistics)."
            )


def _check_statement(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"Expected {name} of the frozen encoder in words, got {value!r}; the certificate repeats it.")


def _is_module(function: Any) -> bool:
    """Whether this is a `torch.nn.Module`; without torch imported by somebody, nothing is one."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(function, torch.nn.Module)


def _call_module(module: Any, rows: np.ndarray) -> np.ndarray:
    import torch

    if rows.dtype.kind not in "fiu":
        raise ConfigError(
            f"Expected numbers for a torch module, got {rows.dtype}; wrap it in a function that takes these."
        )
    parameter = next(module.parameters(), torch.zeros(1))
    # Copied: the array may be read-only, which torch warns of. Whole numbers of other types may be tokens: kept.
    inputs = torch.from_numpy(scaled(rows, np.float32) if rows.dtype == np.uint8 else rows.copy()).to(parameter.device)
    inputs = inputs.to(parameter.dtype) if inputs.is_floating_point() else inputs
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            return module(inputs).float().cpu().numpy()
    finally:
        for part, training in modes:
            part.training = training
