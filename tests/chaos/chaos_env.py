"""What the runs and their application agree on; the application itself can only be imported in a daemon."""

from __future__ import annotations

CRON = "CHAOS_CRON"
"""The environment variable with the expression of a periodic entry."""

MIDDLEWARE = "CHAOS_MIDDLEWARE"
"""The one that asks for client middleware."""

IN_SLOT = "in_slot"
SLOT_SECONDS = 1.4
"""How long the periodic job takes: longer than the time between its two slots, so that the second one has to wait."""
