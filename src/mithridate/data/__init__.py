"""From arrays, tables or images to checked data sets; nothing here is computed from more than one example.

What an example becomes is decided by the example and by what the user declared beforehand (`Table`, `Images`,
`Arrays`); `docs/data.md` says why.
"""

from mithridate.data.arrays import Dataset, read_arrays
from mithridate.data.declarations import (
    Arrays,
    Category,
    Column,
    Declaration,
    Images,
    Number,
    Table,
    Text,
    declaration_from_dict,
    to_toml,
)
from mithridate.data.proposals import propose
from mithridate.data.readers import Examples, read

__all__ = [
    "Arrays",
    "Category",
    "Column",
    "Dataset",
    "Declaration",
    "Examples",
    "Images",
    "Number",
    "Table",
    "Text",
    "declaration_from_dict",
    "propose",
    "read",
    "read_arrays",
    "to_toml",
]
