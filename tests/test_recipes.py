"""Recipes: what is chosen, from what, and that the radius shown beforehand is never too small."""

import json
import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from mithridate import ADP, FDP, RDP, ConfigError, Threat, TrainConfig, plan
from mithridate.features import Frozen, HashedWords, OrientedGradients, PhotoGradients, UnitNorm
from mithridate.recipes.choosing import Recipe, choose
from tests.oracles import winner_tail

TABLE: dict[str, Any] = {"num_train": 1000, "classes": 4, "shape": (12,), "kind": "float"}
IMAGES = (1, 28, 28), (3, 32, 32)


def table(**changes: Any) -> Recipe:
    return choose(**{**TABLE, **changes})


# --- what could be reached ------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(
    num_train=st.integers(20, 3000),
    classes=st.integers(2, 12),
    instances=st.integers(60, 2000),
    threat=st.sampled_from(list(Threat)),
)
def test_no_plan_goes_beyond_what_is_said_to_be_in_reach_and_most_come_close(
    num_train: int, classes: int, instances: int, threat: Threat
) -> None:
    recipe = table(num_train=num_train, classes=classes, instances=instances, threat=threat)
    exact_plan = plan(
        recipe.config.mechanism, instances=instances, classes=classes, failure_prob=1e-3, threat=threat, method=FDP()
    )
    for share in (1.0, 0.9):
        exact = exact_plan.radius_by_top_share[share]
        assert exact <= recipe.reach[share] <= 1.05 * exact + 1


@pytest.mark.parametrize("num_train", [400, 1397, 60_000])
def test_the_radius_follows_the_law_of_the_module_docstring(num_train: int) -> None:
    """Gaussian without sampling: mu = r A / n for r changes, and unanimity holds while mu < z, its lower bound."""
    recipe = choose(num_train=num_train, classes=10, shape=(28, 28), kind="uint8")
    config = recipe.config
    signal = config.sample_rate * num_train * math.sqrt(config.steps) / config.noise_multiplier
    lower = winner_tail(1e-3, recipe.classes) ** (1 / config.instances)
    assert recipe.reach[1.0] == pytest.approx(norm.ppf(lower) * num_train / signal, rel=0.02, abs=1)


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"num_train": 300}, {"num_train": 3000}),
        ({"instances": 100}, {"instances": 3000}),
        ({"noise_multiplier": 5.0}, {"noise_multiplier": 50.0}),
        ({"failure_prob": 1e-9}, {"failure_prob": 0.1}),
        ({"steps": 200, "noise_multiplier": 50.0}, {"steps": 10, "noise_multiplier": 50.0}),
    ],
)
def test_more_of_what_should_help_helps(less: dict[str, Any], more: dict[str, Any]) -> None:
    weak, strong = table(**less), table(**more)
    assert all(weak.reach[share] < strong.reach[share] for share in (1.0, 0.9))


@pytest.mark.parametrize("method", [RDP(), ADP()])
def test_what_is_in_reach_is_so_by_the_method_that_was_asked_for(method: Any) -> None:
    assert table(method=method).reach[1.0] < table().reach[1.0]


# --- what is chosen -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "kind", "expected"),
    [
        ((28, 28), "uint8", OrientedGradients()),
        ((1, 28, 28), "uint8", OrientedGradients()),
        ((3, 32, 32), "uint8", PhotoGradients()),
        ((4, 32, 32), "uint8", OrientedGradients()),
        ((3, 4, 4), "uint8", UnitNorm()),
        ((4, 4), "uint8", UnitNorm()),
        ((64,), "uint8", UnitNorm()),
        ((30,), "float", UnitNorm()),
        ((30,), "integer", UnitNorm()),
        ((8, 8), "float", UnitNorm()),
    ],
)
def test_features_follow_shape_and_kind(shape: tuple[int, ...], kind: str, expected: Any) -> None:
    recipe = table(shape=shape, kind=kind)
    assert (recipe.model, recipe.features) == ("linear", expected)


def test_who_has_images_in_colour_is_told_that_they_count_as_their_mirror_images() -> None:
    told = ["mirror image" in table(shape=shape, kind="uint8").in_words() for shape in IMAGES]
    assert told == [False, True]
    for asked in ("oriented-gradients", "photo-gradients"):
        assert "mirror image" not in table(shape=IMAGES[1], kind="uint8", features=asked).in_words()


