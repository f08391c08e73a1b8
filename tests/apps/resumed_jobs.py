"""A long loop over a file that goes on where it was."""

from __future__ import annotations

import os
import time

import redis

from cogworkerd import App, current_job

app = App()
witness = redis.Redis.from_url(os.environ["WITNESS_URL"]) if "WITNESS_URL" in os.environ else None


@app.job(name="read_lines", retry=100)
def read_lines(path: str, chunk: int, pause: float = 0.0) -> None:
    """Read every line, a chunk at a time, and count for each chunk how often it was read."""
    assert witness is not None
    job = current_job()
    offset, number = job.cursor or (0, 0)
    with open(path, "rb") as lines:
        lines.seek(offset)
        while True:
            size = sum(len(line) for _, line in zip(range(chunk), lines, strict=False))
            if not size:
                return
            witness.hincrby("t:chunks", str(number), 1)
            witness.incrby("t:bytes", size)
            time.sleep(pause)
            offset, number = offset + size, number + 1
            job.cursor = (offset, number)


@app.job(name="remembers", retry=5)
def remembers(value: object, end: str) -> None:
    assert witness is not None
    job = current_job()
    witness.rpush("t:seen", repr(job.cursor))
    if job.attempt == 1:
        job.cursor = value
        if end == "raise":
            raise ValueError("again")
        if end == "die":
            os.kill(os.getpid(), 9)


@remembers.retry_in
def at_once(attempt: int, error: BaseException, job: object) -> float:
    return 0
