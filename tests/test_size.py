"""What follows the number of examples follows its size step, and no radius leads to another step."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rival_votes import CLAIMS, RIVALS
from test_cli import run, run_json
from test_verification import failed, forge

from mithridate import (
    ADP,
    FDP,
    RDP,
    ArtifactError,
    Certificate,
    CertifiedClassifier,
    ConfigError,
    SampledGaussian,
    Status,
    Threat,
    TrainConfig,
    Votes,
    certify,
    train,
    verify,
)
from mithridate._io.artifacts import read_npz, write_npz
from mithridate.auditing.verification import _CHANGES_AT  # pyright: ignore[reportPrivateUsage]
from mithridate.core.conditions import Size, next_step, step_of
from mithridate.core.mechanism import SEARCH_LIMIT
from mithridate.defences import defence
from mithridate.defences.bagging import Bagged
from mithridate.defences.neighbours import NearestExamples
from mithridate.defences.partitions import Partitioned
from mithridate.defences.statistical import statistical_dp
from mithridate.training.config import ViewPlan
from mithridate.training.run import predict

# By the words of docs/theory.md: three a decade with the digits 1.35, 3.4 and 6.7, whole numbers below 100.
STEPS = [1, 4, 7, 14, 34, 67, 135, 340, 670, 1350, 3400, 6700, 13_500, 34_000, 67_000, 135_000, 340_000, 670_000]
UNCAPPED = (Threat.REPLACE, Threat.LABELS, Threat.FEATURES)
PRIVATE = SampledGaussian(30.0, 1.0, 4)
COUNTS = [[200, 0, 0], [30, 160, 10], [90, 80, 30]]
RNG = np.random.default_rng(7)
X, Y = RNG.normal(size=(140, 3)) + 2.0, np.arange(140) % 2
BY_HAND: dict[str, Any] = {
    "noise_multiplier": 9.0,
    "sample_rate": 0.5,
    "steps": 2,
    "max_grad_norm": 1.0,
    "learning_rate": 0.5,
}


def step_in_words(number: int) -> int:
    """The largest step that is at most the number, 0 where there is none."""
    return max((step for step in STEPS if step <= number), default=0)


def reachable(number: int, threat: Threat, radius: int) -> Iterator[int]:
    """The sizes of all D' within a radius: changes of every kind that the threat allows, one by one."""
    inserted_at_most = radius if threat in (Threat.ADD, Threat.SYMMETRIC_DIFFERENCE, Threat.EDIT) else 0
    deleted_at_most = radius if threat in (Threat.REMOVE, Threat.SYMMETRIC_DIFFERENCE, Threat.EDIT) else 0
    for inserted in range(inserted_at_most + 1):
        for deleted in range(min(deleted_at_most, radius - inserted, number) + 1):
            yield number + inserted - deleted


def named_size(votes: Votes) -> Any:
    return None if votes.size is None else votes.size.num_train


# --- steps ----------------------------------------------------------------------------------------------------------


def test_the_step_is_the_largest_one_that_is_not_above() -> None:
    for number in [*range(1, 1500), *(step + by for step in STEPS[9:] for by in (-1, 0, 1))]:
        assert step_of(number) == step_in_words(number), number


def test_every_step_is_followed_by_the_next() -> None:
    assert [next_step(step) for step in STEPS[:-1]] == STEPS[1:]
    assert next_step(STEPS[-1]) == 1_350_000


@given(st.integers(1, 10**15))
def test_steps_are_coarse_and_surround_every_number(number: int) -> None:
    low, high = step_of(number), next_step(step_of(number))
    assert low <= number < high
    assert step_of(low) == step_of(high - 1) == low
    assert step_of(high) == high
    assert 1.7 * low <= high <= 4 * low


def test_usual_sizes_are_far_from_a_step() -> None:
    for number in (100, 1000, 10_000, 50_000, 60_000, 100_000, 1_000_000):
        assert min(abs(number - step) for step in STEPS) >= number // 9


@pytest.mark.parametrize("number", [0, -3, 1.5, "many", None, True])
def test_numbers_that_are_no_size_are_refused(number: Any) -> None:
    with pytest.raises(ConfigError, match="num_train"):
        Size.of(number)


