"""Workers, nodes and drivers of a Ray cluster of three nodes are killed in the middle of a run: the same votes.

One round of each with the other tests; `make slow` runs 50, or as many as the environment variable ROUNDS says. So do
drivers outside the cluster, whose connection is lost, too.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import load_file
from training_doubles import SEED, make_config

from mithridate import Ray, Votes, train
from mithridate.cli import main

pytest.importorskip("ray", reason="needs: pip install 'mithridate[ray]'")
from ray_doubles import MAIN, PATIENCE, Cable, command_line, meanwhile, train_watched, waiting
from ray_watch import MARK, processes

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

pytestmark = [pytest.mark.more, pytest.mark.filterwarnings("default", "ignore:unclosed file")]
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


# --- a driver outside the cluster, over its client port ---------------------------------------------------------------


def test_a_driver_outside_the_cluster(
    client_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The same directory as that of this process, to the bit, from where it was prepared on."""
    monkeypatch.chdir(tmp_path)
    command = command_line(tmp_path, steps=6)
    assert main([*command, "--run-dir", "local", "--prepare"]) == 0
    shutil.copytree("local", "ray")
    assert main([*command, "--run-dir", "local"]) == 0
    capfd.readouterr()
    flags = ["--run-dir", "ray", "--backend", "ray", "--workers", "1", "--address", client_address]
    subprocess.run([*MAIN, *command, *flags], timeout=PATIENCE, check=True)
    assert "ERROR" not in capfd.readouterr().err
    assert Votes.load("ray/votes.npz").equals(Votes.load("local/votes.npz"))
    for path in Path("local/models").iterdir():
        weights, others = load_file(path), load_file(Path("ray/models", path.name))
        assert weights.keys() == others.keys()
        assert all(np.array_equal(weights[name], others[name]) for name in weights)


def _outside(address: str, folder: Path, after: int, grace: int = 10) -> subprocess.Popen[str]:
    """A driver outside the cluster that lets a connection go after some seconds."""
    return subprocess.Popen(
        [sys.executable, TESTS / "ray_doubles.py", address, folder / "run", folder, str(after)],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "RAY_CLIENT_RECONNECT_GRACE_PERIOD": str(grace)},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("what", ["worker", "node", "cable for a moment"])
def test_a_driver_outside_goes_on(
    cluster: Cluster, client_address: str, reference: Votes, tmp_path: Path, what: str
) -> None:
    cable = Cable(int(client_address.rpartition(":")[2]))
    driver = _outside(f"ray://127.0.0.1:{cable.port}", tmp_path, after=1, grace=int(PATIENCE))  # longer than the moment
    worker = waiting(tmp_path, 3)[0]  # one on every node
    if what == "worker":
        os.kill(worker, signal.SIGKILL)
    elif what == "node":
        cluster.remove_node(min(cluster.worker_nodes, key=lambda node: node.node_id), allow_graceful=False)
        cluster.add_node(wait=False, num_cpus=1)
    else:
        cable.cut()
        time.sleep(3.0)
        cable.mend()
    (tmp_path / "open").touch()
    _, said = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 0, said
    assert ("trained again" in said) == (what != "cable for a moment")
    assert Votes.load(tmp_path / "run" / "votes.npz").equals(reference)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["cable", "server", "driver"])
def test_a_driver_outside_is_lost(client_address: str, reference: Votes, tmp_path: Path, what: str) -> None:
    """It says so and starts no cluster of its own, and this process finishes the run."""
    cable = Cable(int(client_address.rpartition(":")[2]))
    driver = _outside(f"ray://127.0.0.1:{cable.port}", tmp_path, after=2)
    waiting(tmp_path, 1)
    if what == "cable":
        cable.cut()
    elif what == "server":
        os.kill(_servers_of_clients()[-1], signal.SIGKILL)
    else:
        driver.kill()
    _, said = driver.communicate(timeout=PATIENCE)
    assert driver.returncode != 0
    if what != "driver":
        assert "ClusterError: The connection to the Ray cluster was lost" in said
        assert "the same command goes on from there" in said
        assert "local Ray instance" not in said
    (tmp_path / "open").touch()
    assert 2 <= len(list((tmp_path / "run" / "shards").glob("0*.npz"))) < 6
    assert train_watched(tmp_path / "run", tmp_path, backend=None).equals(reference)


def _servers_of_clients() -> list[int]:
    """The processes of the head node that serve a driver each, the latest one last."""
    found = processes(os.environ[MARK])
    return sorted(pid for pid, name in found.items() if "specific-server" in name)


@pytest.mark.slow
def test_data_of_many_messages(client_address: str) -> None:
    """300 MB, in a message of at most 5 MB each."""

    class Told(list[str]):
        def __call__(self, done: int, total: int) -> None: ...

        detail = list.append

    told, rng = Told(), np.random.default_rng(0)
    x, y = rng.random((75_000, 1_000), dtype=np.float32), rng.integers(0, 3, 75_000)
    config = make_config(steps=2, sample_rate=1e-3, num_train=len(x), instances=4)
    votes = [
        train(
            (x, y), (x[:20], y[:20]), model="linear", config=config, root_seed=SEED, in_flight=2, device="cpu",
            backend=backend, progress=told if backend else None,
        )
        for backend in (None, Ray(address=client_address, workers=1))
    ]  # fmt: skip
    assert votes[0].equals(votes[1])
    assert told == [f"{done} of 2 shards, 3 nodes" for done in range(3)]


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
