"""Training examples by how near they are to an input, for those that vote: exact products of rounded features.

Nothing is trained and nothing is random. What a certificate needs is that an example's vote on an input is a function
of these two alone, *bit for bit*, whatever other examples there are. So features are rounded to rows of whole numbers,
whose products are exact (see `_whole_rows`). The rounded cosine *is* the similarity of two examples.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mithridate.core.mechanism import Deterministic
from mithridate.core.provenance import Fingerprint, Hashes, TrainingData, in_digits, input_hashes
from mithridate.core.units import Unit
from mithridate.core.votes import Votes
from mithridate.data.columns import Column
from mithridate.data.declarations import Table, declaration_from_dict
from mithridate.data.examples import Examples, Preparation, as_examples
from mithridate.defences._voices import MOST_EXAMPLES
from mithridate.defences._whole_rows import (
    UNIT_ROWS,
    IntArray,
    RowBlock,
    Rows,
    TurnedBlocks,
    block_of,
    kept,
    of_kept,
    ranks_of,
    require_exact_products,
    rounded,
    scale_of,
)
from mithridate.defences.kept_run import KeptRun
from mithridate.errors import ConfigError
from mithridate.features import (
    Encoder,
    Frozen,
    from_dict,
    is_same,
    pick_encoder,
)

Progress = Callable[[int, int], None]
MIRROR_MOVES = (
    "How far the features of a mirror image move, those of the input do not say; leave mirrored or moving_inputs out."
)
# Ranks among equals have 32 bits.
_MOST_EXAMPLES = 1 << 32


# --- the examples that vote -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StoredExamples:
    """Training examples as those vote that are near an input: rows of whole numbers, with their labels.

    It is all that later inputs need, so it is what a run directory keeps.

    Attributes:
        rows: features, rounded to whole numbers; those that are larger than memory are mapped.
        labels: of the examples.
        classes: number of labels.
        preparation: how raw inputs become features.
        scale: what a feature of 1 became.
        training: which data they are.
        statements: what is taken for granted.
        columns: of a table, as declared; None for other data.
        sparse: whether rows may be sparse.
        unit: what radii count, where that is not single examples.
        starts: where the examples of every unit start, and at last their number; None: each of them is a unit.
        turned: keeps what inputs are compared with, where more of them will come; see `asked_often`.
    """

    rows: Rows
    labels: IntArray
    classes: int
    preparation: Preparation
    scale: int
    training: TrainingData
    statements: tuple[str, ...]
    columns: tuple[Column, ...] | None = None
    sparse: bool = True
    unit: Unit | None = None
    starts: IntArray | None = None
    turned: TurnedBlocks | None = None

    @classmethod
    def of(
        cls,
        training: Examples,
        encoder: Encoder | None,
        classes: int,
        statements: Sequence[str] = (),
        *,
        sparse: bool = True,
        data: Callable[[str | None], TrainingData] | None = None,
    ) -> StoredExamples:
        """Round the features of examples; without an encoder, of inputs as they are.

        Args:
            training: the examples, checked; those of a unit lie side by side.
            encoder: the features.
            classes: number of labels.
            statements: what an order says of all this.
            sparse: whether rows may be sparse.
            data: says of which data they are, by the fingerprint of what a trusted encoder made of them; None: of
                these.

        Raises:
            ConfigError: the encoder does not suit the inputs, or features cannot be rounded.
        """
        x, y, kind = training.x, training.y, training.kind
        assert y is not None
        unit, starts = _units_of(training)
        most = _MOST_EXAMPLES if starts is None else MOST_EXAMPLES
        if len(y) >= most:
            raise ConfigError(f"Expected fewer than {most:,} training examples, got {len(y):,}; leave some out.")
        # `Preparation` says what text needs.
        chosen = UNIT_ROWS if encoder is None and kind != "text" else encoder
        prepare = Preparation(x.shape[1:], kind, encoder=chosen)
        require_exact_products()
        # Of an encoder that is trusted we know only what it does: its features count as data, too.
        trusted = Fingerprint() if isinstance(chosen, Frozen) else None
        rows = rounded(_noted(prepare.compared(x, "training", sparse=sparse), trusted), len(x))
        columns = _columns(training.declaration)
        features = None if trusted is None else trusted.digits()
        found = TrainingData.of(x, y, features) if data is None else data(features)
        scale = scale_of(rows.shape[1])
        return cls(rows, y, classes, prepare, scale, found, tuple(statements), columns, sparse, unit, starts)

    def as_run(self, votes: Votes) -> KeptRun:
        """What a run directory keeps of them."""
        return KeptRun(
            dict(votes.recipe or {}),
            {"shape": list(self.preparation.shape), "kind": self.preparation.kind},
            self.training,
            votes.assumptions,
            votes.size,
            {**kept(self.rows), "labels": self.labels.astype(np.int32), **self._kept_units},
            votes.unit,
        )

    @property
    def _kept_units(self) -> dict[str, IntArray]:
        return {} if self.starts is None else {"starts": self.starts}

    @classmethod
    def of_run(cls, run: KeptRun, features: Any = None, *, sparse: bool = True) -> StoredExamples:
        """Those that a run kept.

        Args:
            run: the run.
            features: the encoder, where it was one of the user's own; it must be the same.
            sparse: whether rows may be sparse.

        Raises:
            ConfigError: the encoder is not that of the run.
            KeyError: something is missing.
            ValueError: something is not what it should be.
        """
        rows, labels = of_kept(run.arrays), run.arrays["labels"].astype(np.int64)
        classes = int(run.recipe["classes"])
        if labels.shape != rows.shape[:1]:
            raise ValueError("examples and labels do not fit")
        if labels.min() < 0 or labels.max() >= classes:
            raise ValueError("there are labels beyond the classes")
        encoder = _encoder_of_run(run.recipe["features"], features, run.folder)
        preparation = Preparation(tuple(run.inputs["shape"]), run.inputs["kind"], encoder=encoder)
        declared = run.recipe.get("source", {}).get("declaration")
        columns = _columns(None if declared is None else declaration_from_dict(declared))
        scale, found, starts = scale_of(rows.shape[1]), run.training, _checked_starts(run, len(labels))
        said = run.statements
        return cls(rows, labels, classes, preparation, scale, found, said, columns, sparse, run.unit, starts)

    @property
    def voters(self) -> int:
        """How many there are of those that radii count: units, or examples."""
        return len(self.labels) if self.starts is None else len(self.starts) - 1

    def asked_often(self) -> StoredExamples:
        """The same, ready for many questions of few inputs, unless that takes much memory."""
        return replace(self, turned=TurnedBlocks()) if TurnedBlocks.suit(self.rows) else self

    @functools.cached_property
    def ranks(self) -> npt.NDArray[np.uint32]:
        """The place of every example in the order of their hashes; every example is hashed for it, so it is kept."""
        return ranks_of(self.rows, self.labels)

    @property
    def encoder(self) -> Encoder:
        """The features."""
        assert self.preparation.encoder is not None
        return self.preparation.encoder

    def asked(self, test_set: Any, *, mirrored: bool) -> Inputs:
        """Inputs to vote on, an array, a pair with their true labels, or `Examples`, as rows like these.

        Raises:
            ConfigError: they are not like the examples.
        """
        check_mirrored(mirrored)
        test = as_examples(test_set, "test", need_labels=False, classes=self.classes)
        seen = [test.x, _mirror_images(test.x, self.preparation.kind)] if mirrored else [test.x]
        require_exact_products()
        views = (rounded(self.preparation.compared(view, "test", sparse=self.sparse), len(view)) for view in seen)
        return Inputs(tuple(views), test.y, input_hashes(test.x))

    def recipe(self, *, mirrored: bool) -> dict[str, Any]:
        """Features and classes, as the recipes of votes name them; mirror images only where they count."""
        said: dict[str, Any] = {"features": self.encoder.to_dict(), "classes": self.classes}
        return {**said, "mirrored": True} if mirrored else said


@dataclass(frozen=True, eq=False)
class Inputs:
    """Inputs to vote on.

    Attributes:
        views: their rows; with their mirror images, first those of the inputs, then those of the images.
        true_labels: where known.
        hashes: of the inputs as they were given.
    """

    views: tuple[Rows, ...]
    true_labels: IntArray | None
    hashes: Hashes

    def __len__(self) -> int:
        return self.views[0].shape[0]

    def part(self, which: slice | IntArray) -> tuple[RowBlock, ...]:
        """The views of some inputs, as they are multiplied."""
        return tuple(block_of(view, which) for view in self.views)


def _noted(pieces: Iterator[tuple[slice, Any]], seen: Fingerprint | None) -> Iterator[tuple[slice, Any]]:
    """The same pieces of features, with a note of what dense ones hold."""
    for part, features in pieces:
        if seen is not None and isinstance(features, np.ndarray):
            seen.add(features)
        yield part, features


def _units_of(training: Examples) -> tuple[Unit | None, IntArray | None]:
    """What a unit is, and where the examples of each start, if some have several."""
    if training.units is None:
        return None, None
    unit, starts = training.units.unit, training.units.starts
    return unit, None if unit.count == len(training.x) else starts


def _checked_starts(run: KeptRun, examples: int) -> IntArray | None:
    """Where the examples of every unit start, as a run kept it.

    Raises:
        ValueError: they are not of the units of the run.
    """
    starts = run.arrays.get("starts")
    if starts is None:
        if run.unit is not None and run.unit.count != examples:
            raise ValueError("it does not say which examples belong to a unit")
        return None
    if run.unit is None or starts.dtype.kind != "i" or starts.shape != (run.unit.count + 1,):
        raise ValueError("it is not as many units as it says")
    starts = starts.astype(np.int64)
    if starts[0] != 0 or starts[-1] != examples or (np.diff(starts) < 1).any() or examples >= MOST_EXAMPLES:
        raise ValueError("the examples of its units are not where it says")
    return starts


def _columns(declaration: Any) -> tuple[Column, ...] | None:
    return tuple(declaration.columns) if isinstance(declaration, Table) else None


def check_mirrored(mirrored: Any) -> None:
    """Require true or false.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(mirrored, bool):
        raise ConfigError(f"Expected mirrored to be true or false, got {mirrored!r}.")


