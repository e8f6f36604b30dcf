"""Neighbours and kernels over shards of the examples on a Ray cluster: the votes of one process, whoever is killed."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest

from mithridate import Ray, Votes
from mithridate.data.examples import Examples
from mithridate.data.units import Units
from mithridate.defences import _search, defence, predict
from mithridate.errors import ClusterError, ConfigError

pytest.importorskip("ray", reason="needs: pip install 'mithridate[ray]'")
from ray_doubles import at_gate, broken, meanwhile, waiting, without_room

from mithridate.training import ray_tasks

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

pytestmark = [pytest.mark.more, pytest.mark.filterwarnings("default", "ignore:unclosed file")]
EXAMPLES = 200


def drawn(seed: int, count: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 4, (count, 3, 4)).astype(np.uint8)  # coarse: many are equally near


DATA = (drawn(0, EXAMPLES), np.arange(EXAMPLES) % 3)
INPUTS = drawn(1, 30)
METHODS: dict[str, dict[str, Any]] = {
    "nearest-neighbours": {"neighbours": 9},
    "nearest-neighbours at several scales": {"neighbours": (40, 7), "leads": (5,)},
    "nearest-neighbours, mirrored": {"neighbours": 90, "mirrored": True},
    "nearest-neighbours, of units": {"neighbours": 9},
    "kernel-vote": {},
    "kernel-vote, of units": {},
    "ridge": {},
}
UNITS = Units.of(np.random.default_rng(2).integers(0, 60, EXAMPLES) ** 2 // 60)  # of 1 to 28 examples


def trained(method: str, **runtime: Any) -> Votes:
    units = UNITS if method.endswith("of units") else None
    size = {"num_train": EXAMPLES} if units is None else {"num_units": len(UNITS.names)}
    made = defence(method.split(",")[0].split()[0], classes=3, features="none", **size, **METHODS[method])
    return made.train(Examples(*DATA, units=units), INPUTS, **runtime)


def same(one: Votes, other: Votes) -> bool:
    evidence = [np.array_equal(one.evidence[name], other.evidence[name]) for name in one.evidence]
    return all(evidence) and np.array_equal(one.counts, other.counts) and one.data_fingerprint == other.data_fingerprint


@pytest.mark.parametrize("method", METHODS)
def test_votes_are_those_of_one_process(
    method: str, backend: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_tasks, "_SHARD_EXAMPLES", 17)
    told: list[tuple[int, int]] = []
    progress = lambda done, total: told.append((done, total))  # noqa: E731
    votes = trained(method, backend=backend, run_dir=tmp_path, progress=progress)
    assert same(votes, trained(method))
    assert same(predict(tmp_path, INPUTS), votes)
    assert told[-1] == (30, 30)


def test_a_guess_that_was_too_high_is_found_out_on_a_cluster(backend: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = trained("nearest-neighbours")
    monkeypatch.setattr(ray_tasks, "_SHARD_EXAMPLES", 50)
    guess = _search._Kept.guessing

    def too_high(*arguments: Any) -> _search._Kept:
        kept = guess(*arguments)
        kept.least[::2] = _search.LARGEST_PRODUCT
        return kept

    monkeypatch.setattr(_search._Kept, "guessing", too_high)
    assert same(trained("nearest-neighbours"), expected)
    assert same(trained("nearest-neighbours", backend=backend), expected)


def test_a_worker_is_killed(
    backend: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = trained("nearest-neighbours")
    monkeypatch.setattr(ray_tasks, "_SHARD_EXAMPLES", 50)
    work = partial(at_gate, _search.keys_of_shard, str(tmp_path))
    monkeypatch.setattr(_search, "keys_of_shard", work)
    with meanwhile(tmp_path, lambda: os.kill(waiting(tmp_path, 1)[0], signal.SIGKILL)):
        votes = trained("nearest-neighbours", backend=backend)
    assert same(votes, expected)
    assert "compared again" in caplog.text


def test_a_node_is_lost_and_another_one_joins(
    cluster: Cluster,
    backend: Ray,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = trained("nearest-neighbours")
    monkeypatch.setattr(ray_tasks, "_SHARD_EXAMPLES", 20)
    work = partial(at_gate, _search.keys_of_shard, str(tmp_path))
    monkeypatch.setattr(_search, "keys_of_shard", work)
    # Ray adds nodes in the main thread only.
    with ThreadPoolExecutor(1) as pool:
        votes = pool.submit(trained, "nearest-neighbours", backend=backend)
        try:
            before = waiting(tmp_path, 3)
            cluster.remove_node(min(cluster.worker_nodes, key=lambda node: node.node_id), allow_graceful=False)
            cluster.add_node(wait=False, num_cpus=1)
            assert set(waiting(tmp_path, 4)) > set(before)  # the mark of the one that died stays
        finally:
            (tmp_path / "open").touch()
    assert same(votes.result(), expected)
    assert "compared again" in caplog.text


def test_shards_are_cut_until_there_is_room(backend: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    methods = ("nearest-neighbours", "nearest-neighbours, of units")
    expected = [trained(method) for method in methods]
    monkeypatch.setattr(_search, "keys_of_shard", partial(without_room, _search.keys_of_shard, 30))
    assert all(same(trained(method, backend=backend), votes) for method, votes in zip(methods, expected, strict=True))


def test_workers_that_fail_again_and_again_end_the_run(backend: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_search, "keys_of_shard", broken)
    with pytest.raises(ClusterError, match=r"The examples 0 to 199 failed 4 times.*it is broken"):
        trained("nearest-neighbours", backend=backend)
    with pytest.raises(ClusterError, match=rf"The units 0 to {len(UNITS.names) - 1} failed 4 times.*it is broken"):
        trained("nearest-neighbours, of units", backend=backend)


def test_without_ray_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in ("ray_tasks", "ray_connection"):
        monkeypatch.delitem(sys.modules, f"mithridate.training.{name}", raising=False)
        monkeypatch.delattr(f"mithridate.training.{name}", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'mithridate\[ray\]'"):
        trained("nearest-neighbours", backend=Ray())


def test_a_worker_that_no_machine_has_room_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_tasks, "asking", nullcontext)
    monkeypatch.setattr(ray_tasks.ray, "cluster_resources", lambda: {"CPU": 2.0})
    monkeypatch.setattr(ray_tasks.ray, "nodes", lambda: [{"Alive": True}])
    with pytest.raises(ConfigError, match="A worker needs 64 CPU, which this machine lacks"):
        ray_tasks.Comparers(Ray(cpus_per_worker=64))
