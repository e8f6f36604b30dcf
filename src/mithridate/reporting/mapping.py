"""What a certificate is evidence for, and what not, beside a law, a taxonomy and a standard: a page without any script.

It tells what these texts are about in words of its own, and what of it the certificate shows. Whether that is enough
for anybody's purpose it does not say.
"""

from __future__ import annotations

from dataclasses import dataclass

from mithridate._text import capitalised
from mithridate._version import VERSION
from mithridate.core.certificate import Certificate, Curve, cautions, confidence, is_guarantee
from mithridate.core.conditions import Statement, explained, listed_ids
from mithridate.core.input_change import Frontier
from mithridate.core.mechanism import Private
from mithridate.reporting import rendering
from mithridate.reporting import sentences as words
from mithridate.reporting.report_page import mean_of_shares

_TRUSTED_ENCODER = "trusted-encoder"
# The smallest radius that is a claim about changed training data.
_LEAST = 1
_SHOWN, _IN_PART, _NOT_SHOWN = "shown within the claim", "in part", "not shown"
_LIMITS = (
    "No legal advice, and no statement that a system conforms to anything. Whether a system is of high risk, which "
    "measures are appropriate, and whether this evidence is enough, is for its provider, and for those who assess it.",
    "The votes are believed. Anyone can compute the radii from the votes again; that models were trained as the "
    "configuration says, on this data, and voted like this, only whoever ran the training can know.",
    "True labels, where there are any, the environment and whatever the certificate assumes are believed, too.",
    "A signature says that whoever holds the key stands by these bytes. It says neither who that is nor that they are "
    "right.",
    "The quality of the data: whether it is representative, complete or free of bias.",
    "Time: nothing is said about data that drifts, nor about a model that was trained again.",
)


@dataclass(frozen=True)
class Topic:
    """One thing that a text is about.

    Attributes:
        title: what it is.
        status: whether the certificate shows something about it.
        shown: what it shows.
        not_shown: what it does not show.
    """

    title: str
    status: str
    shown: str
    not_shown: str

    @property
    def css(self) -> str:
        """What a style sheet calls its status."""
        return {_SHOWN: "is-shown", _IN_PART: "is-part", _NOT_SHOWN: "is-open"}[self.status]


@dataclass(frozen=True)
class Source:
    """A text, and what of it a certificate is about."""

    id: str
    short: str
    title: str
    about: str
    topics: tuple[Topic, ...]


def html(certificate: Certificate) -> str:
    """One self-contained page: no network, no script, no other files.

    Guarantee: it is a function of the certificate and of the version of mithridate.
    """
    header, rows = shares(certificate)
    units, sources = certificate.votes.unit_words, (_ai_act(certificate), _nist(certificate), _aisvs(certificate))
    return rendering.page(
        "mapping.html",
        styles=("style.css", "mapping.css"),
        title="What this is evidence for, and what not",
        headline=words.headline(certificate).text,
        claim=claim(certificate),
        conditions=explained(certificate.conditions),
        precise=words.precise_claim(certificate),
        counted=f"r counts {certificate.threat.counts(units)}.",
        header=header,
        rows=rows,
        sources=sources,
        sections=[("claim", "Claim"), *((each.id, each.short) for each in sources), ("limits", "Limits")],
        limits=(*_LIMITS, *words.not_covered(certificate)),
        assumptions=certificate.assumptions,
        files=_FILES,
        commands=_COMMANDS,
        footer=f"Written by mithridate {VERSION}. Every number on this page follows from certificate.json.",
    )


# --- the claim in numbers ---------------------------------------------------------------------------------------------


def claim(certificate: Certificate) -> tuple[tuple[str, str], ...]:
    """What is claimed, by name."""
    votes, units = certificate.votes, certificate.votes.unit_words
    known = words.baseline(certificate)
    return (
        ("threat", certificate.threat.of(units)),
        ("change of the input", _changes(certificate)),
        (
            "what radii count",
            f"{votes.unit.counted(votes.unit.count)} in the training data" if votes.unit else units.many,
        ),
        ("training data", f"{votes.training.examples:,} examples" if votes.training else "not recorded"),
        ("test inputs", f"{votes.examples:,}"),
        ("who voted", votes.tally),
        ("method", certificate.method.in_words()),
        ("confidence", capitalised(confidence(certificate)) + "."),
        (
            "always the commonest label",
            "true labels are not recorded" if known is None else f"correct on {known.count:,} of {known.total:,}",
        ),
        ("conditional on", listed_ids(certificate.conditions) or "nothing"),
    )