def check_may_move(examples: StoredExamples, *, mirrored: bool) -> None:
    """Require examples for which something is proved of inputs that move.

    Raises:
        ConfigError: mirror images count, or units have several examples.
    """
    if mirrored:
        raise ConfigError(MIRROR_MOVES)
    if examples.unit is not None and examples.starts is not None:
        raise ConfigError(
            f"Which example of a {examples.unit.one} speaks may change as the input moves, and nothing is proved of "
            "that; leave moving_inputs out, or certify examples."
        )


def require_moving(votes: Votes, names: Sequence[str]) -> None:
    """Require the evidence that certificates of inputs that move rest on.

    Raises:
        ConfigError: the votes do not carry it.
    """
    if missing := [name for name in names if name not in votes.evidence]:
        raise ConfigError(
            f"These votes do not carry {missing[0]!r}, so nothing is known of inputs that move; train again with "
            "--moving-inputs (moving_inputs), or leave input_change out."
        )


def _mirror_images(images: npt.NDArray[Any], kind: str) -> npt.NDArray[Any]:
    if kind == "text" or images.ndim not in (3, 4):
        raise ConfigError(
            f"Only images [n, H, W] or [n, channels, H, W] have mirror images, got shape {images.shape} of {kind}; "
            "leave mirrored out."
        )
    return images[..., ::-1]


