"""Units that are stretches of time: the day, week, month, quarter or year of every row's own date."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import numpy as np

from mithridate.data import frames
from mithridate.data.columns import Date
from mithridate.data.declarations import Table
from mithridate.data.frames import Cells, Frame

_Name = Callable[[datetime.datetime], str]

_NAMES: dict[str, _Name] = {
    "day": lambda moment: moment.strftime("%Y-%m-%d"),
    "week": lambda moment: "{:04}-W{:02}".format(*moment.isocalendar()[:2]),
    "month": lambda moment: moment.strftime("%Y-%m"),
    "quarter": lambda moment: f"{moment:%Y}-Q{(moment.month + 2) // 3}",
    "year": lambda moment: moment.strftime("%Y"),
}
PERIODS = tuple(_NAMES)


def unit_cells(frame: Frame, table: Table) -> Cells:
    """The name of the unit of every row: the cell of its column, or a stretch of time that its date lies in.

    Guarantee: what a row belongs to is a function of that row and of the declaration alone. Where the unit is called
    after a stretch of time, no column has that name, and one date is declared, it is that of the date.

    Raises:
        ConfigError: there is no such column, or a cell is no date.

    >>> import pandas as pd
    >>> from mithridate.data.frames import frame_of
    >>> rows = pd.DataFrame({"sent": ["2023-01-30", "2 Feb 2023"], "stars": [1, 2]})
    >>> unit_cells(frame_of(rows), Table("stars", (Date("sent", 2020, 2025),), unit="month")).tolist()
    ['2023-01', '2023-02']
    """
    unit = table.unit
    assert unit is not None
    dates = [column.name for column in table.columns if isinstance(column, Date)]
    if unit in frame.names or unit not in _NAMES or len(dates) != 1:
        return frame.cells(unit)
    moments = frames.moments(frame.cells(dates[0]), dates[0], frame.place)
    cells = np.empty(len(moments), dtype=object)
    cells[:] = [None if moment is None else _NAMES[unit](moment) for moment in moments]
    return cells
