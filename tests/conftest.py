"""What tests share: a curve cache of their own, hypothesis without chance, and a Ray cluster where one is asked for."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

    from mithridate import Ray, Votes

# The same examples on every run and every machine: a failure that comes and goes teaches nobody.
# Nor does it depend on how busy the machine is.
settings.register_profile(
    "quick",
    max_examples=50,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
# `make slow` looks for failures that nobody has met: new examples every time, and how to repeat one that fails.
settings.register_profile(
    "thorough", settings.get_profile("quick"), max_examples=1000, derandomize=False, print_blob=True
)
settings.load_profile("quick")

# The longest files of `make more` first: what comes last must be short, or all cores but one wait for it.
_LONGEST = (
    "test_kernels.py",
    "test_results.py",
    "test_ray.py",
    "test_auditing.py",
    "test_ray_faults.py",
    "test_stem.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest."""
    places = {name: at for at, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


# It registers a defence when it is imported, which only its own tests should know.
collect_ignore = ["toy_defence.py"]


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Curves computed here never reach the user's cache, nor the other way round."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MITHRIDATE_CACHE", str(tmp_path_factory.mktemp("curves")))
        yield


# --- a Ray cluster; imported by those who use it alone ----------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes with a core each and a client port, which know the modules of the tests, behind their own token."""
    import ray
    from ray._private.authentication_test_utils import reset_auth_token_state
    from ray.cluster_utils import Cluster
    from ray_doubles import PATIENCE, free_port
    from ray_watch import MARK, watched

    mark = uuid.uuid4().hex
    token = tmp_path_factory.mktemp("ray") / "token"
    token.write_text("0123456789abcdef" * 4)
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with watched(mark), pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, mark)
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        reset_auth_token_state()
        made = Cluster()
        try:
            made.add_node(wait=False, num_cpus=1, include_dashboard=False, ray_client_server_port=free_port())
            for _ in range(2):
                made.add_node(wait=False, num_cpus=1)
            made.wait_for_nodes(PATIENCE)
            yield made
        finally:
            ray.shutdown()
            made.shutdown()
    reset_auth_token_state()


@pytest.fixture
def client_address(cluster: Cluster) -> str:
    """Where drivers from outside the cluster knock."""
    assert cluster.head_node is not None
    return f"ray://127.0.0.1:{cluster.head_node._ray_params.ray_client_server_port}"


@pytest.fixture(scope="module")
def backend(cluster: Cluster) -> Iterator[Ray]:
    """A connection that most tests share, so that workers import torch once."""
    import ray

    from mithridate import Ray

    ray.init(address=cluster.address, log_to_driver=False)
    yield Ray(address=cluster.address)
    assert ray.is_initialized()  # nobody closed what others opened
    ray.shutdown()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Votes:
    """The votes of an undisturbed run of this process."""
    from ray_doubles import train_watched

    folder = tmp_path_factory.mktemp("reference")
    return train_watched(folder / "run", folder, backend=None)
