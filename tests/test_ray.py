"""The same run on a Ray cluster of three nodes; `test_ray_faults` kills parts of it."""

from __future__ import annotations

import ipaddress
import json
import os
import pickle
import stat
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from safetensors.numpy import load_file
from test_public_api import loaded_by
from test_train_cli import INTERRUPTED
from training_doubles import SEED, TEST, TRAIN, make_config, same_votes, train_plain

from mithridate import ClusterError, ConfigError, Ray, Votes, train
from mithridate.cli.train import device_type
from mithridate.defences.bagging import Bootstrap
from mithridate.defences.partitions import Parts, SpreadParts
from mithridate.defences.smoothing import NoisedFeatures
from mithridate.projects import Project
from mithridate.training.config import PlainConfig
from mithridate.training.randomness import SEED_BYTES, Seeds, derived

ray = pytest.importorskip("ray", reason="needs: pip install 'mithridate[ray]'")
from ray.cluster_utils import Cluster  # noqa: E402
from ray_doubles import MAIN, PATIENCE, command_line, meanwhile, train_watched, waiting, weight_seed  # noqa: E402
from ray_watch import MARK, watched  # noqa: E402

from mithridate.training import ray_cluster, ray_tasks  # noqa: E402

pytestmark = [pytest.mark.more, pytest.mark.filterwarnings("default", "ignore:unclosed file")]


# --- before there is a connection -----------------------------------------------------------------------------------


def test_an_address_where_nobody_answers_is_refused_before_ray_tries_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """For Ray would try for minutes."""
    monkeypatch.setattr(ray, "init", pytest.fail)
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1", "nowhere:port"):
        with pytest.raises(ConfigError, match=r"No Ray cluster answers at .*ray start --head"):
            train(TRAIN, TEST, model="linear", config=make_config(), device="cpu", backend=Ray(address=address))


ALONE = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import ray
from mithridate import Ray
from mithridate.training.ray_connection import connected
from ray_watch import MARK, listening

with connected(Ray(workers=2)):
    ray.get([ray.remote(lambda: os.getpid()).remote() for _ in range(4)])
    folder = os.path.dirname(ray._private.worker._global_node.get_temp_dir_path())
    told = {"folder": folder, "mode": os.stat(folder).st_mode & 0o777, "listening": listening(os.environ[MARK])}
print(json.dumps(told | {"is_left": os.path.exists(folder)}))
"""


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc")
def test_nobody_else_reaches_a_cluster_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ports are on the loopback address, its files in a private folder, and its token is private."""
    mark = uuid.uuid4().hex
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    environment = {**os.environ, "HOME": str(tmp_path), MARK: mark}
    with watched(mark):
        outcome = subprocess.run(
            [sys.executable, "-c", ALONE, str(Path(__file__).parent)], env=environment, capture_output=True, text=True,
            timeout=PATIENCE, check=False,
        )  # fmt: skip
    assert outcome.returncode == 0, outcome.stderr
    told = json.loads(outcome.stdout)
    addresses = [ipaddress.ip_address(address) for address in told["listening"]]
    assert len(addresses) >= 5  # driver, GCS, raylet and workers
    assert all(address.is_loopback for address in addresses), addresses
    assert (told["mode"], told["is_left"]) == (0o700, False)
    assert stat.S_IMODE((tmp_path / ".ray").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / ".ray" / "auth_token").stat().st_mode) == 0o600


def test_votes_and_weights_are_those_of_this_process(cluster: Cluster, tmp_path: Path) -> None:
    votes: dict[str, Votes] = {}
    for name, choice in (("local", None), ("ray", Ray(address=cluster.address))):
        votes[name] = train(
            TRAIN, TEST, model="linear", config=make_config(instances=20), run_dir=tmp_path / name, root_seed=SEED,
            in_flight=3, device="cpu", keep_models=True, backend=choice,
        )  # fmt: skip
    assert not ray.is_initialized()  # what it opened it closed
    assert votes["ray"].equals(votes["local"])
    for folder in ("shards", "models"):
        files = sorted(path.name for path in (tmp_path / "local" / folder).iterdir())
        assert len(files) == 7
        assert files == sorted(path.name for path in (tmp_path / "ray" / folder).iterdir())
    for path in (tmp_path / "local" / "models").iterdir():
        weights, others = load_file(path), load_file(tmp_path / "ray" / "models" / path.name)
        assert weights.keys() == others.keys()
        assert all(np.array_equal(weights[name], others[name]) for name in weights)


