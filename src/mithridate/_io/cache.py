"""The folder for what is computed or downloaded once."""

import contextlib
import os
from pathlib import Path


def cache_folder() -> Path | None:
    """`$MITHRIDATE_CACHE`, else `mithridate` in the user's cache folder; None where nothing is to be kept (`off`)."""
    chosen = os.environ.get("MITHRIDATE_CACHE")
    if chosen is not None:
        return None if chosen in ("", "off") else Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    with contextlib.suppress(RuntimeError):  # No home folder: keep nothing.
        return Path(base) / "mithridate" if base else Path.home() / ".cache" / "mithridate"
    return None