def test_text_is_hashed_and_numbers_are_never_expected_of_it() -> None:
    assert isinstance(table(shape=(), kind="text").features, HashedWords)
    with pytest.raises(ConfigError, match="features='auto'"):
        table(shape=(), kind="text", features=None)


def test_features_that_are_given_are_kept() -> None:
    frozen = Frozen(lambda rows: rows, title="rows", trained_on="nothing")
    for given_features in (None, frozen, UnitNorm(bias=0.5), OrientedGradients(cells=3)):
        recipe = table(shape=(28, 28), kind="uint8", features=given_features)
        assert recipe.features == given_features
    assert table(features="unit-norm").features == UnitNorm()


@settings(max_examples=20, deadline=None)
@given(
    given_constants=st.fixed_dictionaries(
        {},
        optional={
            "noise_multiplier": st.floats(0.5, 100),
            "sample_rate": st.floats(0.01, 1),
            "steps": st.integers(1, 300),
            "learning_rate": st.floats(0.01, 50),
            "max_grad_norm": st.floats(0.1, 10),
        },
    ),
    model=st.sampled_from(["auto", "linear", "mlp", "lenet5"]),
)
def test_what_is_given_is_never_changed(given_constants: dict[str, Any], model: str) -> None:
    recipe = choose(
        num_train=500,
        classes=3,
        shape=(28, 28),
        kind="uint8",
        instances=60,
        model=model,
        **given_constants,
    )
    assert {name: getattr(recipe.config, name) for name in given_constants} == given_constants
    assert recipe.config.instances == 60


def test_the_clipping_norm_scales_the_step_and_not_the_mechanism() -> None:
    one, half = table(max_grad_norm=1.0), table(max_grad_norm=0.5)
    assert one.config.mechanism == half.config.mechanism
    assert half.config.learning_rate == pytest.approx(2 * one.config.learning_rate, rel=0.01)


def test_a_clipping_norm_that_is_left_open_changes_no_radius() -> None:
    one, chosen = table(max_grad_norm=1.0), table()
    assert one.config.mechanism == chosen.config.mechanism
    assert one.reach == chosen.reach
    # Liu et al. 2023, as in its code: C = 0.8 and a step size of 0.1 at MNIST.
    network = choose(num_train=60_000, classes=10, shape=(28, 28), kind="uint8", model="lenet5")
    assert (network.config.max_grad_norm, network.config.learning_rate) == (0.8, 0.1)


def test_public_constants_are_left_open_so_that_certificates_list_them() -> None:
    config = table().config
    assert config.num_train is config.classes is config.divisor is None


@pytest.mark.parametrize(
    ("model", "shape", "num_train", "rate", "noise", "steps"),
    [
        # Liu et al. 2023, as in its code: MNIST 0.001 and 1 epoch; CIFAR-10 512/50000 and 256/4000.
        ("lenet5", (28, 28), 60_000, 0.001, 3.0, 1000),
        ("opa-tut", (3, 32, 32), 50_000, 512 / 50_000, 2.0, 1710),
        ("resnet18", (3, 32, 32), 4_000, 256 / 4_000, 19.0, 2343),
    ],
)
def test_networks_get_the_published_constants(
    model: str, shape: tuple[int, ...], num_train: int, rate: float, noise: float, steps: int
) -> None:
    recipe = choose(num_train=num_train, classes=10, shape=shape, kind="uint8", model=model, instances=100)
    assert recipe.features is None
    assert recipe.config.sample_rate == pytest.approx(rate, rel=0.005)
    assert (recipe.config.noise_multiplier, recipe.config.steps) == (noise, steps)


def test_a_network_on_fewer_examples_than_its_batch_takes_them_all_with_noise_in_proportion() -> None:
    recipe = choose(num_train=30, classes=2, shape=(28, 28), kind="uint8", model="lenet5", instances=100)
    assert recipe.config.sample_rate == 1.0
    assert recipe.config.noise_multiplier == pytest.approx(3.0 * 30 / 60)


def test_a_network_of_the_users_own_is_passed_on_and_its_time_not_guessed() -> None:
    network = object()
    recipe = table(model=network)
    assert recipe.model is network
    assert recipe.features is None
    assert math.isnan(recipe.seconds)
    assert "never measured" in recipe.in_words()


# --- time -----------------------------------------------------------------------------------------------------------


