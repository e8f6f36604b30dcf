"""From arrays or files to checked, scaled data sets; nothing here is computed from more than one example."""

from mithridate.data.arrays import Dataset, read_arrays

__all__ = ["Dataset", "read_arrays"]
