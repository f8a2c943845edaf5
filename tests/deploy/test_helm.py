"""deploy/helm: rendered by Helm's own engine, checked against Kubernetes' schemas, and each command line run."""

from __future__ import annotations

import copy
import os
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from sqlalchemy import text
from typer.testing import CliRunner

from app.db.database import Database
from app.db.models import Job
from app.ledger.signer import CommandSigner
from app.lifecycle.states import ACTIVE
from app.secrets import NAMES, load_secret
from app.settings import Settings
from scrimp.cli import app
from tests.lifecycle.conftest import Submit as Submit  # noqa: PLC0414 - of the fixture below
from tests.lifecycle.conftest import submit
from tests.worker import second_user

__all__ = ["submit"]
helm = pytest.importorskip("helm_python")  # its wheels are for Linux on x86-64, macOS and Windows
CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "scrimp"
KUBERNETES = "1.31"
GPU = {
    "device": "cuda",
    "gpus": 2,
    "replicas": 1,
    "sharedMemory": "4Gi",
    "resources": {"requests": {"cpu": "4"}, "limits": {"memory": "32Gi"}},
}
TERM = {"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}]}
ON_ARM = {
    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}},
}
INGRESS = {"enabled": True, "className": "nginx", "tlsSecret": "tls"}


def reached(*ports: int) -> dict[str, Any]:
    """A rule of egress."""
    return {"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": port} for port in ports]}


VALUES: dict[str, dict[str, Any]] = {
    "as shipped": {},
    "everything": {
        "workers": {"cuda": GPU | {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}},
        "scaling": {"enabled": True},
        "api": {"hosts": ["scrimp.example.org"], "ingress": INGRESS},
        "objectStore": {"url": "s3://models/scrimp", "secret": "aws"},
        "models": {"existingClaim": "models"},
        "storage": {"existingClaim": "shared", "storageClassName": "nfs"},
    },
    "buckets": {
        "objectStore": {
            "url": "s3://scrimp/team",
            "heads": "s3://scrimp-heads/team",
            "encryption": "aws:kms",
            "kmsKey": "key-1",
            "dataBuckets": ["raw-data", "shared/a"],
        },
        "api": {"hosts": ["scrimp.example.org"], "ingress": INGRESS | {"annotations": {"a": "b"}}},
        "ingest": {"replicas": 2, "nodeSelector": {"pool": "ingest"}},
    },
    "a second user": {"secondUser": {"enabled": True}, "objectStore": {"url": "s3://scrimp/team"}},
    "people and mail": {
        "signIn": {
            "issuer": "https://login.example.org/realms/lab",
            "clientId": "scrimp",
            "clientSecret": True,
            "redirectUrl": "https://scrimp.example.org/dashboard/sign-in/callback",
            "roles": {"ml-team": "analyst", "data": "owner"},
        },
        "mail": {"host": "smtp.example.org", "user": "scrimp", "from": "s@example.org", "recipients": ["example.org"]},
        "signing": {"command": "/usr/local/bin/scrimp-sign --slot 1", "publicKey": "A" * 43 + "="},
    },
    "watched": {
        "images": {"pullSecrets": [{"name": "registry"}]},
        "networkPolicy": {
            "enabled": True,
            "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}}],
            "egress": {
                "api": [reached(5432, 6379)],
                "relay": [reached(5432, 6379), reached(443)],
                "workers": [reached(5432, 6379)],
            },
        },
        "monitoring": {
            "serviceMonitor": {"enabled": True, "interval": "15s", "labels": {"release": "prometheus"}},
            "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
        },
        "api": {"autoscaling": {"enabled": True}, "affinity": ON_ARM, "nodeSelector": {"pool": "api"}},
        "relay": {"affinity": ON_ARM, "tolerations": [{"key": "spot", "operator": "Exists"}]},
        "scaling": {"enabled": True, "operator": {"role": True}},
        "workers": {"cpu": {"runtimeClassName": "gvisor", "affinity": ON_ARM}, "cuda": GPU},
    },
    "closed": {"networkPolicy": {"enabled": True}, "ingest": {"replicas": 1}},
    "a GPU alone": {"workers": {"cpu": None, "cuda": GPU}, "scaling": {"enabled": True}},
}
HOLDS = {
    "api": {"api_key_pepper", "session_key", "data_hmac_key", "webhook_key", "parts_key"},
    "relay": {"signing_key", "webhook_key"},
    "worker": {"noise_secret", "parts_key"},
    "ingest": {"data_hmac_key", "parts_key"},
}
Document = dict[str, Any]