def _changes(certificate: Certificate) -> str:
    """For which changes of the input there are radii."""
    if certificate.frontier is None:
        return "none: inputs stay as they are"
    changes = ", ".join(f"{change:g}" for change in certificate.frontier.changes)
    return f"up to {changes}, as a Euclidean length, {certificate.frontier.in_words}"


def shares(certificate: Certificate) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the shares by radius; for each change of the input, where it has several."""
    units, correct = certificate.votes.unit_words, certificate.votes.labels is not None
    header = [units.radius(), "certified", *(["correct and certified"] if correct else [])]
    radii = certificate.round_radii()
    changes = 1 if certificate.frontier is None else len(certificate.frontier.changes)
    if certificate.frontier is None or changes == 1:
        return header, [[f"{radius:,}", *_shares_at(certificate, radius)] for radius in radii]
    rows = [
        [f"{change:g}", f"{radius:,}", *_shares_at(certificate.at_input_change(change), radius)]
        for change in (certificate.frontier.changes[at] for at in words.evenly(changes, words.MOST_CHANGES_SHOWN))
        for radius in radii
    ]
    return ["input change up to", *header], rows


def _shares_at(certificate: Certificate, radius: int) -> list[str]:
    curve = Curve.of(certificate)
    counts = [curve.certified, *([] if curve.right is None else [curve.right])]
    return [_share(int(curve.at(each, radius)), curve.total) for each in counts]


def _share(count: int, total: int) -> str:
    """So many of all, and their share, which is rounded down."""
    return f"{count:,} of {total:,} ({mean_of_shares(count / total)})"


def _bound(certificate: Certificate) -> str:
    """How many predictions are certified, at two radii, as a sentence."""
    curve = Curve.of(certificate)
    radii = sorted({_LEAST, max(words.headline(certificate).radius, _LEAST)})
    parts = [
        f"{int(curve.at(curve.certified, radius)):,} would stay the same if "
        f"{certificate.threat.changes_of(certificate.votes.unit_words, radius)}"
        for radius in radii
    ]
    moved = "".join(f" {each}" for each in words.moved_inputs(certificate))
    return f"Of {curve.total:,} predictions, {', and '.join(parts)}; {confidence(certificate)}.{moved}"


def _shows_something(certificate: Certificate) -> bool:
    return bool((certificate.radius >= _LEAST).any()) and is_guarantee(certificate)


def _bounded(certificate: Certificate) -> str:
    """The status of a topic that the bound is about."""
    if not _shows_something(certificate):
        return _NOT_SHOWN
    return _IN_PART if certificate.conditional else _SHOWN


def _bound_or_none(certificate: Certificate) -> str:
    if not is_guarantee(certificate):
        return f"Nothing. {' '.join(cautions(certificate))}"
    if not _shows_something(certificate):
        return "Nothing: no prediction is certified against a change of the training data."
    return _bound(certificate) + _if(certificate)


def _of_each(certificate: Certificate) -> str:
    """What is said of every prediction by itself."""
    if not _shows_something(certificate):
        return _bound_or_none(certificate)
    reached, total = int((certificate.radius >= _LEAST).sum()), len(certificate.radius)
    return (
        "No attack within the radius of a prediction changes it, whichever is the target; "
        f"{confidence(certificate)}. Radii are in certificate.json; {reached:,} of {total:,} are {_LEAST} or more."
        f"{_if(certificate)}"
    )


def _if(certificate: Certificate) -> str:
    """On what all of it is conditional, as a further sentence; empty where it is on nothing."""
    return f" All of this is conditional on {listed_ids(certificate.conditions)}." if certificate.conditional else ""


# --- what several texts ask about -------------------------------------------------------------------------------------


def _evasion(certificate: Certificate, title: str) -> Topic:
    """Inputs that were made to mislead."""
    frontier = certificate.frontier
    kept = {} if frontier is None or not is_guarantee(certificate) else _kept(frontier)
    if frontier is None or not any(kept.values()):
        nothing = "Nothing: no prediction is certified where its input changes."
        return Topic(title, _NOT_SHOWN, nothing, "How predictions change where an input was changed to mislead.")
    listed = ", ".join(f"{count:,} at {change:g}" for change, count in kept.items())
    many = certificate.votes.unit_words.many_in_full
    shown = (
        f"So many of {len(certificate.radius):,} predictions are certified where the input changes by up to a "
        f"Euclidean length, {frontier.in_words}: {listed}. How many changed {many} they withstand besides, the "
        "table above says."
    )
    return Topic(title, _IN_PART, shown, "Larger changes, and changes that are small to a person by another measure.")


def _kept(frontier: Frontier) -> dict[float, int]:
    """How many predictions are certified where the input changes, by how far."""
    places = words.evenly(len(frontier.changes), words.MOST_CHANGES_SHOWN)
    return {frontier.changes[at]: int((frontier.radius[at] >= 0).sum()) for at in places if frontier.changes[at]}


def _encoders(certificate: Certificate) -> list[Statement]:
    return [each for each in certificate.conditions if each.id == _TRUSTED_ENCODER]


def _pretrained(certificate: Certificate, title: str) -> Topic:
    """Components that somebody else trained."""
    encoders = _encoders(certificate)
    if not encoders:
        shown = "The certificate names no encoder that was trained elsewhere."
        return Topic(title, _IN_PART, shown, "Components that the run does not record, and the software itself.")
    shown = f"Which encoder was used, as data.json records it. {' '.join(map(str, encoders))}"
    hidden = f"The encoder itself: the claim is conditional on {_TRUSTED_ENCODER}, and says nothing about its training."
    return Topic(title, _NOT_SHOWN, shown, hidden)


def _confidentiality(certificate: Certificate, title: str) -> Topic:
    shown = "Nothing."
    if isinstance(certificate.votes.mechanism, Private):
        shown = "Nothing. Models were trained with noise, but no privacy budget is computed or stated here."
    return Topic(title, _NOT_SHOWN, shown, "What predictions, or this archive, reveal about the training data.")


def _flaws(certificate: Certificate, title: str) -> Topic:
    known, correct = words.baseline(certificate), Curve.of(certificate).right
    hidden = "Why labels are wrong, and how the system behaves on other inputs."
    if known is None or correct is None:
        return Topic(title, _NOT_SHOWN, "Nothing: true labels are not recorded.", hidden)
    right = int((certificate.label == certificate.votes.labels).sum())
    shown = (
        f"{_share(right, known.total)} labels are correct on these inputs; always giving the commonest label is "
        f"correct on {known.count:,}."
    )
    return Topic(title, _IN_PART, shown, hidden)


def _fingerprints(certificate: Certificate) -> str:
    """By what the data can be recognised."""
    named = ["the training data" if certificate.votes.training else "", "every test input"]
    if certificate.votes.input_hashes is None:
        named.pop()
    said = " and of ".join(filter(None, named))
    return f"The SHA-256 of {said} as it was read: whoever has the data can tell whether it is this." if said else ""


# --- the texts --------------------------------------------------------------------------------------------------------


def _ai_act(certificate: Certificate) -> Source:
    many = certificate.votes.unit_words.many_in_full
    fingerprints = _fingerprints(certificate)
    measures = ["To control for: the bound above."] if _shows_something(certificate) else []
    if fingerprints:
        measures.append(f"To detect, in part: {fingerprints} This finds later changes, and no poison from before.")
    return Source(
        "ai-act",
        "AI Act",
        "EU AI Act, Regulation (EU) 2024/1689, Article 15(5)",
        "It asks that high-risk AI systems be resilient against unauthorised third parties who try to alter their "
        "use, outputs or performance by exploiting vulnerabilities. Technical solutions for vulnerabilities of AI are "
        "to include, where appropriate, measures to prevent, detect, respond to, resolve and control for the attacks "
        "below.",
        (
            Topic(
                "Data poisoning: manipulated training data",
                _bounded(certificate),
                _bound_or_none(certificate),
                f"Poisoned {many} are neither found nor kept out. Nothing is said about larger attacks, about other "
                "attacks than the threat, nor about other inputs than these.",
            ),
            _pretrained(certificate, "Model poisoning: manipulated pre-trained components"),
            _evasion(certificate, "Adversarial examples, or model evasion"),
            _confidentiality(certificate, "Confidentiality attacks"),
            _flaws(certificate, "Model flaws"),
            Topic(
                "Kinds of measures",
                _IN_PART if measures else _NOT_SHOWN,
                " ".join(measures) or "None.",
                "To prevent, to respond and to resolve: who may change data, who is told, and what is done then.",
            ),
        ),
    )


def _nist(certificate: Certificate) -> Source:
    units, together = certificate.votes.unit_words, words.together(certificate)
    trigger = _evasion(certificate, "")
    return Source(
        "nist",
        "NIST",
        "NIST AI 100-2 E2025, Adversarial Machine Learning: A Taxonomy and Terminology of Attacks and Mitigations",
        "A vocabulary of attacks, not a list of requirements. Of attacks on predictive AI it tells poisoning, evasion "
        "and privacy attacks apart, and of poisoning the four kinds that come first below.",
        (
            Topic(
                "Availability poisoning: performance falls on many inputs",
                _bounded(certificate),
                " ".join([_bound_or_none(certificate), *together]),
                "Performance on other inputs; shares of these are an estimate for inputs from the same source at best.",
            ),
            Topic(
                "Targeted poisoning: some chosen inputs are misclassified",
                _bounded(certificate),
                _of_each(certificate),
                f"Targets among other inputs, and those whose radius is below the number of {units.many} that an "
                "attacker controls.",
            ),
            Topic(
                "Backdoor poisoning: a trigger in the input misleads",
                _IN_PART if trigger.status == _IN_PART else _NOT_SHOWN,
                trigger.shown
                if trigger.status == _IN_PART
                else "Nothing: an input with a trigger is another input than those that were certified.",
                "Triggers that change an input farther." if trigger.status == _IN_PART else "What a trigger can do.",
            ),
            Topic(
                "Model poisoning: parameters are changed directly",
                _NOT_SHOWN,
                "Nothing: that models were trained as the configuration says is believed.",
                "Whoever can change models, votes or the software of training.",
            ),
            _evasion(certificate, "Evasion attacks"),
            _confidentiality(certificate, "Privacy attacks"),
        ),
    )


def _aisvs(certificate: Certificate) -> Source:
    fingerprints, trigger = _fingerprints(certificate), _evasion(certificate, "")
    defence, metric = "", "Nothing is certified against a change of the training data."
    if _shows_something(certificate):
        defence = " As a training-time defence against poisoning: the bound above, with its method and constants."
        metric = "A certified robustness metric of this run, with its threat, on record: certified shares by radius."
    changed = trigger.shown if trigger.status == _IN_PART else "Of changed inputs it says nothing."
    return Source(
        "aisvs",
        "AISVS",
        "OWASP AI Security Verification Standard (AISVS) 1.0",
        "A catalogue of requirements that can be tested, in chapters. The archive meets none of them by itself; to "
        "these chapters it can contribute. Chapters are named as in version 1.0.",
        (
            Topic(
                "Training Data Integrity & Traceability",
                _IN_PART if fingerprints else _NOT_SHOWN,
                f"{fingerprints or 'No data is named.'}{defence}",
                "Where data comes from, who may change it, how it was labelled, and whether anyone looked for poison.",
            ),
            Topic(
                "Model Lifecycle Management & Change Control",
                _IN_PART,
                "The configuration of the run, the versions of the software, and a hash of everything in this archive, "
                "which may be signed.",
                "Who approved what, and which model is in use.",
            ),
            _pretrained(certificate, "Supply Chain Security for Models"),
            Topic(
                "Adversarial Robustness",
                _bounded(certificate),
                f"{metric} {changed}",
                "Tests against known attacks, alignment, extraction and inversion of models.",
            ),
            Topic(
                "Monitoring, Logging & Anomaly Detection",
                _NOT_SHOWN,
                "Nothing: the archive is about one run, and not about a system in use.",
                "All of it.",
            ),
        ),
    )


# --- the archive ------------------------------------------------------------------------------------------------------

_FILES = (
    (
        "certificate.json",
        "every label, radius and assumption, with the votes",
        "every radius is computed by another route",
    ),
    ("votes.npz", "the votes of the run", "they are those of the certificate"),
    ("report.html", "what the certificate says, for people", "written again from the certificate, byte for byte"),
    ("mapping.html", "this page", "written again from the certificate, byte for byte"),
    ("configuration.json", "how instances were trained", "written again from the certificate, byte for byte"),
    (
        "data.json",
        "fingerprints of data and encoder, units, conditions",
        "written again from the certificate, byte for byte",
    ),
    ("environment.json", "versions and devices", "what the certificate says of it agrees; the rest is believed"),
    ("manifest.json", "SHA-256 and size of all of these", "all of them agree"),
    ("manifest.sig", "Ed25519 signature of manifest.json, where there is one", "it is by the key in public-key.pem"),
)
_COMMANDS = (
    "mithridate verify evidence.zip",
    "mithridate verify evidence.zip --public-key public-key.pem",
    "openssl pkeyutl -verify -pubin -inkey public-key.pem -rawin -in manifest.json -sigfile manifest.sig",
)
