"""The precision of products: what clipping allows for, whatever the caller has set, and set back afterwards."""

from typing import Any

import pytest
import torch

from mithridate._torch import products

CPU = torch.device("cpu")


def settings() -> list[Any]:
    backends: Any = torch.backends
    return [
        backends.cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision, backends.mkldnn.matmul.fp32_precision,
        backends.cudnn.deterministic, backends.cudnn.benchmark,
    ]  # fmt: skip


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch before 2.9")
@pytest.mark.parametrize(("precision", "expected"), [("float32", "ieee"), ("tf32", "tf32")])
def test_products_have_the_precision_that_is_asked_for_and_are_repeatable(precision: str, expected: str) -> None:
    before = settings()
    with products(precision, CPU):
        assert settings() == [expected, expected, "ieee", True, False]
    assert settings() == before
    with pytest.raises(ZeroDivisionError), products(precision, CPU):
        raise ZeroDivisionError
    assert settings() == before


def test_autocast_of_the_caller_does_not_reach_the_products() -> None:
    one = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (one @ one).dtype == torch.bfloat16
        with products("float32", CPU):
            assert (one @ one).dtype == torch.float32