def rendered(values: dict[str, Any]) -> list[Document]:
    with helm.Chart.load(str(CHART)) as chart:
        texts = chart.render(copy.deepcopy(values), name="demo", namespace="prod")
    return [each for text_ in texts.values() for each in yaml.safe_load_all(text_) if each]


@pytest.fixture(scope="module", params=list(VALUES))
def documents(request: pytest.FixtureRequest) -> list[Document]:
    return rendered(VALUES[request.param])


def of_kind(documents: list[Document], kind: str) -> dict[str, Document]:
    return {each["metadata"]["name"]: each for each in documents if each["kind"] == kind}


def config_of(documents: list[Document]) -> Document:
    """All settings, of whichever ConfigMap."""
    return {"data": dict(pair for each in of_kind(documents, "ConfigMap").values() for pair in each["data"].items())}


def pods(documents: list[Document]) -> dict[str, Document]:
    return {name: each["spec"]["template"]["spec"] for name, each in of_kind(documents, "Deployment").items()}


def containers(documents: list[Document]) -> Iterator[tuple[str, Document]]:
    for name, pod in pods(documents).items():
        for each in [*pod["initContainers"], *pod["containers"]]:
            yield f"{name}/{each['name']}", each


def test_helm_finds_no_fault() -> None:
    found = helm.lint(str(CHART))
    assert found["errors"] == [] and [each for each in found["messages"] if each["severity"] > 1] == []


def test_kubernetes_accepts_every_document(documents: list[Document]) -> None:
    names = [(each["kind"], each["metadata"]["name"]) for each in documents]
    assert len(names) == len(set(names))
    for each in documents:
        if not each["apiVersion"].startswith(("keda.sh/", "monitoring.coreos.com/", "ray.io/")):
            kubernetes_validate.validate(each, KUBERNETES, strict=True)


def test_pods_are_confined_and_hold_their_own_secrets_alone(documents: list[Document]) -> None:
    for name, each in containers(documents):
        context = each["securityContext"]
        becomes = context.get("runAsUser") == 0
        kept = {"add": ["SETUID", "SETGID", "KILL"]} if becomes else {}
        assert context["readOnlyRootFilesystem"] and context["capabilities"] == {"drop": ["ALL"]} | kept, name
        assert becomes is (each["name"] == "worker" and "command" in each), name
        assert not context["allowPrivilegeEscalation"] and "memory" in each["resources"]["limits"], name
        mounted = {mount["name"] for mount in each["volumeMounts"]}
        assert ("given" in mounted) is (each["name"] == "secrets"), name
        admin = any(mount.get("subPath") == "admin" for mount in each["volumeMounts"])
        assert admin is (each["name"] in ("api", "migrate")), name
    for name, pod in pods(documents).items():
        (given,) = [each["secret"]["secretName"] for each in pod["volumes"] if each["name"] == "given"]
        assert given == f"scrimp-{name.split('-')[1]}"
        assert pod["automountServiceAccountToken"] is False and pod["securityContext"]["runAsUser"] == 10001


def test_every_setting_exists(documents: list[Document]) -> None:
    known = {f"SCRIMP_{name.upper()}" for name in Settings.model_fields}
    config = config_of(documents)
    named = set(config["data"]) | {each["name"] for _, one in containers(documents) for each in one.get("env", ())}
    assert named <= known


