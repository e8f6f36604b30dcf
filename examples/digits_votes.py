"""How examples/digits-votes.npz was made: 1,000 private linear classifiers on scikit-learn's handwritten digits.

Plain numpy, so that it can be read in one sitting: this is the mechanism of `SampledGaussian`, step by step. Needs
scikit-learn for the data. Run it as `python examples/digits_votes.py OUT.npz`; every run draws new randomness.
"""

import sys

import numpy as np
from sklearn.datasets import load_digits

from mithridate import SampledGaussian, Votes

INSTANCES = 1000
MECHANISM = SampledGaussian(noise_multiplier=8.0, sample_rate=0.1, steps=40)
LEARNING_RATE = 8.0
NUM_TRAIN = 1400
CLASSES = 10


def main(out: str) -> None:
    """Train, vote, save."""
    digits = load_digits()
    inputs = features(digits.data)
    x_train, y_train = inputs[:NUM_TRAIN], digits.target[:NUM_TRAIN]
    x_test, y_test = inputs[NUM_TRAIN:], digits.target[NUM_TRAIN:]
    counts = np.zeros((len(x_test), CLASSES), dtype=np.int64)
    random = np.random.default_rng()  # Entropy of the operating system: the attacker must not know it.
    for _ in range(INSTANCES):
        weights = train(x_train, y_train, random)
        counts[np.arange(len(x_test)), (x_test @ weights).argmax(axis=1)] += 1
    Votes.from_counts(counts, mechanism=MECHANISM, labels=y_test).save(out)


def features(pixels: np.ndarray) -> np.ndarray:
    """Pixels scaled by constants, a bias, rows of norm one: nothing is learnt from the data."""
    rows = np.hstack([pixels / 16.0, np.ones((len(pixels), 1))])
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def train(x: np.ndarray, y: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """One instance: softmax regression by DP-SGD, clipping norm 1, from zero; returns the mean of its iterates."""
    targets = np.eye(CLASSES)[y]
    weights = np.zeros((x.shape[1], CLASSES))
    total = np.zeros_like(weights)
    for _ in range(MECHANISM.steps):
        batch = random.random(len(x)) < MECHANISM.sample_rate
        scores = np.exp(x[batch] @ weights)
        errors = scores / scores.sum(axis=1, keepdims=True) - targets[batch]
        # The gradient of one example is the outer product of its features (norm one) and its error.
        errors /= np.maximum(np.linalg.norm(errors, axis=1, keepdims=True), 1.0)
        noisy_sum = x[batch].T @ errors + random.normal(0.0, MECHANISM.noise_multiplier, weights.shape)
        # Divided by a constant, never by the size of the batch.
        weights -= LEARNING_RATE * noisy_sum / (MECHANISM.sample_rate * NUM_TRAIN)
        total += weights
    return total / MECHANISM.steps


if __name__ == "__main__":
    main(sys.argv[1])
