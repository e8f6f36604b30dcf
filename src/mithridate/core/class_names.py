"""What classes are called, and which of them a label means."""

from __future__ import annotations

from typing import Any, cast

from mithridate._text import listed, shortened, shown

ClassName = str | int | float


def class_names_of(found: Any, classes: int) -> tuple[ClassName, ...] | None:
    """A different name for each class; a file may hold anything there, and what is no list of names is none."""
    names = cast("list[Any]", found if isinstance(found, list) else [])
    alike = any(all(isinstance(name, kind) for name in names) for kind in (str, int | float))
    return tuple(names) if alike and len(names) == len(set(names)) == classes else None


def places_of(names: tuple[ClassName, ...] | None, classes: int) -> dict[tuple[str, Any], int]:
    """The position of every label that is accepted, by its kind and value."""
    if names is None:
        return {("number", at): at for at in range(classes)}
    places = {kind_and_value(name): at for at, name in enumerate(names)}
    if any(kind == "fraction" for kind, _ in places):  # 1 is as good as 1.0, where labels are such
        places |= {("number", name): at for at, name in enumerate(names)}
    if names == tuple(str(at) for at in range(classes)):
        places |= {("number", at): at for at in range(classes)}
    return places


def kind_and_value(label: Any) -> tuple[str, Any]:
    """What tells 1, 1.0, True and "1" apart, which are equal to Python or mean the same to people."""
    value: Any = label.item() if hasattr(label, "item") else label  # a number of numpy
    kinds = ((str, "text"), (bool, "truth"), (int, "number"), (float, "fraction"))  # a bool is an int, too
    return next(((name, value) for kind, name in kinds if isinstance(value, kind)), ("", None))


def unknown_label(label: Any, names: tuple[ClassName, ...] | None, classes: int) -> str:
    """What to say of a label that is none of the classes."""
    if names is None:
        return (
            f"Expected true labels as whole numbers from 0 to {classes - 1}, since these votes do not say what their "
            f"classes are called; got {shown(label)}. Give the position of each label among the classes."
        )
    few = shortened(listed(map(repr, names)), 80)
    return (
        f"The true labels hold {shown(label)}, which is none of the classes {few}; give labels as the training "
        "data had them, not positions."
    )
