"""Triton and C for those who want them; nobody else needs to read this room.

A `Stage` is the shape of what many image networks start with, for those who compute it: `cpu` and
`leading_convolutions`. A `Chain` is a whole network of stages and linear layers, which `cpu` takes as one.
"""

from __future__ import annotations

from dataclasses import dataclass

# Largest window of a stage.
MOST_PLACES = 16


@dataclass(frozen=True)
class Stage:
    """Convolution with bias (stride 1), activation (`tanh` or `relu`), mean over windows side by side.

    Attributes:
        channels: channels of the image.
        height: height of the image.
        width: width of the image.
        outputs: channels of the result.
        kernel: height and width of the kernel.
        padding: rows above and below, columns left and right that count as zeros.
        activation: `tanh` or `relu`.
        window: height and width of the windows.
    """

    channels: int
    height: int
    width: int
    outputs: int
    kernel: tuple[int, int]
    padding: tuple[int, int]
    activation: str
    window: tuple[int, int]

    @property
    def out_size(self) -> tuple[int, int]:
        """Height and width of the result; what is beyond the last whole window is dropped."""
        sizes = zip((self.height, self.width), self.kernel, self.padding, self.window, strict=True)
        height, width = ((size + 2 * padding - kernel + 1) // window for size, kernel, padding, window in sizes)
        return height, width

    @property
    def entries(self) -> int:
        """Number of weights of one output channel."""
        return self.channels * self.kernel[0] * self.kernel[1]

    @property
    def pixels(self) -> int:
        """Numbers that one pooled pixel depends on."""
        rows, columns = (kernel + window - 1 for kernel, window in zip(self.kernel, self.window, strict=True))
        return self.channels * rows * columns


@dataclass(frozen=True)
class Dense:
    """A linear layer with bias, and the activation after it.

    Attributes:
        features: numbers that it takes.
        outputs: numbers that it gives.
        activation: `tanh` or `relu`; for the last layer of a network, whose results are scores, None.
    """

    features: int
    outputs: int
    activation: str | None


@dataclass(frozen=True)
class Chain:
    """A network that is one stage after another, then one linear layer after another.

    Attributes:
        names: full names of the weights and biases, in this order.
        stages: at least one.
        layers: at least one; the first takes the results of the last stage, channel after channel.
    """

    names: tuple[str, ...]
    stages: tuple[Stage, ...]
    layers: tuple[Dense, ...]
