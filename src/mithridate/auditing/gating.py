"""A gate for continuous integration: whether a certificate is as good as somebody wants it to be.

A gate reads what a certificate claims and computes nothing again; whether the claims are true is for `verify` to say.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from numbers import Integral, Real
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from mithridate._io.files import PathLike
from mithridate._text import counted, did_you_mean, listed, one_line, shown
from mithridate._validate import number_in, one_of
from mithridate.core.certificate import Certificate, Status, cautions, check_claims, is_correct, is_guarantee
from mithridate.core.conditions import IDS, Statement, explained, in_json, listed_ids
from mithridate.core.labels import balanced_share
from mithridate.core.mechanism import SEARCH_LIMIT, Threat
from mithridate.core.units import Unit, unit_in_json
from mithridate.errors import ConfigError

# Whoever may fail more often than one time in twenty claims too little.
MAX_FAILURE_PROB = 0.05
# More decimals than any share has; a number such as 1e-999999999 would never be read to its end.
_MOST_DECIMALS = 30
# With so many decimals, rounded down, a share that is below one of as many decimals looks like it.
_SHOWN_DECIMALS = 6


@dataclass(frozen=True)
class Requirement:
    """One line of a gate.

    Attributes:
        name: what is required.
        wanted: the least share, the conditions that are allowed, that there is a guarantee, and so on.
        got: what the certificate has of it.
        passed: whether that is enough.
        detail: the same in words; where it is not enough, with what to do.
    """

    name: str
    wanted: float | bool | str | tuple[str, ...]
    got: float | bool | str | tuple[str, ...]
    passed: bool
    detail: str

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values, without the words."""
        values = {"wanted": self.wanted, "got": self.got}
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        return {"name": self.name, **plain, "passed": self.passed}


