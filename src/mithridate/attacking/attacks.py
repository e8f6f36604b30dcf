"""The attacks of an audit: each makes poison against one prediction, for so many changes, from what a scene says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mithridate.attacking.poison import Poison
from mithridate.attacking.scene import Scene, dense
from mithridate.attacking.triggers import with_trigger
from mithridate.core.mechanism import Threat
from mithridate.data.declarations import Table
from mithridate.data.partition import content_hashes, name_hashes

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]

_INSERTS = (Threat.SYMMETRIC_DIFFERENCE, Threat.ADD, Threat.EDIT)
_DELETES = (Threat.SYMMETRIC_DIFFERENCE, Threat.REMOVE, Threat.EDIT)
_CHANGES = (Threat.REPLACE, Threat.EDIT)
# Variants of an input that are tried for every part that one is wanted in; the last ones are rarely found.
_VARIANTS_A_PART = 12
_MOST_VARIANTS = 20_000
# Candidates of the attack on gradients, and how much longer than the target they may be.
_CANDIDATES = 200
_STRETCHES = (2.0, 4.0, 8.0)
# How far a moved input may be from the limit that a certificate declares, by its own arithmetic; and how many shares of
# the way are tried where features are no straight function of inputs.
_INSIDE = 1 - 2.0**-10
_SHARES = 33


class Attack:
    """One way to poison training data.

    Attributes:
        name: as flags and files call it.
        title: for people.
        knows: what the attacker must know, as the end of a sentence.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    knows: ClassVar[str]

    def fits(self, scene: Scene, target: int) -> bool:
        """Whether it can do anything against this prediction, under the threat of the scene."""
        raise NotImplementedError

    def poison(self, scene: Scene, target: int, budget: int) -> Poison | None:
        """At most `budget` changes; None where there is nothing to change."""
        raise NotImplementedError


class Copies(Attack):
    """Insert copies of the input with the label of its runner-up; where examples may be changed, change near ones."""

    name = "copies"
    title = "copies of the input with the runner-up's label"
    knows = "the input and its runner-up"

    def fits(self, scene: Scene, target: int) -> bool:
        """Where examples can be inserted or changed, inputs and all."""
        return scene.threat in (*_INSERTS, Threat.REPLACE)

    def poison(self, scene: Scene, target: int, budget: int) -> Poison | None:
        """So many copies; of sources, as many new ones full of copies."""
        x = scene.copied(target, budget * scene.copies)
        return _placed(scene, target, x, scene.rival(target), budget)


def _placed(scene: Scene, target: int, x: Array, label: int, budget: int) -> Poison | None:
    """Examples brought in as the threat allows: in the place of those that support the prediction, or as new ones."""
    y = np.full(len(x), label, dtype=np.int64)
    if scene.has_sources:
        if scene.threat is Threat.REPLACE:
            return None  # whole sources are taken over by another attack
        return Poison.inserting(x, y, np.repeat(scene.new_names(budget), scene.copies).tolist())
    if scene.threat not in _CHANGES:
        return Poison.inserting(x, y)
    near = scene.supporters(target)[: len(x)]
    if len(near) < len(x):  # the rest in the place of the farthest
        others = np.setdiff1d(scene.nearest(target), near, assume_unique=True)
        near = np.concatenate([near, others[::-1][: len(x) - len(near)]])
    return Poison.changing(scene.training, near, x[: len(near)], y[: len(near)]) if len(near) else None


class Crafted(Attack):
    """Insert inputs that look like the target, chosen so that each lands in another part; sources by their names."""

    name = "crafted"
    title = "variants of the input, each in another part"
    knows = "the hash that assigns examples to parts, and how every part votes"

    def fits(self, scene: Scene, target: int) -> bool:
        """Where parts are decided by a hash."""
        return scene.is_parts and scene.threat in (*_INSERTS, Threat.REPLACE)

    def poison(self, scene: Scene, target: int, budget: int) -> Poison | None:
        """A variant for each of so many buckets: those first whose models support the prediction."""
        if scene.has_sources:
            return self._sources(scene, target, budget)
        if scene.training.kind == "integer" and scene.training.x.ndim == 2 and scene.training.x.max() > 2**53:
            return None
        label = scene.rival(target)
        pool = scene.variants(target, min(_MOST_VARIANTS, _VARIANTS_A_PART * max(budget, 64)))
        hashes = content_hashes(pool, np.full(len(pool), label, dtype=np.int64))
        chosen = _one_a_bucket(scene, target, hashes, budget)
        return _placed(scene, target, pool[chosen], label, len(chosen)) if len(chosen) else None

    def _sources(self, scene: Scene, target: int, budget: int) -> Poison | None:
        if scene.threat is Threat.REPLACE:
            return None
        names = scene.new_names(_VARIANTS_A_PART * max(budget, 64))
        chosen = _one_a_bucket(scene, target, name_hashes(names), budget)
        taken = np.repeat([names[at] for at in chosen.tolist()], scene.copies).tolist()
        x = scene.copied(target, len(taken))
        return Poison.inserting(x, np.full(len(taken), scene.rival(target), dtype=np.int64), taken)


