"""Everything that knows Redis: key names, connections, scripts, outages."""
