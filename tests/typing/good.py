"""Everything here is right: both type checkers must accept it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cogworkerd import BURY, DISCARD, App, JobContext, current_job
from cogworkerd.retry import Decision

app = App("redis://localhost:6379/0", concurrency=4)


@app.job
def plain(delay: int, when: str = "") -> int:
    return delay


@app.job(queue="mail", retry=5, tags=["a"], meta={"k": 1})
def with_options(user_id: int, *, lang: str = "en") -> None:
    job = current_job()
    if job.stopping:
        return
    job.log.info("attempt %d of %s", job.attempt, job.jid)


@app.job()
async def asynchronous(n: int) -> None:
    pass


@with_options.retry_in
def backoff(attempt: int, error: Exception, job: JobContext) -> float | None:
    return 1.0 if attempt < 3 else None


@plain.retry_in
def give_up(attempt: int, error: Exception, job: JobContext) -> Decision:
    return BURY if attempt > 1 else DISCARD


@app.on_child_start
def opened() -> None:
    pass


number: int = plain(1)
jid: str | None = plain.enqueue(1, when="now")
plain.enqueue_in(300, delay=1)
plain.enqueue_in(timedelta(minutes=5), 1)
plain.enqueue_at(datetime.now(UTC), 1, "x")
plain.enqueue_at(1.5, delay=1)
with_options.using(queue="low", retry=False).enqueue(1, lang="de")
jids: list[str | None] = with_options.enqueue_many(with_options.call(n, lang="de") for n in range(3))
with_options.enqueue_many([(1,), (2,)])
app.enqueue_many([plain.call(1), with_options.call(2)])
app.push("GreetingJob", ["world"], queue="ruby", delay=5)


async def main() -> None:
    await plain.aenqueue(1)
    await plain.aenqueue_in(300, delay=1)
    await with_options.aenqueue_at(1.5, 1, lang="de")
    await asynchronous.aenqueue(1)
    await asynchronous(1)
    await app.apush("GreetingJob", ["world"])
