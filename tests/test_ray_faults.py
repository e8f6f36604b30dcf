"""Workers, nodes and drivers of a Ray cluster of three nodes are killed in the middle of a run: the same votes.

One round of each with the other tests; `make slow` runs 50, or as many as the environment variable ROUNDS says.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mithridate import Ray, Votes

pytest.importorskip("ray", reason="needs: pip install 'mithridate[ray]'")
from ray_doubles import PATIENCE, meanwhile, train_watched, waiting
from ray_watch import MARK

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

pytestmark = pytest.mark.filterwarnings("default")
TESTS = Path(__file__).parent
WATCH = TESTS / "ray_watch.py"
ROUNDS = int(os.environ.get("ROUNDS", "50"))
rounds = pytest.mark.parametrize(
    "number", [0, *(pytest.param(number, marks=pytest.mark.slow) for number in range(1, ROUNDS + 1))]
)


@rounds
def test_a_worker_is_killed(
    backend: Ray, reference: Votes, tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    def kill() -> None:
        os.kill(waiting(tmp_path, 1)[0], signal.SIGKILL)

    with meanwhile(tmp_path, kill):
        votes = train_watched(tmp_path / "run", tmp_path, backend=backend, after=number % 4)
    assert votes.equals(reference)
    assert "trained again" in caplog.text


@rounds
def test_a_node_is_lost_and_another_one_joins(
    cluster: Cluster, backend: Ray, reference: Votes, tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """The new one gets work while all the others are busy."""
    nodes = sorted(cluster.worker_nodes, key=lambda node: node.node_id)

    # Ray adds nodes in the main thread only.
    with ThreadPoolExecutor(1) as pool:
        votes = pool.submit(train_watched, tmp_path / "run", tmp_path, backend=backend)
        try:
            before = waiting(tmp_path, 3)
            cluster.remove_node(nodes[number % 2], allow_graceful=False)
            cluster.add_node(wait=False, num_cpus=1)
            assert set(waiting(tmp_path, 4)) > set(before)  # the mark of the one that died stays
        finally:
            (tmp_path / "open").touch()
    assert votes.result().equals(reference)
    assert "trained again" in caplog.text


@rounds
def test_the_driver_is_killed(backend: Ray, reference: Votes, tmp_path: Path, number: int) -> None:
    """Both back ends finish what it leaves."""
    after = 1 + number % 4
    driver = subprocess.Popen(
        [sys.executable, TESTS / "ray_doubles.py", str(backend.address), tmp_path / "run", tmp_path, str(after)],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        waiting(tmp_path, 1)
    finally:
        driver.kill()
        _, said = driver.communicate()
    assert driver.returncode == -signal.SIGKILL, said
    (tmp_path / "open").touch()
    assert after <= len(list((tmp_path / "run" / "shards").glob("0*.npz"))) < 6
    assert not (tmp_path / "run" / "votes.npz").exists()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert train_watched(tmp_path / "copy", tmp_path, backend=None).equals(reference)
    assert train_watched(tmp_path / "run", tmp_path, backend=backend).equals(reference)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_tests_that_are_killed_leave_no_cluster_behind() -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], env={**os.environ, MARK: "x7"})
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], env={**os.environ, MARK: "x8"})
    try:
        watcher = subprocess.run([sys.executable, WATCH, "x7"], input="", capture_output=True, text=True, check=True)
        assert watcher.stdout.count("\n") == 1
        assert "sleep(3600)" in watcher.stdout
        assert sleeper.wait(PATIENCE) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for process in (sleeper, other):
            process.kill()
            process.wait()
