"""Attacks on the boundary of a size step, through the real doors, for every method: no certified label changes.

Constants that are left open follow the number of training examples in steps (`core.size`). An attacker who could push
that number over a step would change all of them at once; so no radius may reach it. Here the number of examples lies a
few above a step, and a few below one, and the attacker spends the whole radius on insertions or deletions.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from test_doors import CONSTANTS, METHODS, SIZED, Pair, blobs

from mithridate import Certificate, Threat, Votes, certify
from mithridate.core.conditions import Size
from mithridate.defences import defence
from mithridate.training import run_directory

pytestmark = pytest.mark.more
# Without the constants that follow the size: those are to be chosen.
OPEN = ("neighbours", "partitions", "draws", "noise_multiplier", "sample_rate")
TEST = blobs(24, seed=5)[0]


@pytest.fixture(autouse=True)
def same_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The randomness of training is the same on D and on D', as in the worst case."""
    monkeypatch.setattr(run_directory, "new_root_seed", lambda: bytes(range(32)))


def trained(method: str, data: Pair) -> Votes:
    """The votes of a method whose constants are left open."""
    constants = {name: value for name, value in CONSTANTS[method].items() if name not in OPEN}
    if "instances" in constants:
        constants["instances"] = 60
    return defence(method, classes=3, **constants).train(data, TEST, device="cpu")


def without(data: Pair, count: int, label: int) -> Pair:
    """The data after an attacker deleted some examples, of one label as far as there are any."""
    order = np.argsort(data[1] != label, kind="stable")[count:]
    return data[0][order], data[1][order]


def with_more(data: Pair, count: int, label: int, at: npt.NDArray[np.float32]) -> Pair:
    """The data after an attacker inserted copies of an input with another label."""
    return np.concatenate([data[0], np.tile(at, (count, 1))]), np.concatenate([data[1], np.full(count, label)])


def constants_of(votes: Votes) -> dict[str, Any]:
    """All that was chosen, but for the true number of examples, which `Bagged` and `NearestExamples` account for."""
    said = {**(votes.recipe or {})["defence"], **votes.mechanism.to_dict()}
    said.pop("num_train", None)
    return said


@pytest.mark.parametrize("method", [each for each in METHODS if each in SIZED])
@pytest.mark.parametrize(
    ("examples", "threat"), [(139, Threat.REMOVE), (336, Threat.ADD), (139, Threat.SYMMETRIC_DIFFERENCE)]
)
def test_no_certified_label_changes_at_the_boundary(method: str, examples: int, threat: Threat) -> None:
    data = blobs(examples, seed=4)
    votes = trained(method, data)
    size = Size.of(examples)
    assert votes.size == size
    limit = size.limit(threat)
    assert limit is not None
    certificate = certify(votes, threat=threat)
    assert certificate.radius.max() <= limit
    changed = 0
    for spent in range(1, limit + 1):
        smaller = threat is not Threat.ADD
        after = without(data, spent, 0) if smaller else with_more(data, spent, 1, TEST[0])
        attacked = trained(method, after)
        assert constants_of(attacked) == constants_of(votes)
        safe = certificate.radius >= spent
        changed += int((predicted(attacked, certificate)[safe] != certificate.label[safe]).sum())
    assert changed == 0
    # One change more is another step, and may lead to other constants: the cap is not idle.
    beyond = without(data, limit + 1, 0) if threat is not Threat.ADD else with_more(data, limit + 1, 1, TEST[0])
    after = trained(method, beyond)
    assert after.size is not None
    assert after.size.low != size.low
    if method in ("fdp", "nearest-neighbours"):  # the others have a least number, which both steps are below
        assert constants_of(after) != constants_of(votes)


def predicted(votes: Votes, certificate: Certificate) -> npt.NDArray[np.int64]:
    """The labels of other votes, by the rule of a certificate."""
    return certify(votes, method=certificate.method, threat=certificate.threat).label


@pytest.mark.parametrize("method", SIZED)
def test_declaring_the_number_of_examples_lifts_the_limit(method: str) -> None:
    constants = {name: value for name, value in CONSTANTS[method].items() if name not in OPEN}
    votes = defence(method, classes=3, num_train=139, **constants).train(blobs(139, seed=4), TEST, device="cpu")
    assert votes.size is None
    assert "size_limit" not in certify(votes).status


@pytest.mark.parametrize("method", [each for each in METHODS if each not in SIZED])
def test_methods_that_follow_no_size_have_no_limit(method: str) -> None:
    assert trained(method, blobs(139, seed=4)).size is None


@pytest.mark.parametrize("threat", [Threat.REPLACE, Threat.LABELS, Threat.FEATURES])
def test_threats_that_keep_the_number_have_no_limit(threat: Threat) -> None:
    votes = trained("nearest-neighbours", blobs(136, seed=4))
    assert certify(votes, threat=threat).radius.max() > 1
    assert certify(votes, threat=Threat.REMOVE).radius.max() == 1
    assert set(certify(votes, threat=Threat.REMOVE).status) <= {"certified", "size_limit"}