def test_where_time_is_short_batches_shrink_and_the_radius_stays() -> None:
    task: dict[str, Any] = {"num_train": 50_000, "classes": 10, "shape": (3, 32, 32), "kind": "uint8"}
    ample, short = choose(**task, seconds=600), choose(**task, seconds=15)
    assert short.seconds <= 15 < ample.seconds <= 600
    assert short.config.sample_rate < ample.config.sample_rate
    assert short.reach[1.0] == pytest.approx(ample.reach[1.0], rel=0.03)
    assert any("15 s" in reason for reason in short.reasons)


def test_few_examples_are_all_taken_in_every_step() -> None:
    assert table(num_train=100).config.sample_rate == 1.0


def test_time_that_cannot_be_kept_is_said() -> None:
    recipe = choose(num_train=60_000, classes=10, shape=(28, 28), kind="uint8", model="lenet5", seconds=10)
    assert recipe.seconds > 10
    assert "longer than the 10 s" in " ".join(recipe.warnings)


# --- words ----------------------------------------------------------------------------------------------------------


def test_words_say_what_is_trained_and_what_could_be_reached() -> None:
    recipe = table()
    words = recipe.in_words()
    assert not recipe.warnings
    for expected in ("1,000 instances of linear", "unit-norm", "1,000 examples", "4 classes", "cpu"):
        assert expected in words
    assert f"up to {recipe.reach[1.0]} examples added or removed where all instances agree" in words
    assert f"{recipe.reach[0.9]} where 9 of 10 do" in words
    assert "for 670 to 1,349 examples of 4 classes" in table(num_train=670).in_words(by_step=True)


def test_a_recipe_is_plain_json() -> None:
    for recipe in (table(), table(model=object()), table(shape=(), kind="text")):
        values = json.loads(json.dumps(recipe.to_dict(), allow_nan=False))
        assert TrainConfig.from_dict(values["config"]) == recipe.config
        assert values["reach"] == {"1": recipe.reach[1.0], "0.9": recipe.reach[0.9]}
        assert (values["features"] is None) == (recipe.features is None)


@pytest.mark.parametrize(
    ("changes", "knob"),
    [
        ({"instances": 5}, "raise instances"),
        ({"instances": 100}, "instances=1000"),
        ({"noise_multiplier": 0.3}, "raise noise_multiplier"),
        ({"num_train": 8}, "train on more"),
        ({"classes": 900}, "train on more"),
    ],
)
def test_warnings_name_the_knob(changes: dict[str, Any], knob: str) -> None:
    recipe = table(**changes)
    assert any(knob in sentence for sentence in recipe.warnings)
    assert recipe.in_words().count("Weak: ") == len(recipe.warnings)


def test_with_too_few_instances_nothing_is_promised() -> None:
    recipe = table(instances=5)
    assert recipe.reach == {1.0: -1, 0.9: -1}
    assert "Radius that could be reached: none" in recipe.in_words()


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_train": 0}, "num_train"),
        ({"num_train": 2.5}, "num_train"),
        ({"classes": 1}, "classes of at least 2"),
        ({"kind": "complex"}, "kind"),
        ({"device": "tpu"}, "device"),
        ({"seconds": 0}, "seconds"),
        ({"seconds": math.nan}, "seconds"),
        ({"instances": 0}, "instances"),
        ({"model": "resnet50"}, "model"),
        ({"features": "word2vec"}, "features"),
        ({"features": 3}, "features"),
        ({"steps": 0}, "steps"),
        ({"steps": 0, "model": "lenet5"}, "steps"),
        ({"sample_rate": 0.0}, "sample_rate"),
        ({"sample_rate": 1.5}, "sample_rate"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"max_grad_norm": 0}, "max_grad_norm"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"failure_prob": 2.0}, "failure_prob"),
        ({"threat": "flood"}, "threat"),
        ({"method": "magic"}, "method"),
        ({"shape": (32, 32, 3), "kind": "uint8"}, "moveaxis"),
        ({"features": UnitNorm(center=(1.0, 2.0))}, "center"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        table(**changes)


def test_choosing_needs_no_torch() -> None:
    code = (
        "import sys; from mithridate.recipes.choosing import choose; "
        "choose(num_train=100, classes=2, shape=(4,), kind='float').in_words(); "
        "assert not {'torch', 'sklearn', 'matplotlib', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