# --- the same votes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [Bootstrap(7, 10), Parts(6), SpreadParts(5, 2), NoisedFeatures(5, 0.3)], ids=repr)
def test_plans_without_privacy_give_the_same_votes(backend: Ray, plan: Any) -> None:
    """Without a run directory."""
    config = PlainConfig(steps=5, learning_rate=0.1, batch_size=4, classes=3)
    options: dict[str, Any] = {"model": "linear", "plan": plan, "config": config, "in_flight": 2, "device": "cpu"}
    if not plan.is_deterministic:
        options["root_seed"] = SEED
    local = train_plain(TRAIN, TEST, **options)
    assert train_plain(TRAIN, TEST, backend=backend, **options).equals(local)


def test_the_number_in_flight_gives_every_worker_some_groups(backend: Ray, tmp_path: Path) -> None:
    class Told(list[tuple[int, int]]):
        details: ClassVar[list[str]] = []

        def __call__(self, done: int, total: int) -> None:
            self.append((done, total))

        def detail(self, text: str) -> None:
            self.details.append(text)

    told = Told()
    train(
        TRAIN, TEST, model="linear", config=make_config(instances=60), run_dir=tmp_path, device="cpu",
        backend=backend, progress=told,
    )  # fmt: skip
    assert len(list((tmp_path / "shards").iterdir())) == 12
    assert told[0] == (0, 360)
    assert told[-1] == (360, 360)
    assert sorted(told) == told
    assert len(set(told)) == 13
    assert told.details == [f"{done} of 12 shards, 3 nodes" for done in range(13)]


def test_some_shards_of_a_run_are_trained_by_workers(backend: Ray, tmp_path: Path) -> None:
    """A task of an array may have a cluster of its own."""
    options: dict[str, Any] = {"model": "linear", "config": make_config(), "root_seed": SEED, "in_flight": 2}
    options["device"] = "cpu"
    for name, choice in (("ray", backend), ("local", None)):
        train(TRAIN, TEST, run_dir=tmp_path / name, shards=range(1, 3), backend=choice, **options)
    parts = [Votes.load(tmp_path / name / "parts" / "000002-000006.npz") for name in ("ray", "local")]
    assert parts[0].equals(parts[1])
    assert len(list((tmp_path / "ray" / "shards").glob("*.npz"))) == 2
    train(TRAIN, TEST, run_dir=tmp_path / "ray", shards=0, **options)
    train(TRAIN, TEST, run_dir=tmp_path / "ray", shards=slice(3, None), backend=backend, **options)
    assert same_votes(Votes.load(tmp_path / "ray" / "votes.npz"), train(TRAIN, TEST, **options))


# --- what is sent ---------------------------------------------------------------------------------------------------


