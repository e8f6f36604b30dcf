"""How much of what there is to learn comes through the noise of private training: a rule of thumb, from public facts.

With sample rate q, noise s, T steps and n examples (of which each instance keeps a share k), the noisy gradients of all
steps together hold their mean with a *signal*, in units of the noise, of

    A = (k q n / s) sqrt(T).

For rows of norm one the noise of a logit depends on A alone, whatever the number of columns: a step adds the product of
the row with a Gaussian vector, which has the deviation of one coordinate. So A decides what can be learnt, and the same
A costs fewer changes of the radius where there are more examples: unanimous votes are certified to about 2.3 n / A.
"""

from __future__ import annotations

import math

from mithridate.core.mechanism import Private, Subsampled

# What linear models on rows of norm one need, for each class, to learn half of what they could without noise: the
# medians over eleven tables and six sets of texts. docs/recipes.md has them, and how far the rule is to be trusted.
_NEEDED_OF_TABLES, _NEEDED_OF_TEXT = 10.0, 50.0
# Two classes of rows or texts were no easier to tell apart through noise than so many.
_FEWEST_CLASSES = 5
# More examples than anybody has are not counted.
_FAINTEST, _MOST_EXAMPLES = 1e-15, 1e15


def signal_of(mechanism: Private, num_train: int) -> float:
    """The signal A of this many examples.

    >>> from mithridate import SampledGaussian
    >>> signal_of(SampledGaussian(noise_multiplier=10.0, sample_rate=0.1, steps=100), 5_000)
    500.0
    """
    inner, keep = (mechanism.inner, mechanism.keep) if isinstance(mechanism, Subsampled) else (mechanism, 1.0)
    return keep * inner.sample_rate * num_train * math.sqrt(inner.steps) / inner.noise_multiplier


def needed_signal(kind: str, classes: int) -> float:
    """The signal with which a linear model on a table, or on `text`, can be expected to learn half of what it could.

    Half: its ensemble is correct as often as halfway between the baseline and the same model without noise.

    Args:
        kind: what the inputs hold, as `data.Examples.kind` says.
        classes: number of labels.
    """
    return (_NEEDED_OF_TEXT if kind == "text" else _NEEDED_OF_TABLES) * counted_classes(classes)


def counted_classes(classes: int) -> int:
    """How many classes a signal is shared out to: of rows or texts, at least five."""
    return max(classes, _FEWEST_CLASSES)


def needed_examples(mechanism: Private, kind: str, classes: int) -> int:
    """How many examples give a mechanism the signal that it needs; two digits of their number, rounded up.

    Radii do not depend on their number, as the mechanism does not.

    >>> from mithridate import SampledGaussian
    >>> needed_examples(SampledGaussian(noise_multiplier=10.0, sample_rate=0.1, steps=100), "float", classes=8)
    800
    """
    return round_up(min(needed_signal(kind, classes) / max(signal_of(mechanism, 1), _FAINTEST), _MOST_EXAMPLES))


def round_up(number: float) -> int:
    """A whole number of two digits and zeros, not below a number.

    >>> [round_up(number) for number in (0.2, 12.0, 12.01, 1_210.0)]
    [1, 12, 13, 1300]
    """
    whole = math.ceil(number - 1e-9 * number)
    unit = 10 ** max(0, len(str(whole)) - 2)
    return -(-whole // unit) * unit
