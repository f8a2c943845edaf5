"""`scrimp.Client` as a notebook uses it: jobs as objects, rows as tables, errors that say what and where."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import matplotlib as mpl
import pytest

import scrimp
from scrimp import specs
from scrimp.errors import MissingPackage, NotFound, TooManyRequests, error_of
from scrimp.jobs import JobHandle
from scrimp.models import Job, MetricPoint, Trial
from scrimp.plots import metrics, trials
from scrimp.rows import Rows
from tests.cli.conftest import Cli

mpl.use("agg")


@pytest.fixture(scope="module")
def client(cli: Cli) -> Iterator[scrimp.Client]:
    with scrimp.Client(cli.url, cli.key) as made:
        yield made


def spec(dataset: str, epsilon: float = 0.2, name: str = "typed") -> scrimp.JobSpec:
    return scrimp.JobSpec(
        dataset=dataset,
        name=name,
        optimizer=specs.DpSgd(learning_rate=1.0),
        privacy=specs.JobPrivacy(target_epsilon=epsilon),
        length=specs.Length(steps=30),
    )


@pytest.fixture
def job(client: scrimp.Client, dataset: str) -> Iterator[JobHandle]:
    made = client.jobs.submit(spec(dataset))
    yield made
    if not made.refresh().last.done:
        made.cancel()


def test_a_job_is_an_object(client: scrimp.Client, job: JobHandle, dataset: str) -> None:
    assert job.status == "queued" and job.quote.epsilon is not None and job.quote.epsilon.value <= 0.2
    assert job.spec["optimizer"]["kind"] == "dp_sgd" and job.name == "typed"
    assert [each.type for each in job.events()] == ["queued"]
    assert (job.metrics(), job.trials(), job.study) == ([], [], None)
    assert repr(job) == f"<job {job.id} queued 0/30>" and job.id in job._repr_html_()
    assert job.cancel().status == "cancelled"
    assert [each.type for each in job.stream()][-1] == "cancelled"
    assert [each.type for each in job.stream(after=1)] == ["cancel_requested", "cancelled"]
    assert job.wait(5.0).status == "cancelled" and job.wait(5.0, progress=True) is job
    again = job.again(privacy=specs.JobPrivacy(target_epsilon=0.1), name="again")
    assert again.id != job.id and again.name == "again" and again.spec["privacy"]["target_epsilon"] == 0.1
    twin = again.again()
    assert (twin.name, twin.again().name) == ("again #2", "again #3")
    bare = client.jobs.submit(spec(dataset, name="")).again()
    assert bare.name == f"linear on {dataset}, ε = {bare.spec['privacy']['target_epsilon']:g}"
    for each in client.jobs.find(dataset, "queued"):
        each.cancel()


def test_jobs_are_found_by_id_name_and_filter(client: scrimp.Client, job: JobHandle, dataset: str) -> None:
    other = client.jobs.submit(spec(dataset, name="another"))
    assert client.jobs.get(job.id).id == job.id and client.jobs.get("another").id == other.id
    assert [each.id for each in client.jobs.find(status="queued", q="another")] == [other.id]
    assert {job.id, other.id} <= {each.id for each in client.jobs}
    assert next(client.jobs(dataset, "queued")).id == other.id, "the answers themselves, newest first"
    twin = client.jobs.submit(spec(dataset, name="another"))
    with pytest.raises(scrimp.ScrimpError, match=f"2 jobs are called 'another'; give an id: {twin.id}, {other.id}"):
        client.jobs.get("another")
    with pytest.raises(NotFound, match="there is no job 'nobody'"):
        client.jobs.get("nobody")
    for each in (other, twin):
        each.cancel()


def test_a_data_set_and_epsilon_are_a_whole_job(client: scrimp.Client, dataset: str) -> None:
    job = client.train(dataset, epsilon=0.5, length={"steps": 20}, name="mine")
    assert (job.name, job.quote.steps) == ("mine", 20)
    told = {name: (value, because) for name, value, because in job.quote.resolved.told}
    assert told["model"][0] == "linear" and "κ" in told["learning rate"][1] and "steps" not in told
    typed = client.quote(scrimp.JobSpec(dataset=dataset, privacy=specs.JobPrivacy(target_epsilon=0.5)))
    bare = [client.train(dataset, epsilon=0.1) for _ in range(2)]
    assert [each.name for each in bare] == [f"{dataset}, ε = 0.1", f"{dataset}, ε = 0.1 #2"]
    for each in bare:
        each.cancel()
    assert typed.resolved is not None and typed.resolved.parts, "what a typed specification leaves out is not sent"
    job.cancel()


def test_dicts_and_typed_specifications_are_one(client: scrimp.Client, dataset: str) -> None:
    typed = spec(dataset)
    assert client.quote(typed).charge == client.quote(typed.document()).charge
    assert client.forecast(dataset, typed).per_job == client.forecast(dataset, typed.document()).per_job


def test_rows_are_frames_where_pandas_is(
    client: scrimp.Client, job: JobHandle, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = client.ledger(dataset)
    frame = ledger.frame()
    assert frame["name"].tolist() == ["train", "holdout"] and (frame["budget"] >= frame["spent"]).all()
    lines = client.ledger_entries(dataset)
    assert next(lines).kind == "open"
    assert "hold" in lines.frame()["kind"].tolist()
    assert client.ledger_entries(dataset).rows(1)[0].seq == 1
    assert len(ledger.plot().patches) == 6
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert [each.name for each in ledger.rows()] == ["train", "holdout"], "typed rows need nothing"
    with pytest.raises(MissingPackage, match=r"pandas: pip install 'scrimp-client\[notebook\]'"):
        ledger.frame()
    with pytest.raises(ImportError, match="matplotlib"):
        ledger.plot()


def test_html_is_escaped() -> None:
    point = MetricPoint(name="<b>&", step=1, value=0.123456789, std=0.1, on="holdout", released_by="x")
    found = Rows([point] * 60)._repr_html_()
    assert "&lt;b&gt;&amp;" in found and "<b>" not in found and "and 10 more" in found and "0.123457" in found


def test_scores_and_trials_are_drawn() -> None:
    points = [
        MetricPoint(name="accuracy", step=step, value=0.5 + step / 100, std=0.01, on="holdout", released_by="noisy")
        for step in (10, 20, 30)
    ]
    axes = metrics(points, "a job")
    assert axes.lines[0].get_ydata().tolist() == [0.6, 0.7, 0.8] and axes.get_title() == "a job"
    with pytest.raises(scrimp.ScrimpError, match="no scores"):
        metrics([], "a job")
    trial = {"job": "job_1", "number": 1, "role": "pilot", "status": "succeeded", "steps": 5, "r": 1.0}
    trial |= {"learning_rate": 0.5, "charge": {"train": 1, "holdout": 0}, "chosen": False}
    found = Trial(**trial, score={"value": 0.7, "std": 0.05})
    assert trials([found]).get_xscale() == "log"
    with pytest.raises(scrimp.ScrimpError, match="no trial"):
        trials([Trial(**trial)])


def test_an_error_says_what_where_and_what_to_do(client: scrimp.Client, dataset: str, cli: Cli) -> None:
    with pytest.raises(scrimp.InvalidRequest) as invalid:
        client.jobs.submit({"dataset": dataset, "length": {"steps": 0}})
    said = str(invalid.value)
    assert "/length/steps  Input should be greater than or equal to 1" in said and "/privacy" in said
    assert "[422 /problems/invalid-request]" in said and "nothing was stored" in said
    with pytest.raises(scrimp.BudgetRefused) as refused:
        client.jobs.submit(spec(dataset, epsilon=20.0))
    assert "Nothing was charged; the largest ε that fits is " in str(refused.value)
    with scrimp.Client(cli.url, "wrong") as stranger, pytest.raises(scrimp.ApiError, match="SCRIMP_KEY"):
        stranger.own_key()
    busy = error_of({"status": 429, "type": "/problems/too-many-requests", "detail": "wait", "retry_after_s": 7})
    assert isinstance(busy, TooManyRequests) and str(busy).endswith("Try again in 7 s.")


def test_a_quote_is_a_table(client: scrimp.Client, dataset: str) -> None:
    shown = client.quote(spec(dataset))._repr_html_()
    assert "fits" in shown and "training" in shown and "δ = 1e-05" in shown
    assert "spent" in client.ledger(dataset)._repr_html_()
    shown = client.dataset(dataset)._repr_html_()
    assert "1,500 to train on" in shown and "spent" in shown
    assert ".frame()" in repr(client.datasets())
    assert Job.model_fields.keys() >= {"quote", "metrics"}
