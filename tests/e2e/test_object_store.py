"""A job end to end on S3: API, relay and worker have homes of their own and share no folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import obstore
import pytest
from obstore.store import from_url

from tests import servers
from tests.e2e.cluster import Cluster
from tests.e2e.conftest import job_of, until


class Apart(Cluster):
    """Each relay and worker has a home of its own, with its secret."""

    bucket: str
    heads: str

    def own_home(self, name: str, secret: str) -> dict[str, str]:
        home = self.home.parent / name
        (home / "secrets").mkdir(parents=True, mode=0o700)
        for each in (secret, "webhook_key"):
            shutil.copy(self.home / "secrets" / each, home / "secrets" / each)
        (home / "storage").mkdir()
        return {"SCRIMP_HOME": str(home)}


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    with ExitStack() as stack:
        s3 = stack.enter_context(servers.s3())
        postgres, redis = stack.enter_context(servers.postgres()), stack.enter_context(servers.redis())
        bucket, heads = s3.bucket() + "/team", s3.bucket() + "/heads"
        environment = s3.environment | {
            "SCRIMP_DATABASE_URL": servers.new_database(postgres),
            "SCRIMP_BROKER_URL": redis.url(),
            "SCRIMP_OBJECT_STORE": bucket,
            "SCRIMP_HEADS_STORE": heads,
            "SCRIMP_OBJECT_ENCRYPTION": "AES256",
            "SCRIMP_WORKER_PROCESSES": "1",
        }
        made = Apart(tmp_path_factory.mktemp("apart") / "home", environment)
        made.bucket, made.heads = bucket, heads
        stack.callback(made.stop)
        made._run("relay", *made._command("relay"), **made.own_home("relay", "signing_key"))
        made._run("worker", *made._command("worker"), **made.own_home("worker", "noise_secret"))
        with pytest.MonkeyPatch.context() as patch:
            for name, value in s3.environment.items():
                patch.setenv(name, value)
            yield made.start(apis=1)


def keys(bucket: str) -> set[str]:
    store = from_url(bucket, client_options={"allow_http": True})
    return {each["path"] for some in obstore.list(store) for each in some}


def files(home: Path, kind: str = "jobs") -> set[str]:
    """The files of jobs, or of another kind, in a home."""
    return {str(path.relative_to(home)) for path in (home / "storage" / kind).rglob("*") if path.is_file()}


@pytest.mark.nightly  # by day tests/system/test_parts.py: machines that share no folder; a drill with buckets
def test_a_job_end_to_end_without_a_shared_folder(apart: Apart) -> None:
    dataset = apart.register("apart")
    assert files(apart.home.parent / "home", "datasets") == set()
    parts = {key for key in keys(apart.bucket) if key.startswith(f"datasets/{dataset}/")}
    assert {key.rpartition("/")[2] for key in parts} == {
        f"{name}.arrow{of}" for name in ("train", "holdout") for of in ("", ".index")
    }
    with apart.client() as client:
        job = client.submit(job_of(dataset)).id
        (ended,) = apart.finished([job])
        assert ended["status"] == "succeeded", ended
        model = f"jobs/{job}/attempt-1/model.safetensors"
        assert {model, f"jobs/{job}/dataset"} <= keys(apart.bucket)
        assert [files(apart.home.parent / name) for name in ("home", "worker", "relay")] == [set()] * 3
        (artifact,) = [each for each in ended["artifacts"] if each["name"] == "model.safetensors"]
        _download(apart, job, artifact["size_bytes"])
        assert len(client.predict(job, [{f"x{number}": 0.1 for number in range(5)}])) == 1
        apart.assert_charged(dataset, [ended])
        assert keys(apart.heads) == {f"{dataset}.json", f"{dataset}.checkpoint"}
        assert not any((apart.home.parent / name / "heads").exists() for name in ("home", "worker", "relay"))
        _damage(apart, job, model)
        _damage_copy(apart, dataset)
        client.json("DELETE", f"/v1/jobs/{job}/artifacts")
        until(lambda: not {key for key in keys(apart.bucket) if job in key})
        with httpx.Client(base_url=f"http://127.0.0.1:{apart.port}", headers=_key(apart)) as http:
            assert http.get(f"/v1/jobs/{job}/artifacts/model.safetensors").status_code == 404
        client.json("DELETE", f"/v1/datasets/{dataset}/content")
        assert not {key for key in keys(apart.bucket) if dataset in key}


def _key(apart: Apart) -> dict[str, str]:
    return {"Authorization": f"Bearer {(apart.home / 'admin.key').read_text().strip()}"}


def _download(apart: Apart, job: str, size: int) -> None:
    """Whole and in ranges, from the API's own copy, whose hash was checked as it arrived."""
    with httpx.Client(base_url=f"http://127.0.0.1:{apart.port}", headers=_key(apart)) as http:
        address = f"/v1/jobs/{job}/artifacts/model.safetensors"
        whole = http.get(address)
        part = http.get(address, headers={"Range": "bytes=2-9"})
        assert http.get("/readyz").json()["checks"]["storage"] == "ok"
    assert (whole.status_code, len(whole.content), part.status_code) == (200, size, 206)
    assert part.content == whole.content[2:10]


def _damage_copy(apart: Apart, dataset: str) -> None:
    """A worker's copy that its disk has changed: one attempt finds it, the next one fetches the part anew."""
    (copy,) = (apart.home.parent / "worker" / "storage" / "cache").rglob("train.arrow")
    copy.write_bytes(bytes(copy.stat().st_size))
    with apart.client() as client:
        (ended,) = apart.finished([client.submit(job_of(dataset)).id])
    assert [each["status"] for each in ended["attempts"]] == ["lost", "succeeded"], ended


def _damage(apart: Apart, job: str, model: str) -> None:
    """A changed object is refused once no copy is left."""
    store = from_url(apart.bucket, client_options={"allow_http": True})
    whole = bytes(obstore.get(store, model).bytes())
    obstore.put(store, model, whole[:-1] + bytes([whole[-1] ^ 1]))
    shutil.rmtree(apart.home / "storage" / "cache")
    with httpx.Client(base_url=f"http://127.0.0.1:{apart.port}", headers=_key(apart)) as http:
        address = f"/v1/jobs/{job}/artifacts/model.safetensors"
        assert http.get(address).json()["type"] == "/problems/artifact-damaged"
        obstore.put(store, model, whole)
        assert http.get(address).content == whole
