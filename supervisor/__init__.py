"""The parent process: forks one child per slot, keeps the record of what they do, beats, polls and recovers.

Files here import their siblings relatively, so that they work under the one name that is installed,
cogworkerd.supervisor.
"""
