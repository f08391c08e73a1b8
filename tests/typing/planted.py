"""Each line marked `planted` holds one error; both type checkers must find each, and nothing else."""

from __future__ import annotations

from cogworkerd import App, JobContext

app = App()


@app.job(queue="mail")
def send(user_id: int, *, lang: str = "en") -> None:
    pass


send.enqueue("42")  # planted
send.enqueue(42, "de")  # planted
send.enqueue(42, language="de")  # planted
send.enqueue()  # planted
send.enqueue_in(300, "42")  # planted
send.enqueue_in("300", 42)  # planted
send.enqueue_at("tomorrow", 42)  # planted
send.enqueue_at(1.5)  # planted
send.call(42, lang=1)  # planted
send.using(queue="low").enqueue("42")  # planted
send.using(queu="low")  # planted
send.using(retry="never")  # planted
app.job(quue="x")  # planted
app.push("Greeting", ["world"], tag=["x"])  # planted


@send.retry_in  # planted
def answers_text(attempt: int, error: Exception, job: JobContext) -> str:
    return "soon"


@app.on_child_start  # planted
def wants_an_argument(child: int) -> None:
    pass


async def main() -> None:
    await send.aenqueue("42")  # planted
    await send.aenqueue_in(300, lang="de")  # planted
    await app.apush("Greeting", ["world"], retri=1)  # planted