def _one_a_bucket(scene: Scene, target: int, hashes: Any, budget: int) -> IntArray:
    """Numbers of candidates, each in another bucket, those first that reach the models that matter most."""
    own, rival = int(scene.label[target]), scene.rival(target)
    said = None if scene.model_votes is None else scene.model_votes[:, target]
    worth = None if said is None else np.where(said == own, 2, np.where(said == rival, 0, 1))
    gain = np.zeros(len(hashes), dtype=np.int64)
    sees: list[list[int]] = [[] for _ in range(len(hashes))]
    for model, members in enumerate(scene.defence.plan().members(hashes)):
        gain[members] += 1 if worth is None else worth[model]
        for member in members.tolist():
            sees[member].append(model)
    taken, chosen = set[tuple[int, ...]](), list[int]()
    for candidate in np.argsort(-gain, kind="stable").tolist():
        bucket = tuple(sees[candidate])
        if bucket not in taken:
            taken.add(bucket)
            chosen.append(candidate)
        if len(chosen) == budget:
            break
    return np.array(chosen, dtype=np.int64)


class Delete(Attack):
    """Delete the examples that support the prediction most: those with its label that look most like the input."""

    name = "delete"
    title = "deletion of the nearest examples with the predicted label"
    knows = "the training data and its features"

    def fits(self, scene: Scene, target: int) -> bool:
        """Where examples can be deleted, and more than one supports the prediction."""
        return scene.threat in _DELETES and len(scene.supporters(target)) > 0

    def poison(self, scene: Scene, target: int, budget: int) -> Poison | None:
        """So many of them, or all; of sources, whole ones."""
        if scene.has_sources:
            return _without(scene, scene.members(scene.supporting_sources(target)[:budget]))
        return _without(scene, scene.supporters(target)[:budget])


def _without(scene: Scene, deleted: IntArray) -> Poison | None:
    """Deletion, as long as anything is left to train on."""
    return Poison.deleting(scene.training, deleted) if 0 < len(deleted) < len(scene.labels) - 1 else None


class Flip(Attack):
    """Give the nearest examples with the predicted label that of the runner-up."""

    name = "flip"
    title = "flipped labels of the nearest examples"
    knows = "the training data, its features and the runner-up"

    def fits(self, scene: Scene, target: int) -> bool:
        """Where labels can be changed: a flip is a deletion and an insertion."""
        of_examples = () if scene.has_sources else (Threat.LABELS, Threat.REPLACE)
        allowed = (*of_examples, Threat.EDIT, Threat.SYMMETRIC_DIFFERENCE)
        return scene.threat in allowed and len(scene.supporters(target)) > 0

    def poison(self, scene: Scene, target: int, budget: int) -> Poison | None:
        """As many as the budget allows; of a source, all of its labels."""
        number = budget // 2 if scene.threat is Threat.SYMMETRIC_DIFFERENCE else budget
        if scene.has_sources:
            which = scene.members(scene.supporting_sources(target)[:number])
        else:
            which = scene.supporters(target)[:number]
        if not len(which):
            return None
        label = np.full(len(which), scene.rival(target), dtype=np.int64)
        return Poison.changing(scene.training, which, scene.training.x[which], label)


