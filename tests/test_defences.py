"""Every defence behind one interface: built by name, trained on a small task, certified."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from torch import Tensor, nn

from mithridate import Certificate, ConfigError, Threat, Votes, verify
from mithridate.core.conditions import Size
from mithridate.data.examples import Examples
from mithridate.defences import (
    DPA,
    Bagging,
    Defence,
    FiniteAggregation,
    KernelVote,
    PrivateEnsemble,
    RunOffElection,
    defence,
    names,
)
from mithridate.defences.kernel import Exponential, Within
from mithridate.defences.statistical import StatisticalBound
from mithridate.training import run_directory
from mithridate.training.order import Facts

# Names are a contract.
METHODS = (
    "fdp", "rdp", "rdp-paper", "rdp-standard", "adp", "statistical-dp", "bagging", "dpa", "finite-aggregation",
    "run-off-election", "run-off-finite-aggregation", "label-smoothing", "feature-smoothing", "nearest-neighbours",
    "kernel-vote", "ridge",
)  # fmt: skip
QUICK: dict[str, dict[str, Any]] = {
    **{name: {"instances": 30, "noise_multiplier": 6.0, "sample_rate": 0.2, "steps": 5} for name in METHODS[:6]},
    "bagging": {"instances": 30, "draws": 40, "steps": 20, "batch_size": 20},
    "dpa": {"partitions": 12, "steps": 20, "batch_size": 20},
    "run-off-election": {"partitions": 12, "steps": 20, "batch_size": 20},
    "finite-aggregation": {"partitions": 6, "spread": 2, "steps": 20, "batch_size": 20},
    "run-off-finite-aggregation": {"partitions": 6, "spread": 2, "steps": 20, "batch_size": 20},
    "label-smoothing": {"instances": 60, "flip_prob": 0.4, "steps": 40, "batch_size": 60},
    "feature-smoothing": {"instances": 30, "noise": 0.3, "max_change": 0.1, "steps": 20, "batch_size": 20},
    "nearest-neighbours": {"neighbours": 20},
    "kernel-vote": {"width": 0.3},
    "ridge": {"penalty": 8.0},
}

_MECHANISMS = {
    **dict.fromkeys(METHODS[:6], ("SampledGaussian",)),
    "bagging": ("Bagged",),
    "dpa": ("Partitioned",),
    "run-off-election": ("Partitioned",),
    "finite-aggregation": ("SpreadPartitions",),
    "run-off-finite-aggregation": ("SpreadPartitions",),
    "label-smoothing": ("NoisyLabels",),
    "feature-smoothing": ("NoisyFeatures",),
    "nearest-neighbours": ("NearestExamples",),
    "kernel-vote": ("KernelSum",),
    "ridge": ("LeastSquares",),
}

Pair = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]


def blobs(count: int, seed: int) -> Pair:
    """Three clouds of points that a child could tell apart."""
    draws = np.random.default_rng(seed)
    labels = draws.integers(0, 3, count)
    corners = np.array([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]])
    return (corners[labels] + 0.3 * draws.standard_normal((count, 3))).astype(np.float32), labels


TRAINING, TEST = blobs(240, seed=1), blobs(60, seed=2)


@pytest.fixture(scope="module", params=METHODS)
def made(request: pytest.FixtureRequest) -> tuple[Defence, Votes]:
    """Each defence with its votes on the small task, from a fixed seed."""
    found = defence(request.param, **QUICK[request.param])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_directory, "new_root_seed", lambda: bytes(range(32)))
        return found, found.train(TRAINING, TEST, device="cpu")


def test_the_names_are_those_that_were_promised() -> None:
    assert set(names()) == set(METHODS)


def test_each_learns_votes_and_certifies(made: tuple[Defence, Votes]) -> None:
    found, votes = made
    assert (votes.counts.argmax(axis=1) == TEST[1]).mean() > 0.9
    claim = found.certify(votes)
    if not found.per_prediction:
        assert isinstance(claim, StatisticalBound)
        assert 0.5 < claim.accuracy([0])[0] <= 1.0
        return
    assert isinstance(claim, Certificate)
    assert claim.threat is found.threats[0]
    assert claim.accuracy(TEST[1], [0])[0] > 0.5
    assert claim.radius.max() >= 1


def test_each_certifies_what_it_says_it_can(made: tuple[Defence, Votes]) -> None:
    found, votes = made
    for threat in Threat:
        if threat in found.threats:
            claim = found.certify(votes, threat=threat)
            assert claim.threat is threat
        else:
            with pytest.raises(ValueError, match=r"\."):  # with a sentence
                found.certify(votes, threat=threat)


def test_whoever_may_do_less_certifies_no_less(made: tuple[Defence, Votes]) -> None:
    found, votes = made
    if len(found.threats) == 1 or not found.per_prediction:
        pytest.skip("it has one threat, or no radii")
    radius = {
        threat: claim.radius
        for threat in Threat
        if isinstance(claim := found.certify(votes, threat=threat), Certificate)
    }
    assert (radius[Threat.SYMMETRIC_DIFFERENCE] <= radius[Threat.ADD]).all()
    assert (radius[Threat.SYMMETRIC_DIFFERENCE] <= radius[Threat.REMOVE]).all()
    assert (radius[Threat.EDIT] <= radius[Threat.REPLACE]).all()
    assert (radius[Threat.REPLACE] <= radius[Threat.LABELS]).all()
    # r units of a symmetric difference are r edits at most.
    assert (radius[Threat.EDIT] <= radius[Threat.SYMMETRIC_DIFFERENCE]).all()


def test_votes_survive_a_file(made: tuple[Defence, Votes], tmp_path: Any) -> None:
    found, votes = made
    votes.save(tmp_path / "votes.npz")
    again = Votes.load(tmp_path / "votes.npz")
    assert again == votes
    before, after = found.certify(votes), found.certify(again)
    assert before == after


def test_defences_that_differ_in_accounting_alone_share_their_votes() -> None:
    ensembles = [defence(name, instances=7) for name in METHODS[:6]]
    assert all(each.training_key == ensembles[0].training_key for each in ensembles)
    assert DPA(partitions=9).training_key == RunOffElection(partitions=9).training_key
    different = [DPA(partitions=9), DPA(partitions=8), DPA(partitions=9, model="mlp"), Bagging(draws=9)]
    keys = [str(each.training_key) for each in (*different, DPA(partitions=9, steps=3))]
    assert len(set(keys)) == len(keys)


def test_a_constant_that_follows_the_number_of_examples_follows_its_step() -> None:
    left_open = DPA(steps=1, batch_size=4).train(TRAINING, TEST, device="cpu")
    assert left_open.instances == 10
    assert left_open.size == Size(240, 135, 340)
    for declared in (DPA(partitions=10, steps=1, batch_size=4), DPA(num_train=240, steps=1, batch_size=4)):
        assert declared.train(TRAINING, TEST, device="cpu").size is None


def test_options_reach_what_they_are_for() -> None:
    bagging = defence("bagging", draws=3, instances=4, steps=5, model="mlp", features=None)
    assert bagging == Bagging(draws=3, instances=4, steps=5, model="mlp", features="none")
    private = defence("adp", on="scores", steps=9, delta=1e-6)
    assert private == PrivateEnsemble(method="adp", on="scores", steps=9, delta=1e-6)
    kernel, within = defence("kernel-vote", full=0.7), defence("kernel-vote", cosine=0.7)
    assert isinstance(kernel, KernelVote)
    assert isinstance(within, KernelVote)
    assert kernel.kernel == Exponential(width=0.1, full=0.7)
    assert within.kernel == Within(0.7)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("baging", {}, "did you mean 'bagging'"),
        ("dpa", {"partitons": 3}, "did you mean 'partitions'"),
        ("dpa", {"partitions": 0}, "partitions"),
        ("dpa", {"noise_multiplier": 1.0}, "no option 'noise_multiplier'"),
        ("bagging", {"draws": 0}, "draws"),
        ("finite-aggregation", {"spread": 1.5}, "spread"),
        ("fdp", {"on": "logits"}, "on"),
        ("kernel-vote", {"cosine": 0.5, "width": 1.0}, "give one kind"),
        ("kernel-vote", {"width": -1.0}, "width"),
        ("nearest-neighbours", {"neighbours": 0}, "neighbours"),
        ("nearest-neighbours", {"neighbours": [20, 30], "leads": [5]}, "below the one before"),
        ("nearest-neighbours", {"neighbours": [30, 20]}, "a lead for every number of neighbours but the last"),
        ("nearest-neighbours", {"neighbours": [30, 20], "leads": 5}, "leads as a list"),
        ("nearest-neighbours", {"neighbours": [30, 20], "leads": [[5, -1]]}, "whole number of at least 1, got -1"),
        ("nearest-neighbours", {"leads": [5]}, "say neighbours, too"),
        ("label-smoothing", {"flip_prob": 0.0}, "flip_prob"),
        ("label-smoothing", {"flip_prob": "x"}, "flip_prob"),
        ("label-smoothing", {"instances": 0}, "instances"),
        ("feature-smoothing", {"noise": "x"}, "noise"),
        ("feature-smoothing", {"max_change": -1}, "max_change"),
        ("fdp", {"instances": "x"}, "instances"),
        ("fdp", {"learning_rate": -1.0}, "learning_rate"),
        ("statistical-dp", {"delta": 2.0}, "delta"),
        ("dpa", {"steps": "x"}, "steps"),
        *((name, {"model": "nomodel"}, "model") for name in ("fdp", "dpa")),
        *((name, {"features": "nope"}, "features") for name in ("fdp", "dpa", "kernel-vote", "nearest-neighbours")),
        *((name, {"in_flight": 3}, "no option 'in_flight'") for name in ("fdp", "bagging")),
        ("fdp", {"delta": 1e-6}, "delta belongs to the method adp"),
        ("rdp", {"on": 3}, "on"),
        ("dpa", {"num_train": 0}, "num_train"),
        ("fdp", {"seconds": "x"}, "seconds"),
        *((name, {"classes": 0}, "classes") for name in ("kernel-vote", "nearest-neighbours", "dpa", "fdp")),
    ],
)
def test_bad_options_are_refused_in_words(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        defence(name, **options)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("dpa", {"partitions": 241}, "partitions"),
        ("bagging", {"draws": 241}, "draws"),
        ("nearest-neighbours", {"neighbours": 241}, "fewer than neighbours"),
        ("label-smoothing", {"flip_prob": 0.9}, "flip_prob"),
    ],
)
def test_what_does_not_fit_the_data_is_refused_in_words(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        defence(name, **options).train(TRAINING, TEST, device="cpu")


@pytest.mark.parametrize("name", ["fdp", "bagging"])
@pytest.mark.parametrize("runtime", [{"precision": "half"}, {"in_flight": -1}, {"nonsense": 1}, {"device": "abacus"}])
def test_a_bad_way_to_run_is_refused_in_words(name: str, runtime: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(runtime))):
        defence(name, **QUICK[name]).train(TRAINING, TEST, **{"device": "cpu", **runtime})


def test_votes_of_another_defence_are_refused_in_words(made: tuple[Defence, Votes]) -> None:
    _, votes = made
    for name in METHODS:
        other = defence(name)
        if type(votes.mechanism).__name__ in _MECHANISMS[name]:
            continue
        with pytest.raises(ValueError, match=r"\."):
            other.certify(votes)


@pytest.mark.parametrize(
    ("name", "options", "other"),
    [
        ("dpa", {"partitions": 6, "steps": 1}, {"partitions": 7}),
        ("bagging", {"draws": 6, "instances": 3, "steps": 1}, {"draws": 7}),
        ("feature-smoothing", {"noise": 3.0, "instances": 3, "steps": 1}, {"noise": 2.0}),
        ("nearest-neighbours", {"neighbours": 6}, {"neighbours": 7}),
        ("nearest-neighbours", {"neighbours": [6, 3], "leads": [2]}, {"neighbours": 6}),
        ("nearest-neighbours", {"neighbours": [6, 3], "leads": [2]}, {"leads": [1], "neighbours": [6, 3]}),
        ("nearest-neighbours", {"neighbours": [6, 3], "leads": [[2, 1, 5]]}, {"leads": [2], "neighbours": [6, 3]}),
    ],
)
def test_votes_of_other_constants_are_refused_in_words(name: str, options: Any, other: Any) -> None:
    votes = defence(name, **options).train(TRAINING, TEST, device="cpu")
    with pytest.raises(ConfigError, match=f"trained with {next(iter(other))}="):
        defence(name, **other).certify(votes)


@pytest.mark.parametrize("name", ["dpa", "kernel-vote", "fdp", "statistical-dp"])
def test_what_is_no_votes_is_refused_in_words(name: str) -> None:
    with pytest.raises(ConfigError, match="votes"):
        defence(name).certify(None)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", ["dpa", "bagging", "kernel-vote", "nearest-neighbours", "label-smoothing"])
def test_declared_classes_are_no_assumption(name: str) -> None:
    """A class that nobody in the training data has is still a class."""
    quick = {key: value for key, value in QUICK[name].items() if key != "flip_prob"}
    named = Examples(*TRAINING, class_names=("a", "b", "c", "never seen"))
    votes = defence(name, **quick).train(named, TEST, device="cpu")
    assert votes.classes == 4
    assert not any("read off" in sentence for sentence in votes.assumptions)
    assert defence(name, **{**quick, "classes": 5}).train(TRAINING, TEST, device="cpu").classes == 5


@pytest.mark.parametrize("name", METHODS[6:])
def test_a_handful_of_examples_will_do(name: str) -> None:
    few = (TRAINING[0][:8], np.array([0, 1, 2, 0, 1, 2, 0, 1]))
    options = {key: 2 for key in ("partitions", "draws", "instances", "neighbours") if key in QUICK[name]}
    found = defence(name, **options, **({"steps": 2} if "steps" in QUICK[name] else {}))
    certificate = found.certify(found.train(few, TEST, device="cpu"))
    assert isinstance(certificate, Certificate)


def test_how_many_neighbours_vote_follows_the_data_where_it_is_left_open() -> None:
    votes = defence("nearest-neighbours").train(TRAINING, TEST)
    assert votes.instances == 9  # one in fifteen of 135, the step of 240
    assert votes.size == Size(240, 135, 340)


@pytest.mark.parametrize(
    ("num_train", "classes", "shape", "neighbours"),
    [
        (4500, 2, (8,), 300), (4500, 30, (8,), 150), (4500, 2, (), 300), (10**6, 2, (8,), 5000), (10, 2, (8,), 1),
        (4500, 2, (28, 28), 450), (60_000, 10, (3, 32, 32), 1000),
    ],
)  # fmt: skip
def test_how_many_neighbours_vote(num_train: int, classes: int, shape: tuple[int, ...], neighbours: int) -> None:
    choice = defence("nearest-neighbours", features="none").choose(Facts(num_train, classes, shape, "float"))
    assert choice.defence.neighbours == neighbours


@pytest.mark.parametrize("lead", [50, [50, 60, 40]])
def test_several_scales_from_votes_to_the_auditor(tmp_path: Any, lead: Any) -> None:
    found = defence("nearest-neighbours", neighbours=[100, 20], leads=[lead])
    assert found.title == "100 or 20 nearest neighbours"
    assert found.to_dict()["neighbours"] == [100, 20]
    assert found.to_dict()["leads"] == [lead]
    votes = found.train(TRAINING, TEST)
    votes.save(tmp_path / "votes.npz")
    certificate = found.certify(Votes.load(tmp_path / "votes.npz"))
    assert isinstance(certificate, Certificate)
    certificate.save(tmp_path / "certificate.json")
    assert verify(tmp_path / "certificate.json").valid
    assert certificate.accuracy(TEST[1], [1])[0] > 0.9
    for neighbours in (20, 100):
        alone = defence("nearest-neighbours", neighbours=neighbours)
        claim = alone.certify(alone.train(TRAINING, TEST))
        assert isinstance(claim, Certificate)
        assert not np.array_equal(claim.radius, certificate.radius)


@pytest.mark.parametrize("kernel", [3, lambda cosine: cosine])
def test_a_kernel_says_what_it_is(kernel: Any) -> None:
    with pytest.raises(ConfigError, match="to_dict"):
        KernelVote(kernel=kernel)


def test_an_inserted_fraction_moves_no_other_example() -> None:
    """Lists of whole numbers become lists of fractions: every model but one must stay as it was."""
    draws = np.random.default_rng(5)
    x, y = draws.integers(-9, 9, (120, 3)), draws.integers(0, 3, 120)
    found = FiniteAggregation(partitions=12, spread=1, steps=5, batch_size=8)
    before = found.train((x.tolist(), y), x[:30], device="cpu").evidence["predictions"]
    after = found.train(([*x.tolist(), [0.5, 0.5, 0.5]], [*y, 0]), x[:30], device="cpu")
    assert (before != after.evidence["predictions"]).any(axis=0).sum() <= 1


def test_networks_that_go_by_the_same_words_have_recipes_of_their_own() -> None:
    class Scaled(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor, self.layer = factor, nn.Linear(3, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.layer(self.factor * inputs)

    one, same, other = (DPA(partitions=3, model=Scaled(factor)).training_key for factor in (1.0, 1.0, 0.0))
    assert one == same != other


def test_distances_are_said_to_be_between_features() -> None:
    smoothing = defence("feature-smoothing", instances=5, steps=1, batch_size=4)
    with_encoder = smoothing.train(TRAINING, TEST, device="cpu")
    assert any("between features (unit-norm)" in sentence for sentence in with_encoder.assumptions)
    plain = defence("feature-smoothing", instances=5, steps=1, batch_size=4, model="linear", features=None)
    assert any("as they were given" in sentence for sentence in plain.train(TRAINING, TEST, device="cpu").assumptions)