@dataclass(frozen=True)
class Gate:
    """What was wanted of a certificate, and whether it has all of it.

    Attributes:
        checks: one for every requirement, each with `name`, `wanted`, `got`, `passed` and a `detail` in words.
        threat: what the certificate is against.
        failure_prob: the probability with which a claim may fail.
        conditions: what the claims are conditional on, allowed or not.
        unit: what radii count, where that is not single examples.
    """

    checks: tuple[Requirement, ...]
    threat: str
    failure_prob: float
    conditions: tuple[Statement, ...] = ()
    unit: Unit | None = None

    def __repr__(self) -> str:
        failed = [check.name for check in self.checks if not check.passed]
        outcome = f"not passed: {listed(failed)}" if failed else "passed"
        return f"Gate of {counted(len(self.checks), 'check')}: {outcome}"

    @property
    def passed(self) -> bool:
        """Whether all requirements are met."""
        return all(check.passed for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """The outcome as plain JSON values."""
        return {
            "schema": "mithridate.gate/1",
            "passed": self.passed,
            "threat": self.threat,
            "failure_prob": self.failure_prob,
            **unit_in_json(self.unit),
            **in_json(self.conditions),
            "checks": [check.to_dict() for check in self.checks],
        }

    def to_junit(self, *, name: str = "mithridate gate", seconds: float = 0.0) -> str:
        """The outcome as JUnit XML, a test case for every check, as services for continuous integration show it.

        Args:
            name: what the suite of test cases is called.
            seconds: how long all of it took.
        """
        failures = sum(not check.passed for check in self.checks)
        totals = {"tests": str(len(self.checks)), "failures": str(failures), "errors": "0", "skipped": "0"}
        totals |= {"time": f"{seconds:.3f}"}
        suites = ElementTree.Element("testsuites", {"name": one_line(name), **totals})
        suite = ElementTree.SubElement(suites, "testsuite", {"name": one_line(name), **totals})
        for check in self.checks:
            about = {"classname": "mithridate.gate", "name": one_line(check.name), "time": "0.000"}
            case = ElementTree.SubElement(suite, "testcase", about)
            if not check.passed:
                said = one_line(check.detail)  # XML has no word for most of what a terminal would obey
                ElementTree.SubElement(case, "failure", {"message": said, "type": "gate"}).text = said
        ElementTree.indent(suites)
        text = ElementTree.tostring(suites, encoding="unicode")
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def gate(
    certificate: Certificate | PathLike,
    *,
    certified_accuracy: Any,
    at: Any,
    balanced: bool = False,
    allow_conditional: Iterable[str] = (),
    input_change: float | None = None,
    threat: str | None = None,
    max_failure_prob: float = MAX_FAILURE_PROB,
) -> Gate:
    """Whether enough test inputs are correct and certified, under no condition but those that are allowed.

    Guarantee: it is passed only if the share of test inputs whose label is correct and whose radius is at least `at` is
    at least `certified_accuracy`, compared in whole numbers, without rounding; if the certificate is conditional on
    nothing else than what is allowed; if its method and its bounds guarantee what they claim; if a claim fails with a
    probability of at most `max_failure_prob`; and if it is against `threat`, where that is given.

    Assumes: what the certificate claims, which is for `verify` to confirm.

    Args:
        certificate: a certificate, its file, or the directory of a run, for its `certificate.json`, which then has to
            be of the votes beside it.
        certified_accuracy: the least share, from 0 to 1, by its decimals: 0.80 of 1,000 are 800. A list, with as many
            radii in `at`, wants all of them.
        at: the radius, 0 or more.
        balanced: take the share within each class, and the mean over the classes that occur.
        allow_conditional: ids of conditions that the certificate may have (docs/certificate.md lists them).
        input_change: how far inputs may move beside the changes that radii count, one of the distances of the
            certificate's frontier; by default the smallest.
        threat: what the certificate has to be against; None: whatever it is against.
        max_failure_prob: the largest probability with which a claim may fail.

    Raises:
        ConfigError: an argument is not what it should be, or the certificate has no true labels.
        ArtifactError: the file cannot be read, was changed, or is not a certificate.

    >>> from mithridate import SampledGaussian, Votes, certify
    >>> votes = Votes.from_counts([[1000, 0]] * 5, mechanism=SampledGaussian(3.0, 0.001, 1000), labels=[0, 0, 0, 0, 1])
    >>> gate(certify(votes), certified_accuracy=0.8, at=20).passed
    True
    >>> gate(certify(votes), certified_accuracy=0.81, at=20)
    Gate of 4 checks: not passed: certified accuracy at 20
    """
    wanted, allowed = _pairs(certified_accuracy, at), _known_ids(allow_conditional)
    claim = certificate if isinstance(certificate, Certificate) else _loaded(Path(certificate))
    claim = claim if input_change is None else claim.at_input_change(input_change)
    check_claims(claim)
    checks = (
        *_accuracies(claim, wanted, balanced=balanced),
        _conditions(claim, allowed),
        _guarantee(claim),
        _failure_prob(claim, max_failure_prob),
        *([] if threat is None else [_threat(claim, threat)]),
    )
    return Gate(checks, claim.threat.value, claim.failure_prob, claim.conditions, claim.votes.unit)


def _loaded(path: Path) -> Certificate:
    if not os.path.isdir(path):
        return Certificate.load(path)
    # Imported here because the second route needs more of scipy than a gate should wait for.
    from mithridate.auditing.verification import certificate_of_run

    return certificate_of_run(path)


# --- what is wanted ---------------------------------------------------------------------------------------------------


def _pairs(shares: Any, radii: Any) -> list[tuple[Fraction, int]]:
    """Shares with their radii, each checked."""
    wanted: list[Any] = list(shares) if isinstance(shares, list | tuple) else [shares]  # pyright: ignore[reportUnknownArgumentType]
    at: list[Any] = list(radii) if isinstance(radii, list | tuple) else [radii]  # pyright: ignore[reportUnknownArgumentType]
    if len(wanted) != len(at) or not wanted:
        raise ConfigError(
            f"Expected at to name one radius for each certified_accuracy, got {len(at)} for {len(wanted)}."
        )
    return [(_share(share), _radius(radius)) for share, radius in zip(wanted, at, strict=True)]


def _share(value: Any) -> Fraction:
    """A share by its decimals: 0.8 is four fifths, whatever double precision makes of it."""
    try:
        is_number = isinstance(value, str | Decimal | Real) and not isinstance(value, bool)
        number = Decimal(str(value) if is_number else "nan")
    except InvalidOperation:
        number = Decimal("nan")
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int) or not 0 <= number <= 1 or not -_MOST_DECIMALS <= exponent <= 0:
        raise ConfigError(
            f"Expected certified_accuracy as a share from 0 to 1, such as 0.80 for 80 per cent, got {shown(value)}."
        )
    return Fraction(number)


