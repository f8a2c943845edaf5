"""deploy/helm, jobs on several machines: a RayCluster of KubeRay's, and who may reach and read what there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from typer.testing import CliRunner

from app.settings import Settings
from scrimp.cli import app
from tests.deploy.test_helm import CHART, KUBERNETES, VALUES, Document, config_of, helm, of_kind, rendered

SCHEMA = json.loads((Path(__file__).parent / "ray_cluster.schema.json").read_text())
MANY: dict[str, dict[str, Any]] = {
    "as shipped": {"ray": {"enabled": True}},
    "everything": VALUES["everything"] | {"ray": {"enabled": True, "drivers": 2, "machines": 6, "processors": 32}},
    "buckets": VALUES["buckets"] | {"ray": {"enabled": True, "nodeSelector": {"pool": "ray"}}},
    "watched": VALUES["watched"] | {"ray": {"enabled": True}},
    "sealed": {"ray": {"enabled": True}, "storage": {"encrypt": True}},
}


@pytest.fixture(params=list(MANY))
def documents(request: pytest.FixtureRequest) -> list[Document]:
    return rendered(MANY[request.param])


def groups(documents: list[Document]) -> dict[str, Document]:
    (cluster,) = of_kind(documents, "RayCluster").values()
    spec = cluster["spec"]
    return {"head": spec["headGroupSpec"]} | {each["groupName"]: each for each in spec["workerGroupSpecs"]}


def options(parameters: dict[str, str]) -> list[str]:
    """Those of `ray start`, as an older KubeRay makes them: most that are true are switches, or else are not there."""
    switches = {
        name
        for name, value in parameters.items()
        if value in ("true", "false") and name not in ("log-color", "include-dashboard")
    }
    said = [f"--{name}={value}" for name, value in parameters.items() if name not in switches]
    return said + [f"--{name}" for name in switches if parameters[name] == "true"]


def containers(documents: list[Document]) -> Iterator[tuple[str, str, Document, Document]]:
    for group, each in groups(documents).items():
        pod = each["template"]["spec"]
        for container in [*pod["initContainers"], *pod["containers"]]:
            yield group, container["name"], container, pod


def test_the_cluster_is_one_that_kuberay_and_kubernetes_accept(documents: list[Document]) -> None:
    (cluster,) = of_kind(documents, "RayCluster").values()
    jsonschema.validate(cluster, SCHEMA)
    for name, group in groups(documents).items():
        template = {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": name},
            "template": group["template"],
        }
        kubernetes_validate.validate(template, KUBERNETES, strict=True)
        assert group["template"]["spec"]["containers"][0]["name"] == "ray", "the one that KubeRay runs `ray start` in"
    kubernetes_validate.validate(of_kind(documents, "NetworkPolicy")["demo-ray"], KUBERNETES, strict=True)


def test_ray_asks_for_its_token_and_encrypts_in_every_pod(documents: list[Document]) -> None:
    for group, name, container, _pod in containers(documents):
        if name not in ("ray", "worker"):
            continue
        environment = {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}
        assert environment["RAY_AUTH_MODE"] == "token" and environment["RAY_USE_TLS"] == "1", group
        assert environment["RAY_AUTH_TOKEN"] == {"secretKeyRef": {"name": "scrimp-ray", "key": "token"}}
        folders = {
            environment[f"RAY_TLS_{each}"].rpartition("/")[0] for each in ("SERVER_CERT", "SERVER_KEY", "CA_CERT")
        }
        mounted = {each["mountPath"]: each for each in container["volumeMounts"]}
        assert folders == {"/run/ray"} and mounted["/run/ray"]["readOnly"]
    head = groups(documents)["head"]["rayStartParams"]
    assert (head["num-cpus"], head["include-dashboard"]) == ("0", "false")
    assert all("--include-log-monitor=0" in options(each["rayStartParams"]) for each in groups(documents).values())


def test_only_the_cluster_s_own_pods_reach_a_port(documents: list[Document]) -> None:
    policy = of_kind(documents, "NetworkPolicy")["demo-ray"]["spec"]
    (ingress,) = policy["ingress"]
    assert ingress == {"from": [{"podSelector": policy["podSelector"]}]}
    for group in groups(documents).values():
        assert policy["podSelector"]["matchLabels"].items() <= group["template"]["metadata"]["labels"].items()
    for name, each in of_kind(documents, "Deployment").items():
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert not policy["podSelector"]["matchLabels"].items() <= labels.items(), name
    if "egress" in policy:
        assert policy["policyTypes"] == ["Ingress", "Egress"] and policy["egress"][0]["to"] == ingress["from"]


def test_who_holds_a_secret(documents: list[Document]) -> None:
    """The authority's key is in the container that signs alone; the service's secrets are where a worker is."""
    for group, name, container, pod in containers(documents):
        mounted = {each["name"] for each in container["volumeMounts"]}
        assert ("given-ray" in mounted) is (name == "certificate"), (group, name)
        assert ("secrets" in mounted) is (group == "drivers" and name in ("secrets", "wait", "worker")), (group, name)
        assert ("given" in mounted) is (name == "secrets")
        volumes = {each["name"]: each for each in pod["volumes"]}
        assert mounted <= volumes.keys() and not pod["automountServiceAccountToken"]
        assert ("given" in volumes) is (group == "drivers")
        assert container["securityContext"]["readOnlyRootFilesystem"] and "memory" in container["resources"]["limits"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    # A machine without parts_key seals nothing, whatever the service does.
    config = config_of(documents)
    for _group, name, container, _pod in containers(documents):
        if name == "ray":
            values = config["data"] | {each["name"]: each.get("value") for each in container["env"]}
            assert values["SCRIMP_ENCRYPT_PARTS"] == "false"


def test_a_machine_s_settings_are_read_without_any_secret(documents: list[Document], tmp_path: Path) -> None:
    """An actor reads them (worker.cluster.node): nothing that they name but the storage must be there."""
    config = config_of(documents)
    data = config["data"] | {"SCRIMP_HOME": str(tmp_path), "SCRIMP_ENCRYPT_PARTS": "false"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in data.items():
            patch.setenv(name, value)
        assert Settings().home == tmp_path


def test_a_driver_finds_its_raylet_and_drains() -> None:
    documents = rendered(MANY["everything"])
    driver, machines = (groups(documents)[each] for each in ("drivers", "machines"))
    assert (driver["replicas"], machines["replicas"]) == (2, 6)
    for each in (driver, machines):
        assert each["minReplicas"] == each["maxReplicas"] == each["replicas"]
        assert each["rayStartParams"]["num-cpus"] == "32"
    pod = driver["template"]["spec"]
    ray, worker = pod["containers"]
    assert worker["args"] == ["scrimp", "worker", "--devices", "cpu", "--ray", "demo-ray-head-svc:6379"]
    assert CliRunner().invoke(app, ["worker", "--ray", "x", "--help"]).exit_code == 0
    shared = [{each["mountPath"]: each["name"] for each in one["volumeMounts"]} for one in (ray, worker)]
    assert all(shared[0][path] == shared[1][path] for path in ("/var/lib/scrimp", "/run/ray"))
    assert {"tmp", "shm"} <= set(shared[0].values()) & set(shared[1].values()), "where its sockets are"
    assert pod["shareProcessNamespace"]
    (seconds,) = [each["value"] for each in worker["env"] if each["name"] == "SCRIMP_DRAIN_S"]
    assert pod["terminationGracePeriodSeconds"] >= float(seconds) + 30
    assert [each["name"] for each in machines["template"]["spec"]["containers"]] == ["ray"]


def test_each_pod_s_certificate_names_how_it_is_reached(tmp_path: Path) -> None:
    """The command of each pod's first container, with folders of this test in place of its mounts."""
    from worker.cluster import certificates

    assert certificates.main(["authority", str(tmp_path / "given")]) == 0
    for group, name, container, _pod in containers(rendered(MANY["as shipped"])):
        if name != "certificate":
            continue
        assert container["command"][:3] == ["python", "-m", "worker.cluster.certificates"]
        told = {"/given-ray": str(tmp_path / "given"), "/run/ray": str(tmp_path / group), "$(POD_IP)": "10.1.2.3"}
        command = [told.get(each, each) for each in container["command"][3:]]
        assert certificates.main(command) == 0
        assert certificates.main(command) == 0, "a pod that begins again has another address"
        names = certificates.hosts_of(tmp_path / group / "machine.crt")
        assert {"10.1.2.3", "127.0.0.1", "localhost"} <= names
        assert ("demo-ray-head-svc.prod.svc.cluster.local" in names) is (group == "head")


@pytest.mark.parametrize(
    "wrong", [{"drivers": 0}, {"machines": -1}, {"version": "latest"}, {"secret": ""}, {"memory": "much"}, {"gpus": 8}]
)
def test_wrong_values_are_refused(wrong: dict[str, Any]) -> None:
    with helm.Chart.load(str(CHART)) as chart, pytest.raises(helm.HelmError):
        chart.validate_schema(chart.merge_values({"ray": {"enabled": True} | wrong}))


def test_attempts_of_a_cluster_have_no_second_user() -> None:
    with pytest.raises(helm.HelmError, match="leave secondUser"):
        rendered({"ray": {"enabled": True}, "secondUser": {"enabled": True}})
    assert of_kind(rendered({}), "RayCluster") == {}
