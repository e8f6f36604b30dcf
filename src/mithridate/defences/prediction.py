"""Votes of a finished run on inputs that nobody had when it was trained, whatever its method."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from mithridate._io.files import PathLike, parse_json, read_file
from mithridate.core.votes import Votes
from mithridate.data.declarations import Declaration, declaration_from_dict
from mithridate.data.examples import as_examples
from mithridate.defences._trained import TrainedDefence
from mithridate.defences.base import Defence, Predictor
from mithridate.defences.registry import kind_of
from mithridate.errors import ArtifactError, ConfigError

Answer = TypeVar("Answer")


def predict(run_dir: PathLike, inputs: Any, *, model: Any = None, features: Any = None, device: str = "auto") -> Votes:
    """How the models, or the examples, of a finished run vote on new inputs.

    Guarantee: all that voted in the run votes; mechanism, recipe and statements are those of the run, and so is the
    rule that `certify` uses for these votes where no other is named.

    Assumes: whoever chose the inputs did not choose them by what these very models answer to others. The claim is about
    each input by itself, over the training of the models; methods without randomness need no such assumption.

    Args:
        run_dir: the directory of a run that kept what predictions need.
        inputs: raw inputs like those of the training set, or a pair with their true labels, or `data.Examples`.
        model: the network, where the run was of a user's own; it must be the same.
        features: the encoder, where it was a `features.Frozen`; it must be the same.
        device: `cpu`, `cuda`, `mps` or `auto`.

    Raises:
        ArtifactError: the run is not finished, keeps nothing for predictions, or is damaged.
        ConfigError: the inputs are not like those of the training set, or the model or encoder is not that of the run.
    """
    examples = as_examples(inputs, "new", need_labels=False)
    return _asked_of(run_dir, lambda kind, **hints: kind.predict(run_dir, examples, **hints), model, features, device)


def predictor(
    run_dir: PathLike, *, model: Any = None, features: Any = None, device: str = "auto"
) -> Callable[[Any], Votes]:
    """What gives the votes of `predict` again and again, with all loaded that can be: for whoever is asked often.

    Guarantee, assumptions and arguments are those of `predict`.
    """

    def loaded(kind: type[Defence], **hints: Any) -> Predictor:
        return kind.predictor(run_dir, **hints)

    votes_on = _asked_of(run_dir, loaded, model, features, device)
    return lambda inputs: votes_on(as_examples(inputs, "new", need_labels=False))


def kind_of_run(run_dir: PathLike) -> type[Defence]:
    """The defence that a run was trained by.

    Raises:
        ArtifactError: it is no directory of a run, or the method is unknown here.
    """
    method = method_of(run_dir)
    return TrainedDefence if method is None else kind_of(method)


def _asked_of(run_dir: PathLike, ask: Callable[..., Answer], model: Any, features: Any, device: str) -> Answer:
    """Ask the defence of a run; say what is missing where it needs torch."""
    kind = kind_of_run(run_dir)
    try:
        return ask(kind, model=model, features=features, device=device)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "safetensors"):
            raise
        raise ModuleNotFoundError(
            f"The models of this run need {error.name}; install it with: pip install 'mithridate[train]'",
            name=error.name,
        ) from error


def source_of(run_dir: PathLike) -> dict[str, Any]:
    """How the training data of a run was read; empty where it does not say.

    Raises:
        ArtifactError: it is no directory of a run.
    """
    found = _recipe(run_dir).get("source")
    return found if isinstance(found, dict) else {}


def read_like(run_dir: PathLike) -> tuple[Declaration | None, list[str] | None]:
    """How the training data of a run was declared, and the names of its classes: what later inputs are read by.

    Raises:
        ArtifactError: it is no directory of a run.
    """
    source = source_of(run_dir)
    declared, names = source.get("declaration"), source.get("class_names")
    # Those of an estimator keep their kind.
    classes = [str(name) for name in names] if isinstance(names, list) else names
    return None if declared is None else declaration_from_dict(declared), classes


def inputs_of(run_dir: PathLike) -> tuple[tuple[int, ...], str]:
    """Shape and kind of one raw input, as a run recorded them.

    Raises:
        ArtifactError: it does not say.
    """
    path = Path(run_dir) / "run.json"
    try:
        said = parse_json(read_file(path))["inputs"]
        shape, kind = tuple(said["shape"]), said["kind"]
        if all(type(axis) is int and axis >= 0 for axis in shape) and isinstance(kind, str):
            return shape, kind
    except (KeyError, TypeError, ValueError):
        pass
    raise ArtifactError(f"{path} does not say what the inputs of the run were; train it again.")


def method_of(run_dir: PathLike) -> str | None:
    """The name of the method that a run was trained by; None for models that `train` alone was asked for.

    Raises:
        ArtifactError: it is no directory of a run, or the method is unknown here.
    """
    recipe = _recipe(run_dir)
    if "defence" not in recipe:
        return None
    said = recipe["defence"]
    name = said.get("name") if isinstance(said, dict) else None
    if not isinstance(name, str):
        raise ArtifactError(f"{Path(run_dir) / 'run.json'} does not name the method of the run; train it again.")
    try:
        kind_of(name)
    except ConfigError as error:
        raise ArtifactError(f"The run in {run_dir} is of a method that is not known here: {error}") from error
    return name


def _recipe(run_dir: PathLike) -> dict[str, Any]:
    path = Path(run_dir) / "run.json"
    try:
        recipe = parse_json(read_file(path))["recipe"]
    except ArtifactError as error:
        raise ArtifactError(f"{error} Give the directory of a run.") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactError(f"{path} is damaged: it has no recipe. Train the run again.") from error
    if not isinstance(recipe, dict):
        raise ArtifactError(f"{path} is damaged: its recipe is no table. Train the run again.")
    return recipe
