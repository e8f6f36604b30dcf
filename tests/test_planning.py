"""Planning: what could be certified must be what `certify` then certifies, and what is needed must be the least."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from mithridate import (
    ADP,
    FDP,
    RDP,
    ConfigError,
    MithridateError,
    SampledGaussian,
    Subsampled,
    Threat,
    Votes,
    certify,
    plan,
)
from mithridate.core.mechanism import Private
from tests.oracles import winner_tail

THREATS = list(Threat)


# --- without sampling everything has a closed form -------------------------------------------------------------------


def margin(instances: int, classes: int, failure_prob: float) -> float:
    """By how many deviations unanimous votes may shift before the label loses: -Phi^-1(1 - tail^(1/n))."""
    tests = min(classes - 1, 2)
    if 2.0**-instances > failure_prob * max(0.1, tests / (2 * classes)) / tests:
        return -math.inf  # the sign test does not tell even unanimous votes from chance
    miss = -math.expm1(math.log(winner_tail(failure_prob, classes)) / instances)
    return -float(special.ndtri(miss))


def largest_radius(
    mechanism: SampledGaussian, instances: int, classes: int, failure_prob: float, threat: Threat
) -> int:
    """The largest r with changes * sqrt(T) / sigma < margin: K = Phi(Phi^-1(x) + shift) at both, and they are equal."""
    room = margin(instances, classes, failure_prob)
    if room <= 0:
        return -1
    per_unit = threat.changes(1) * math.sqrt(mechanism.steps) / mechanism.noise_multiplier
    return math.ceil(room / per_unit) - 1


@settings(max_examples=25)
@given(
    noise=st.floats(1.0, 40.0),
    steps=st.integers(1, 20),
    instances=st.integers(1, 3000),
    classes=st.integers(2, 12),
    failure_prob=st.sampled_from([0.3, 0.05, 1e-3, 1e-6]),
    threat=st.sampled_from(THREATS),
)
def test_the_best_radius_is_that_of_gaussians(
    noise: float, steps: int, instances: int, classes: int, failure_prob: float, threat: Threat
) -> None:
    mechanism = SampledGaussian(noise, 1.0, steps)
    result = plan(mechanism, instances=instances, classes=classes, failure_prob=failure_prob, threat=threat)
    exact = largest_radius(mechanism, instances, classes, failure_prob, threat)
    assert result.max_radius in (exact, exact - 1)  # the engine may lose a borderline case, never win one
    if result.max_radius < exact:
        shift = threat.changes(exact) * math.sqrt(steps) / noise
        assert shift > margin(instances, classes, failure_prob) * (1 - 1e-3)


@pytest.mark.parametrize("threat", THREATS)
def test_what_is_needed_is_the_least_that_gaussians_need(threat: Threat) -> None:
    mechanism, radius = SampledGaussian(20.0, 1.0, 50), 5 if threat.changes(1) == 1 else 2
    result = plan(mechanism, instances=300, classes=10, radius=radius, threat=threat)
    changes = threat.changes(radius)
    instances, steps, noise = result.needed_instances, result.needed_steps, result.needed_noise_multiplier
    assert instances is not None
    assert steps is not None
    assert noise is not None
    shift = changes * math.sqrt(50) / 20.0
    least = next(n for n in range(1, 10**6) if margin(n, 10, 1e-3) > shift)
    assert abs(instances - least) <= 1
    room = margin(300, 10, 1e-3)
    assert abs(steps - ((room * 20.0 / changes) ** 2)) <= 1
    assert 1.0 <= noise / (changes * math.sqrt(50) / room) <= 1.002


# --- the same, asked of certify --------------------------------------------------------------------------------------

CASES: list[tuple[Private, Any, Threat, int]] = [
    (SampledGaussian(20.0, 1.0, 50), FDP(), Threat.SYMMETRIC_DIFFERENCE, 7),
    (SampledGaussian(2.0, 0.1, 10), FDP(), Threat.ADD, 8),
    (SampledGaussian(2.0, 0.1, 10), FDP(), Threat.REMOVE, 8),
    (SampledGaussian(2.0, 0.2, 5), FDP(), Threat.SYMMETRIC_DIFFERENCE, 8),
    (SampledGaussian(20.0, 1.0, 50), RDP("mixture", complement=True), Threat.ADD, 5),
    (SampledGaussian(20.0, 1.0, 10), RDP("standard"), Threat.REPLACE, 3),
    (SampledGaussian(3.0, 0.01, 200), RDP("paper"), Threat.SYMMETRIC_DIFFERENCE, 10),
    (SampledGaussian(20.0, 1.0, 10), ADP(), Threat.SYMMETRIC_DIFFERENCE, 3),
    (Subsampled(0.5, SampledGaussian(4.0, 0.5, 5)), FDP(), Threat.REMOVE, 8),
]


def unanimous(mechanism: Private, instances: int, method: Any, threat: Threat) -> int:
    votes = Votes.from_counts([[instances, 0, 0]], mechanism=mechanism)
    return int(certify(votes, method=method, threat=threat).radius[0])


def with_inner(mechanism: Private, **changes: Any) -> Private:
    if isinstance(mechanism, Subsampled):
        return replace(mechanism, inner=replace(mechanism.inner, **changes))
    return replace(mechanism, **changes)


@pytest.mark.more
@pytest.mark.parametrize(("mechanism", "method", "threat", "radius"), CASES)
def test_what_is_needed_is_enough_and_less_is_not(mechanism: Private, method: Any, threat: Threat, radius: int) -> None:
    result = plan(mechanism, instances=200, classes=3, radius=radius, method=method, threat=threat)
    assert result.max_radius == unanimous(mechanism, 200, method, threat)
    assert result.radius == radius
    instances, steps, noise = result.needed_instances, result.needed_steps, result.needed_noise_multiplier
    assert noise is not None
    if instances is not None:
        assert unanimous(mechanism, instances, method, threat) >= radius
        assert unanimous(mechanism, instances - 1, method, threat) < radius
    else:
        assert unanimous(mechanism, 10_000_000, method, threat) < radius
    if steps is not None:
        assert unanimous(with_inner(mechanism, steps=steps), 200, method, threat) >= radius
        assert unanimous(with_inner(mechanism, steps=steps + 1), 200, method, threat) < radius
    else:
        assert unanimous(with_inner(mechanism, steps=1), 200, method, threat) < radius
    assert unanimous(with_inner(mechanism, noise_multiplier=noise), 200, method, threat) >= radius
    assert unanimous(with_inner(mechanism, noise_multiplier=noise * 0.99), 200, method, threat) < radius
    # What is there already is enough exactly if the best radius reaches the wish.
    reached = result.max_radius >= radius
    assert reached == (instances is not None and instances <= 200)


@pytest.mark.parametrize("threat", THREATS)
@pytest.mark.parametrize("method", [FDP(), RDP(), ADP()], ids=repr)
def test_fewer_votes_never_certify_more(method: Any, threat: Threat) -> None:
    mechanism = SampledGaussian(30.0, 1.0, 10)
    result = plan(mechanism, instances=500, classes=4, method=method, threat=threat)
    radii = list(result.radius_by_top_share.values())
    assert list(result.radius_by_top_share) == sorted(result.radius_by_top_share, reverse=True)
    assert radii == sorted(radii, reverse=True)
    assert radii[0] == result.max_radius == result.radius_by_top_share[1.0]
    assert radii[0] > radii[-1] >= -1
    for share, radius in result.radius_by_top_share.items():
        top = round(share * 500)
        votes = Votes.from_counts([[0, top, 500 - top, 0]], mechanism=mechanism)
        assert certify(votes, method=method, threat=threat).radius[0] == radius


@pytest.mark.parametrize("bounds", ["winner", "simultaneous", "anytime", "simuem", "pointwise"])
def test_the_bounds_are_those_that_were_asked_for(bounds: str) -> None:
    mechanism = SampledGaussian(100.0, 1.0, 2)
    result = plan(mechanism, instances=100, classes=7, bounds=bounds, failure_prob=0.02)
    votes = Votes.from_counts([[100, 0, 0, 0, 0, 0, 0]], mechanism=mechanism)
    assert result.max_radius == certify(votes, bounds=bounds, failure_prob=0.02).radius[0]
    assert result.bounds == bounds


# --- wishes that cannot come true ------------------------------------------------------------------------------------


def test_what_no_number_of_instances_can_reach() -> None:
    result = plan(SampledGaussian(1.0, 1.0, 100), instances=100, classes=2, radius=1)
    assert result.max_radius == 0
    assert result.needed_instances is None  # ten million votes are 5 deviations, the shift is 10
    assert result.needed_steps == 2
    assert result.needed_noise_multiplier is not None


def test_what_not_even_a_single_step_can_reach() -> None:
    result = plan(SampledGaussian(1.0, 1.0, 4), instances=100, classes=2, radius=20)
    assert result.needed_steps is None
    assert result.needed_instances is None
    assert result.needed_noise_multiplier is not None


def test_too_few_instances_certify_nothing_and_no_noise_helps() -> None:
    result = plan(SampledGaussian(4.0, 1.0, 4), instances=5, classes=2, radius=1)
    assert result.max_radius == -1
    assert set(result.radius_by_top_share.values()) == {-1}
    assert result.needed_noise_multiplier is None
    assert result.needed_steps is None
    assert result.needed_instances is not None
    assert result.needed_instances > 5


def test_a_wish_beyond_what_is_searched_is_refused() -> None:
    with pytest.raises(ConfigError, match="1048576"):
        plan(SampledGaussian(4.0, 1.0, 4), instances=100, classes=2, radius=2**20 + 1)


# --- form -----------------------------------------------------------------------------------------------------------


def test_the_dictionary_has_what_was_found_and_what_was_asked_for() -> None:
    asked = plan(SampledGaussian(20.0, 1.0, 50), instances=300, classes=10, radius=5, threat="add", failure_prob=0.01)
    content = asked.to_dict()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert content["schema"] == "mithridate.plan/1"
    assert content["mechanism"]["type"] == "sampled-gaussian"
    assert (content["instances"], content["classes"], content["radius"]) == (300, 10, 5)
    assert (content["method"], content["threat"], content["failure_prob"]) == ("fdp", "add", 0.01)
    assert content["max_radius"] == content["radius_by_top_share"]["1"]
    assert {"needed_instances", "needed_steps", "needed_noise_multiplier"} <= content.keys()
    unasked = plan(SampledGaussian(20.0, 1.0, 50), instances=300, classes=10).to_dict()
    assert not {"radius", "needed_instances", "needed_steps", "needed_noise_multiplier"} & unasked.keys()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"instances": 0}, "instances"),
        ({"instances": -3}, "instances"),
        ({"instances": 2.5}, "instances"),
        ({"instances": True}, "instances"),
        ({"classes": 1}, "classes"),
        ({"classes": 0}, "classes"),
        ({"classes": "ten"}, "classes"),
        ({"radius": 0}, "radius"),
        ({"radius": -1}, "radius"),
        ({"radius": 1.5}, "radius"),
        ({"failure_prob": 0.0}, "failure_prob"),
        ({"failure_prob": 1.0}, "failure_prob"),
        ({"failure_prob": float("nan")}, "failure_prob"),
        ({"threat": "insert"}, "threat"),
        ({"method": "fdp"}, "method"),
        ({"bounds": "hoeffding"}, "hoeffding"),
        ({"mechanism": "gaussian"}, "mechanism"),
    ],
)
def test_bad_arguments_are_refused(changes: dict[str, Any], says: str) -> None:
    arguments: dict[str, Any] = {"mechanism": SampledGaussian(4.0, 1.0, 4), "instances": 100, "classes": 3, **changes}
    with pytest.raises(ConfigError, match=says):
        plan(arguments.pop("mechanism"), **arguments)


def test_an_unsupported_combination_says_so() -> None:
    with pytest.raises(MithridateError, match="paper"):
        plan(Subsampled(0.5, SampledGaussian(4.0, 1.0, 4)), instances=100, classes=3, radius=1, method=RDP("paper"))