def test_a_task_holds_the_seeds_of_its_own_group_alone(
    backend: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.remote_function import RemoteFunction

    placed: list[bytes] = []
    sent: list[tuple[range, bytes]] = []
    put, remote = ray.put, RemoteFunction._remote

    def noted_put(value: Any) -> Any:
        placed.append(ray.cloudpickle.dumps(value))
        return put(value)

    def noted_remote(self: Any, args: Any = None, **options: Any) -> Any:
        if self._function_name.endswith("train_group"):
            sent.append((args[2], ray.cloudpickle.dumps(args[1:])))
        return remote(self, args=args, **options)

    monkeypatch.setattr(ray, "put", noted_put)
    monkeypatch.setattr(RemoteFunction, "_remote", noted_remote)
    train(
        TRAIN, TEST, model="linear", config=make_config(), run_dir=tmp_path, root_seed=SEED, in_flight=3, device="cpu",
        backend=backend,
    )  # fmt: skip
    assert len(placed) == 1  # data and model, once
    assert TRAIN[0].tobytes() in placed[0]
    assert len(sent) == 4
    own = {instance: derived(SEED, instance.to_bytes(8, "little"), SEED_BYTES) for instance in range(10)}
    for group, content in [(range(0), placed[0]), *sent]:
        assert SEED not in content
        assert SEED.hex().encode() not in content
        assert {instance for instance, seed in own.items() if seed in content} == set(group)


def test_few_tasks_are_submitted_at_a_time(backend: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    only = Seeds.only
    monkeypatch.setattr(Seeds, "only", lambda self, instances: asked.append(instances) or only(self, instances))
    counts: list[int] = []

    def look() -> None:
        waiting(tmp_path, 2)
        counts.append(len(asked))

    with meanwhile(tmp_path, look):
        train_watched(tmp_path / "run", tmp_path, backend=replace(backend, workers=2))
    assert counts == [2]
    assert len(asked) == 6


def test_a_worker_of_another_version_is_refused(backend: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_tasks, "VERSION", "0.0.1")
    with pytest.raises(ConfigError, match=r"has mithridate .* and this program 0\.0\.1; install the same version"):
        train(TRAIN, TEST, model="linear", config=make_config(), device="cpu", backend=backend)


def test_models_of_parts_refuse_another_kind_of_computer(
    backend: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = PlainConfig(steps=5, learning_rate=0.1, batch_size=4, classes=3)
    monkeypatch.setattr(ray_cluster.Crew, "_findings", _with_other_computer(ray_cluster.Crew._findings), raising=True)
    with pytest.raises(ConfigError, match=r"one kind of computer.* started on an abacus"):
        train_plain(
            TRAIN, TEST, model="linear", plan=Parts(4), config=config, run_dir=tmp_path, device="cpu", backend=backend
        )


def _with_other_computer(findings: Callable[..., Any]) -> Callable[..., Any]:
    def other(self: Any, terms: Any) -> Any:
        found = findings(self, terms)
        return replace(found, computer={**found.computer, "name": "an abacus"})

    return other


# --- disasters ------------------------------------------------------------------------------------------------------


def test_an_error_stops_the_run_after_the_others_are_saved(
    backend: Ray, reference: Votes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "open").touch()
    with pytest.raises(ClusterError, match=r"instances 0 to 1 failed 4 times.*ZeroDivisionError: this instance is bro"):
        train_watched(tmp_path / "run", tmp_path, backend=backend, broken=(weight_seed(1),))
    assert caplog.text.count("trained again") == 3
    assert "Traceback" in caplog.text
    saved = sorted(path.name for path in (tmp_path / "run" / "shards").glob("0*.npz"))
    assert saved == [f"{first:06d}-{first + 2:06d}.npz" for first in range(2, 12, 2)]
    assert train_watched(tmp_path / "run", tmp_path, backend=None).equals(reference)


def test_without_memory_groups_are_halved(backend: Ray, reference: Votes, tmp_path: Path) -> None:
    (tmp_path / "open").touch()
    votes = train_watched(tmp_path / "run", tmp_path, backend=backend, room=1)
    assert np.array_equal(votes.counts, reference.counts)
    assert len(list((tmp_path / "run" / "shards").glob("0*.npz"))) == 12
    with pytest.raises(ConfigError, match="Not even one model"):
        train_watched(tmp_path / "none", tmp_path, backend=backend, room=0)


def test_groups_are_halved_where_ray_ends_their_workers_for_memory(
    backend: Ray, reference: Votes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "open").touch()
    get = ray.get

    def without_room(task: Any) -> Any:
        """What Ray says of a task that its node had no memory for: any group of more than one instance."""
        result = get(task)
        if isinstance(result, ray_cluster.Trained) and len(result.group) > 1:
            raise ray.exceptions.OutOfMemoryError("the node ran low on memory")
        return result

    monkeypatch.setattr(ray, "get", without_room)
    votes = train_watched(tmp_path / "run", tmp_path, backend=replace(backend, retries=1))
    assert np.array_equal(votes.counts, reference.counts)
    assert len(list((tmp_path / "run" / "shards").glob("0*.npz"))) == 12
    assert "trained again" in caplog.text
    assert "Out of memory with 2 models in flight; going on with 1" in caplog.text


def test_what_follows_from_a_failure() -> None:
    group, other = range(4), range(4, 8)
    failed = ray_tasks.Failed
    trouble = ray_tasks.Trouble(retries=1)
    assert trouble.is_tried_again(group, failed("crashed", "died"))
    assert trouble.is_tried_again(other, failed("error", "wrong"))
    assert all(trouble.is_tried_again(group, failed("lost", "node")) for _ in range(50))
    assert not trouble.stops
    assert not trouble.is_tried_again(group, failed("crashed", "died"))
    assert isinstance(trouble.cause, ClusterError)
    assert not trouble.stops
    trouble = ray_tasks.Trouble(retries=1)
    assert trouble.is_tried_again(group, failed("killed", "memory of the node"))
    assert not trouble.is_tried_again(group, failed("killed", "memory of the node"))
    assert (trouble.too_many, trouble.cause) == (4, None)
    trouble = ray_tasks.Trouble(retries=3)
    assert not trouble.is_tried_again(group, failed("final", "The model mixes examples.", "ConfigError"))
    assert isinstance(trouble.cause, ConfigError)
    assert trouble.stops


def test_where_every_group_fails_few_are_tried() -> None:
    trouble = ray_tasks.Trouble(retries=0)
    groups = iter(range(first, first + 1) for first in range(100))
    while not trouble.stops:
        assert not trouble.is_tried_again(next(groups), ray_tasks.Failed("error", "wrong"))
    assert next(groups) == range(3, 4)
    assert "instances 0 to 0" in str(trouble.cause)


def test_devices_of_several_kinds_are_written_down(
    backend: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    result = ray_tasks.result

    def by_turns(task: Any) -> Any:
        found = result(task)
        is_even = isinstance(found, ray_cluster.Trained) and found.group.start % 4 == 0
        return replace(found, device="an abacus") if is_even else found

    monkeypatch.setattr(ray_tasks, "result", by_turns)
    (tmp_path / "open").touch()
    devices = dict(train_watched(tmp_path / "run", tmp_path, backend=backend).devices)
    assert devices.pop("an abacus") == 6
    assert list(devices.values()) == [6]
    assert caplog.text.count("several kinds") == 1


# --- what users see -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_outside", [False, True])
def test_ctrl_c_leaves_a_run_that_goes_on(backend: Ray, client_address: str, tmp_path: Path, is_outside: bool) -> None:
    address = client_address if is_outside else str(backend.address)
    words = [*command_line(tmp_path, steps=20), "--backend", "ray", "--address", address]
    options: dict[str, Any] = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": PATIENCE}
    interrupted = subprocess.run([sys.executable, "-c", INTERRUPTED, *words], check=False, **options)
    assert interrupted.returncode == 130, interrupted.stderr
    assert interrupted.stderr.splitlines()[-1].startswith("mithridate: interrupted; what is finished is kept in run. ")
    assert "Traceback" not in interrupted.stderr
    assert len(list(tmp_path.glob("run/shards/0*.npz"))) == 1
    assert not (tmp_path / "run" / "votes.npz").exists()
    finished = subprocess.run([*MAIN, *words], check=False, **options)
    assert finished.returncode == 0, finished.stderr
    assert "24 instances voted" in finished.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 0}, "workers"),
        ({"cpus_per_worker": 1.5}, "cpus_per_worker"),
        ({"gpus_per_worker": 2}, "gpus_per_worker"),
        ({"retries": -1}, "retries"),
        ({"address": " "}, "address"),
    ],
)
def test_bad_numbers_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Ray(**options)


