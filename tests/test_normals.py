"""The noise of private training on a CPU: against Philox in whole numbers and Box-Muller in doubles, and its law."""

import math
from collections.abc import Callable

import gpu_checks
import numpy as np
import pytest
import torch
from reference import expected_normals
from torch import Tensor

from mithridate.training.kernels import cpu
from mithridate.training.kernels.cpu import Library
from mithridate.training.kernels.normals import normals


@pytest.fixture(scope="module")
def library() -> Library:
    found = cpu.library()
    if found is None:
        pytest.skip("there is no C compiler")
    return found


def by_numpy(keys: list[int], step: int, size: int) -> Tensor:
    return torch.from_numpy(np.stack([normals(key, step, size) for key in keys])).double()


def by_library(keys: list[int], step: int, size: int) -> Tensor:
    sums = torch.zeros(len(keys), size)
    library = cpu.library()
    assert library is not None
    library.add_normals(sums, keys, step, 1.0)
    return sums.double()


Way = Callable[[list[int], int, int], Tensor]
WAYS = [by_numpy, by_library]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("step", "size"), [(0, 1031), (1, 257), (2**32 - 1, 128), (7, 2), (3, 1)])
def test_numbers_are_those_of_philox_and_box_muller(way: Way, step: int, size: int) -> None:
    found = way(gpu_checks.KEYS, step, size)
    for row, key in zip(found, gpu_checks.KEYS, strict=True):
        expected = torch.tensor(expected_normals(key, step, size), dtype=torch.float64)
        # A uniform near 1 loses digits in single precision.
        torch.testing.assert_close(row, expected, rtol=1e-4, atol=2e-3)
        assert float((row - expected).abs().mean()) < 2e-6 + 1e-4 / size


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("way", WAYS)
def test_tails(way: Way) -> None:
    for key in gpu_checks.SMALLEST_WORDS:
        exact = math.hypot(*expected_normals(key, 0, 2))
        assert 6.66 < exact < 9.6  # 32 bits alone would end at 6.76
        assert math.isclose(float(way([key], 0, 2).norm()), exact, rel_tol=1e-5)
    for key in gpu_checks.LARGEST_WORDS:
        assert float(way([key], 0, 2).norm()) < 1e-3


@pytest.mark.usefixtures("library")
def test_law() -> None:
    keys = list(range(100, 104))
    gpu_checks.require_law_of_noise(torch.stack([by_library(keys, step, 2**18) for step in range(2)]))


def test_it_is_added_in_the_precision_of_the_sums(library: Library) -> None:
    drawn = by_library([5, 6], 4, 777)
    single, double = torch.full((2, 777), 2.0), torch.full((2, 777), 2.0**40, dtype=torch.float64)
    library.add_normals(single, [5, 6], 4, 3.5)
    library.add_normals(double, [5, 6], 4, 3.5)
    torch.testing.assert_close(single.double(), 2.0 + 3.5 * drawn, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(double - 2.0**40, 3.5 * drawn, rtol=0.0, atol=1e-3)  # 2^40 leaves 12 bits


def test_without_a_compiler_numpy_draws(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype in (torch.float32, torch.float64):
        compiled = torch.ones(3, 99, dtype=dtype)
        plain = compiled.clone()
        cpu.add_noise(compiled, [1, 2, 3], 8, 0.7)
        with monkeypatch.context() as patch:
            patch.setattr(cpu, "library", lambda: None)
            cpu.add_noise(plain, [1, 2, 3], 8, 0.7)
        torch.testing.assert_close(plain, compiled, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("sums", [torch.zeros(1, 4), torch.zeros(3, 2).t(), torch.zeros(2, 4, dtype=torch.int64)])
def test_sums_that_do_not_fit_are_refused(library: Library, sums: Tensor) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        library.add_normals(sums, [1, 2], 0, 1.0)
