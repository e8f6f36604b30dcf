"""The version of mithridate, also where it runs from a source tree that was never installed."""

from importlib import metadata

try:
    VERSION = metadata.version("mithridate")
except metadata.PackageNotFoundError:
    VERSION = "0+source"
