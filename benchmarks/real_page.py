"""Write the tables of docs/real-data.md from what `real.py` measured.

    python benchmarks/real_page.py

Tables stand between the marks `<!-- name -->` and `<!-- end of name -->`; everything else on the page is left alone.
The same results give the same bytes.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from real import METHODS, RESULTS, SHARES, Record, records
from real_sets import PACKAGES, SETS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "real-data.md"
_BLOCK = re.compile(r"<!-- ([a-z ]+) -->\n.*?<!-- end of \1 -->", re.DOTALL)
_AUTO = "auto"
_ROUNDING = 1e-9  # of means: what is met exactly is met
_CERTIFIED = (_AUTO, *METHODS)

# --- what was found -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """A figure, by the number of the split."""

    values: dict[int, float]

    def mean(self, splits: Iterable[int] | None = None) -> float:
        """Over some splits, or all."""
        return statistics.fmean(self.values[split] for split in (self.values if splits is None else splits))

    def __str__(self) -> str:
        """The mean, and the standard deviation where there are several."""
        shown = _figure(self.mean())
        return f"{shown} ± {_figure(statistics.stdev(self.values.values()))}" if len(self.values) > 1 else shown


@dataclass(frozen=True)
class Row:
    """A method on a set.

    Attributes:
        accuracy: at the radii of `SHARES`; of what has no certificate, without any change alone.
        balanced: the same, each class with the same weight.
        median: radius among correct predictions, as a share of the training examples; None without certificates.
        chosen: what was trained, on the first split.
    """

    accuracy: tuple[Spread, ...]
    balanced: tuple[Spread, ...]
    median: Spread | None = None
    chosen: str = ""

    @property
    def splits(self) -> list[int]:
        return list(self.accuracy[0].values)

    def scores(self, what: str) -> tuple[Spread, ...]:
        return self.accuracy if what == "accuracy" else self.balanced

    @property
    def counts(self) -> bool:
        """Whether half of its correct predictions withstand changes of half a percent of the training examples."""
        return self.median is not None and self.median.mean() >= 0.005 - _ROUNDING


@dataclass(frozen=True)
class Found:
    """All that was measured on a set.

    Attributes:
        name: of the set.
        n: training examples.
        test: test inputs.
        baseline: always the commonest label.
        plain: classifiers of scikit-learn, by name.
        rows: certified methods, by name.
        refused: what methods said that did not run.
    """

    name: str
    n: int
    test: int
    baseline: Row
    plain: dict[str, Row]
    rows: dict[str, Row]
    refused: dict[str, str]

    def best(self, what: str, splits: Sequence[int]) -> float:
        """Of plain scikit-learn."""
        return max(row.scores(what)[0].mean(splits) for row in self.plain.values())

    def gain(self, what: str, splits: Sequence[int]) -> float:
        """Of plain scikit-learn over the baseline."""
        return self.best(what, splits) - self.baseline.scores(what)[0].mean(splits)

    def behind(self, row: Row, what: str) -> float:
        """How much plain scikit-learn is better than a method, on the splits that the method has."""
        return self.best(what, row.splits) - row.scores(what)[0].mean()

    def kept(self, row: Row, what: str, place: int) -> float:
        """The share of that gain which a method is certified to keep at a radius, on the splits that it has."""
        above = row.scores(what)[place].mean() - self.baseline.scores(what)[0].mean(row.splits)
        gain = self.gain(what, row.splits)
        return above / gain if gain > 0 else math.nan


def everything(path: Path = RESULTS) -> list[Found]:
    """The sets on which something was measured, in the order of `SETS`.

    Raises:
        ValueError: some records allowed other numbers of training examples than others.
    """
    found = records(path)
    if len({record["rows"] for record in found}) > 1:
        raise ValueError(f"{path.name} has results for several values of --rows, which do not go into one table.")
    return [_of_set(name, own) for name in SETS if (own := [one for one in found if one["set"] == name])]


def _of_set(name: str, found: list[Record]) -> Found:
    last = {(record["split"], record["method"]): record for record in found}  # what was refused may be asked again
    by_method: dict[str, list[Record]] = {}
    for _, record in sorted(last.items()):
        by_method.setdefault(record["method"], []).append(record)
    plain = by_method["plain"]
    classifiers = {
        each: _row([{**record["classifiers"][each], "split": record["split"]} for record in plain])
        for each in sorted(plain[0]["classifiers"])
    }
    fine = {each: [one for one in own if "refused" not in one] for each, own in by_method.items()}
    rows = {each: _row(fine[each]) for each in _CERTIFIED if fine.get(each)}
    refused = {each: by_method[each][0]["refused"] for each in _CERTIFIED if fine.get(each) == []}
    return Found(name, found[0]["n"], found[0]["test"], _row(by_method["baseline"]), classifiers, rows, refused)


def _row(found: Sequence[Record]) -> Row:
    def column(name: str) -> tuple[Spread, ...]:
        cells = [record[name] if isinstance(record[name], list) else [record[name]] for record in found]
        splits = [record["split"] for record in found]
        return tuple(Spread(dict(zip(splits, values, strict=True))) for values in zip(*cells, strict=True))

    median = column("median")[0] if "median" in found[0] else None
    return Row(column("accuracy"), column("balanced"), median, found[0].get("chosen", ""))


# --- aims -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Aim:
    """What a method should reach on a set.

    Attributes:
        title: over the column.
        is_met: whether it is.
        applies: whether the set can tell.
    """

    title: str
    is_met: Callable[[Found, Row, str], bool]
    applies: Callable[[Found, str], bool] = lambda found, what: True

    def met(self, found: Found, row: Row, what: str) -> bool:
        return row.counts and self.is_met(found, row, what)


def _gains(found: Found, what: str) -> bool:
    return found.gain(what, found.baseline.splits) > 0


AIMS = (
    Aim("within .03 of plain at r = 0", lambda found, row, what: found.behind(row, what) <= 0.03 + _ROUNDING),
    Aim("above the baseline at r = 0", lambda found, row, what: found.kept(row, what, 0) > 0, _gains),
    Aim("2/3 of the gain at .1%", lambda found, row, what: found.kept(row, what, 1) >= 2 / 3 - _ROUNDING, _gains),
    Aim("1/3 of the gain at .5%", lambda found, row, what: found.kept(row, what, 2) >= 1 / 3 - _ROUNDING, _gains),
    Aim("median radius of .5%", lambda found, row, what: True),
)


def aims(sets: Sequence[Found], what: str) -> str:
    """On how many sets each method reaches each aim."""
    lines = [_line("method", *(aim.title for aim in AIMS)), _rule(len(AIMS))]
    for name in _CERTIFIED:
        own = [found for found in sets if name in found.rows]
        if own:
            lines.append(_line(name, *(_counted(aim, own, what, [name]) for aim in AIMS)))
    lines.append(_line("any of these", *(_counted(aim, sets, what, _CERTIFIED) for aim in AIMS)))
    return "\n".join(lines)


def _counted(aim: Aim, sets: Sequence[Found], what: str, methods: Sequence[str]) -> str:
    asked = [found for found in sets if aim.applies(found, what)]
    met = [
        found
        for found in asked
        if any(aim.met(found, found.rows[name], what) for name in methods if name in found.rows)
    ]
    return f"{len(met)} of {len(asked)}"


def default(sets: Sequence[Found]) -> str:
    """How far the default flow is from the best method of each set that counts."""
    header = _line("default flow", *(f"r = {_share(share)}" for share in SHARES))
    behind = [[_default_behind(found, place) for found in sets if _AUTO in found.rows] for place in range(len(SHARES))]
    near = (f"{sum(gap <= 0.01 + _ROUNDING for gap in gaps)} of {len(gaps)}" for gaps in behind)
    median = (_figure(statistics.median(gaps)) for gaps in behind)
    return "\n".join([header, _rule(len(SHARES)), _line("sets within .01 of the best", *near),
                      _line("median distance to the best", *median)])  # fmt: skip


def _default_behind(found: Found, place: int) -> float:
    """How much the best method that counts is better than the default flow, on the splits that both have."""
    own = found.rows[_AUTO].accuracy[place]
    others = [row for row in found.rows.values() if row.counts]
    gaps = (
        row.accuracy[place].mean(both) - own.mean(both) for row in others if (both := _both(row, found.rows[_AUTO]))
    )
    return max(0.0, *gaps, 0.0)


def _both(one: Row, other: Row) -> list[int]:
    return [split for split in one.splits if split in other.splits]


# --- tables ---------------------------------------------------------------------------------------------------------


def overview(sets: Sequence[Found]) -> str:
    """What the sets are."""
    lines = [
        _line("set", "what is told", "inputs", "classes", "training, test inputs", "package, its licence"),
        _rule(5),
    ]
    for found in sets:
        real, package = SETS[found.name], PACKAGES[SETS[found.name].package]
        about = f"{package.name} {package.version}, {package.licence}"
        size = f"{found.n:,}, {found.test:,}"
        kind = "text" if real.is_text else "table"
        title = f"{real.title} †" if real.is_new else real.title
        lines.append(_line(f"[{found.name}](#{found.name})", title, kind, len(real.weights), size, about))
    return "\n".join(lines)


def every_set(sets: Sequence[Found]) -> str:
    """A table for each."""
    return "\n\n".join(f"### {found.name}\n\n{_words(found)}\n\n{_table(found)}" for found in sets)


def _words(found: Found) -> str:
    real = SETS[found.name]
    weights = ", ".join(f"{label} {weight}" for label, weight in real.weights.items())
    equal = len(set(real.weights.values())) == 1
    told = "Weights of labels: all the same." if equal else f"Weights of labels: {weights}."
    return f"{real.title[0].upper()}{real.title[1:]}. {told}"


def _table(found: Found) -> str:
    radii = [0, *(max(1, math.ceil(share * found.n)) for share in SHARES[1:])]
    accuracy = [f"r = {radius}" for radius in radii]
    lines = [_line("", *accuracy, "median radius", *(f"balanced, {each}" for each in accuracy), "splits")]
    lines.append(_rule(2 * len(radii) + 2))
    lines.append(_uncertified("baseline", found.baseline))
    best = {what: found.best(what, found.baseline.splits) for what in ("accuracy", "balanced")}
    lines += [_uncertified(f"plain {name}", row, best) for name, row in found.plain.items()]
    lines += [_certified(name, row, found.n) for name, row in found.rows.items()]
    told = [f"`{name}` refused: {why}" for name, why in found.refused.items()]
    return "\n\n".join(["\n".join(lines), *told])


def _uncertified(name: str, row: Row, best: dict[str, float] | None = None) -> str:
    def cells(what: str) -> list[str]:
        shown = row.scores(what)[0]
        is_best = best is not None and shown.mean() == best[what]
        return [f"**{shown}**" if is_best else str(shown), *[""] * (len(SHARES) - 1)]

    return _line(name, *cells("accuracy"), "", *cells("balanced"), len(row.splits))


def _certified(name: str, row: Row, n: int) -> str:
    assert row.median is not None
    shown = f"{name}: {row.chosen}" if name == _AUTO else name
    median = f"{row.median.mean() * n:.0f} ({row.median.mean():.1%})"
    return _line(shown, *row.accuracy, median, *row.balanced, len(row.splits))


def _line(*cells: Any) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _rule(columns: int) -> str:
    return f"| --- |{' ---: |' * columns}"


def _figure(value: float) -> str:
    return f"{value:.3f}".replace("0.", ".", 1)


def _share(share: float) -> str:
    return f"{100 * share:g}%".replace("0.", ".") if share else "0"


# --- the page -------------------------------------------------------------------------------------------------------


def blocks(sets: Sequence[Found]) -> dict[str, str]:
    """Every table, by the name of its marks."""
    return {
        "aims": aims(sets, "accuracy"),
        "balanced aims": aims(sets, "balanced"),
        "aims on new sets": aims([found for found in sets if SETS[found.name].is_new], "accuracy"),
        "default flow": default(sets),
        "sets": overview(sets),
        "every set": every_set(sets),
    }


def page(text: str, made: dict[str, str]) -> str:
    """A page with its tables written anew.

    Raises:
        ValueError: it has not exactly these tables.
    """
    names = [match[1] for match in _BLOCK.finditer(text)]
    if sorted(names) != sorted(made):
        raise ValueError(f"The page has the marks {names}, and the tables are {list(made)}.")
    return _BLOCK.sub(lambda match: f"<!-- {match[1]} -->\n{made[match[1]]}\n<!-- end of {match[1]} -->", text)


def main() -> None:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), blocks(everything())), encoding="utf-8")


if __name__ == "__main__":
    main()