class Gradient(Attack):
    """Insert the examples whose clipped gradients push a linear model hardest from the label to the runner-up.

    The gradient of an example x with label c is (p - e_c) x; one step along it moves the lead of the runner-up on the
    target t by (1 - p_c + p_own) <x, t>, times what clipping leaves of it. Candidates are inputs that can be given to
    the pipeline: examples near the target, and where inputs are plain numbers longer copies of it.
    """

    name = "gradient"
    title = "matched gradients: the examples that push a linear model hardest"
    knows = "the model, its features, the loss and the clipping norm"

    def fits(self, scene: Scene, target: int) -> bool:
        """Of linear models, where examples can be inserted or changed."""
        model, learner = getattr(scene.defence, "model", None), getattr(scene.defence, "learner", None)
        return model == "linear" and learner is None and Copies().fits(scene, target) and not scene.has_sources

    def poison(self, scene: Scene, target: int, budget: int) -> Poison | None:
        """Copies of the best candidate; None where that is the target, whose copies another attack inserts."""
        best = self._best(scene, target)
        if best is None:
            return None
        return _placed(scene, target, np.repeat(best, budget, axis=0), scene.rival(target), budget)

    def _best(self, scene: Scene, target: int) -> Array | None:
        x, clipped = scene.copied(target, 1), getattr(scene.defence, "max_grad_norm", None)
        pool = scene.training.x[scene.nearest(target)[:_CANDIDATES]]
        longer = self._stretched(scene, x)
        rows = [_rows(scene, each) for each in (x, longer, pool)]
        features = np.concatenate(rows)
        # Before the first step all labels are equally likely: the gradient has norm |x| sqrt((1 - 1/L)).
        norms = np.linalg.norm(features, axis=1) * np.sqrt(1 - 1 / scene.classes)
        kept = 1.0 if clipped is None else np.minimum(1.0, clipped / np.maximum(norms, 1e-30))
        gain = (features @ features[0]) * kept
        best = int(gain.argmax())
        if gain[best] <= gain[0] * 1.001:
            return None
        found = best - 1 if best <= len(longer) else best - 1 - len(longer)
        return (longer if best <= len(longer) else pool)[found : found + 1]

    def _stretched(self, scene: Scene, x: Array) -> Array:
        """Longer copies of an input, where numbers are taken as they are."""
        if scene.training.kind != "float" or isinstance(scene.training.declaration, Table):
            return x[:0]
        return np.concatenate([x * x.dtype.type(times) for times in _STRETCHES])


def _rows(scene: Scene, x: Array) -> npt.NDArray[np.float32]:
    if not len(x):
        return np.zeros((0, scene.features.shape[1]), dtype=np.float32)
    found = scene.featured(x)
    return np.asarray(found.toarray() if hasattr(found, "toarray") else found, dtype=np.float32)  # pyright: ignore


class Sources(Attack):
    """Take over the sources that support the prediction most, and fill them with copies of the input."""

    name = "sources"
    title = "sources taken over and filled with copies"
    knows = "the training data, its features, the input and its runner-up"

    def fits(self, scene: Scene, target: int) -> bool:
        """Where sources are declared and can be changed."""
        return scene.has_sources and scene.threat in (*_CHANGES, Threat.SYMMETRIC_DIFFERENCE)

    def poison(self, scene: Scene, target: int, budget: int) -> Poison | None:
        """So many sources; a changed one counts two where only insertions and deletions count."""
        number = budget // 2 if scene.threat is Threat.SYMMETRIC_DIFFERENCE else budget
        units = scene.training.units
        assert units is not None
        which = scene.supporting_sources(target)[:number]
        if not len(which) or (len(which) == scene.count and scene.threat is not Threat.EDIT):
            return None
        x = scene.copied(target, len(which) * scene.copies)
        names = np.repeat([units.names[at] for at in which.tolist()], scene.copies).tolist()
        y = np.full(len(x), scene.rival(target), dtype=np.int64)
        return Poison(scene.members(which), x, y, tuple(names))


class Backdoor(Attack):
    """Insert examples of other labels that carry a trigger, with one label; the input carries the trigger, too.

    Where a certificate speaks of changed training data alone, it is that of the input with the trigger, which the clean
    run predicts like any other. One of inputs that move is that of the input without it (`triggers`).
    """

    name = "backdoor"
    title = "a trigger on a group of examples, and on the input"
    knows = "the trigger that the input carries"

    def fits(self, scene: Scene, target: int) -> bool:
        """Against inputs with a trigger."""
        return target in scene.triggered and Copies().fits(scene, target) and not scene.has_sources

    def poison(self, scene: Scene, target: int, budget: int) -> Poison | None:
        """So many examples of all other labels, by a fixed draw."""
        label = scene.rival(target)
        others = np.flatnonzero(scene.labels != label)
        drawn = np.random.default_rng(target).permutation(others)
        which = np.resize(drawn, budget)
        x = scene.training.x[which]
        marked = scene.moved[target].stamp(x) if target in scene.moved else with_trigger(scene.training, x)
        return _placed(scene, target, marked, label, budget)


