"""Units that are stretches of time: the day, week, month, quarter or year of every row's own date."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import numpy as np

from mithridate._text import listed
from mithridate.data import frames
from mithridate.data.columns import Date
from mithridate.data.declarations import Table
from mithridate.data.frames import Cells, Frame
from mithridate.errors import ConfigError

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
    after a stretch of time, and no column has that name, it is that of the one date that is declared.

    Raises:
        ConfigError: there is neither such a column nor such a date, or a cell is no date.

    >>> import pandas as pd
    >>> from mithridate.data.frames import frame_of
    >>> rows = pd.DataFrame({"sent": ["2023-01-30", "2 Feb 2023"], "stars": [1, 2]})
    >>> unit_cells(frame_of(rows), Table("stars", (Date("sent", 2020, 2025),), unit="month")).tolist()
    ['2023-01', '2023-02']
    """
    unit = table.unit
    assert unit is not None
    date = date_of_units(frame, table)
    if date is None:
        return frame.cells(unit)
    moments = frames.moments(frame.cells(date), date, frame.place)
    if None in moments:
        raise ConfigError(
            f"The {unit} of {frame.place(moments.index(None))} is missing, as its date {date!r} is; an example without "
            "one has no bounded influence. Give the date, or leave the example out."
        )
    cells = np.empty(len(moments), dtype=object)
    cells[:] = [_NAMES[unit](moment) for moment in moments if moment is not None]
    return cells


def date_of_units(frame: Frame, table: Table) -> str | None:
    """The declared date whose stretches of time are the units; None where a column names them.

    Raises:
        ConfigError: the unit is called after a stretch of time, and it is not clear of which date.
    """
    unit = table.unit
    if unit is None or unit in frame.names or unit not in _NAMES:
        return None
    dates = [column.name for column in table.columns if isinstance(column, Date)]
    if len(dates) != 1:
        raise ConfigError(
            f"{frame.subject} has no column {unit!r}, and a {unit} needs exactly one declared date; "
            f"{listed(dates) or 'none'} {'are' if len(dates) > 1 else 'is'} declared. Make a column {unit!r}, or "
            "declare the one date that counts."
        )
    return dates[0]