@pytest.mark.parametrize("numbers", [(5, 6, 9), (9, 4, 9), (9, 0, 12), (9, 4, 12.5)])
def test_an_interval_that_is_none_is_refused(numbers: tuple[Any, Any, Any]) -> None:
    with pytest.raises(ConfigError):
        Size(*numbers)


# --- limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [*range(1, 36), 66, 67, 68, 100, 134, 135])
@pytest.mark.parametrize("threat", [threat for threat in Threat if threat not in UNCAPPED])
def test_the_limit_is_the_largest_radius_within_which_every_size_has_the_same_step(number: int, threat: Threat) -> None:
    limit = Size.of(number).limit(threat)
    assert limit is not None
    step = step_in_words(number)
    assert all(step_in_words(size) == step for size in reachable(number, threat, limit))
    assert any(step_in_words(size) != step for size in reachable(number, threat, limit + 1))


@pytest.mark.parametrize("threat", UNCAPPED)
@given(number=st.integers(1, 10**9))
def test_threats_that_keep_the_number_have_no_limit(threat: Threat, number: int) -> None:
    assert Size.of(number).limit(threat) is None
    assert set(reachable(number, threat, 5)) == {number}


@given(number=st.integers(1, 10**15), threat=st.sampled_from(Threat))
def test_a_limit_is_never_negative_and_no_threat_goes_beyond_a_weaker_one(number: int, threat: Threat) -> None:
    size = Size.of(number)
    limit = size.limit(threat)
    assert limit is None or 0 <= limit < number * 4
    both = size.limit(Threat.SYMMETRIC_DIFFERENCE)
    assert both == size.limit(Threat.EDIT) == min(size.limit(Threat.ADD) or 0, size.limit(Threat.REMOVE) or 0)
    assert Size(**size.to_dict()) == size


def test_the_sentence_says_from_where_to_where_and_what_lifts_it() -> None:
    for part in ("60,000", "34,000", "66,999", "declare num_train"):
        assert part in Size.of(60_000).sentence


# --- certify --------------------------------------------------------------------------------------------------------


def check_cut(free: Certificate, votes: Votes, size: Size, **claim: Any) -> Certificate:
    """Certify with a size, and compare with what is certified without one."""
    found = certify(replace(votes, size=size), method=free.method, threat=free.threat, **claim)
    limit = size.limit(free.threat)
    most = SEARCH_LIMIT if limit is None else limit
    assert found.radius.tolist() == np.minimum(free.radius, most).tolist()
    cut = free.radius > most
    assert found.status.tolist() == np.where(cut, "size_limit", free.status).tolist()
    assert found.label.tolist() == free.label.tolist()
    assert set(found.assumptions) == {*free.assumptions, size.sentence}
    assert found.conditions == free.conditions
    return found


@pytest.mark.parametrize(("name", "threat"), CLAIMS)
def test_every_rule_ends_with_the_step(name: str, threat: Threat) -> None:
    rival = RIVALS[name]
    free = rival.certificate(threat)
    for number in (*range(1, 18), 134, 135, 1000):
        check_cut(free, rival.votes, Size.of(number))


@pytest.mark.parametrize("method", [FDP(), RDP(), ADP(), RDP("paper"), RDP("standard")], ids=repr)
@pytest.mark.parametrize("threat", list(Threat))
def test_every_accountant_ends_with_the_step(method: Any, threat: Threat) -> None:
    votes = Votes.from_counts(COUNTS, mechanism=PRIVATE)
    free = certify(votes, method=method, threat=threat)
    for number in (1, 6, 9, 33, 34, 35, 1000):
        check_cut(free, votes, Size.of(number))


def test_scores_end_with_the_step_too() -> None:
    votes = Votes.from_counts([[200, 0]], mechanism=PRIVATE, score_sums=[[199.0, 1.0]])
    free = certify(votes, on="scores", bounds="hoeffding")
    assert free.radius[0] > 2
    check_cut(free, votes, Size.of(9), on="scores", bounds="hoeffding")


@settings(max_examples=30)
@given(number=st.integers(1, 10**6), threat=st.sampled_from(Threat), top=st.integers(100, 200))
def test_whatever_the_votes_and_the_size(number: int, threat: Threat, top: int) -> None:
    votes = Votes.from_counts([[top, 200 - top]], mechanism=PRIVATE)
    check_cut(certify(votes, threat=threat), votes, Size.of(number))


