"""The manifests in deploy/ against the API's schema, of the official client, and KServe's, of its
package. KubeRay's is in no package."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import pytest
import yaml
from kubernetes.client import ApiClient, Configuration, models

from slacktide.cli.serve import serve
from slacktide.cluster import PodName
from slacktide.cluster.pod_client import resize_patch

DEPLOY = Path(__file__).parents[2] / "deploy"
FOLDER = DEPLOY / "kubernetes"
KSERVE = "kserve==0.21.*"
MODELS = {
    "ServiceAccount": "V1ServiceAccount",
    "Role": "V1Role",
    "RoleBinding": "V1RoleBinding",
    "Deployment": "V1Deployment",
    "Service": "V1Service",
}


def documents():
    for path in sorted(FOLDER.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            yield pytest.param(document, id=f"{path.name}-{document['kind']}")


def check(value, type_name, where):
    """Every key is one of the schema's, every value of its type; the client checks what is
    required when it is made."""
    if value is None:
        return
    if inner := re.fullmatch(r"[Ll]ist\[(.*)\]", type_name):
        assert isinstance(value, list), where
        for number, element in enumerate(value):
            check(element, inner[1], f"{where}[{number}]")
    elif inner := re.fullmatch(r"[Dd]ict[\[(]str, ?(.*)[\])]", type_name):
        assert isinstance(value, dict), where
        for key, element in value.items():
            check(element, inner[1], f"{where}.{key}")
    elif hasattr(models, type_name):
        model = getattr(models, type_name)
        names = {model.attribute_map[key]: kind for key, kind in model.openapi_types.items()}
        assert isinstance(value, dict), where
        assert set(value) <= set(names), f"{where}: no field {sorted(set(value) - set(names))}"
        for key, element in value.items():
            check(element, names[key], f"{where}.{key}")
    elif type_name in ("str", "int", "bool"):
        assert type(value).__name__ == type_name, f"{where}: {value!r} is no {type_name}"
    else:
        assert type_name == "object", f"{where}: {type_name}"  # an int or a string, as for ports
        assert isinstance(value, int | str), where


@pytest.mark.parametrize("document", list(documents()))
def test_every_manifest_is_what_the_api_takes(document):
    name = MODELS[document["kind"]]
    check(document, name, document["kind"])
    api = ApiClient(Configuration())
    resource = api._ApiClient__deserialize(
        document, name
    )  # raises for what is required and missing
    assert api.sanitize_for_serialization(resource) == document


def test_a_field_that_the_api_does_not_have_is_found():
    deployment = _of_kind("Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["resizePolices"] = []
    with pytest.raises(AssertionError, match=r"containers\[0\]: no field \['resizePolices'\]"):
        check(deployment, "V1Deployment", "Deployment")


def _of_kind(kind, *files):
    paths = files or sorted(FOLDER.glob("[!p]*.yaml"))
    loaded = (document for path in paths for document in yaml.safe_load_all(path.read_text()))
    (manifest,) = [document for document in loaded if document["kind"] == kind]
    return manifest


def test_the_role_allows_the_two_calls_that_are_made_and_no_more():
    rules = _of_kind("Role")["rules"]
    allowed = {(r, v) for rule in rules for r in rule["resources"] for v in rule["verbs"]}
    assert allowed == {("pods", "get"), ("pods/resize", "patch")}


def test_the_deployment_names_its_pod_and_keeps_its_class_of_service_when_resized():
    deployment = _of_kind("Deployment")
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    given = {variable["name"]: variable.get("value", "x") for variable in container["env"]}
    assert PodName.from_environment(given).container == container["name"]
    resources = container["resources"]
    assert resources["requests"] == resources["limits"]
    patch = resize_patch(pod, container["name"], 4500)
    changed = patch["spec"]["containers"][0]["resources"]
    assert changed["requests"] == changed["limits"] == {"cpu": "4500m"}
    policies = {
        policy["resourceName"]: policy["restartPolicy"] for policy in container["resizePolicy"]
    }
    assert policies["cpu"] == "NotRequired"


def flags_of_serve():
    flags = {
        name
        for hint in serve.__annotations__.values()
        for info in getattr(hint, "__metadata__", ())
        for name in (getattr(info, "param_decls", None) or ())
    }
    return flags | {"--" + name.replace("_", "-") for name in serve.__annotations__}


PEERS = FOLDER / "peers.yaml"
RAY, RUNTIME = DEPLOY / "ray" / "slacktide.yaml", DEPLOY / "kserve" / "slacktide.yaml"


@pytest.mark.parametrize(
    "container",
    [
        _of_kind("Deployment")["spec"]["template"]["spec"]["containers"][0],
        _of_kind("Deployment", PEERS)["spec"]["template"]["spec"]["containers"][0],
        _of_kind("ServingRuntime", RUNTIME)["spec"]["containers"][0],
    ],
    ids=["resized", "peers", "kserve"],
)
def test_the_containers_use_options_that_there_are(container):
    for argument in container["args"]:
        assert argument.partition("=")[0] in flags_of_serve(), argument


def test_the_servers_find_their_peers_by_the_headless_service():
    pod = _of_kind("Deployment", PEERS)["spec"]["template"]
    service = _of_kind("Service", PEERS)
    (container,) = pod["spec"]["containers"]
    assert f"--peers=dns:{service['metadata']['name']}:8001" in container["args"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {
        port["name"]: port["port"] for port in service["spec"]["ports"]
    }.items() <= ports.items()


def test_what_is_kubernetes_own_in_the_other_manifests():
    runtime = _of_kind("ServingRuntime", RUNTIME)
    check(runtime["spec"]["containers"], "list[V1Container]", "ServingRuntime")
    cluster = _of_kind("RayService", RAY)["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        check(group["template"], "V1PodTemplateSpec", "RayService")
        (container,) = group["template"]["spec"]["containers"]
        assert all(isinstance(text, str) for text in group["rayStartParams"].values())
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert mounts == {volume["name"] for volume in group["template"]["spec"]["volumes"]}
    service = yaml.safe_load(_of_kind("RayService", RAY)["spec"]["serveConfigV2"])
    assert service["proxy_location"] == "Disabled"
    assert service["applications"][0]["import_path"] == "slacktide.ray:app"


@pytest.mark.network
def test_kserve_has_every_field(tmp_path, monkeypatch):
    """Its package alone is read: with what it wants it would be 450 MB."""
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(tmp_path))
    subprocess.run([*pip, KSERVE], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith("kserve/models/")]
        archive.extractall(tmp_path, [*names, "kserve/configuration.py"])
    package = types.ModuleType("kserve")
    package.__path__ = [str(tmp_path / "kserve")]
    monkeypatch.setitem(sys.modules, "kserve", package)
    kserve = importlib.import_module("kserve.models")

    def check_kserve(value, type_name, where):
        if inner := re.fullmatch(r"list\[(.*)\]", type_name, re.IGNORECASE):
            for item in value:
                check_kserve(item, inner[1], where)
        elif (model := getattr(kserve, type_name, None)) is not None:
            fields = {model.attribute_map[key]: kind for key, kind in model.openapi_types.items()}
            assert set(value) <= set(fields), f"{where}: {sorted(set(value) - set(fields))}"
            for key, item in value.items():
                check_kserve(item, fields[key], f"{where}.{key}")
        else:
            check(value, type_name, where)

    runtime = _of_kind("ServingRuntime", RUNTIME)
    check_kserve(runtime, "V1alpha1ServingRuntime", "ServingRuntime")
    check_kserve(
        _of_kind("InferenceService", RUNTIME), "V1beta1InferenceService", "InferenceService"
    )
    runtime["spec"]["protocolVersion"] = []
    with pytest.raises(AssertionError, match="protocolVersion"):
        check_kserve(runtime, "V1alpha1ServingRuntime", "ServingRuntime")
