"""Whether radii end before the number of training examples could lead to other constants, apart from `core.size`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mithridate.core.certificate import Certificate, Status
from mithridate.core.mechanism import SEARCH_LIMIT, Threat
from mithridate.core.size import Size

# The numbers of training examples at which constants that follow them change, written down anew.
_CHANGES_AT = np.array([1, 4, 7, 14, 34, 67] + [int(float(f"{m}e{e}")) for e in range(2, 17) for m in (1.35, 3.4, 6.7)])


def problem_of(certificate: Certificate) -> str | None:
    """Why the stated size cannot be right; None where it can."""
    size, cut = certificate.votes.size, certificate.status == Status.SIZE_LIMIT.value
    if size is None:
        return "a radius ends with the size of the training set, but no size is stated" if cut.any() else None
    stated = certificate.votes.mechanism.to_dict().get("num_train")
    if stated not in (None, size.num_train):
        return f"it is that of {size.num_train} examples, but the mechanism has {stated}"
    if not _is_one_step(size):
        return f"{size.low} to {size.high - 1} is not the size step of {size.num_train} examples"
    return None


def beyond(certificate: Certificate, size: Size) -> npt.NDArray[np.bool_]:
    """Which radii leave the step, or are cut short although they do not reach its end."""
    radius, cut = _searched(certificate), certificate.status == Status.SIZE_LIMIT.value
    return _leaves(size, radius, certificate.threat) | (cut & ~_leaves(size, radius + 1, certificate.threat))


def to_show(certificate: Certificate) -> npt.NDArray[np.int64]:
    """The radii that must hold by another route: one more than claimed where the size alone ends it."""
    return _searched(certificate) + (certificate.status == Status.SIZE_LIMIT.value)


def _is_one_step(size: Size) -> bool:
    return size.high in _CHANGES_AT and size.low == _CHANGES_AT[_CHANGES_AT < size.high].max(initial=0)


def _leaves(size: Size, radius: npt.NDArray[np.int64], threat: Threat) -> npt.NDArray[np.bool_]:
    """Whether so many changes can lead to a number of examples beyond the edges of the size."""
    changes = np.maximum(radius, 0)  # an abstention claims nothing
    may_shrink = threat in (Threat.SYMMETRIC_DIFFERENCE, Threat.REMOVE, Threat.EDIT)
    may_grow = threat in (Threat.SYMMETRIC_DIFFERENCE, Threat.ADD, Threat.EDIT)
    fewest, most = size.num_train - may_shrink * changes, size.num_train + may_grow * changes
    return (fewest < size.low) | (most >= size.high)


def _searched(certificate: Certificate) -> npt.NDArray[np.int64]:
    """The radii, as far as anyone searches for them: a file may claim any number."""
    return np.minimum(certificate.radius, SEARCH_LIMIT + 1)