def test_the_end_of_the_search_is_cut_and_stays_where_it_is_not() -> None:
    nearest = Votes(np.array([[5, 0]]), NearestExamples(5, num_train=5), evidence={"order": np.zeros((1, 5), int)})
    parts = Votes.from_counts([[9, 0]], mechanism=Partitioned(9))
    free = certify(parts, threat=Threat.FEATURES)
    check_cut(free, parts, Size.of(5))
    endless = Votes.from_counts([[10**6, 0]], mechanism=SampledGaussian(1e5, 1e-6, 1))
    free = certify(endless, threat=Threat.ADD)
    assert free.status.tolist() == ["search_limit"]
    assert check_cut(free, endless, Size.of(60_000)).radius.tolist() == [6999]
    assert check_cut(free, endless, Size.of(400_000_000)).status.tolist() == ["search_limit"]
    check_cut(certify(nearest), nearest, Size.of(5))


def test_the_status_has_a_sentence_with_a_remedy() -> None:
    assert "declare num_train" in Status("size_limit").sentence


def test_a_bound_on_accuracy_claims_nothing_beyond_the_step() -> None:
    votes = Votes.from_counts([[200, 0], [190, 10]], mechanism=SampledGaussian(50.0, 1.0, 1), labels=[0, 0])
    free, bound = statistical_dp(votes), statistical_dp(replace(votes, size=Size.of(9)))
    assert (free.accuracy(range(6)) > 0).all()
    assert bound.accuracy(range(6)).tolist() == [*free.accuracy(range(3)).tolist(), 0, 0, 0]
    assert bound.to_dict()["size"] == {"num_train": 9, "low": 7, "high": 14}
    assert Size.of(9).sentence in bound.assumptions
    replaced = statistical_dp(replace(votes, size=Size.of(9)), threat=Threat.REPLACE)
    assert (replaced.accuracy(range(3)) > 0).all()


# --- files ----------------------------------------------------------------------------------------------------------


SIZED = replace(Votes.from_counts(COUNTS, mechanism=PRIVATE), size=Size.of(9))


def test_a_size_survives_files(tmp_path: Path) -> None:
    SIZED.save(tmp_path / "votes.npz")
    again = Votes.load(tmp_path / "votes.npz")
    assert (again.size, again) == (Size.of(9), SIZED)
    assert again != replace(SIZED, size=None)
    certificate = certify(again)
    certificate.save(tmp_path / "c.json")
    assert Certificate.load(tmp_path / "c.json") == certificate
    assert Certificate.load(tmp_path / "c.json").votes.size == Size.of(9)
    assert certificate.to_dict()["size"] == {"num_train": 9, "low": 7, "high": 14}
    assert certify(replace(SIZED, size=None)).to_dict()["size"] is None


@pytest.mark.parametrize("value", [7, [], {"num_train": 9}, {"num_train": 9, "low": 10, "high": 14}, {"low": "x"}])
def test_a_file_with_a_size_that_is_none_cannot_be_read(tmp_path: Path, value: Any) -> None:
    SIZED.save(tmp_path / "votes.npz")
    arrays = read_npz(tmp_path / "votes.npz", "counts")
    header = str(arrays["mithridate"]).replace('{"num_train": 9, "low": 7, "high": 14}', str(value).replace("'", '"'))
    assert header != str(arrays["mithridate"])
    with (tmp_path / "bad.npz").open("wb") as file:
        write_npz(file, {**arrays, "mithridate": np.array(header)})
    with pytest.raises(ArtifactError):
        Votes.load(tmp_path / "bad.npz")
    forge(certify(SIZED), tmp_path / "c.json", lambda content: content["votes"].update(size=value))
    with pytest.raises(ArtifactError, match="cannot be read"):
        Certificate.load(tmp_path / "c.json")


def test_what_is_no_size_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Size\.of"):
        replace(SIZED, size=9)  # pyright: ignore[reportArgumentType]


def test_only_votes_of_the_same_size_merge() -> None:
    one, two = (replace(SIZED, run_ids=(name,)) for name in "ab")
    assert one.merge(two).size == Size.of(9)
    for other in (None, Size.of(10)):
        for votes in ([one, replace(two, size=other)], [replace(one, size=other), two]):
            with pytest.raises(ConfigError, match="num_train declared, or none"):
                votes[0].merge(votes[1])


