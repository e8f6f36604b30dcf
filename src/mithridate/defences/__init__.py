"""Every defence behind one interface: small objects that train on data and certify their votes.

>>> from mithridate.defences import defence
>>> defence("dpa", partitions=250).title
'DPA, 250 partitions'
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable
from typing import Any

from mithridate.defences.base import Defence
from mithridate.defences.neighbourhood import Exponential, Within
from mithridate.defences.neighbours import KernelVote, NearestNeighbours
from mithridate.defences.plain import (
    DPA,
    Bagging,
    FeatureSmoothing,
    FiniteAggregation,
    LabelSmoothing,
    RunOffElection,
)
from mithridate.defences.private import METHODS, OPTIONS, PrivateEnsemble, StatisticalDP
from mithridate.errors import ConfigError
from mithridate.recipes.project import CONFIG_NAMES
from mithridate.training.plain_config import PlainConfig

__all__ = [
    "DPA",
    "NAMES",
    "Bagging",
    "Defence",
    "FeatureSmoothing",
    "FiniteAggregation",
    "KernelVote",
    "LabelSmoothing",
    "NearestNeighbours",
    "PrivateEnsemble",
    "RunOffElection",
    "StatisticalDP",
    "defence",
]

_Options = dict[str, Any]
_Builder = Callable[[_Options], Defence]

_PRIVATE_OPTIONS = (*CONFIG_NAMES, *OPTIONS)
_PLAIN_OPTIONS = tuple(field.name for field in dataclasses.fields(PlainConfig))
_NEAR_OPTIONS = ("features", "classes", "mirrored")
_KERNEL_OPTIONS = ("width", "full", "cosine")


def defence(name: str, **options: Any) -> Defence:
    """The defence of a name, with what a table of a configuration file says about it.

    Args:
        name: one of `NAMES`.
        options: its own constants, and flatly beside them how its models are trained (`TrainConfig` for the private
            ones, `PlainConfig` for the others; `model`, `features`).

    Raises:
        ConfigError: the name or an option is not known, or a value is not what it should be.

    >>> defence("bagging", draws=500, steps=200).options
    {'steps': 200}
    """
    if not isinstance(name, str) or name not in _BUILDERS:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"There is no method {name!r}; {_hint(name, NAMES)}")
    return _BUILDERS[name](options)


def _private(method: str) -> _Builder:
    def build(options: _Options) -> Defence:
        _refuse_unknown(method, options, ("on", *_PRIVATE_OPTIONS))
        on = options.pop("on", "votes")
        return PrivateEnsemble(method, on, options=options)

    return build


def _statistical(options: _Options) -> Defence:
    _refuse_unknown(StatisticalDP.name, options, ("delta", *_PRIVATE_OPTIONS))
    delta = options.pop("delta", 1e-5)
    return StatisticalDP(delta, options=options)


def _plain(kind: Any) -> _Builder:
    own = tuple(field.name for field in dataclasses.fields(kind) if field.name != "options")

    def build(options: _Options) -> Defence:
        _refuse_unknown(kind.name, options, (*own, *_PLAIN_OPTIONS))
        learning = {key: value for key, value in options.items() if key in _PLAIN_OPTIONS}
        return kind(**{key: value for key, value in options.items() if key in own}, options=learning)

    return build


def _nearest(options: _Options) -> Defence:
    _refuse_unknown(NearestNeighbours.name, options, ("neighbours", "leads", *_NEAR_OPTIONS))
    return NearestNeighbours(**options)


def _kernel(options: _Options) -> Defence:
    _refuse_unknown(KernelVote.name, options, (*_KERNEL_OPTIONS, *_NEAR_OPTIONS))
    chosen = {key: options.pop(key) for key in _KERNEL_OPTIONS if key in options}
    if "cosine" in chosen and len(chosen) > 1:
        raise ConfigError("cosine (all examples within it weigh the same) excludes width and full; give one kind.")
    if not chosen:
        return KernelVote(**options)
    return KernelVote(Within(**chosen) if "cosine" in chosen else Exponential(**{"width": 0.1, **chosen}), **options)


_BUILDERS: dict[str, _Builder] = {
    **{method: _private(method) for method in METHODS},
    "statistical-dp": _statistical,
    **{kind.name: _plain(kind) for kind in (Bagging, DPA, FiniteAggregation, RunOffElection)},
    **{kind.name: _plain(kind) for kind in (LabelSmoothing, FeatureSmoothing)},
    "nearest-neighbours": _nearest,
    "kernel-vote": _kernel,
}
NAMES = tuple(_BUILDERS)


def _refuse_unknown(name: str, options: _Options, known: tuple[str, ...]) -> None:
    for option in options:
        if option not in known:
            raise ConfigError(f"The method {name} has no option {option!r}; {_hint(option, known)}")


def _hint(word: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(str(word), known, 1)
    return f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(known)}."