def test_sign_in_mail_and_signing_program_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the pods get, as the service reads it; nothing of it without these values."""
    values = VALUES["people and mail"]
    config = config_of(rendered(values))
    for name, value in config["data"].items():
        monkeypatch.setenv(name, value)
    read = Settings()
    sign_in, mail = values["signIn"], values["mail"]
    assert (read.oidc_issuer, read.oidc_client_id) == (sign_in["issuer"], sign_in["clientId"])
    assert (read.oidc_redirect_url, read.oidc_roles) == (sign_in["redirectUrl"], sign_in["roles"])
    assert read.oidc_client_secret_file == Path("/run/secrets/oidc_client_secret")
    assert (read.smtp_host, read.smtp_port, read.smtp_security) == (mail["host"], 587, "starttls")
    assert (read.smtp_user, read.smtp_from, read.smtp_recipients) == (mail["user"], mail["from"], mail["recipients"])
    assert read.smtp_password_file == Path("/run/secrets/smtp_password")
    assert CommandSigner.of(read).command == ("/usr/local/bin/scrimp-sign", "--slot", "1")
    plain = config_of(rendered({}))
    assert not [name for name in plain["data"] if re.match("SCRIMP_(OIDC|SMTP|SIGN)", name)]


UNFINISHED: list[dict[str, Any]] = [
    {"signIn": {"issuer": "https://login.example.org", "roles": {"a": "owner"}}},
    {"signIn": VALUES["people and mail"]["signIn"] | {"roles": {"ml-team": "king"}}},
    {"mail": {"host": "smtp.example.org"}},
    {"signing": {"command": "sign"}},
]


@pytest.mark.parametrize("values", UNFINISHED)
def test_values_that_no_service_could_use_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(Exception, match="schema"):
        rendered(values)


def test_a_second_user_for_attempts() -> None:
    documents = rendered(VALUES["a second user"])
    config = config_of(documents)
    settings = {name: value for name, value in config["data"].items() if "ATTEMPT" in name}
    assert settings == {"SCRIMP_ATTEMPT_UID": "10002", "SCRIMP_ATTEMPT_GID": "10002"}
    (worker,) = [each for name, each in containers(documents) if name.endswith("/worker")]
    assert worker["livenessProbe"]["exec"]["command"][-3:] == ["python", "-m", "app.system.health"]
    second_user.require_root()
    with second_user.home_of_service(10001) as home:
        open_ = home.parent / "open"
        open_.mkdir()
        open_.chmod(0o777)
        shell, option, script, name = worker["command"]
        script = re.sub(r"/var/lib/scrimp\b", str(open_), script).replace(" /tmp /dev/shm", f" {home.parent / 'tmp'}")
        (home.parent / "tmp").mkdir()
        assert second_user.becomes([shell, option, script, name], settings, home) == "(10001, 10001, 10001) [10002]"
        modes = [stat.S_IMODE(each.stat().st_mode) for each in (open_, home.parent / "tmp")]
    assert modes == [0o775, 0o1777]
    assert all("ATTEMPT" not in name for name in config_of(rendered({}))["data"])


def test_parts_are_sealed_if_a_value_says_so() -> None:
    for values, said in (({}, None), ({"storage": {"encrypt": True}}, "true")):
        config = config_of(rendered(values))
        assert config["data"].get("SCRIMP_ENCRYPT_PARTS") == said


def test_each_command_line_is_one_of_ours(documents: list[Document]) -> None:
    for line in sorted({tuple(each["args"]) for _, each in containers(documents) if "args" in each}):
        begins = line.index("scrimp")
        assert line[:begins] in ((), ("python", "-m", "worker.cluster.alone", "--num-gpus=2", "--"))
        done = CliRunner().invoke(app, [*line[begins + 1 :], "--help"])
        assert done.exit_code == 0 and "Usage" in done.output, (line, done.output)
    scripts = [each["command"] for _, each in containers(documents) if "command" in each]
    for shell, option, script, *_ in scripts:
        assert subprocess.run([shell, "-n", option, script], check=False).returncode == 0


def test_a_worker_s_pod_drains_before_it_goes(documents: list[Document]) -> None:
    """Kubernetes counts the hook's time too, so the pod has more than the worker."""
    for name, pod in pods(documents).items():
        if "worker" not in name:
            continue
        (worker,) = pod["containers"]
        command = worker["lifecycle"]["preStop"]["exec"]["command"]
        assert command[command.index("scrimp") :] == ["scrimp", "worker", "--drain"]
        assert ("setpriv" in command) is ("command" in worker)
        (seconds,) = [each["value"] for each in worker["env"] if each["name"] == "SCRIMP_DRAIN_S"]
        assert pod["terminationGracePeriodSeconds"] >= float(seconds) + 30
        done = CliRunner().invoke(app, ["worker", "--drain", "--help"])
        assert done.exit_code == 0 and "--drain" in done.output


