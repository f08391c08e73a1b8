"""The shop of the examples of the command line, and jobs to look at. Its bookkeeping goes to WITNESS_URL's server."""

from __future__ import annotations

import os
import time

import redis

from cogworkerd import App, current_job

app = App()
witness = redis.Redis.from_url(os.environ["WITNESS_URL"])


@app.job(name="shop.mail.send_welcome", queue="mail", retry=5)
def send_welcome(user_id: int, *, lang: str = "en") -> None:
    witness.hincrby("t:mailed", f"{user_id} {lang}", 1)


@app.job(name="shop.reports.build")
def build(n: int, pct: float = 40, message: str = "rows") -> None:
    """Lasts until t:gate is set, and says how far it is."""
    job = current_job()
    job.progress(pct, message)
    job.store(rows=n)
    witness.hincrby("t:start", str(n), 1)
    while not witness.exists("t:gate"):
        time.sleep(0.05)
    witness.hincrby("t:end", str(n), 1)


@app.job(name="shop.reports.flaky", retry=3)
def flaky(n: int) -> None:
    """Fails in its first run."""
    current_job().store(rows=n)
    if current_job().attempt == 1:
        raise ValueError("once")
    while not witness.exists("t:gate"):
        time.sleep(0.05)


@flaky.retry_in
def at_once(attempt: int, error: Exception, job: object) -> float:
    return 0


@app.job(name="shop.users.login", retry=3, redact=["password", "token"])
def login(user: str, password: str, *, token: str = "") -> None:
    """Tells its secrets in the error that it raises."""
    if witness.exists("t:gate"):
        raise ValueError(f"{user} is not let in with {password} and {token}")
    current_job().progress(10, "knocking")
    while not witness.exists("t:gate"):
        time.sleep(0.05)


@login.retry_in
def in_an_hour(attempt: int, error: Exception, job: object) -> float:
    return 3600


@app.job(name="shop.reports.sum")
def busy_sum(n: int, seconds: float) -> None:
    """Takes so much of the processor's time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        sum(range(1000))
    if n < 0:
        raise ValueError("less than nothing")


@busy_sum.retry_in
def much_later(attempt: int, error: Exception, job: object) -> float:
    return 3600
