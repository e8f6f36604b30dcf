"""The second routes of `verify`, which share no arithmetic with what certified."""

from mithridate.auditing.routes import Claim, Limits, second_route

__all__ = ["Claim", "Limits", "second_route"]
