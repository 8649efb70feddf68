"""The manifests in deploy/kubernetes against the API's schema, as the official client has it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from kubernetes.client import ApiClient, Configuration, models

from slacktide.cli.serve import serve
from slacktide.cluster import PodName
from slacktide.cluster.pod_client import resize_patch

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
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
        for number, each in enumerate(value):
            check(each, inner[1], f"{where}[{number}]")
    elif inner := re.fullmatch(r"[Dd]ict[\[(]str, ?(.*)[\])]", type_name):
        assert isinstance(value, dict), where
        for key, each in value.items():
            check(each, inner[1], f"{where}.{key}")
    elif hasattr(models, type_name):
        model = getattr(models, type_name)
        names = {model.attribute_map[key]: kind for key, kind in model.openapi_types.items()}
        assert isinstance(value, dict), where
        assert set(value) <= set(names), f"{where}: no field {sorted(set(value) - set(names))}"
        for key, each in value.items():
            check(each, names[key], f"{where}.{key}")
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
    made = api._ApiClient__deserialize(document, name)  # raises for what is required and missing
    assert api.sanitize_for_serialization(made) == document


def test_a_field_that_the_api_does_not_have_is_found():
    (deployment,) = [p.values[0] for p in documents() if p.values[0]["kind"] == "Deployment"]
    deployment["spec"]["template"]["spec"]["containers"][0]["resizePolices"] = []
    with pytest.raises(AssertionError, match=r"containers\[0\]: no field \['resizePolices'\]"):
        check(deployment, "V1Deployment", "Deployment")


def _of_kind(kind):
    (found,) = [p.values[0] for p in documents() if p.values[0]["kind"] == kind]
    return found


def test_the_role_allows_the_two_calls_that_are_made_and_no_more():
    rules = _of_kind("Role")["rules"]
    allowed = {(r, v) for rule in rules for r in rule["resources"] for v in rule["verbs"]}
    assert allowed == {("pods", "get"), ("pods/resize", "patch")}


def test_the_deployment_names_its_pod_and_keeps_its_class_of_service_when_resized():
    deployment = _of_kind("Deployment")
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    given = {each["name"]: each.get("value", "x") for each in container["env"]}
    assert PodName.from_environment(given).container == container["name"]
    resources = container["resources"]
    assert resources["requests"] == resources["limits"]
    patch = resize_patch(pod, container["name"], 4500)
    changed = patch["spec"]["containers"][0]["resources"]
    assert changed["requests"] == changed["limits"] == {"cpu": "4500m"}
    policies = {each["resourceName"]: each["restartPolicy"] for each in container["resizePolicy"]}
    assert policies["cpu"] == "NotRequired"


def test_the_deployment_uses_options_that_there_are():
    (container,) = _of_kind("Deployment")["spec"]["template"]["spec"]["containers"]
    known = {
        name
        for hint in serve.__annotations__.values()
        for info in getattr(hint, "__metadata__", ())
        for name in (getattr(info, "param_decls", None) or ())
    }
    known |= {"--" + name.replace("_", "-") for name in serve.__annotations__}
    for argument in container["args"]:
        assert argument.partition("=")[0] in known, argument