RUN: set[tuple[str, ...]] = set()  # checks that answered; a process for each takes a second


def test_the_probes_ask_what_answers(documents: list[Document], settings: Settings, db: Database) -> None:
    api = pods(documents)["demo-api"]["containers"][0]
    hosts = next(each["value"] for each in api["env"] if each["name"] == "SCRIMP_ALLOWED_HOSTS")
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = api[probe]["httpGet"]
        assert asked["path"] in ("/healthz", "/readyz") and asked["httpHeaders"][0]["value"] in yaml.safe_load(hosts)
    checks = {
        tuple(command[command.index("python") :])  # as the service's user
        for _, each in containers(documents)
        if (command := each.get("livenessProbe", {}).get("exec", {}).get("command"))
    }
    environment = os.environ | {"SCRIMP_HOME": str(settings.home)}
    for program, *arguments in sorted(checks - RUN):
        RUN.add((program, *arguments))
        assert program == "python"
        done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout


def test_with_buckets_a_volume_has_the_admin_key_and_the_files_that_arrive() -> None:
    documents = rendered(VALUES["buckets"])
    for name, pod in pods(documents).items():
        claims = [each for each in pod["volumes"] if "persistentVolumeClaim" in each]
        assert [each["name"] for each in claims] == (["shared"] if name in ("demo-api", "demo-ingest") else []), name
    paths = {
        (name, each["mountPath"])
        for name, one in containers(documents)
        for each in one["volumeMounts"]
        if each.get("subPath") == "arrivals"
    }
    storage = Settings(home=Path("/var/lib/scrimp"), object_store="s3://scrimp/team").arrivals_root
    assert paths == {(name, str(storage)) for name in ("demo-api/migrate", "demo-api/api", "demo-ingest/ingest")}
    mounted = {
        (each["subPath"], name.partition("/")[0])
        for name, one in containers(documents)
        for each in one["volumeMounts"]
        if each["name"] == "shared"
    }
    assert mounted == {("admin", "demo-api"), ("arrivals", "demo-api"), ("arrivals", "demo-ingest")}
    config = config_of(documents)
    assert Settings.model_validate(
        {
            name.removeprefix("SCRIMP_").lower(): yaml.safe_load(value) if value.startswith("[") else value
            for name, value in config["data"].items()
            if name.startswith(("SCRIMP_OBJECT", "SCRIMP_HEADS", "SCRIMP_DATA_BUCKETS"))
        }
    ).data_buckets == ["raw-data", "shared/a"]
    assert "SCRIMP_HEADS_DIR" not in config["data"]
    (ingress,) = of_kind(documents, "Ingress").values()
    assert set(ingress["metadata"]["annotations"]) == {"a"}, "any pod goes on with an upload"