class Move(Attack):
    """Move the nearest examples of the runner-up towards the input, each by no more than is certified against."""

    name = "move"
    title = "near examples of the runner-up, moved towards the input"
    knows = "the training data, its features and the declared distance"

    def fits(self, scene: Scene, target: int) -> bool:
        """Against certificates of bounded moves, where the distance is known that the certificate speaks of."""
        if scene.threat is not Threat.FEATURES or not hasattr(scene.defence, "max_change"):
            return False
        measured = scene.defence.encoder is not None or scene.training.kind == "float" or _is_unscaled(scene.defence)
        numbers = scene.training.kind in ("float", "uint8")
        return numbers and measured and bool((scene.labels == scene.rival(target)).any())

    def poison(self, scene: Scene, target: int, budget: int) -> Poison | None:
        """So many of them, each as far as it may go on the straight line, measured as the certificate measures it."""
        near = scene.nearest(target)
        which = near[scene.labels[near] == scene.rival(target)][:budget]
        x = np.array(scene.training.x[which])
        step = scene.inputs.x[target].astype(np.float64) - x
        before, most = dense(scene.featured(x)), scene.defence.max_change * _INSIDE
        is_free = np.ones(len(x), dtype=np.bool_)
        for share in _shares(step, most, is_plain=scene.defence.encoder is None and x.dtype != np.uint8):
            moved = x[is_free] + step[is_free] * share[is_free].reshape(-1, *[1] * (x.ndim - 1))
            moved = np.rint(moved).astype(x.dtype) if x.dtype == np.uint8 else moved.astype(x.dtype)
            far = np.linalg.norm((dense(scene.featured(moved)) - before[is_free]).astype(np.float64), axis=1)
            found = np.flatnonzero(is_free)[far <= most]
            x[found] = moved[far <= most]
            is_free[found] = False
            if not is_free.any():
                break
        return Poison.changing(scene.training, which, x, scene.labels[which])


def _is_unscaled(defence: Any) -> bool:
    """Whether the network takes pixels divided by 255, and nothing else is done to them."""
    from mithridate.training.models import scaling

    named = isinstance(defence.model, str)
    return (
        defence.pixel_std is None
        and named
        and set(scaling(defence.model, 3)[1] + scaling(defence.model, 1)[1]) == {1.0}
    )


def _shares(step: Array, most: float, *, is_plain: bool) -> Iterator[npt.NDArray[np.float64]]:
    """How far to try to go, of each step: of inputs that are features just as far as suits, else less and less."""
    if is_plain:
        length = np.sqrt((step.reshape(len(step), -1) ** 2).sum(axis=1))
        yield np.minimum(1.0, most / np.maximum(length, 1e-30)) * _INSIDE
    for share in np.linspace(1.0, 0.0, _SHARES):
        yield np.full(len(step), share)


# In the order in which they are tried: those first that usually need the fewest changes.
ATTACKS: dict[str, Attack] = {
    each.name: each for each in (Crafted(), Copies(), Gradient(), Sources(), Flip(), Delete(), Move(), Backdoor())
}
# What is tried against no input in particular; see `boundaries`.
BOUNDARY = "boundary"
NAMES = (*ATTACKS, BOUNDARY)
BOUNDARY_TITLE = "changes across the boundary of every constant that follows the data"
BOUNDARY_KNOWS = "which constants follow the training data, and where they jump"


@dataclass(frozen=True, eq=False)
class Boundary:
    """Poison that moves a constant which follows the training data.

    Attributes:
        what: the constant, as the end of a sentence.
        poison: the changes.
        condition: the id of the condition that certificates name where they do not cover this; None: they must.
    """

    what: str
    poison: Poison
    condition: str | None = None


def boundaries(scene: Scene, size: Any, *, classes_declared: bool, target: int) -> Iterator[Boundary]:
    """The smallest poison across the boundary of each constant that follows the data.

    Args:
        scene: what is attacked.
        size: the size step, where constants follow it.
        classes_declared: whether the number of labels was declared.
        target: an input whose copies are inserted, and whose supporters are deleted.
    """
    if size is not None:
        more, fewer = size.high - size.num_train, size.num_train - size.low + 1
        yield from _some(f"the size step that begins at {size.high:,}", _grown(scene, target, more))
        yield from _some(f"the size step that ends below {size.low:,}", _shrunk(scene, target, fewer))
    if not classes_declared and scene.training.class_names is None and not scene.has_sources:
        x, y = scene.copied(target, 1), np.array([scene.classes], dtype=np.int64)
        for poison in _some("", Poison.inserting(x, y)):
            yield replace(poison, what="the number of labels", condition="class-list")


def _some(what: str, poison: Poison | None) -> Iterator[Boundary]:
    if poison is not None:
        yield Boundary(what, poison)


def _grown(scene: Scene, target: int, by: int) -> Poison | None:
    if by > scene.count:  # a set that more than doubles is no poisoned one
        return None
    x = scene.copied(target, by)
    y = np.full(by, scene.rival(target), dtype=np.int64)
    return Poison.inserting(x, y, scene.new_names(by) if scene.has_sources else None)


def _shrunk(scene: Scene, target: int, by: int) -> Poison | None:
    order: Callable[[int], IntArray] = scene.supporting_sources if scene.has_sources else scene.nearest
    if by >= scene.count - 1:
        return None
    which = order(target)[:by]
    return _without(scene, scene.members(which) if scene.has_sources else which)
