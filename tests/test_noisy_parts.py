"""The majority of models of parts on noisy inputs: against every altered model and every move, and from end to end."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from test_cli import refused, run, run_json
from test_input_noise import images, numbers

from mithridate import Certificate, CertifiedClassifier, Votes, audit, certify, verify
from mithridate.auditing.draws_and_noise import copies_again
from mithridate.auditing.routes import Claim, recheck
from mithridate.core.certificate import Scope, Status
from mithridate.core.input_change import InputNoise
from mithridate.core.mechanism import Threat
from mithridate.core.units import Unit
from mithridate.defences import defence
from mithridate.defences.noisy_parts import (
    WITHSTOOD,
    NoisyPartitioned,
    SmoothedMajorityRule,
    drawn_votes,
    fewest_draws,
)
from mithridate.defences.partitions import MajorityRule, Partitioned
from mithridate.defences.prediction import predict
from mithridate.errors import ConfigError, MithridateError
from mithridate.training.order import Ray

SYMMETRIC = Threat.SYMMETRIC_DIFFERENCE
CONSTANTS: dict[str, Any] = {"partitions": 9, "classes": 2, "num_train": 200, "model": "linear", "steps": 10}
MANY = 10_000_000


# --- A world of one number: models are labels by interval, and a move of the input is known exactly -------------------


class World:
    """Models that answer by the interval that a number lies in; the input is 0, the noise N(0, 1)."""

    def __init__(self, cuts: Sequence[float], answers: Sequence[Sequence[int]], classes: int) -> None:
        self.ends = np.array([-np.inf, *sorted(cuts), np.inf])
        self.answers = np.array(answers)  # intervals x models
        self.classes = classes

    def shares(self, labels: Sequence[int], at: float) -> np.ndarray:
        """How likely each label is at an input, if the intervals have these labels."""
        masses = np.diff(stats.norm.cdf(self.ends - at))
        return np.bincount(labels, weights=masses, minlength=self.classes)

    def majority(self, altered: Sequence[int] = (), to: int = 0) -> list[int]:
        """The label of every interval where some models say nothing but `to`."""
        answers = self.answers.copy()
        answers[:, list(altered)] = to
        return [int(np.bincount(row, minlength=self.classes).argmax()) for row in answers]

    def withstands(self, interval: int, label: int, parts: int) -> bool:
        """By definition: whatever so many models answer, the majority stays."""
        return all(
            self.majority(altered, rival)[interval] == label
            for altered in combinations(range(self.answers.shape[1]), parts)
            for rival in range(self.classes)
        )

    def keeps(self, label: int, parts: int, move: float) -> bool:
        """Whether the label stays the likeliest, whatever so many models become and wherever the input moves.

        If all altered models answer one rival, no other answers of theirs leave less to the label and more to it.
        """
        return all(
            shares[label] > np.delete(shares, label).max()
            for altered in combinations(range(self.answers.shape[1]), parts)
            for rival in set(range(self.classes)) - {label}
            for shares in [self.shares(self.majority(altered, rival), at) for at in np.linspace(-move, move, 5)]
        )

    def votes(self) -> Votes:
        """So many draws that their shares are those of the world, rounded down where that helps a claim."""
        models, labels = self.answers.shape[1], self.majority()
        label = int(self.shares(labels, 0.0).argmax())
        masses = np.diff(stats.norm.cdf(self.ends))
        at_least = [
            sum(mass for each, mass in enumerate(masses) if self.withstands(each, label, parts))
            for parts in range(models // 2 + 1)
        ]
        exactly = -np.diff([*(int(MANY * share) for share in at_least), 0])
        counts = np.zeros(self.classes, dtype=np.int64)
        counts[label], others = exactly.sum(), MANY - exactly.sum()
        counts[[each for each in range(self.classes) if each != label][-1]] = others
        return votes_of(counts[None, :], exactly[None, :], models)


def votes_of(counts: Any, withstood: Any, partitions: int, **more: Any) -> Votes:
    noise = InputNoise(1.0)
    return Votes(
        np.array(counts), NoisyPartitioned(partitions), evidence={WITHSTOOD: withstood}, input_noise=noise, **more
    )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    models, classes = draw(st.sampled_from([(1, 2), (3, 2), (3, 3), (4, 3), (5, 2), (5, 3)]))
    cuts = draw(st.lists(st.floats(-3, 3), min_size=1, max_size=4, unique=True))
    # One label is common, so that many worlds have something to certify.
    answer = st.sampled_from([*range(classes), 0, 0, 0])
    answers = [draw(st.lists(answer, min_size=models, max_size=models)) for _ in range(len(cuts) + 1)]
    return World(cuts, answers, classes)


@settings(max_examples=60, deadline=None)
@given(worlds(), st.sampled_from([0.0, 0.3, 0.8, 1.5]))
def test_no_altered_models_and_no_move_change_what_is_certified(world: World, move: float) -> None:
    certificate = certify(votes_of_likely(world), input_change=move, threat="add")
    if certificate.label[0] == world.shares(world.majority(), 0.0).argmax() and certificate.radius[0] >= 0:
        assert world.keeps(int(certificate.label[0]), int(certificate.radius[0]), move)


def votes_of_likely(world: World) -> Votes:
    votes = world.votes()
    # Evidence is of the label with most votes; where that is another one here, nothing is certified anyway.
    if votes.counts[0].max() == votes.evidence[WITHSTOOD].sum():
        return votes
    return votes_of([[MANY // 2, MANY - MANY // 2, *[0] * (world.classes - 2)]], [[0] * 3], 5)


@pytest.mark.parametrize("parts", [0, 1, 2])
@pytest.mark.parametrize("edge", [0.4, 1.0, 2.0])
def test_no_rule_that_knows_the_same_can_say_more(parts: int, edge: float) -> None:
    """All five models agree below the edge; above it so few that one altered model less would not do."""
    rest = [0, 0, 0, 1, 1] if parts == 1 else [0, 0, 0, 0, 1] if parts == 2 else [0, 0, 1, 1, 1]
    world = World([edge], [[0] * 5, rest], 2)
    radii = [int(certify(world.votes(), input_change=edge + by, threat="add").radius[0]) for by in (-0.03, 0.03)]
    assert radii[0] >= parts > radii[1]
    assert world.keeps(0, parts, edge - 0.03)
    assert not world.keeps(0, parts, edge + 0.03)


# --- Its ends ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("votes", [560, 700, 950, 1000])
def test_with_one_part_it_is_the_radius_of_randomised_smoothing(votes: int) -> None:
    """S Phi^-1(p), p the lower end of an interval; here with a level that is Phi(h) times as large."""
    cast = votes_of([[votes, 1000 - votes]], [[votes]], 1)
    for move in np.linspace(0.01, 3, 60).tolist():
        tail = 0.001 * stats.norm.cdf(move)
        lower = stats.beta.ppf(tail, votes, 1000 - votes + 1)
        assert (certify(cast, input_change=move).radius[0] >= 0) == (stats.norm.ppf(lower) >= move)


@pytest.mark.parametrize("threat", list(Threat))
@pytest.mark.parametrize("unit", [None, Unit("vendor", 50)])
def test_where_all_copies_agree_it_counts_parts_as_without_noise(threat: Threat, unit: Unit | None) -> None:
    rng = np.random.default_rng(0)
    for models in (1, 2, 7, 12):
        answers = rng.multinomial(models, [0.7, 0.2, 0.1], size=20)
        plain = MajorityRule().decide(Votes(answers, Partitioned(models), unit=unit), threat)
        counts, withstood = drawn_votes(np.repeat(answers, 100, axis=0), 100, models)
        found = certify(votes_of(counts, withstood, models, unit=unit), threat=threat)
        assert found.label.tolist() == plain.label.tolist()
        assert found.radius.tolist() == plain.radius.tolist()


def test_votes_of_copies_by_hand() -> None:
    answers = [[5, 0], [3, 2], [2, 3], [4, 1], [2, 3], [1, 4]]
    counts, withstood = drawn_votes(np.array(answers), 3, 5)
    assert counts.tolist() == [[2, 1], [1, 2]]
    # Leads of 5 and 1 for label 0; of 0 and 2 for label 1, to whom no tie falls.
    assert withstood.tolist() == [[1, 0, 1], [1, 1, 0]]


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_votes_of_copies_are_those_of_the_majority_rule(classes: int) -> None:
    rng = np.random.default_rng(classes)
    answers = rng.multinomial(11, rng.dirichlet(np.ones(classes)), size=6 * 40)
    counts, withstood = drawn_votes(answers, 40, 11)
    each = MajorityRule().decide(Votes(answers, Partitioned(11)), SYMMETRIC)
    for at in range(6):
        rows = slice(40 * at, 40 * at + 40)
        assert counts[at].tolist() == np.bincount(each.label[rows], minlength=classes).tolist()
        own = each.radius[rows][each.label[rows] == counts[at].argmax()]
        assert withstood[at].tolist() == np.bincount(own, minlength=6).tolist()


# --- Confidence -------------------------------------------------------------------------------------------------------


def disjoint(likely: float) -> Iterator[list[float]]:
    """Probabilities of disjoint events that are no likelier than that."""
    yield [likely, 1 - likely]
    yield [likely / 2, likely / 2, 1 - likely]
    rng = np.random.default_rng(0)
    for size in (2, 3, 10):
        for _ in range(20):
            yield np.minimum(rng.dirichlet(np.ones(size)), likely).tolist()


@pytest.mark.parametrize("draws", [3, 20, 150, 1000])
@pytest.mark.parametrize("shift", [0.0, 0.2, 1.0, 2.0])
@pytest.mark.parametrize("failure_prob", [0.3, 0.01, 1e-6])
def test_unlikely_events_are_taken_for_likely_ones_no_more_often_than_promised(
    draws: int, shift: float, failure_prob: float
) -> None:
    """Exactly, by the union of disjoint events, each with its binomial tail; and with one draw less it may be wrong."""
    needed, likely = fewest_draws(draws, failure_prob, shift), float(stats.norm.cdf(shift))
    for events in disjoint(likely):
        assert np.sum(stats.binom.sf(needed - 1, draws, events)) <= failure_prob * (1 + 1e-9)
    fewer = needed - 1
    assert stats.binom.sf(fewer - 1, draws, likely) > failure_prob * likely or fewer < (draws - 1) * likely + 1


def test_false_claims_are_as_rare_as_promised() -> None:
    """20,000 inputs on which every claim is false, for three changes at once: a false alarm in 1e-6 of all tests."""
    rng, trials, draws, changes = np.random.default_rng(1), 20_000, 100, [0.0, 0.5, 1.0]
    # Withstanding 0, 1 and 2 parts is just as likely as needed for the changes 1, 0.5 and 0.
    at_least = np.array(stats.norm.cdf(changes[::-1]))
    drawn = rng.multinomial(draws, [*-np.diff(at_least, append=0.0), 1 - at_least[0]], size=trials)
    withstood, own = drawn[:, :3], drawn[:, :3].sum(axis=1)
    assert (2 * own > draws).all()
    votes = votes_of(np.stack([own, draws - own], axis=1), withstood, 5)
    frontier = certify(votes, failure_prob=0.1, input_change=changes).frontier
    assert frontier is not None
    truth = np.array([[1], [0], [-1]])
    wrong = int((frontier.radius > truth).any(axis=0).sum())
    assert wrong <= stats.binom.isf(1e-6, trials, 0.1)
    assert wrong > 0.02 * trials  # by what is lost to discrete counts and to labels that are not there, and no more
    whole = certify(votes, failure_prob=0.1, input_change=changes, scope=Scope.ALL).frontier
    assert whole is not None
    assert (whole.radius > truth).any(axis=0).sum() <= 5


# --- The second route -------------------------------------------------------------------------------------------------


def claims(votes: Votes, radius: Any, change: float, share: float, threat: Threat = SYMMETRIC) -> np.ndarray:
    label = votes.counts.argmax(axis=1)
    claim = Claim(
        votes.mechanism, "smoothed-majority", threat, label, np.array(radius), votes.counts, evidence=votes.evidence,
        input_change=change, input_noise=1.0, failure_prob=share, counts_units=votes.unit is not None,
    )  # fmt: skip
    return recheck(claim)


@pytest.mark.parametrize("threat", [SYMMETRIC, Threat.EDIT])
@pytest.mark.parametrize("change", [0.0, 0.4, 1.3])
@pytest.mark.parametrize("unit", [None, Unit("vendor", 50)])
def test_the_second_route_confirms_every_radius_and_not_one_more(
    threat: Threat, change: float, unit: Unit | None
) -> None:
    rng = np.random.default_rng(3)
    draws, models, examples = 400, 20, 60
    withstood = np.stack(
        [rng.multinomial(rng.integers(250, draws), rng.dirichlet(np.ones(11))) for _ in range(examples)]
    )
    own = withstood.sum(axis=1)
    votes = votes_of(np.stack([own, draws - own], axis=1), withstood, models, unit=unit)
    found = SmoothedMajorityRule().decide_drawn(votes, threat, 1e-3, change)
    assert not claims(votes, found.radius, change, 1e-3, threat).any()
    assert claims(votes, found.radius + 1, change, 1e-3, threat).all()


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("models", [1, 6, 11])
def test_the_second_route_counts_what_copies_withstand_alike(models: int, classes: int) -> None:
    rng = np.random.default_rng(models)
    answers = rng.multinomial(models, rng.dirichlet(np.ones(classes)), size=8 * 25)
    for one, other in zip(drawn_votes(answers, 25, models), copies_again(answers, 25), strict=True):
        assert one.tolist() == other.tolist()


def test_the_second_route_refuses_evidence_that_does_not_add_up() -> None:
    votes = votes_of([[90, 10], [80, 20]], [[0, 90, 0], [0, 79, 0]], 5)
    assert claims(votes, [1, 1], 0.0, 0.01).tolist() == [False, True]
    assert claims(votes_of([[90, 10]], [[0, 90]], 5), [1], 0.0, 0.01).tolist() == [True]
    with pytest.raises(MithridateError, match="withstand"):
        claims(Votes(np.array([[9, 1]]), NoisyPartitioned(5), input_noise=InputNoise(1.0)), [0], 0.0, 0.01)


def test_statuses_say_why_nothing_is_certified() -> None:
    votes = votes_of([[100, 0], [70, 30], [52, 48]], [[0, 0, 100], [0, 0, 70], [0, 0, 52]], 5)
    frontier = certify(votes, input_change=[0, 0.4]).frontier
    assert frontier is not None
    assert frontier.status[0].tolist() == [Status.CERTIFIED, Status.CERTIFIED, Status.NOT_SEPARATED]
    assert frontier.status[1].tolist() == [Status.CERTIFIED, Status.INPUT_CHANGE, Status.NOT_SEPARATED]


# --- Runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["numbers", "images"])
def test_votes_are_the_same_however_models_are_grouped(tmp_path: Path, kind: str) -> None:
    make = partial(numbers, apart=0.5) if kind == "numbers" else images
    made = defence("dpa", input_noise=0.5, noise_draws=40, features="none", **CONSTANTS)
    found = [
        made.train(make(200, 1), make(30, 2), root_seed=bytes(32), in_flight=in_flight, device="cpu", **kept)
        for in_flight, kept in ((9, {}), (4, {"run_dir": tmp_path / "run", "keep_models": True}))
    ]
    assert found[0].counts.tolist() == found[1].counts.tolist()
    assert found[0].evidence[WITHSTOOD].tolist() == found[1].evidence[WITHSTOOD].tolist()
    assert (found[0].instances, found[0].mechanism) == (40, NoisyPartitioned(9))
    assert found[0].input_noise == InputNoise(0.5, "pixels" if kind == "images" else "values")
    certificate = certify(found[1], input_change=[0, 0.2])
    certificate.save(tmp_path / "run" / "certificate.json")
    assert verify(tmp_path / "run").valid
    assert verify(tmp_path / "run" / "certificate.json", run=tmp_path / "run").valid
    # Models that were kept answer again, on noise that is drawn anew.
    again, third = (predict(tmp_path / "run", make(30, 2)) for _ in range(2))
    assert again.instances == 40
    assert again.evidence[WITHSTOOD].tolist() != third.evidence[WITHSTOOD].tolist()


def test_noise_is_drawn_anew_for_every_run_and_models_are_not() -> None:
    made = defence("dpa", input_noise=0.5, noise_draws=40, features="none", **CONSTANTS)
    close = numbers(30, 2, apart=0.5)
    one, other = (made.train(numbers(200, 1), close, device="cpu") for _ in range(2))
    assert one.evidence[WITHSTOOD].tolist() != other.evidence[WITHSTOOD].tolist()
    # With next to no noise the votes are those of the models, which anyone can train.
    tiny = defence("dpa", input_noise=1e-6, noise_draws=3, features="none", **CONSTANTS)
    one, other = (tiny.train(numbers(200, 1), close, device="cpu") for _ in range(2))
    assert one.evidence[WITHSTOOD].tolist() == other.evidence[WITHSTOOD].tolist()


def test_an_estimator_certifies_both() -> None:
    constants = {**CONSTANTS, "classes": [0, 1], "input_noise": 0.5, "noise_draws": 60, "features": "none"}
    training, new = numbers(200, 1), numbers(8, 2)
    classifier = CertifiedClassifier(method="dpa", device="cpu", **constants).fit(training.x, training.y)
    frontier = classifier.certify(new.x, input_change=[0, 0.3]).frontier
    assert frontier is not None
    assert frontier.radius.shape == (2, 8)
    assert frontier.radius.max() == 4


@pytest.mark.more
def test_workers_of_a_cluster_see_the_same_copies() -> None:
    pytest.importorskip("ray")
    made = defence("dpa", input_noise=0.5, noise_draws=40, features="none", **CONSTANTS)
    here, there = (
        made.train(numbers(200, 1), numbers(30, 2), root_seed=bytes(32), device="cpu", in_flight=4, backend=backend)
        for backend in (None, Ray(workers=1))
    )
    assert here.evidence[WITHSTOOD].tolist() == there.evidence[WITHSTOOD].tolist()


def test_from_training_to_the_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, examples in (("train", numbers(200, 1)), ("test", numbers(15, 2))):
        np.savez(tmp_path / f"{name}.npz", x=examples.x, y=np.asarray(examples.y))
    flags = [
        *("train", "--train", "train.npz", "--test", "test.npz", "--method", "dpa", "--partitions", "9"),
        *("--model", "linear", "--features", "none", "--classes", "2", "--num-train", "200", "--steps", "10"),
        *("--device", "cpu"),
    ]
    assert run(capsys, *flags, "--run-dir", "run", "--input-noise", "0.5", "--noise-draws", "150").code == 0
    found = run_json(capsys, "certify", "run", "--input-change", "0.3,0", "--radii", "0,1")
    assert (found["bounds"], found["instances"], found["input_change_of"]) == ("quantile", 150, "values")
    assert [row["input_change"] for row in found["frontier"]] == [0, 0.3]
    assert max(found["frontier"][1]["radius"]) >= 1
    assert run(capsys, "verify", "run").code == 0
    assert run(capsys, "report", "run").code == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "noisy copies of the input" in page
    new = run_json(capsys, "predict", "run", "test.npz", "--input-change", "0.3")
    assert len(new["predictions"]) == 15
    assert "--bounds" in refused(capsys, "certify", "run", "--bounds", "winner")
    outcome = run(capsys, *flags, "--run-dir", "other", "--input-noise", "0.5", "--prepare")
    assert outcome.code == 2
    assert "no shards" in outcome.err
    assert "cannot be split" in refused(capsys, "split", "run", "--into", "2", "-o", "parts")
    for more in ([], ["--input-change", "0.3"]):
        assert "draws of the noise" in refused(capsys, "audit", "run", *more)
    # A forged radius.
    saved = Certificate.load("run/certificate.json")
    forged = saved.votes.to_parts()
    assert forged[1]["evidence.withstood"].shape == (15, 5)
    assert saved.frontier is not None
    raised = saved.radius + 1
    assert not claims(saved.votes, saved.radius, 0.0, 5e-4).any()
    assert claims(saved.votes, raised, 0.0, 5e-4).all()


# --- What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"input_noise": 0.5, "class_weights": [1, 2]}, "class_weights"),
        ({"input_noise": 0.5, "learner": "logistic"}, "networks"),
        ({"input_noise": 0.5, "noise_draws": 0}, "noise_draws"),
        ({"noise_draws": 10}, "input_noise"),
    ],
)
def test_what_does_not_go_together_is_refused(constants: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        defence("dpa", **constants)


def test_more_copies_than_can_be_kept_are_refused_before_training() -> None:
    made = defence("dpa", input_noise=0.5, noise_draws=10_000_000, features="none", **CONSTANTS)
    with pytest.raises(ConfigError, match="noise_draws"):
        made.train(numbers(200, 1), numbers(30, 2), device="cpu")


def test_draws_of_two_runs_do_not_merge_and_are_no_sample_for_other_rules() -> None:
    one, other = (votes_of([[9, 1]], [[0, 9]], 3, run_ids=(name,)) for name in "ab")
    with pytest.raises(ConfigError, match="--noise-draws"):
        one.merge(other)
    with pytest.raises(ConfigError, match="of its own"):
        certify(one, bounds="winner")
    with pytest.raises(MithridateError, match="bagging"):
        certify(one, method=defence("bagging").rule())
    with pytest.raises(MithridateError, match="NoisyPartitioned"):
        certify(Votes(np.array([[3, 1]]), Partitioned(4)), method=SmoothedMajorityRule())


def test_audits_by_attack_know_no_such_votes() -> None:
    made = defence("dpa", input_noise=0.5, noise_draws=40, features="none", **CONSTANTS)
    with pytest.raises(ConfigError, match="without input_noise"):
        audit(made, numbers(200, 1), numbers(10, 2), minutes=1)
