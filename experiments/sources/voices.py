"""What the voice of a source is best, and how many sources should vote.

python experiments/sources/voices.py --data-dir DATA --out experiments/sources/voices.json

MNIST and Fashion-MNIST in 1,000 sources, dealt in the three ways of `arrangements.py`. The voice of a source is its
nearest example, or the nearest of the means of its examples of one label. The share of inputs with the right label that
is certified up to r sources, whatever these sent (threat `edit`), is measured twice: on the last 10,000 training
images, with the others as training set, which is where defaults were chosen; and on the test set. Of either, 2,000.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from arrangements import ARRANGEMENTS, in_sources

from mithridate.core.mechanism import Threat
from mithridate.core.rule import Decision
from mithridate.core.votes import Votes
from mithridate.data.examples import Examples
from mithridate.data.named import load_named
from mithridate.data.partition import by_unit
from mithridate.defences._nearness import StoredExamples
from mithridate.defences._whole_rows import whole_rows
from mithridate.defences.kernel import Exponential, KernelRule, kernel_votes
from mithridate.defences.neighbours import Lead, NearestExamples, NeighbourRule, neighbour_votes
from mithridate.features import OrientedGradients

DATA = ("mnist", "fashion-mnist")
RADII = (0, 10, 20, 50, 100)
INPUTS, HELD_OUT, SOURCES = 2_000, 10_000, 1_000
# 67 and 100: one in fifteen and one in ten. The pairs: the default for 1,000 units whose number is not declared, and
# where it is.
VOTERS: list[tuple[int | tuple[int, ...], tuple[Lead, ...]]] = [
    *((count, ()) for count in (20, 50, 67, 100, 150, 200, 300, 400, 500, 700, 1000)),
    ((502, 133), (133,)),
    ((750, 200), (200,)),
]
# The results name them by `full`.
KERNELS = [Exponential(width=0.03, full=full) for full in (0.6, 0.65, 0.7, 0.75, 0.8, 0.85)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="folder with the data sets; by default they are downloaded")
    parser.add_argument("--out", type=Path, help="where the results go, as JSON, a line for each")
    given = parser.parse_args()
    found: list[dict[str, Any]] = []
    for data in DATA:
        train, test = load_named(data, data_dir=given.data_dir, download=given.data_dir is None)
        held_out = train.part(slice(-HELD_OUT)), train.part(slice(-INPUTS, None))
        for side, (examples, inputs) in (("held-out", held_out), ("test", (train, test.part(slice(INPUTS))))):
            for arrangement in ARRANGEMENTS:
                for row in measured(in_sources(examples, arrangement, SOURCES), inputs):
                    found.append({"data": data, "inputs": side, "arrangement": arrangement, **row})
                    print(json.dumps(found[-1]), flush=True)
    if given.out is not None:
        lines = ",\n".join(map(json.dumps, found))
        given.out.write_text(f'{{"sources": {SOURCES}, "radii": {[*RADII]}, "results": [\n{lines}\n]}}\n')


def measured(examples: Examples, inputs: Examples) -> Iterator[dict[str, Any]]:
    """Certified accuracy for every voice and every constant."""
    nearest = StoredExamples.of(by_unit(examples, 10_000), OrientedGradients(), 10)
    for voice, stored in (("nearest example", nearest), ("nearest class mean", class_means(nearest))):
        of_all = neighbour_votes(stored, (inputs.x, inputs.y), neighbours=SOURCES)
        for count, leads in VOTERS:
            votes = asking(of_all, NearestExamples(count, SOURCES, leads))
            decision = NeighbourRule().decide(votes, Threat.EDIT)
            said = {"neighbours": count, "leads": leads} if leads else {"neighbours": count}
            yield {"voice": voice, **said, "certified": certified(votes, decision)}
        for kernel in KERNELS:
            votes = kernel_votes(stored, (inputs.x, inputs.y), kernel=kernel)
            decision = KernelRule().decide(votes, Threat.EDIT)
            yield {"voice": voice, "full": kernel.full, "certified": certified(votes, decision)}


def class_means(stored: StoredExamples) -> StoredExamples:
    """Every source with the mean of its rows of each label in place of these rows."""
    assert stored.starts is not None
    assert isinstance(stored.rows, np.ndarray)
    source = np.repeat(np.arange(stored.voters), np.diff(stored.starts))
    groups, group = np.unique(source * stored.classes + stored.labels, return_inverse=True)
    sums = np.zeros((len(groups), stored.rows.shape[1]))
    np.add.at(sums, group, stored.rows.astype(np.float64))
    rows, _ = whole_rows((sums / np.bincount(group)[:, None]).astype(np.float32))
    starts = np.searchsorted(groups, np.arange(stored.voters + 1) * stored.classes)
    return replace(stored, rows=rows, labels=groups % stored.classes, starts=starts)


def asking(votes: Votes, mechanism: NearestExamples) -> Votes:
    """The votes of fewer neighbours, of votes that have all in their order."""
    order = votes.evidence["order"][:, : mechanism.shown]
    counts = np.stack([np.bincount(row, minlength=votes.classes) for row in order[:, : mechanism.most]])
    return replace(votes, counts=counts, mechanism=mechanism, evidence={"order": order})


def certified(votes: Votes, decision: Decision) -> list[float]:
    """The share of inputs whose label is right and holds, by radius."""
    right = decision.label == np.asarray(votes.labels)
    return [round(float((right & (decision.radius >= radius)).mean()), 4) for radius in RADII]


if __name__ == "__main__":
    main()