# --- verify ---------------------------------------------------------------------------------------------------------


def test_the_auditors_table_is_the_same_one() -> None:
    assert _CHANGES_AT[: len(STEPS)].tolist() == STEPS
    assert all(next_step(low) == high for low, high in pairwise(_CHANGES_AT.tolist()))
    assert _CHANGES_AT[-1] > 2**53  # no size is larger


@pytest.mark.parametrize(("name", "threat"), [claim for claim in CLAIMS if claim[0] != "bagging"])
def test_certificates_of_every_rule_with_a_size_hold(name: str, threat: Threat, tmp_path: Path) -> None:
    rival = RIVALS[name]
    for number in (1, 5, 9):
        votes = replace(rival.votes, size=Size.of(number))
        assert failed(certify(votes, method=rival.method, threat=threat), tmp_path / "c.json") == set()


@pytest.mark.parametrize("method", [FDP(), RDP(), ADP()], ids=repr)
def test_certificates_of_accountants_with_a_size_hold(method: Any, tmp_path: Path) -> None:
    found = certify(SIZED, method=method)
    assert Status.SIZE_LIMIT.value in found.status
    assert failed(found, tmp_path / "c.json") == set()


@pytest.mark.parametrize("threat", [threat for threat in Threat if threat not in UNCAPPED])
def test_a_radius_beyond_the_step_is_refused(threat: Threat, tmp_path: Path) -> None:
    for votes in (SIZED, replace(RIVALS["dpa"].votes, size=Size.of(5))):
        free, cut = (certify(each, threat=threat) for each in (replace(votes, size=None), votes))
        assert (free.radius > cut.radius).any()
        assert "size" in failed(replace(cut, radius=free.radius), tmp_path / "c.json")
        # With the statuses of honest work, too.
        assert failed(replace(cut, radius=free.radius, status=free.status), tmp_path / "c.json") == {"size"}
        one_more = cut.radius + (cut.status == Status.SIZE_LIMIT.value)
        assert "size" in failed(replace(cut, radius=one_more, status=free.status), tmp_path / "c.json")


@pytest.mark.parametrize(
    "size", [Size(9, 7, 34), Size(9, 4, 14), Size(9, 1, 1_350_000), Size(9, 8, 14), Size(9, 7, 13), Size(9, 9, 10)]
)
def test_an_interval_that_is_no_step_is_refused(size: Size, tmp_path: Path) -> None:
    for votes in (SIZED, RIVALS["dpa"].votes):
        assert failed(certify(replace(votes, size=size)), tmp_path / "c.json") == {"size"}


def test_a_size_that_is_not_that_of_the_mechanism_is_refused(tmp_path: Path) -> None:
    bagged = Votes.from_counts([[1000, 0], [950, 50]], mechanism=Bagged(140, 5))
    assert certify(replace(bagged, size=Size.of(140))).status.tolist() == ["size_limit", "size_limit"]
    assert failed(certify(replace(bagged, size=Size.of(140))), tmp_path / "c.json") == set()
    assert failed(certify(replace(bagged, size=Size.of(200))), tmp_path / "c.json") == {"size"}
    order = np.array([[0] * 6])
    nearest = Votes(np.array([[5, 0]]), NearestExamples(5, num_train=6), evidence={"order": order})
    assert failed(certify(replace(nearest, size=Size.of(6))), tmp_path / "c.json") == set()
    assert failed(certify(replace(nearest, size=Size.of(5))), tmp_path / "c.json") == {"size"}


def test_a_status_that_is_not_due_to_the_size_is_refused(tmp_path: Path) -> None:
    for votes in (Votes.from_counts(COUNTS, mechanism=PRIVATE), RIVALS["dpa"].votes):
        free = certify(votes)
        everywhere = np.full(len(free.status), Status.SIZE_LIMIT.value)
        assert "size" in failed(replace(free, status=everywhere), tmp_path / "c.json")  # no size at all
        large = certify(replace(votes, size=Size.of(1000)))
        assert Status.SIZE_LIMIT.value not in large.status
        assert "size" in failed(replace(large, status=everywhere), tmp_path / "c.json")  # the limit is elsewhere
    # Two changes are all that nine votes stand, and all that eleven examples allow: nothing was cut off.
    fitting = certify(replace(Votes.from_counts([[7, 2]], mechanism=Partitioned(9)), size=Size.of(11)))
    assert (fitting.radius.tolist(), fitting.status.tolist()) == ([2], ["certified"])
    assert failed(fitting, tmp_path / "c.json") == set()
    forged = replace(fitting, status=np.array([Status.SIZE_LIMIT.value]))
    assert failed(forged, tmp_path / "c.json") == {"labels and radii"}


