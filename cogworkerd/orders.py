"""What a daemon's channel takes, beside requests: the words of the wire format; and what a request may ask for."""

from __future__ import annotations

ORDERS = ("quiet", "resume", "stop", "restart")

CANCEL_GRACE = 5.0
"""Seconds that a cancelled job has, unless it is said otherwise; MOST_GRACE: at most."""

MOST_GRACE = 3600.0