def test_secrets_are_copied_as_the_service_wants_them(
    documents: list[Document], tmp_path: Path, settings: Settings
) -> None:
    """The command of the init container, with folders of this test in place of its mounts."""
    (script,) = {each["command"][2] for _, each in containers(documents) if each["name"] == "secrets"}
    given, copied = tmp_path / "given", tmp_path / "copied"
    given.mkdir()
    copied.mkdir()
    for name in NAMES:  # as Kubernetes lays them: links into a folder of files that the group may read
        (given / f"..{name}").write_text((settings.effective_secrets_dir / name).read_text())
        (given / f"..{name}").chmod(0o440)
        (given / name).symlink_to(f"..{name}")
    here = script.replace("/given/", f"{shlex.quote(str(given))}/").replace(
        "/run/secrets/", f"{shlex.quote(str(copied))}/"
    )
    subprocess.run(["sh", "-c", here], check=True)
    for name in NAMES:
        assert stat.S_IMODE((copied / name).stat().st_mode) == 0o400
        assert load_secret(settings.model_copy(update={"secrets_dir": copied}), name)


def test_the_images_have_what_the_chart_offers() -> None:
    """A bucket, traces; Hugging Face models and Ray on workers."""
    installed = re.findall(r"-e '\.\[([a-z0-9,]+)\]'", (CHART.parents[2] / "Dockerfile").read_text())
    api, worker = (set(each.split(",")) for each in installed)
    assert {"production", "s3", "otel"} <= api & worker and {"hf", "ray"} <= worker


def test_a_gpu_worker_has_its_gpus() -> None:
    found = pods(rendered(VALUES["everything"]))
    (worker,) = found["demo-worker-cuda"]["containers"]
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert worker["args"][:5] == ["python", "-m", "worker.cluster.alone", "--num-gpus=2", "--"]
    assert worker["args"][5:9] == ["scrimp", "worker", "--devices", "cuda"]
    (api,) = found["demo-api"]["containers"]
    assert [each["value"] for each in api["env"] if each["name"] == "SCRIMP_RAY_ADDRESS"] == ["auto"]
    assert worker["image"].startswith("scrimp-worker-cuda:")
    assert "nvidia.com/gpu" not in found["demo-worker-cpu"]["containers"][0]["resources"]["limits"]


def test_pods_run_where_values_say() -> None:
    found = pods(rendered(VALUES["watched"]))
    assert {tuple(map(str, pod["imagePullSecrets"])) for pod in found.values()} == {("{'name': 'registry'}",)}
    placed = {"demo-api", "demo-relay", "demo-worker-cpu"}
    assert {name for name, pod in found.items() if pod.get("affinity") == ON_ARM} == placed
    assert {name: pod.get("runtimeClassName") for name, pod in found.items() if "runtimeClassName" in pod} == {
        "demo-worker-cpu": "gvisor"
    }
    assert found["demo-api"]["nodeSelector"] == {"pool": "api"}
    assert found["demo-relay"]["tolerations"] == [{"key": "spot", "operator": "Exists"}]
    for pod in pods(rendered({})).values():
        assert not {"imagePullSecrets", "runtimeClassName", "affinity", "nodeSelector", "tolerations"} & pod.keys()


def test_nobody_connects_but_to_the_api_s_port() -> None:
    """A policy for each Deployment, by the labels of its pods; DNS is always reached."""
    for values in ("watched", "closed"):
        documents = rendered(VALUES[values])
        policies = of_kind(documents, "NetworkPolicy")
        assert policies.keys() == pods(documents).keys()
        for name, each in of_kind(documents, "Deployment").items():
            policy = policies[name]["spec"]
            labels = each["spec"]["template"]["metadata"]["labels"]
            assert policy["podSelector"]["matchLabels"].items() <= labels.items()
            assert policy["policyTypes"] == (["Ingress", "Egress"] if values == "watched" else ["Ingress"])
            if name != "demo-api":
                assert policy["ingress"] == []
            if values == "watched":
                assert [port["port"] for port in policy["egress"][0]["ports"]] == [53, 53]
                component = labels["app.kubernetes.io/component"].partition("-")[0].replace("worker", "workers")
                assert policy["egress"][1:] == VALUES[values]["networkPolicy"]["egress"][component]
        (ingress,) = policies["demo-api"]["spec"]["ingress"]
        (container,) = pods(documents)["demo-api"]["containers"]
        assert [port["port"] for port in ingress["ports"]] == [port["name"] for port in container["ports"]]
        assert ingress.get("from") == VALUES[values]["networkPolicy"].get("from")
    assert of_kind(rendered({}), "NetworkPolicy") == {}


