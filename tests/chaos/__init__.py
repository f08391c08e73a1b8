"""Faults at every step: one fault a run, at each command, each report and each read of a scenario in turn."""
