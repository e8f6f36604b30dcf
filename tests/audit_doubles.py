"""Small problems for tests of audits, and a defence that claims too much; nothing is registered by importing this."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from mithridate import Votes
from mithridate.auditing import routes
from mithridate.core import registry
from mithridate.core.mechanism import Threat
from mithridate.core.rule import Decision
from mithridate.data.examples import Examples
from mithridate.data.named import load_named
from mithridate.data.units import Units
from mithridate.defences import registry as defences
from mithridate.training.order import Order, RuntimeOptions

# What `audit.json` has, whatever else is in it.
KEYS = {"schema", "claims", "violations", "control", "targets", "finished"}
BROKEN_KEYS = {"input", "label", "radius", "budget", "attack", "seed", "votes", "p", "file"}
CONTROL_KEYS = {"method", "claims", "violations", "has_power"}
TARGET_KEYS = {"input", "radius", "flipped_at", "attack"}


@cache
def digits(train: int = 300, inputs: int = 60) -> tuple[Examples, Examples]:
    """The first of the digits that scikit-learn has."""
    training, test = load_named("digits")
    return training.part(slice(0, train)), test.part(slice(0, inputs))


@cache
def blobs(train: int = 200, inputs: int = 30, *, spread: float = 0.9, vendors: int = 0) -> tuple[Examples, Examples]:
    """Three classes of rows of numbers, some of which are on the wrong side."""
    random = np.random.default_rng(7)
    y = np.arange(train + inputs) % 3
    x = (random.normal(size=(3, 5))[y] * 2 + spread * random.normal(size=(train + inputs, 5))).astype(np.float32)
    units = Units.of([f"v{n}" for n in random.integers(vendors, size=train)], "vendor") if vendors else None
    return Examples(x[:train], y[:train], units=units), Examples(x[train:], y[train:])


def as_json(found: Any) -> dict[str, Any]:
    """All that an audit found but how long it took."""
    content = found.to_dict()
    del content["seconds"]
    return content


@contextmanager
def too_sure() -> Iterator[type]:
    """A method `too-sure` that certifies 2 r + 1 where `toy_defence` certifies r; it is forgotten afterwards."""
    tables = defences._KNOWN, registry.rules._known, registry.mechanisms._known
    before, known = [dict(table) for table in tables], dict(routes.known_routes())
    try:
        yield _too_sure()
    finally:
        for table, kept in zip(tables, before, strict=True):
            table.clear()
            table.update(kept)  # pyright: ignore[reportArgumentType]
        routes._routes.clear()
        routes._routes.update(known)


@cache
def _classes() -> tuple[type, type, type]:
    import toy_defence

    @dataclass(frozen=True)
    class SureCount(toy_defence.LabelCount):
        type = "too-sure"
        rule = "too-sure"

    @dataclass(frozen=True)
    class SureRule(toy_defence.CommonestRule):
        name = "too-sure"
        title = "too sure"

        def decide(self, votes: Votes, threat: Threat) -> Decision:
            sound = super().decide(votes, threat)
            return Decision(sound.label, 2 * sound.radius + 1)

    @dataclass(frozen=True, kw_only=True)
    class TooSure(toy_defence.CommonestLabel):
        name = "too-sure"
        summary = "Always the commonest label, and too sure of it."
        mechanisms = (SureCount,)

        def run(self, order: Order, runtime: RuntimeOptions) -> Votes:
            return replace(super().run(order, runtime), mechanism=SureCount())

        def rule(self) -> Any:
            return SureRule()

    return TooSure, SureRule, SureCount


def _too_sure() -> type:
    kind, rule, mechanism = _classes()
    defences.register(kind)
    registry.rules.add("too-sure", rule)
    registry.mechanisms.add("too-sure", mechanism)
    return kind