def _encoder_of_run(stored: Mapping[str, Any], features: Any, folder: Path | None) -> Encoder:
    given = pick_encoder(features)
    if given is None:
        if stored["name"] == Frozen.name:
            raise ConfigError(f"This run used a frozen encoder, {stored}; give it again as features=.")
        return from_dict(dict(stored), folder=folder)
    if not is_same(given.to_dict(), dict(stored)):
        raise ConfigError(f"Expected the features of the run, {stored}, got {features!r}.")
    return given


def votes_of(
    examples: StoredExamples,
    inputs: Inputs,
    counts: IntArray,
    mechanism: Deterministic,
    recipe: dict[str, Any],
    evidence: Mapping[str, npt.NDArray[Any]],
) -> Votes:
    content = json.dumps([examples.training.to_dict(), in_digits(inputs.hashes), recipe], sort_keys=True)
    return Votes(
        counts,
        mechanism,
        labels=inputs.true_labels,
        data_fingerprint=f"sha256:{hashlib.sha256(content.encode()).hexdigest()}",
        training=examples.training,
        input_hashes=inputs.hashes,
        assumptions=examples.statements,
        recipe=recipe,
        evidence=evidence,
        unit=examples.unit,
    )


def chunks_of(total: int, size: int, progress: Progress | None) -> Iterator[slice]:
    for start in range(0, total, size):
        end = min(start + size, total)
        yield slice(start, end)
        if progress is not None:
            progress(end, total)
