"""What all tests share: a curve cache of their own, and hypothesis without chance."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

# The same examples on every run and every machine: a failure that comes and goes teaches nobody.
settings.register_profile("mithridate", derandomize=True, deadline=None, database=None)
settings.load_profile("mithridate")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Curves computed here never reach the user's cache, nor the other way round."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MITHRIDATE_CACHE", str(tmp_path_factory.mktemp("curves")))
        yield