def test_prometheus_asks_the_service_with_a_key_and_has_the_project_s_rules() -> None:
    documents = rendered(VALUES["watched"])
    (monitor,) = of_kind(documents, "ServiceMonitor").values()
    selected = monitor["spec"]["selector"]["matchLabels"].items()
    (service,) = [
        each for each in of_kind(documents, "Service").values() if selected <= each["metadata"]["labels"].items()
    ]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert (endpoint["path"], endpoint["interval"]) == ("/metrics", "15s")
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["authorization"] == {"type": "Bearer", "credentials": {"name": "scrimp-metrics", "key": "token"}}
    (rule,) = of_kind(documents, "PrometheusRule").values()
    assert rule["spec"] == yaml.safe_load((CHART.parents[1] / "prometheus" / "alerts.yml").read_text())
    assert rule["metadata"]["labels"]["release"] == monitor["metadata"]["labels"]["release"] == "prometheus"


@pytest.mark.parametrize("store", [{}, {"objectStore": {"url": "s3://a/b"}}])
def test_the_api_is_scaled_by_processor_time_as_its_pods_share_uploads(store: dict[str, Any]) -> None:
    documents = rendered(VALUES["watched"] | store)
    (scaler,) = of_kind(documents, "HorizontalPodAutoscaler").values()
    api = of_kind(documents, "Deployment")[scaler["spec"]["scaleTargetRef"]["name"]]
    assert (
        "replicas" not in api["spec"] and "cpu" in pods(documents)["demo-api"]["containers"][0]["resources"]["requests"]
    )
    assert of_kind(rendered({}), "Deployment")["demo-api"]["spec"]["replicas"] == 2


def test_files_are_read_in_pods_of_their_own_that_nobody_reaches() -> None:
    documents = rendered(VALUES["closed"])
    pod = pods(documents)["demo-ingest"]
    (container,) = pod["containers"]
    assert container["args"] == ["scrimp", "worker", "--ingest"] and "ports" not in container
    assert container["image"] == pods(documents)["demo-api"]["containers"][0]["image"]
    selected = [
        each["spec"]["selector"].get("app.kubernetes.io/component") for each in of_kind(documents, "Service").values()
    ]
    assert "ingest" not in selected
    assert of_kind(documents, "NetworkPolicy")["demo-ingest"]["spec"]["ingress"] == []
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    assert {"/var/lib/scrimp/storage", "/var/lib/scrimp-heads"} <= mounts, "it stores parts and records heads"
    assert not [each for each in of_kind(documents, "ConfigMap")["demo-settings"]["data"] if "BROKER" in each]
    with_broker = {
        name
        for name, each in containers(documents)
        if {"configMapRef": {"name": "demo-broker"}} in each.get("envFrom", [])
    }
    assert {name.partition("/")[0] for name in with_broker} == pods(documents).keys() - {"demo-ingest"}
    assert "demo-ingest" not in pods(rendered({}))


