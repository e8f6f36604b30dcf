"""The table of second routes: what nobody can check is never called valid, and defences from outside are not needed."""

import ast
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import mithridate.auditing
from mithridate import Certificate, ConfigError, Threat, Votes, certify, verify
from mithridate.accounting import Accountant, Margins, Method
from mithridate.auditing import Claim, Limits, routes, second_route
from mithridate.auditing.routes import BoolArray, differences, known_routes
from mithridate.core import registry
from mithridate.core.mechanism import Deterministic, Mechanism, Random
from mithridate.core.rule import Decision, ExactRule


@dataclass(frozen=True)
class Thermometer(Deterministic):
    """A function of the data that this package does not know: one change moves `step` votes."""

    type = "thermometer"
    rule = "warmest"

    step: int


@dataclass(frozen=True)
class WarmestRule(ExactRule):
    """As many changes as the lead allows."""

    name = "warmest"
    title = "warmest"

    def decide(self, votes: Votes, threat: Threat) -> Decision:
        ordered = np.sort(votes.counts, axis=1)
        step = votes.mechanism.to_dict()["step"]
        return Decision(votes.counts.argmax(axis=1), (ordered[:, -1] - ordered[:, -2] - 1) // (2 * step))


def recheck_warmest(claim: Claim) -> BoolArray:
    """Change by change."""
    wrong = np.ones(len(claim.label), dtype=np.bool_)
    for example, (counts, label) in enumerate(zip(claim.counts.tolist(), claim.label.tolist(), strict=True)):
        lost = claim.constants["step"] * int(claim.radius[example])
        rivals = [count + lost for other, count in enumerate(counts) if other != label]
        wrong[example] = counts[label] - lost <= max(rivals)
    return wrong


@dataclass(frozen=True)
class Weather(Random):
    """A random learner that this package does not know."""

    type = "weather"
    rule = "forecast"


class ForecastAccountant:
    """One change moves a thousandth of the votes."""

    error_budget: dict[str, float] = {}  # noqa: RUF012

    def holds(self, radius: int, margins: Margins) -> BoolArray:
        return margins.sum_of(lambda x: x + radius / 1000) < 1

    def close(self) -> None:
        """Nothing to keep."""


@dataclass(frozen=True)
class ForecastRule(Method):
    """Certifies votes on the weather."""

    name = "forecast"
    title = "forecast"

    def accountant(self, mechanism: Mechanism, threat: Threat) -> Accountant:
        return ForecastAccountant()


def recheck_forecast(claim: Claim) -> BoolArray:
    def holds(radius: int, limits: Limits) -> BoolArray:
        return limits.top_lower - radius / 1000 > limits.rival_upper + radius / 1000 + 1e-12

    return claim.unconfirmed(holds)


COUNTS = [[90, 10, 0], [40, 50, 10], [10, 5, 85]]
STRANGERS = {
    "warmest": (Votes(np.array(COUNTS), Thermometer(3)), recheck_warmest, "labels and radii"),
    "forecast": (Votes.from_counts(COUNTS, mechanism=Weather()), recheck_forecast, "radii"),
}


@pytest.fixture(autouse=True)
def _same_table_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "_routes", dict(known_routes()))


def failed(certificate: Certificate, path: Path) -> dict[str, str]:
    certificate.save(path)
    outcome = verify(path)
    assert outcome.valid == all(check.passed for check in outcome.checks)
    return {check.name: check.detail for check in outcome.checks if not check.passed}


@pytest.mark.parametrize("name", STRANGERS)
def test_what_nobody_can_check_is_not_valid(tmp_path: Path, name: str) -> None:
    votes, _, _ = STRANGERS[name]
    kind = votes.mechanism.type
    certificate = certify(votes)
    assert certificate.radius.max() > 0
    unclaimed = replace(certificate, radius=np.minimum(certificate.radius, 0))
    for each in (certificate, unclaimed):
        assert failed(each, tmp_path / "c.json") == {
            "second route": f"Nobody can check the rule {name!r} on {kind!r} by another route. Register one with "
            f"mithridate.auditing.second_route({kind!r}, {name!r})."
        }


@pytest.mark.parametrize("name", STRANGERS)
def test_a_defence_from_outside_brings_its_own_route(tmp_path: Path, name: str) -> None:
    votes, route, check = STRANGERS[name]
    second_route(votes.mechanism.type, name)(route)
    certificate = certify(votes)
    assert failed(certificate, tmp_path / "c.json") == {}
    best = int(np.argmax(certificate.radius))
    more = certificate.radius + (np.arange(3) == best)
    refused = failed(replace(certificate, radius=more), tmp_path / "c.json")
    assert refused == {check: f"1 of 3 do not hold, the first is example {best}"}


@pytest.mark.parametrize(
    "answer", [np.zeros(2, dtype=np.bool_), np.zeros(3), np.bool_(False), None, [], np.zeros((3, 1), dtype=np.bool_)]
)
def test_a_route_that_does_not_answer_for_every_example_confirms_nothing(tmp_path: Path, answer: object) -> None:
    second_route("thermometer", "warmest")(lambda claim: answer)  # pyright: ignore[reportArgumentType]
    refused = failed(certify(STRANGERS["warmest"][0]), tmp_path / "c.json")
    assert "has no yes or no for each of 3 examples" in refused["labels and radii"]


def test_nobody_replaces_a_route() -> None:
    for mechanism, rule in list(known_routes()):
        with pytest.raises(ConfigError, match="has a second route already"):
            second_route(mechanism, rule)(lambda claim: np.zeros(len(claim.label), dtype=np.bool_))


def test_every_mechanism_and_rule_of_this_package_has_a_route() -> None:
    def own(names: registry.Named) -> set[str]:
        registry.load()
        known: dict[str, type] = names._known  # pyright: ignore[reportPrivateUsage]
        return {name for name, kind in known.items() if kind.__module__.startswith("mithridate.")}

    routes_of_package = set(known_routes()) - {("coin", "heads-wins")}  # of a docstring
    assert own(registry.rules) == {rule for _, rule in routes_of_package}
    assert {(name, registry.mechanisms.find(name).rule) for name in own(registry.mechanisms)} <= routes_of_package


def test_differences_are_the_largest_of_their_threat() -> None:
    assert differences(Threat.ADD, 3) == [(3, 0)]
    assert differences(Threat.REMOVE, 3) == [(0, 3)]
    assert differences(Threat.SYMMETRIC_DIFFERENCE, 2) == [(2, 0), (1, 1), (0, 2)]
    for threat in (Threat.REPLACE, Threat.EDIT, Threat.LABELS, Threat.FEATURES):
        assert differences(threat, 3) == [(3, 3)]


def test_the_auditor_sees_core_values_only() -> None:
    """No defence and no report; of training what adds up the shards of a run, and of accounting which orders to try."""
    allowed = {
        "mithridate._io.artifacts",
        "mithridate._io.files",
        "mithridate._text",
        "mithridate._validate",
        "mithridate.accounting.rdp",
        "mithridate.auditing",
        "mithridate.certifying.certification",
        "mithridate.errors",
        "mithridate.training.run_directory",
    }
    for path in Path(str(mithridate.auditing.__file__)).parent.glob("*.py"):
        found = [
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        names = [node.module or "" for node in found if isinstance(node, ast.ImportFrom)]
        names += [alias.name for node in found if isinstance(node, ast.Import) for alias in node.names]
        for name in names:
            is_near = name.startswith(("mithridate.core.", "mithridate.auditing."))
            assert not name.startswith("mithridate") or is_near or name in allowed, (path.name, name)