def test_only_a_back_end_is_one() -> None:
    with pytest.raises(ConfigError, match=r"Expected backend to be mithridate\.Ray"):
        train(TRAIN, TEST, model="linear", config=make_config(), backend="ray")  # pyright: ignore[reportArgumentType]


def test_ray_is_imported_by_those_who_use_it_alone() -> None:
    assert "ray" not in loaded_by("import mithridate; mithridate.Ray(address='auto')")
    assert "ray" not in loaded_by("import mithridate; mithridate.train")


def test_without_ray_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in ("ray_cluster", "ray_tasks", "ray_connection"):
        monkeypatch.delitem(sys.modules, f"mithridate.training.{name}", raising=False)
        monkeypatch.delattr(f"mithridate.training.{name}", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'mithridate\[ray\]'"):
        train(TRAIN, TEST, model="linear", config=make_config(), backend=Ray())


def test_a_back_end_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(Ray(workers=2))) == Ray(workers=2)


def test_flags_choose_the_back_end() -> None:
    assert Project().backend() is None
    wanted = {"backend": "ray", "address": "auto", "workers": 2}
    assert Project(options=wanted).backend() == Ray(address="auto", workers=2)
    assert device_type("auto", Ray(gpus_per_worker=1)) == "cuda"  # of the cluster, whatever is here
    with pytest.raises(ConfigError, match="workers belongs to a cluster; give --backend ray"):
        Project(options={"workers": 2}).backend()
    with pytest.raises(ConfigError, match="Expected backend to be one of local, ray"):
        Project(options={"backend": "slurm"}).backend()
