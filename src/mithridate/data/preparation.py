"""From raw inputs to inputs of a network: scaled by constants of the recipe, or turned into features.

Everything here is done to each example by itself, with constants fixed beforehand: a mean or a standard deviation of
the training data would be a second look at it, which no certificate accounts for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mithridate.data.examples import Array, FloatArray, IntArray, kind_of
from mithridate.errors import ConfigError
from mithridate.features import Encoder


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training data as the engine takes it.

    Attributes:
        inputs: float32 and scaled, or int64 for tokens; one entry per example.
        labels: int64, from 0.
        fingerprint: SHA-256 over the arrays as they were given.
    """

    inputs: FloatArray | IntArray
    labels: IntArray
    fingerprint: str


@dataclass(frozen=True)
class Preparation:
    """How raw inputs become inputs of the network: the same for training data, test data, and any later input.

    Attributes:
        shape: shape of one raw input.
        kind: `uint8` for images, else the kind of numbers or `text`.
        mean: subtracted from images after division by 255, one number or one per channel; None where nothing is scaled.
        std: what the difference is divided by.
        channel_axis: whether images without a channel axis get one.
        tokens: how many tokens the network can look up, 0 where its inputs are not tokens; whole numbers stay whole.
        encoder: features that are computed instead of scaling.
    """

    shape: tuple[int, ...]
    kind: str
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    channel_axis: bool = False
    tokens: int = 0
    encoder: Encoder | None = None

    def __post_init__(self) -> None:
        if self.encoder is not None:
            return
        if self.kind == "text":
            raise ConfigError("Text needs features: give features='hashed-ngrams', or numbers instead of strings.")
        if self.kind == "uint8" and len(self.shape) == 3 and self.shape[0] > 4 >= self.shape[2]:
            raise ConfigError(
                f"Expected images as channels x height x width, got {self.shape}; "
                "if the channels come last, use np.moveaxis(x, -1, 1)."
            )
        for name, values in (("pixel_mean", self.mean), ("pixel_std", self.std)):
            if values is not None and len(values) not in (1, self.channels):
                raise ConfigError(f"Expected {name} as one number or {self.channels} (one per channel), got {values}.")

    @property
    def channels(self) -> int:
        """Number of channels of an image; other inputs count as one."""
        return self.shape[0] if len(self.shape) == 3 else 1

    def __call__(self, x: Array, what: str) -> FloatArray | IntArray:
        """Check raw inputs and turn them into inputs of the network.

        Args:
            x: raw inputs, one entry per example.
            what: how to call them in an error.

        Raises:
            ConfigError: they are not of the shape and kind of the training inputs, or not finite.
        """
        if x.shape[1:] != self.shape or not self._is_of_kind(kind_of(x)):
            raise ConfigError(
                f"Expected {what} inputs of shape {self.shape} and kind {self.kind} like the training inputs, "
                f"got {x.shape[1:]} and {kind_of(x)}; prepare both alike."
            )
        if self.tokens:
            return self._checked_tokens(x, what)
        inputs = self._encoded(x, what) if self.encoder is not None else self._scaled(x)
        bad = ~np.isfinite(inputs.reshape(len(inputs), -1)).all(axis=1)
        if bad.any():
            raise ConfigError(
                f"Input {int(np.argmax(bad))} of the {what} data holds NaN or infinite values; "
                "repair or leave out such examples."
            )
        return inputs

    def _is_of_kind(self, kind: str) -> bool:
        """Whole numbers and others are both numbers, unless they stand for tokens."""
        return kind == self.kind or (not self.tokens and {kind, self.kind} == {"integer", "float"})

    def _checked_tokens(self, x: Array, what: str) -> IntArray:
        tokens = np.array(x, dtype=np.int64, order="C")
        bad = ((tokens < 0) | (tokens >= self.tokens)).reshape(len(tokens), -1).any(axis=1)
        if bad.any():
            raise ConfigError(
                f"Input {int(np.argmax(bad))} of the {what} data holds a token outside 0 to {self.tokens - 1}, those "
                "that the network can look up; map unknown tokens to one of them."
            )
        return tokens

    def _encoded(self, x: Array, what: str) -> FloatArray:
        assert self.encoder is not None
        features = np.ascontiguousarray(self.encoder.transform(x), dtype=np.float32)
        if len(features) != len(x):
            raise ConfigError(f"The encoder made {len(features)} rows of {len(x)} {what} inputs; it must keep them.")
        return features

    def _scaled(self, x: Array) -> FloatArray:
        with np.errstate(over="ignore"):  # what does not fit into single precision is found as infinite
            inputs = np.array(x, dtype=np.float32, order="C")
        if self.channel_axis and len(self.shape) == 2:
            inputs = inputs[:, None]
        if self.mean is not None and self.std is not None:
            inputs /= 255
            inputs -= _per_channel(self.mean, inputs.ndim)
            inputs /= _per_channel(self.std, inputs.ndim)
        return inputs


def _per_channel(values: tuple[float, ...], dimensions: int) -> FloatArray:
    shape = (1, len(values), *[1] * (dimensions - 2)) if len(values) > 1 else (1,) * dimensions
    return np.array(values, dtype=np.float32).reshape(shape)