def _radius(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= int(value) <= SEARCH_LIMIT:
        raise ConfigError(
            f"Expected at as a whole number from 0 to {SEARCH_LIMIT:,}, the largest radius that is searched for, got "
            f"{shown(value)}."
        )
    return int(value)


def _known_ids(ids: Iterable[str]) -> tuple[str, ...]:
    if isinstance(ids, str):
        raise ConfigError(f"Expected allow_conditional as a list of ids, got {shown(ids)}.")
    found = tuple(dict.fromkeys(ids))
    for each in found:
        if each not in IDS:
            raise ConfigError(f"There is no condition {shown(each)} to allow; {did_you_mean(each, IDS)}")
    return found


# --- what the certificate has -----------------------------------------------------------------------------------------


def _accuracies(
    certificate: Certificate, wanted: Sequence[tuple[Fraction, int]], *, balanced: bool
) -> Iterator[Requirement]:
    correct, truth = is_correct(certificate), certificate.votes.labels
    if correct is None or truth is None:
        raise ConfigError(
            "This certificate has no true labels, so nobody knows which predictions are correct. Certify votes that "
            "carry them: train with a labelled test set, or mithridate certify VOTES --labels-key NAME --out FILE."
        )
    for least, radius in wanted:
        _check_can_be_reached(certificate, radius)
        held = correct & (certificate.radius >= radius)
        share = balanced_share(held, truth) if balanced else Fraction(int(held.sum()), len(held))
        yield _accuracy(certificate, least, radius, share, balanced=balanced)


def _check_can_be_reached(certificate: Certificate, radius: int) -> None:
    unit = certificate.votes.unit
    if unit is not None and radius > unit.count:
        raise ConfigError(f"Expected at of at most {unit.count:,}, the number of {unit.many}, got {radius:,}.")


def _accuracy(
    certificate: Certificate, least: Fraction, radius: int, share: Fraction, *, balanced: bool
) -> Requirement:
    words, passed = certificate.votes.unit_words, share >= least
    moved = "" if certificate.frontier is None else f", input change {certificate.input_change:g}"
    name = f"{'balanced ' if balanced else ''}certified accuracy at {radius}{words.after(radius)}{moved}"
    over = ", the mean over the classes" if balanced else ""
    total = counted(len(certificate.radius), "test input")
    said = f"{_decimals(share)} on {total}{over}; wanted {_decimals(least)}"
    cut = int((certificate.status == Status.SIZE_LIMIT.value).sum())
    if not passed and cut:
        said = f"{said}. Of {counted(cut, 'prediction')}: {Status.SIZE_LIMIT.sentence_of(words)}"
    return Requirement(name, float(least), float(share), passed, said)


def _decimals(share: Fraction) -> str:
    """A share for people, never rounded up.

    >>> _decimals(Fraction(4, 5)), _decimals(Fraction(7999999, 10000000))
    ('0.8', '0.799999')
    """
    return f"{int(share * 10**_SHOWN_DECIMALS) / 10**_SHOWN_DECIMALS:.{_SHOWN_DECIMALS}g}"


def _conditions(certificate: Certificate, allowed: tuple[str, ...]) -> Requirement:
    found = certificate.conditions
    refused = [each for each in found if each.id not in allowed]
    if refused:
        said = f"{' '.join(explained(refused))} Or allow it: {','.join(_ids(refused))}."
    else:
        said = f"conditional on {listed_ids(found)}, which is allowed" if found else "the certificate is unconditional"
    return Requirement("conditions", allowed, _ids(found), not refused, said)


def _ids(conditions: Iterable[Statement]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.id for each in conditions if each.id is not None))


def _guarantee(certificate: Certificate) -> Requirement:
    passed = is_guarantee(certificate)
    said = "the method and its bounds guarantee what they claim"
    return Requirement("guarantee", True, passed, passed, said if passed else " ".join(cautions(certificate)))


def _failure_prob(certificate: Certificate, most: float) -> Requirement:
    number_in(0, 1, max_failure_prob=most)
    got = certificate.failure_prob
    said = f"a claim fails with probability {got:g} at most; allowed is {most:g}"
    remedy = "" if got <= most else ". Certify with a smaller --failure-prob, which costs radius."
    return Requirement("failure probability", most, got, got <= most, said + remedy)


def _threat(certificate: Certificate, wanted: str) -> Requirement:
    one_of(tuple(Threat), threat=wanted)
    got = certificate.threat.value
    return Requirement("threat", wanted, got, got == wanted, f"certified against {got}; wanted {wanted}")
