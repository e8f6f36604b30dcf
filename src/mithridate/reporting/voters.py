"""Words about those who voted."""

from __future__ import annotations

from mithridate.core.votes import Votes


def tally(votes: Votes) -> str:
    """Who voted, and how many.

    >>> from mithridate.core.mechanism import NearestExamples
    >>> tally(Votes.from_counts([[3, 2]], mechanism=NearestExamples(5)))
    '5 neighbours'
    """
    voters = votes.mechanism.words.voters
    if not voters:
        return "all training examples by weight"
    return f"{votes.instances:,} {voters if votes.instances != 1 else voters[:-1]}"
