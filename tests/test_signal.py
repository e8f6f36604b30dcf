"""Private linear models on tables and text: less noise buys accuracy, and who has too few examples is told so."""

import math
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

import mithridate
from mithridate import SampledGaussian, Subsampled, TrainConfig
from mithridate.data import Number, Table, read
from mithridate.defences import defence
from mithridate.features import HashedWords, UnitNorm
from mithridate.recipes.choosing import Recipe, choose
from mithridate.recipes.signal import needed_examples, needed_signal, round_up, signal_of
from mithridate.training.order import Facts, compose

TABLE: dict[str, Any] = {"num_train": 3400, "classes": 2, "shape": (52,), "kind": "float"}
TEXT: dict[str, Any] = {"num_train": 3400, "classes": 2, "shape": (), "kind": "text"}


def told(recipe: Recipe) -> str:
    """What is said about too much noise, or nothing."""
    return next((sentence for sentence in recipe.warnings if "so much noise" in sentence), "")


# --- a slow and obvious private training, against which constants are judged ------------------------------------------


def rows(number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A table with an offset, whose label bends with one column; one label is twice as frequent."""
    draw = np.random.default_rng(seed)
    values = draw.beta(2, 5, (number, 3))
    label = (np.abs(values[:, 0] - 0.3) + 0.5 * values[:, 1] + 0.05 * draw.normal(size=number) > 0.3).astype(int)
    declared = Table("y", tuple(Number(name, 0, 1) for name in "abc"), classes=("0", "1"))
    frame = pd.DataFrame(values, columns=list("abc")).assign(y=label.astype(str))
    examples = read(frame, declared, labels=True)
    assert examples.y is not None
    return UnitNorm().transform(examples.x), examples.y


def simulated(config: TrainConfig, x: np.ndarray, y: np.ndarray, classes: int, seed: int) -> np.ndarray:
    """The weights of one instance: Poisson batches, clipping, noise and momentum, an example at a time in effect."""
    draw = np.random.default_rng(seed)
    weights, pace, total = np.zeros((3, classes, x.shape[1]))
    for _ in range(config.steps):
        drawn = draw.random(len(x)) < config.sample_rate
        scores = np.exp(x[drawn] @ weights.T)
        errors = scores / scores.sum(axis=1, keepdims=True) - np.eye(classes)[y[drawn]]
        norms = np.linalg.norm(errors, axis=1) * np.linalg.norm(x[drawn], axis=1)
        errors *= np.minimum(1.0, config.max_grad_norm / norms)[:, None]
        noise = config.noise_multiplier * config.max_grad_norm * draw.normal(size=weights.shape)
        pace = config.momentum * pace + (errors.T @ x[drawn] + noise) / (config.sample_rate * len(x))
        weights = weights - config.learning_rate * pace
        total += weights
    return total / config.steps if config.average_iterates else weights


def simulated_accuracy(noise: float | None, **changes: Any) -> float:
    (x, y), (test_x, test_y) = rows(3400, 0), rows(1000, 1)
    recipe = choose(**TABLE, instances=60, noise_multiplier=noise, **changes)
    labels = [(test_x @ simulated(recipe.config, x, y, 2, seed).T).argmax(axis=1) for seed in range(7)]
    return float(((np.mean(labels, axis=0) > 0.5) == test_y).mean())


def test_less_noise_buys_accuracy_on_tables_up_to_that_of_plain_logistic_regression() -> None:
    (x, y), (test_x, test_y) = rows(3400, 0), rows(1000, 1)
    baseline = max(test_y.mean(), 1 - test_y.mean())
    plain = LogisticRegression(C=100.0, max_iter=2000).fit(x, y).score(test_x, test_y)
    loud, usual, quiet = (simulated_accuracy(noise) for noise in (200.0, None, 1.0))
    assert plain > baseline + 0.15  # there is something to learn
    assert loud < usual < quiet
    assert quiet > plain - 0.03
    assert usual > baseline + 0.5 * (plain - baseline)


def test_the_steps_of_images_would_overshoot_on_a_table() -> None:
    """What was trained before: 20 steps of 60 in units of the clipping norm, without momentum."""
    (x, y), (test_x, test_y) = rows(3400, 0), rows(1000, 1)
    before = TrainConfig(1, 1.0, 0.1, 20, 0.5, 120.0, average_iterates=True)
    late = simulated(before, x, y, 2, 0)
    assert ((test_x @ late.T).argmax(axis=1) == test_y).mean() < simulated_accuracy(1.0) - 0.05


@pytest.mark.parametrize("width", [5, 80])
def test_the_noise_of_a_logit_depends_on_the_signal_and_not_on_the_width(width: int) -> None:
    """All steps add noise of about 1.4 to the logit of a row of norm one; momentum still owes some of the last."""
    config = choose(**TABLE).config
    row = np.full((1, width), 1 / math.sqrt(width))
    divisor = config.sample_rate * TABLE["num_train"]
    draw, logits = np.random.default_rng(0), []
    for _ in range(400):
        weights, pace = np.zeros(width), np.zeros(width)
        for _ in range(config.steps):
            noise = config.noise_multiplier * config.max_grad_norm * draw.normal(size=width)
            pace = config.momentum * pace + noise / divisor
            weights -= config.learning_rate * pace
        logits.append(float(row[0] @ weights))
    assert 1.1 < np.std(logits) < 1.5


# --- the product ------------------------------------------------------------------------------------------------------


def product_accuracy(training: Any, test: Any, noise: float) -> float:
    order = compose(defence("fdp", instances=5, noise_multiplier=noise), training, test)
    votes = mithridate.train(
        training,
        test,
        model=order.choice.defence.model,
        features=order.choice.defence.encoder,
        config=order.choice.defence.config,
    )
    return float((votes.counts.argmax(axis=1) == test[1]).mean())


def texts(number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Texts of common words, one in twelve of which tells the label."""
    draw = np.random.default_rng(seed)
    label = draw.integers(0, 3, number)
    own = np.array([[f"{stem}{i}" for i in range(60)] for stem in ("apple", "bridge", "candle")])
    common = np.array([f"word{i}" for i in range(400)])
    made = [
        " ".join(np.where(draw.random(12) < 1 / 12, draw.choice(own[y], 12), draw.choice(common, 12))) for y in label
    ]
    return np.array(made), label


def test_less_noise_buys_accuracy_on_text() -> None:
    training, test = texts(1400, 0), texts(300, 1)
    loud, quiet = (product_accuracy(training, test, noise) for noise in (100.0, 10.0))
    assert loud < 0.5
    assert quiet > 0.65


# --- momentum ---------------------------------------------------------------------------------------------------------


def test_few_steps_get_less_momentum_and_shorter_steps() -> None:
    found = [choose(**TABLE, noise_multiplier=0.5, steps=steps).config for steps in (1, 10, 20, 50, 100, 1000)]
    assert [config.momentum for config in found] == pytest.approx([0, 0, 0.5, 0.8, 0.9, 0.9])
    for config in found:  # the bound of heavy-ball steps: 2 (1 + momentum) / curvature, here 0.5 x 0.8 / 0.5
        assert config.learning_rate * config.max_grad_norm <= 2 * (1 + config.momentum) / 0.8


def test_a_momentum_that_is_given_is_kept_and_the_steps_follow_it() -> None:
    without = choose(**TABLE, noise_multiplier=0.5, momentum=0.0).config
    assert (without.momentum, without.learning_rate) == (0.0, pytest.approx(2.0 / without.max_grad_norm))
    facts = Facts(3400, 2, (52,), "float", "cpu")
    assert (
        defence("fdp", momentum=0.0, noise_multiplier=0.5).choose(facts).defence.learning_rate == without.learning_rate
    )
    assert defence("fdp", optimizer="adam").choose(facts).defence.momentum == 0.0


def test_images_and_other_small_networks_train_as_before() -> None:
    images = choose(num_train=3400, classes=2, shape=(28, 28), kind="uint8").config
    assert (images.steps, images.momentum, images.average_iterates) == (20, 0.0, True)
    assert choose(**TABLE, model="mlp").config.momentum == 0.0


# --- who is told that examples are too few ----------------------------------------------------------------------------


def test_the_signal_is_that_of_the_sum_of_all_noisy_gradients() -> None:
    """Gradients of norm one in one direction, sampled, summed over the steps; the noise has that deviation there."""
    mechanism = SampledGaussian(noise_multiplier=3.0, sample_rate=0.25, steps=40)
    draw = np.random.default_rng(0)
    sums = draw.binomial(200, 0.25, (4000, 40)).sum(axis=1)
    noise = (3.0 * draw.normal(size=(4000, 40))).sum(axis=1)
    assert signal_of(mechanism, 200) == pytest.approx(sums.mean() / noise.std(), rel=0.05)
    assert signal_of(Subsampled(0.5, mechanism), 200) == pytest.approx(0.5 * signal_of(mechanism, 200))


@settings(max_examples=60, deadline=None)
@given(number=st.integers(1, 10**15))
def test_numbers_are_rounded_up_to_two_digits(number: int) -> None:
    rounded = round_up(float(number))
    assert number <= rounded <= 1.1 * number + 1
    assert re.fullmatch(r"\d{1,2}0*", str(rounded))


@settings(max_examples=12, deadline=None)
@given(
    num_train=st.integers(30, 100_000),
    classes=st.integers(2, 30),
    noise=st.floats(0.5, 5000),
    task=st.sampled_from([TABLE, TEXT]),
)
def test_the_number_that_is_named_would_do_and_fewer_would_not(
    num_train: int, classes: int, noise: float, task: dict[str, Any]
) -> None:
    facts = {**task, "num_train": num_train, "classes": classes, "instances": 60}
    recipe = choose(**facts, noise_multiplier=noise)
    config = recipe.config
    given_all = {name: getattr(config, name) for name in ("noise_multiplier", "sample_rate", "steps")}
    signal = config.sample_rate * num_train * math.sqrt(config.steps) / noise
    assume(not 0.98 < signal / needed_signal(task["kind"], classes) < 1.02)
    sentence = told(recipe)
    assert bool(sentence) == (signal < needed_signal(task["kind"], classes))
    if sentence:
        found = re.search(r"([\d,]+) examples would do.*noise_multiplier=([\d.e+-]+) ", sentence)
        assert found is not None
        enough, quieter = int(found[1].replace(",", "")), float(found[2])
        assert enough > num_train
        assert not told(choose(**{**facts, "num_train": enough}, **given_all))
        assert told(choose(**{**facts, "num_train": int(0.88 * enough)}, **given_all))
        assert not told(choose(**facts, **{**given_all, "noise_multiplier": 0.99 * quieter}))


@settings(max_examples=25, deadline=None)
@given(num_train=st.integers(2, 200_000), classes=st.integers(2, 100), task=st.sampled_from([TABLE, TEXT]))
def test_a_recipe_that_is_left_open_always_lets_models_learn(
    num_train: int, classes: int, task: dict[str, Any]
) -> None:
    assert not told(choose(**{**task, "num_train": num_train, "classes": classes}, instances=60))


def test_the_sentence_names_another_method_and_comes_before_training() -> None:
    choice = defence("fdp", noise_multiplier=400.0).choose(Facts(670, 2, (52,), "float", "cpu"))
    sentence = next(each for each in choice.warnings if "so much noise" in each)
    assert "nearest-neighbours" in sentence
    assert f"Weak: {sentence}" in choice.words


@pytest.mark.parametrize(
    "changes",
    [{"kind": "uint8", "shape": (28, 28)}, {"model": "mlp"}, {"features": None}],
    ids=["images", "another network", "rows of any norm"],
)
def test_the_rule_is_for_linear_models_on_encoded_rows_alone(changes: dict[str, Any]) -> None:
    assert told(choose(**TABLE, noise_multiplier=400.0))
    assert not told(choose(**{**TABLE, **changes}, noise_multiplier=400.0))


@pytest.mark.parametrize("mechanism", [SampledGaussian(1e300, 1e-300, 1), SampledGaussian(1e-300, 1.0, 10**9)])
def test_extreme_mechanisms_have_a_number_too(mechanism: SampledGaussian) -> None:
    assert 1 <= needed_examples(mechanism, "text", 2) <= 10**15


@pytest.mark.parametrize("task", [TABLE, TEXT, {**TABLE, "kind": "uint8", "shape": (28, 28)}])
@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("num_train", [6, 25, 50])
def test_the_number_that_covers_one_change_does(task: dict[str, Any], classes: int, num_train: int) -> None:
    facts = {**task, "classes": classes, "num_train": num_train}
    recipe = choose(**facts)
    named = [(re.search(r"\(([\d,]+) would do\)", each), each) for each in recipe.warnings]
    for found, sentence in named:
        if found is not None:
            share = 1.0 if "not even one" in sentence else 0.9
            assert recipe.reach[share] == 0
            assert choose(**{**facts, "num_train": int(found[1].replace(",", ""))}).reach[share] >= 1


def test_text_features_of_the_private_ensemble_are_the_documented_ones() -> None:
    assert defence("fdp").choose(Facts(3400, 2, (), "text", "cpu")).defence.encoder == HashedWords()