def test_huge_claims_are_refused_and_cost_nothing(tmp_path: Path) -> None:
    found = certify(SIZED, threat=Threat.ADD)
    radius = np.full(3, np.iinfo(np.int64).max)
    for status in (Status.SIZE_LIMIT, Status.CERTIFIED, Status.SEARCH_LIMIT):
        forged = replace(found, radius=radius, status=np.full(3, status.value))
        assert failed(forged, tmp_path / "c.json") >= {"radii", "statuses", "size"}


def test_the_sentence_cannot_be_left_out(tmp_path: Path) -> None:
    found = certify(SIZED)
    silent = tuple(sentence for sentence in found.assumptions if sentence != Size.of(9).sentence)
    assert failed(replace(found, assumptions=silent), tmp_path / "c.json") == {"assumptions"}


def test_with_its_run_a_file_cannot_hide_its_size(tmp_path: Path) -> None:
    trained(run_dir=tmp_path / "run")
    source = Votes.load(tmp_path / "run" / "votes.npz")
    certify(source).save(tmp_path / "c.json")
    certify(replace(source, size=None)).save(tmp_path / "hidden.json")
    for place in (tmp_path / "run", tmp_path / "run" / "votes.npz"):
        assert verify(tmp_path / "c.json", run=place).valid
        assert not verify(tmp_path / "hidden.json", run=place).valid
    assert verify(tmp_path / "hidden.json").valid  # alone, it can only be believed
    replace(source, size=None).save(tmp_path / "run" / "votes.npz")
    assert not verify(tmp_path / "hidden.json", run=tmp_path / "run").valid  # run.json says otherwise


# --- where it arises ------------------------------------------------------------------------------------------------


def trained(**changes: Any) -> Votes:
    config = {"instances": 6, **BY_HAND, "classes": 2}
    options = {name: changes.pop(name) for name in list(changes) if name not in TrainConfig.__dataclass_fields__}
    return train(
        (X[:100], Y[:100]), X[:3], model="linear", config=TrainConfig(**{**config, **changes}), device="cpu", **options
    )


def test_a_divisor_that_is_left_open_follows_the_size() -> None:
    assert trained().size == Size.of(100)
    assert trained().recipe is not None
    assert trained(num_train=100).size is None
    assert trained(divisor=50.0).size is None
    assert trained(num_train=100, size=Size.of(100)).size == Size.of(100)
    with pytest.raises(ConfigError, match=r"Size\.of\(100\)"):
        trained(size=Size.of(99))


def test_what_a_run_once_followed_it_follows_when_it_is_resumed(tmp_path: Path) -> None:
    trained(run_dir=tmp_path / "run", keep_models=True)
    # The same constants, declared afterwards: the run was started by the size all the same.
    assert trained(run_dir=tmp_path / "run", num_train=67, keep_models=True).size == Size.of(100)
    assert predict(tmp_path / "run", X[:2], device="cpu").size == Size.of(100)
    trained(run_dir=tmp_path / "other", num_train=67)
    assert trained(run_dir=tmp_path / "other").size == Size.of(100)
    assert Votes.load(tmp_path / "other" / "votes.npz").size == Size.of(100)


def test_tasks_of_a_run_agree_on_the_size(tmp_path: Path) -> None:
    assert trained(run_dir=tmp_path / "run", in_flight=3, shards=0).size == Size.of(100)
    assert trained(run_dir=tmp_path / "run", in_flight=3, shards=1).size == Size.of(100)
    assert Votes.load(tmp_path / "run" / "votes.npz").size == Size.of(100)
    trained(run_dir=tmp_path / "declared", in_flight=3, shards=0, num_train=67)
    with pytest.raises(ConfigError, match="declare num_train"):
        trained(run_dir=tmp_path / "declared", in_flight=3, shards=1)


