"""The Helm chart and the compose file: rendered, and checked against Kubernetes' schemas.

Helm itself is not run, and no cluster: ``helm_subset`` renders what the chart keeps to.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pyengine.cli.serve import serve
from tests.programs import REPOSITORY

pytestmark = pytest.mark.slow

CHART = REPOSITORY / "deploy" / "helm" / "pyengine"
KUBERNETES = "1.34"
# Of extensions, which Kubernetes' own schemas do not have.
CUSTOM = {"PodMonitor", "InferencePool"}
ALL = {
    "autoscaling": {"enabled": True},
    "podMonitor": {"enabled": True},
    "inferencePool": {"enabled": True},
}
GPUS: dict[str, Any] = {
    "model": "org/model",
    "environment": [{"name": "HF_TOKEN", "value": "t"}],
    "engine": {
        "resources": {"limits": {"nvidia.com/gpu": 1}},
        "nodeSelector": {"gpu": "yes"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "cacheClaim": "models",
    },
}
VALUES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "everything": ALL,
    "on GPUs": GPUS,
    "a gateway": {**ALL, "router": {"enabled": False}},
}


def objects(values: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """The chart's objects by kind and name."""
    from tests.deploy.helm_subset import render

    rendered = render(CHART, values)
    found = {(each["kind"], each["metadata"]["name"]): each for each in rendered}
    assert len(found) == len(rendered)
    return found


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_the_objects_are_kubernetes_own(values: dict[str, Any]) -> None:
    import kubernetes_validate

    found = objects(values)
    assert len(found) >= 3
    for (kind, _), each in found.items():
        if kind not in CUSTOM:
            kubernetes_validate.validate(each, KUBERNETES, strict=True)


def test_a_wrong_object_is_noticed() -> None:
    import kubernetes_validate

    found = objects({"engine": {"replicas": "two"}})
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(found["StatefulSet", "test-engine"], KUBERNETES, strict=True)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_selectors_find_their_pods(values: dict[str, Any]) -> None:
    found = objects(values)
    engine = found["StatefulSet", "test-engine"]["spec"]
    labels = engine["template"]["metadata"]["labels"]
    assert engine["selector"]["matchLabels"] == labels
    routed = ("Deployment", "test-router") in found
    pods = found["Deployment", "test-router"]["spec"]["template"] if routed else engine["template"]
    assert found["Service", "test"]["spec"]["selector"] == pods["metadata"]["labels"]
    if routed:
        (container,) = pods["spec"]["containers"]
        for label in (each for each in container["args"] if each.startswith("app.kubernetes.io/")):
            name, _, value = label.partition("=")
            assert labels[name] == value
    for kind in CUSTOM:
        for (each, _), what in found.items():
            if each == kind:
                assert what["spec"]["selector"]["matchLabels"] == labels


def started(arguments: list[str]) -> dict[str, Any]:
    """The settings of `pyengine serve` where the image is started with ``arguments``."""
    dockerfile = (REPOSITORY / "deploy" / "docker" / "Dockerfile").read_text()
    (entrypoint,) = re.findall(r"^ENTRYPOINT (\[.*\])$", dockerfile, re.MULTILINE)
    program, command, *first = json.loads(entrypoint)
    assert (program, command) == ("pyengine", "serve")
    return serve.make_context("serve", [*first, *arguments]).params


def deployed() -> Iterator[tuple[str, str, list[str], str | None]]:
    """What starts the image: where, the image, its arguments, and the model that it serves."""
    for values, model in ((ALL, None), (GPUS, "org/model")):
        (engine,) = objects(values)["StatefulSet", "test-engine"]["spec"]["template"]["spec"][
            "containers"
        ]
        yield "chart", engine["image"], engine["args"], model
    manifest = (REPOSITORY / "deploy" / "kubernetes" / "pyengine.yaml").read_text()
    for each in yaml.safe_load_all(manifest):
        if each["kind"] == "Deployment":
            (container,) = each["spec"]["template"]["spec"]["containers"]
            yield "manifest", container["image"], container["args"], None
    for folder in ("docker", "replicas"):
        compose = yaml.safe_load((REPOSITORY / "deploy" / folder / "compose.yaml").read_text())
        for name, service in compose["services"].items():
            if name.startswith(("pyengine", "replica")):
                image = re.sub(r"\$\{\w+:-(.*)\}", r"\1", service["image"])
                yield f"{folder}: {name}", image, service["command"], None


def test_the_image_is_started_with_arguments_that_there_are() -> None:
    places = set()
    for where, image, arguments, model in deployed():
        settings = started(arguments)
        assert (settings["host"], settings["model"]) == ("0.0.0.0", model), where
        assert settings["port"] in (None, 8000), where
        assert settings["mode"] == "server", where
        assert image == "pyengine:cpu", where
        places.add(where)
    assert places == {
        "chart", "manifest", "docker: pyengine", "replicas: replica-0", "replicas: replica-1"
    }  # fmt: skip


def test_pods_get_no_variables_of_services_and_few_rights() -> None:
    manifest = yaml.safe_load_all((REPOSITORY / "deploy/kubernetes/pyengine.yaml").read_text())
    deployments = [each for each in manifest if each["kind"] == "Deployment"]
    for each in (*deployments, objects(ALL)["StatefulSet", "test-engine"]):
        pod = each["spec"]["template"]["spec"]
        assert pod["enableServiceLinks"] is False
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "/tmp" in [mount["mountPath"] for mount in container["volumeMounts"]]


def test_prometheus_sends_a_key_where_there_is_one() -> None:
    def endpoint(**settings: object) -> dict[str, Any]:
        found = objects({"podMonitor": {"enabled": True, **settings}})
        (only,) = found["PodMonitor", "test-engine"]["spec"]["podMetricsEndpoints"]
        return dict(only)

    assert "authorization" not in endpoint()
    credentials = {"name": "keys", "key": "key"}
    assert endpoint(keySecret="keys")["authorization"] == {"credentials": credentials}


def test_the_autoscaler_and_the_docs_name_metrics_that_there_are() -> None:
    described = (REPOSITORY / "docs" / "METRICS.md").read_text()
    scaler = objects(ALL)["HorizontalPodAutoscaler", "test-engine"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == "test-engine"
    (metric,) = scaler["metrics"]
    assert f"| `{metric['pods']['metric']['name']}` | gauge |" in described
    assert "replicas" not in objects(ALL)["StatefulSet", "test-engine"]["spec"]


def test_the_compose_file_starts_what_there_is() -> None:
    compose = yaml.safe_load((REPOSITORY / "deploy" / "replicas" / "compose.yaml").read_text())
    services = compose["services"]
    router = services["router"]["command"][-1]
    for name, service in services.items():
        if name != "router":
            assert f"http://{name}:8000" in router
            assert started(service["command"])["port"] == 8000


def test_the_router_is_started_with_options_that_it_has() -> None:
    import yaml
    from smg.launch_router import parse_router_args

    compose = yaml.safe_load((REPOSITORY / "deploy" / "replicas" / "compose.yaml").read_text())
    line = compose["services"]["router"]["command"][-1].split("smg launch ")[1]
    key = line.replace('"', "").replace("$$SMG_KEY", "k")
    assert parse_router_args(key.split()).policy == "cache_aware"
    (container,) = objects({})["Deployment", "test-router"]["spec"]["template"]["spec"][
        "containers"
    ]
    given = [str(each).replace("$(ROUTER_KEY)", "k") for each in container["args"]]
    args = parse_router_args(given)
    assert args.health_check_endpoint == "/ready"
    assert Path(CHART / "values.yaml").read_text().count("smg:") == 1
