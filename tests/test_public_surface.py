"""What is public is what docs/api.md lists; what is private stays at home; and one name means one thing."""

import ast
import importlib
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mithridate

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
LISTED = re.findall(r"^::: ([\w.]+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), flags=re.MULTILINE)


@dataclass(frozen=True)
class Module:
    """A module of the package."""

    name: str
    path: Path

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"))


def _modules() -> Iterator[Module]:
    for path in sorted((SOURCE / "mithridate").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        yield Module(".".join(parts[:-1] if parts[-1] == "__init__" else parts), path)


MODULES = {module.name: module for module in _modules()}


def _exports(module: Module) -> list[str]:
    """What `__all__` of a module lists; nothing where there is none."""
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return []


ROOMS = {name: exports for name, module in MODULES.items() if (exports := _exports(module))}


def _value(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


# --- docs/api.md and __all__ ----------------------------------------------------------------------------------------


def test_nothing_is_listed_twice() -> None:
    assert len(set(LISTED)) == len(LISTED)
    for exports in ROOMS.values():
        assert len(set(exports)) == len(exports)


def test_what_is_listed_is_there_and_explains_itself() -> None:
    for path in LISTED:
        value, (module, _, name) = _value(path), path.rpartition(".")
        assert not any(part.startswith("_") for part in path.split(".")), f"{path} is private"
        assert name in ROOMS.get(module, [name]), f"{path} is listed in docs/api.md, but not in __all__ of {module}"
        assert value.__doc__ or not (inspect.isclass(value) or inspect.isfunction(value)), path


def test_what_a_room_exports_is_listed() -> None:
    """Where `mithridate` itself has the same thing under the same name, once is enough."""
    for room, exports in ROOMS.items():
        for name in exports:
            is_above = name in mithridate.__all__ and getattr(mithridate, name) is _value(f"{room}.{name}")
            is_listed = f"{room}.{name}" in LISTED or (is_above and room != "mithridate")
            assert is_listed, f"{room}.{name} is in __all__, but not in docs/api.md"


def test_all_is_what_can_be_imported() -> None:
    assert ROOMS["mithridate"] == mithridate.__all__


# --- names ----------------------------------------------------------------------------------------------------------


def test_no_room_has_the_name_of_something_public() -> None:
    """Importing the room would replace what has its name."""
    top = {name.split(".")[1] for name in MODULES if "." in name}
    functions = {path.rpartition(".")[2] for path in LISTED if inspect.isfunction(_value(path))}
    assert not top & functions
    for room, exports in ROOMS.items():
        inside = {name.removeprefix(f"{room}.") for name in MODULES if name.startswith(f"{room}.")}
        assert not inside & set(exports), room


def _defined(module: Module) -> Iterator[tuple[str, str]]:
    """Names of classes and of types that a module defines, and what each is."""
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name, module.name
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name[0].isupper() and not name.isupper():
                yield name, ast.unparse(node.value)


def test_no_class_has_the_name_of_something_else() -> None:
    """An abbreviation of a type, such as FloatArray, may stand in many modules; nothing may share a class's name."""
    meanings: dict[str, set[str]] = defaultdict(set)
    for module in MODULES.values():
        for name, meaning in _defined(module):
            meanings[name].add(meaning)
    classes = {name for module in MODULES.values() for name, meaning in _defined(module) if meaning == module.name}
    twice = {name: sorted(meanings[name]) for name in classes if len(meanings[name]) > 1 and not name.startswith("_")}
    assert twice == {}


# --- what is private ------------------------------------------------------------------------------------------------


def _imports(module: Module) -> Iterator[tuple[str, str]]:
    """What a module imports from this package: from where, and by which name."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "mithridate":
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (("", alias.name) for alias in node.names if alias.name.split(".")[0] == "mithridate")


def _may_import(module: Module, path: str) -> bool:
    """Whether all private modules on a path live in a package that the importing module lives in, too."""
    parts = path.split(".")
    homes = [".".join(parts[:depth]) for depth, part in enumerate(parts) if part.startswith("_")]
    return all(f"{module.name}.".startswith(f"{home}.") for home in homes)


def test_what_is_private_stays_at_home() -> None:
    """A private module is for the package that it lives in; a private name of a module for that module alone."""
    for module in MODULES.values():
        for source, imported in _imports(module):
            path = f"{source}.{imported}".strip(".")
            home = path if path in MODULES else source
            assert _may_import(module, home), f"{module.name} imports {path}"
            assert path in MODULES or not imported.startswith("_"), f"{module.name} imports {path}"