DECLARED = {
    "dpa": {"partitions": 5},
    "run-off-election": {"partitions": 5},
    "finite-aggregation": {"partitions": 5},
    "run-off-finite-aggregation": {"partitions": 5},
    "bagging": {"draws": 5},
    "nearest-neighbours": {"neighbours": 5},
    "fdp": {"num_train": 100},
}


@pytest.mark.parametrize("name", DECLARED)
def test_constants_that_are_left_open_follow_the_size_and_declared_ones_do_not(name: str) -> None:
    few: dict[str, Any] = {"classes": 2, **({"instances": 3} if name in ("bagging", "fdp") else {})}
    if name not in ("fdp", "nearest-neighbours"):
        few["steps"] = 1
    data = (X[:100], Y[:100])
    assert defence(name, **few).train(data, X[:3], device="cpu").size == Size.of(100)
    assert defence(name, **few, **DECLARED[name]).train(data, X[:3], device="cpu").size is None


@pytest.mark.parametrize("name", ["kernel-vote", "label-smoothing", "feature-smoothing"])
def test_defences_that_have_nothing_to_follow_have_no_size(name: str) -> None:
    few: dict[str, Any] = {} if name == "kernel-vote" else {"instances": 3, "steps": 1}
    assert defence(name, classes=2, **few).train((X[:100], Y[:100]), X[:3], device="cpu").size is None


@pytest.mark.parametrize("name", ["dpa", "finite-aggregation", "run-off-finite-aggregation", "bagging"])
def test_plans_are_the_same_throughout_a_step(name: str) -> None:
    def plan(number: int) -> ViewPlan:
        x, y = np.resize(X, (number, 3)), np.resize(Y, number)
        return defence(name, features="unit-norm").order((x, y), x[:1]).defence.plan()

    for low, high in pairwise(STEPS[:10]):
        plan(low).check(low)
        assert plan(high - 1) == plan((low + high) // 2) == plan(low)
    assert plan(1350) != plan(670)


def test_bagging_knows_the_true_number_of_examples() -> None:
    votes = defence("bagging", classes=2, instances=3, steps=1).train((X[:100], Y[:100]), X[:3], device="cpu")
    assert votes.mechanism == Bagged(100, 20)


@pytest.mark.parametrize("options", [{}, {"model": "mlp"}, {"recipe": "mnist-strong"}, BY_HAND], ids=str)
def test_recipes_are_the_same_throughout_a_step(options: dict[str, Any]) -> None:
    def config(number: int) -> TrainConfig:
        order = defence("fdp", **options, features="unit-norm").order((X[:number], Y[:number]), X[:1])
        return order.defence.config.resolve(num_train=number, classes=2)

    assert config(67) == config(100) == config(134)
    assert config(66) != config(67)
    assert config(134) != config(135)


@pytest.mark.filterwarnings("ignore:Certificates will be weak", r"ignore:\d+ of \d+ predictions are not certified")
@pytest.mark.parametrize(("changes", "number"), [({}, 100), (BY_HAND, 100), ({"num_train": 100}, None)])
def test_an_estimator_follows_the_size(changes: dict[str, Any], number: int | None) -> None:
    found = CertifiedClassifier(instances=8, classes=[0, 1], device="cpu", **changes).fit(X[:100], Y[:100])
    assert named_size(found.votes(X[:2])) == number
    assert (found.certify(X[:2]).to_dict()["size"] is None) == (number is None)


def test_the_command_line_follows_the_size_of_the_training_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "all.npz", x=X, y=Y)
    flags = ["train", "--train", tmp_path / "all.npz", "--instances", "6", "--device", "cpu", "--run-dir"]
    values = json.loads(run(capsys, *flags, tmp_path / "run", "--json").out)
    votes = Votes.load(tmp_path / "run" / "votes.npz")
    assert votes.size is not None
    assert 100 <= votes.size.num_train < len(X)  # some were held out
    assert votes.size == Size.of(votes.size.num_train)
    assert votes.size.sentence in values["assumptions"]
    assert run_json(capsys, "certify", tmp_path / "run")["size"] == votes.size.to_dict()
    assert run(capsys, *flags, tmp_path / "declared", "--num-train", "110").code == 0
    assert Votes.load(tmp_path / "declared" / "votes.npz").size is None
