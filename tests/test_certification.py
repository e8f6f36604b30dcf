"""The search for the largest radius, and what must hold whatever the votes are."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rival_votes import CLAIMS, EXACT, RIVALS, method_of

from mithridate import Votes, certify
from mithridate.accounting import ADP, FDP, RDP, Margins, Method, fdp
from mithridate.accounting.privacy_loss import TradeoffCurve, compose
from mithridate.certifying import certification
from mithridate.certifying.certification import SEARCH_LIMIT
from mithridate.core.bounds import bound_votes
from mithridate.core.certificate import Certificate, Scope, Status
from mithridate.core.mechanism import SampledGaussian, Subsampled, Threat
from mithridate.defences.partitions import Partitioned
from mithridate.errors import ConfigError, NumericalError, UnsupportedMechanismError

INSTANCES = 60
# Unanimous votes reach radius 13: small enough to search fast, large enough to have many splits.
MECHANISM = SampledGaussian(8.0, 0.1, 30)
METHODS: list[Method] = [FDP(), RDP(), RDP(complement=True), RDP(group="standard"), RDP(group="paper"), ADP(0.01)]
SOUND = [method for method in METHODS if not method.assumptions]


@st.composite
def rows(draw: st.DrawFn, classes: int = 3) -> list[int]:
    """Votes of INSTANCES instances on one example, most of them for one label."""
    rest = draw(st.lists(st.integers(0, 12), min_size=classes - 1, max_size=classes - 1))
    row = [INSTANCES - sum(rest), *rest]
    return draw(st.permutations(row))


TABLES = st.lists(rows(), min_size=1, max_size=12)


def certified(counts: list[list[int]], method: Method | None = None, **options: object) -> Certificate:
    return certify(Votes.from_counts(counts, mechanism=MECHANISM), method=method, failure_prob=0.05, **options)  # pyright: ignore[reportArgumentType]


def radius(row: list[int], method: Method | None = None, **options: object) -> int:
    return int(certified([row], method, **options).radius[0])


# --- the search -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", SOUND, ids=repr)
def test_the_radius_is_the_last_that_holds(method: Method) -> None:
    counts = np.array([[60, 0, 0], [58, 1, 1], [55, 4, 1], [50, 5, 5], [40, 20, 0], [30, 30, 0]])
    found = certified(counts.tolist(), method)
    limits = bound_votes(counts, failure_prob=0.05)
    accountant = method.accountant(MECHANISM, Threat.SYMMETRIC_DIFFERENCE)
    for i in range(len(counts)):
        if limits.top_lower[i] <= limits.rival_upper[i]:
            expected = -1
        else:
            chosen = slice(i, i + 1)
            margins = Margins.of(limits.top_lower[chosen], limits.top_miss_upper[chosen], limits.rival_upper[chosen])
            expected = next(r for r in range(1, 2000) if not accountant.holds(r, margins)[0]) - 1
        assert found.radius[i] == expected
    assert found.radius[0] >= found.radius[3] >= 0
    assert found.status.tolist()[-1] == Status.NOT_SEPARATED


class Limit:
    """An accountant that holds up to a given radius for each point, told by its `top`."""

    def __init__(self, refuse_from: int = 1 << 60) -> None:
        self.refuse_from = refuse_from
        self.asked: list[int] = []
        self.closed = 0

    @property
    def error_budget(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        self.closed += 1

    def holds(self, radius: int, margins: Margins) -> np.ndarray:
        self.asked.append(radius)
        if radius >= self.refuse_from:
            raise NumericalError("too large")
        # The limit is hidden in the lower bound of the top score: 0.5 + limit / 2^30.
        return margins.top.map(lambda top: np.round((top - 0.5) * 2**30)) >= radius


def searched(limits: list[int], accountant: Limit, end: int = SEARCH_LIMIT) -> tuple[list[int], list[str]]:
    top = 0.5 + np.array(limits, dtype=float) / 2**30
    margins = Margins.of(top, 1 - top, 1 - top)
    search = certification._Search(accountant, end - 1, end, None, moves=False)  # pyright: ignore[reportPrivateUsage]
    radii, statuses = certification._searched(search, margins)  # pyright: ignore[reportPrivateUsage]
    return radii.tolist(), statuses.tolist()


@settings(max_examples=100)
@given(st.lists(st.integers(0, 5000), min_size=1, max_size=8))
def test_the_search_finds_every_limit(limits: list[int]) -> None:
    radii, statuses = searched(limits, Limit())
    for limit, found in zip(limits, radii, strict=True):
        assert found <= limit
        assert found == limit if limit <= 4096 else found > limit * (1 - 1 / 2048)
    assert set(statuses) == {Status.CERTIFIED}


@settings(max_examples=100)
@given(st.lists(st.integers(0, 5000), min_size=1, max_size=8), st.integers(1, 4096))
def test_the_search_asks_for_nothing_beyond_its_end(limits: list[int], end: int) -> None:
    accountant = Limit()
    radii, statuses = searched(limits, accountant, end)
    assert radii == [min(limit, end) for limit in limits]
    assert statuses == [Status.SEARCH_LIMIT if limit >= end else Status.CERTIFIED for limit in limits]
    assert max(accountant.asked) <= end


def test_large_radii_are_rounded_down_by_less_than_promised() -> None:
    limits = [4097, 5001, 99_999, 524_287, SEARCH_LIMIT - 1, SEARCH_LIMIT, SEARCH_LIMIT + 5]
    radii, statuses = searched(limits, Limit())
    for limit, found in zip(limits, radii, strict=True):
        assert limit * (1 - 1 / 2048) < found <= limit
    assert radii[-2:] == [SEARCH_LIMIT, SEARCH_LIMIT]
    assert statuses == [Status.CERTIFIED] * 5 + [Status.SEARCH_LIMIT] * 2


@settings(max_examples=100)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=5), st.integers(1, 300))
def test_where_the_arithmetic_fails_the_radius_shown_so_far_stands(limits: list[int], refuse_from: int) -> None:
    radii, statuses = searched(limits, Limit(refuse_from))
    for limit, found, status in zip(limits, radii, statuses, strict=True):
        assert found == min(limit, refuse_from - 1)
        assert status == (Status.NUMERICAL if limit >= refuse_from - 1 else Status.CERTIFIED)


def test_numerical_status_reaches_the_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    few = radius([43, 14, 3])
    assert radius([60, 0, 0]) > 4

    def refusing(noise: float, rate: float, steps: int, deleted: int, inserted: int) -> TradeoffCurve:
        if deleted + inserted > 4:
            raise NumericalError("refused")
        return compose(noise, rate, steps, deleted, inserted)

    monkeypatch.setenv("MITHRIDATE_CACHE", "off")
    monkeypatch.setattr(fdp, "compose", refusing)
    assert 0 < few < 4
    found = certified([[60, 0, 0], [43, 14, 3]])
    assert found.radius.tolist() == [4, few]
    assert found.status.tolist() == [Status.NUMERICAL, Status.CERTIFIED]


def test_search_limit_reaches_the_certificate() -> None:
    # The paper's rule does not see r at q = 1, so it "certifies" everything.
    votes = Votes.from_counts([[1000, 0], [505, 495]], mechanism=SampledGaussian(20.0, 1.0, 50))
    found = certify(votes, method=RDP(group="paper"))
    assert found.radius.tolist() == [SEARCH_LIMIT, -1]
    assert found.status.tolist() == [Status.SEARCH_LIMIT, Status.NOT_SEPARATED]
    assert any("bounded group sensitivity" in sentence for sentence in found.assumptions)


def test_progress_is_told_and_the_accountant_is_closed() -> None:
    calls: list[tuple[int, int]] = []
    certified([[60, 0, 0], [58, 1, 1], [58, 1, 1], [20, 20, 20]], RDP(), progress=lambda d, n: calls.append((d, n)))
    assert calls[-1] == (2, 2)  # Two distinct examples that are separated at all.
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


# --- properties -------------------------------------------------------------------------------------------------------


@settings(max_examples=8)
@given(TABLES, st.integers(1, 5), st.randoms(use_true_random=False))
@pytest.mark.parametrize("method", [FDP(), RDP(), ADP(0.01)], ids=repr)
def test_a_vote_moved_to_the_top_never_shrinks_the_radius(
    method: Method, counts: list[list[int]], moved: int, random: Random
) -> None:
    better = [list(row) for row in counts]
    for row in better:
        top = int(np.argmax(row))
        other = random.choice([i for i in range(3) if i != top])
        gained = min(moved, row[other])
        row[top] += gained
        row[other] -= gained
    found = certified(counts + better, method)
    half = len(counts)
    assert np.all(found.radius[half:] >= found.radius[:half])
    assert np.array_equal(found.label[half:], found.label[:half])


@settings(max_examples=8)
@given(TABLES, st.sampled_from([0.2, 0.05, 0.001]), st.sampled_from([0.3, 0.01]))
@pytest.mark.parametrize("method", [FDP(), RDP(), ADP(0.01)], ids=repr)
def test_a_smaller_failure_probability_never_grows_the_radius(
    method: Method, counts: list[list[int]], failure_prob: float, factor: float
) -> None:
    votes = Votes.from_counts(counts, mechanism=MECHANISM)
    larger = certify(votes, method=method, failure_prob=failure_prob)
    smaller = certify(votes, method=method, failure_prob=failure_prob * factor)
    assert np.all(smaller.radius <= larger.radius)


@settings(max_examples=5)
@given(TABLES)
def test_the_tight_method_is_never_worse_than_the_sound_others(counts: list[list[int]]) -> None:
    best = certified(counts, FDP()).radius
    for method in SOUND:
        assert np.all(certified(counts, method).radius <= best)
    assert np.all(certified(counts, RDP(complement=True)).radius >= certified(counts, RDP()).radius)


@settings(max_examples=40)
@given(st.lists(rows(), min_size=1, max_size=4), st.permutations([0, 1, 2]))
def test_renaming_classes_changes_nothing_but_labels(counts: list[list[int]], order: list[int]) -> None:
    found = certified(counts)
    renamed = certified([[row[i] for i in order] for row in counts])
    assert np.array_equal(found.radius, renamed.radius)
    assert np.array_equal(found.status, renamed.status)
    for row, before, after in zip(counts, found.label, renamed.label, strict=True):
        if row.count(max(row)) == 1:  # Ties go to the smaller label, whatever it is called.
            assert order[after] == before
        assert row[order[after]] == row[before]


@settings(max_examples=40)
@given(st.lists(rows(), min_size=2, max_size=5))
def test_all_predictions_at_once_is_the_stronger_claim(counts: list[list[int]]) -> None:
    one, all_of_them = certified(counts), certified(counts, scope="all")
    assert np.all(all_of_them.radius <= one.radius)
    assert all_of_them.scope is Scope.ALL
    # A union bound: each of n examples at failure_prob / n.
    votes = Votes.from_counts(counts, mechanism=MECHANISM)
    assert np.array_equal(certify(votes, failure_prob=0.05 / len(counts)).radius, all_of_them.radius)


@pytest.mark.more
@settings(max_examples=6)
@given(TABLES)
@pytest.mark.parametrize("method", SOUND, ids=repr)
def test_wider_threats_never_have_larger_radii(method: Method, counts: list[list[int]]) -> None:
    found = {threat: certified(counts, method, threat=threat).radius for threat in Threat}
    assert np.all(found[Threat.SYMMETRIC_DIFFERENCE] <= np.minimum(found[Threat.ADD], found[Threat.REMOVE]))
    assert np.all(found[Threat.REPLACE] <= found[Threat.SYMMETRIC_DIFFERENCE])
    # A replacement is a deletion and an insertion: 2r changes cover r replacements.
    assert np.all(found[Threat.REPLACE] >= found[Threat.SYMMETRIC_DIFFERENCE] // 2)
    for narrow in (Threat.LABELS, Threat.FEATURES, Threat.REPLACE):
        assert np.all(found[Threat.EDIT] <= found[narrow])


@settings(max_examples=40)
@given(rows(), rows())
def test_examples_do_not_influence_each_other(first: list[int], second: list[int]) -> None:
    assert certified([first, second, first]).radius.tolist() == [radius(first), radius(second), radius(first)]


@settings(max_examples=30)
@given(rows(), rows())
def test_merged_votes_are_certified_as_one_run(first: list[int], second: list[int]) -> None:
    one = Votes(np.array([first]), MECHANISM, run_ids=("a",))
    two = Votes(np.array([second]), MECHANISM, run_ids=("b",))
    merged = certify(one.merge(two))
    assert np.array_equal(merged.radius, certify(two.merge(one)).radius)
    together = Votes.from_counts([[a + b for a, b in zip(first, second, strict=True)]], mechanism=MECHANISM)
    assert np.array_equal(merged.radius, certify(together).radius)
    assert merged.votes.instances == 2 * INSTANCES


@pytest.mark.parametrize("top", [20, 30])
def test_ties_are_not_separated_and_go_to_the_smaller_label(top: int) -> None:
    found = certified([[INSTANCES - 2 * top, top, top], [top, INSTANCES - 2 * top, top]])
    assert found.label.tolist() == ([0, 0] if top == 20 else [1, 0])
    assert found.radius.tolist() == [-1, -1]
    assert set(found.status) == {Status.NOT_SEPARATED}


@pytest.mark.more
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_subsampling_never_shrinks_the_radius(method: Method) -> None:
    if method.assumptions:
        return
    radii = [
        int(certify(Votes.from_counts([[57, 2, 1]], mechanism=mechanism), method=method, failure_prob=0.05).radius[0])
        for mechanism in (MECHANISM, Subsampled(1.0, MECHANISM), Subsampled(0.6, MECHANISM), Subsampled(0.3, MECHANISM))
    ]
    # For f-DP mixed splits are chained where the plain mechanism has curves of its own: one less at most.
    assert radii[1] >= radii[0] - 1
    assert radii[1] <= radii[2] <= radii[3]


# --- scores -----------------------------------------------------------------------------------------------------------


def scored(scores: np.ndarray) -> Votes:
    """Votes with sums of scores; `scores` is instances x examples x classes."""
    winners = scores.argmax(axis=2)
    counts = np.stack([(winners == label).sum(axis=0) for label in range(scores.shape[2])], axis=1)
    return Votes.from_counts(
        counts, mechanism=MECHANISM, score_sums=scores.sum(axis=0), score_squares=(scores**2).sum(axis=0)
    )


def test_scores_of_zero_and_one_are_votes_with_wider_bounds() -> None:
    rng = np.random.default_rng(5)
    labels = rng.choice(3, p=[0.93, 0.05, 0.02], size=(2000, 4))
    votes = scored(np.eye(3)[labels])
    on_votes = certify(votes, failure_prob=0.05)
    for bounds in ("hoeffding", "empirical-bernstein"):
        on_scores = certify(votes, failure_prob=0.05, on="scores", bounds=bounds)
        assert np.array_equal(on_scores.label, on_votes.label)
        assert np.all(on_scores.radius <= on_votes.radius)
        assert on_scores.radius.min() > 0
        assert any("scores" in sentence for sentence in on_scores.assumptions)


def test_the_label_of_scores_is_that_of_the_largest_mean() -> None:
    # Most instances vote 0 by a hair, the others 1 with certainty: the two readings differ.
    scores = np.zeros((1000, 1, 2))
    scores[:700, 0] = [0.51, 0.49]
    scores[700:, 0] = [0.0, 1.0]
    votes = scored(scores)
    assert certify(votes).label[0] == 0
    found = certify(votes, on="scores")
    assert found.label[0] == 1
    assert found.radius[0] >= 0


def test_scores_that_were_not_collected_are_refused() -> None:
    with pytest.raises(ConfigError, match="score"):
        certified([[60, 0, 0]], on="scores")


# --- files and arguments ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize("on", ["votes", "scores"])
def test_saving_and_loading_is_the_identity(method: Method, on: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    votes = scored(rng.dirichlet([8, 1, 1], size=(200, 3)))
    found = certify(votes, method=method, on=on, threat="remove", scope="all")
    found.save(tmp_path / "certificate.json")
    loaded = Certificate.load(tmp_path / "certificate.json")
    assert loaded.equals(found)
    assert loaded.method == method
    assert loaded.threat is Threat.REMOVE
    assert np.array_equal(loaded.radius, found.radius)
    assert loaded.votes.mechanism == MECHANISM


@pytest.mark.parametrize(
    "options",
    [
        {"failure_prob": 0.0},
        {"failure_prob": 1.0},
        {"failure_prob": float("nan")},
        {"threat": "poison"},
        {"scope": "some"},
        {"on": "logits"},
        {"bounds": "hoeffding"},
        {"on": "scores", "bounds": "simuem"},
        {"method": "fdp"},
    ],
)
def test_arguments_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    votes = scored(np.full((10, 1, 2), 0.5))
    with pytest.raises(ConfigError):
        certify(votes, **options)  # pyright: ignore[reportArgumentType]


def test_certified_accuracy_counts_right_and_certified() -> None:
    found = certified([[60, 0, 0], [0, 60, 0], [20, 20, 20]])
    full = int(found.radius[0])
    assert found.accuracy([0, 0, 0], [0, full, full + 1]).tolist() == [1 / 3, 1 / 3, 0]
    assert found.accuracy([0, 1, 0], 0).tolist() == [2 / 3]
    with pytest.raises(ConfigError, match="label"):
        found.accuracy([0, 1], 0)


# --- other defences ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RIVALS)
def test_the_rule_and_the_threat_are_those_of_the_votes(name: str) -> None:
    rival = RIVALS[name]
    found = rival.certificate()
    assert found.method.name == method_of(name)
    assert found.threat is rival.threats[0]
    assert found == rival.certificate(rival.threats[0])


@pytest.mark.parametrize(("name", "threat"), [(name, threat) for name, threat in CLAIMS if name in EXACT])
def test_a_function_of_the_data_leaves_nothing_to_chance(name: str, threat: Threat) -> None:
    rival = RIVALS[name]
    found = rival.certificate(threat)
    assert (found.failure_prob, found.bounds, found.scope, found.on) == (0.0, "exact", Scope.ALL, "votes")
    assert found.radius.min() >= 0
    assert found.assumptions[0].startswith("The votes are the stated function of the training data")
    sure = certify(rival.votes, method=rival.method, threat=threat, failure_prob=0.5, scope="prediction")
    assert sure == found


def test_partitions_that_were_counted_by_hand() -> None:
    # The leads are 9, 4 - 1 (ties go to label 0), 1 and 0; two votes of a lead are lost with each spoiled model.
    assert RIVALS["dpa"].votes.counts.tolist() == [[9, 0, 0], [2, 6, 1], [3, 2, 4], [3, 3, 3]]
    assert RIVALS["dpa"].certificate().radius.tolist() == [4, 1, 0, 0]
    assert RIVALS["dpa"].certificate(Threat.EDIT).radius.tolist() == [2, 0, 0, 0]


def test_scales_that_were_counted_by_hand() -> None:
    found = RIVALS["nearest-neighbours at two scales"].certificate()
    assert found.label.tolist() == [0, 1, 2, 1]
    # Five zeros lead by 5, and a change takes 2: at 1 they still lead by 3, at 2 neither they nor three would.
    # Four ones lead by 3 - 1 (ties go to label 0): one change is too much for them, but not for the nearest three,
    # 3 - 1, of which it leaves two, while the five cannot lead by 2 for another label. The third: five lead 3 : 1, by 1
    # after the tie; a change turns neither the three nor the five. The last: two of three, and a tie goes to label 0.
    assert found.radius.tolist() == [1, 1, 1, 0]


def test_no_radius_is_beyond_the_end_of_the_search() -> None:
    parts = 1 << 22
    votes = Votes.from_counts([[parts, 0], [parts - 2, 2]], mechanism=Partitioned(parts))
    found = certify(votes)
    assert found.radius.tolist() == [SEARCH_LIMIT, SEARCH_LIMIT]
    assert found.status.tolist() == [Status.SEARCH_LIMIT.value] * 2
    fewer = certify(Votes.from_counts([[7, 0]], mechanism=Partitioned(7)))
    assert fewer.status.tolist() == [Status.CERTIFIED.value]


@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("method", [FDP(), RDP(), ADP()], ids=repr)
def test_privacy_says_nothing_about_learners_without_it(name: str, method: Method) -> None:
    with pytest.raises(UnsupportedMechanismError, match="leave"):
        certify(RIVALS[name].votes, method=method, threat="add")


@pytest.mark.parametrize("name", RIVALS)
def test_the_rules_of_others_do_not_fit_private_votes(name: str) -> None:
    votes = Votes.from_counts([[60, 0, 0]], mechanism=MECHANISM)
    rival = RIVALS[name].certificate()
    with pytest.raises(UnsupportedMechanismError):
        certify(votes, method=rival.method, threat=rival.threat)
