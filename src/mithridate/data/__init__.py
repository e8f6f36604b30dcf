"""From arrays, tables or images to checked data sets; nothing here is computed from more than one example.

What an example becomes is decided by the example and by what the user declared beforehand (`Table`, `Images`,
`Arrays`); `docs/data.md` says why.
"""

from mithridate.data.columns import Category, Column, Date, Number, Ordered, Text
from mithridate.data.declarations import Arrays, Declaration, Images, Table, declaration_from_dict, to_toml
from mithridate.data.examples import Dataset, Examples, as_examples
from mithridate.data.proposing import look, propose
from mithridate.data.sources import read
from mithridate.data.units import Units

__all__ = [
    "Arrays",
    "Category",
    "Column",
    "Dataset",
    "Date",
    "Declaration",
    "Examples",
    "Images",
    "Number",
    "Ordered",
    "Table",
    "Text",
    "Units",
    "as_examples",
    "declaration_from_dict",
    "look",
    "propose",
    "read",
    "to_toml",
]