def test_keda_may_read_the_secret_that_its_query_needs_and_no_other() -> None:
    documents = rendered(VALUES["watched"])
    (role,) = of_kind(documents, "Role").values()
    (binding,) = of_kind(documents, "RoleBinding").values()
    named = {
        each["spec"]["secretTargetRef"][0]["name"] for each in of_kind(documents, "TriggerAuthentication").values()
    }
    assert role["rules"] == [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": [*named], "verbs": ["get"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "keda-operator", "namespace": "keda"}]
    for values in ({}, {"scaling": {"enabled": True}}, {"scaling": {"operator": {"role": True}}}):
        assert of_kind(rendered(values), "Role") == {}


def test_no_busy_worker_is_scaled_in() -> None:
    """Pods only come while the query counts a job, and it counts every job that a worker holds or could take."""
    for each in of_kind(rendered(VALUES["watched"]), "ScaledObject").values():
        behaviour = each["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        assert behaviour == {"scaleDown": {"selectPolicy": "Disabled"}} and each["spec"]["minReplicaCount"] == 0
        (trigger,) = each["spec"]["triggers"]
        (statuses,) = re.findall(r"status IN \(([^)]*)\)", trigger["metadata"]["query"])
        assert {status.strip(" '") for status in statuses.split(",")} == {"queued", *ACTIVE}
        assert trigger["metadata"]["activationTargetQueryValue"] == "0"


def test_a_changed_secret_begins_new_pods() -> None:
    """Offline Helm looks up nothing, so the templates are read: each pod's annotation is made of its own Secret."""
    named = {
        name: re.findall(r'"scrimp.checksums" \(dict "root" [$.]+ "secret" [$]?.Values.secrets.(\w+)\)', text_)
        for name in ("api", "relay", "workers")
        for text_ in [(CHART / "templates" / f"{name}.yaml").read_text()]
    }
    assert named == {"api": ["api"], "relay": ["relay"], "workers": ["worker"]}
    for each in of_kind(rendered({}), "Deployment").values():
        annotations = each["spec"]["template"]["metadata"]["annotations"]
        assert annotations.keys() == {"checksum/settings", "checksum/secrets"}


@pytest.mark.parametrize("backing", ["postgres"])
def test_workers_are_scaled_by_jobs_of_their_devices(db: Database, submit: Submit, backing: str) -> None:
    """KEDA's query on a real PostgreSQL; a study waits for no worker."""
    jobs = {device: submit(runtime={"device": device}) for device in ("auto", "cpu", "cuda")}
    jobs["done"] = submit()
    with db.write() as session:
        session.get_one(Job, jobs["cpu"]).status = "running"
        session.get_one(Job, jobs["done"]).status = "succeeded"
    both, alone = rendered(VALUES["everything"]), rendered(VALUES["a GPU alone"])
    assert _counts(db, both) == {"demo-worker-cpu": 2, "demo-worker-cuda": 1}
    assert _counts(db, alone) == {"demo-worker-cuda": 3}
    for documents in (both, alone):
        assert set(of_kind(documents, "ScaledObject")) == set(of_kind(documents, "TriggerAuthentication"))
        assert all(
            "replicas" not in each["spec"]
            for name, each in of_kind(documents, "Deployment").items()
            if "worker" in name
        )


def _counts(db: Database, documents: list[Document]) -> dict[str, int]:
    queries = {
        name: each["spec"]["triggers"][0]["metadata"]["query"]
        for name, each in of_kind(documents, "ScaledObject").items()
    }
    with db.read() as session:
        return {name: int(session.scalar(text(query)) or 0) for name, query in queries.items()}


@pytest.mark.parametrize(
    "wrong",
    [
        {"workers": {"cpu": {"device": "tpu", "replicas": 1}}},
        {"settings": {"log_level": "INFO"}},
        {"database": {"url": "sqlite:///x"}},
        {"objectStore": {"url": "/a/folder"}},
        {"secret": {}},
        {"scaling": {"enabled": True, "minReplicas": 1}},
        {"networkPolicy": {"ingress": []}},
        {"networkPolicy": {"egress": []}},
        {"networkPolicy": {"egress": {"worker": []}}},
        {"monitoring": {"serviceMonitor": {"interval": "often"}}},
        {"api": {"autoscaling": {"cpuPercent": 0}}},
    ],
)
def test_wrong_values_are_refused(wrong: dict[str, Any]) -> None:
    with helm.Chart.load(str(CHART)) as chart, pytest.raises(helm.HelmError):
        chart.validate_schema(chart.merge_values(wrong))
