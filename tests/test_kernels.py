"""The Triton kernels, in Triton's interpreter on a CPU; on a GPU the same checks and more run as they are.

The checks themselves are in `gpu_checks`, which needs no pytest. Interpreted kernels run in one process of their own,
because Triton reads TRITON_INTERPRET when kernels are defined.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import gpu_checks
import pytest
import torch

pytestmark = pytest.mark.more
TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def interpreted() -> dict[str, str]:
    """The line that each check printed."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not made for this system")
    paths = [str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(TESTS / "gpu_checks.py"), "--interpret"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,  # only for what hangs: a busy machine takes long
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(("PASS ", "FAIL "))]
    assert lines, f"the checks did not start:\n{done.stderr[-2000:]}"
    return {line.split()[1].rstrip(":"): line for line in lines}


@pytest.mark.parametrize("name", gpu_checks.checks(interpret=True))
def test_in_the_interpreter(interpreted: dict[str, str], name: str) -> None:
    assert interpreted[name].startswith("PASS"), interpreted[name]


@pytest.mark.gpu
@pytest.mark.parametrize("name", gpu_checks.checks(interpret=False))
def test_on_the_gpu(name: str) -> None:
    gpu_checks.checks(interpret=False)[name](torch.device("cuda"))


def test_everything_that_is_left_out_of_the_interpreter_is_run_on_a_gpu() -> None:
    here, there = gpu_checks.checks(interpret=True), gpu_checks.checks(interpret=False)
    assert set(here) < set(there)
    assert set(gpu_checks.GPU_ONLY) <= set(there) - set(here)


def test_the_checks_refuse_to_run_without_a_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    paths = [str(TESTS), str(TESTS.parent / "src")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, str(TESTS / "gpu_checks.py")], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no NVIDIA GPU" in done.stdout
