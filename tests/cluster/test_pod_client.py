import pytest

from slacktide.cluster import PodClient, PodError, PodName
from slacktide.cluster.pod_client import ResizeState

OURS = PodName("slacktide-0", "vision", "server")


def test_a_resize_is_the_patch_that_kubernetes_takes_and_is_read_back(kubernetes):
    api = kubernetes()
    api.looks.extend(["settled"])
    api.looks[0] = "in_progress"
    client = PodClient(OURS)
    assert client.read().limit == 1500
    resize = client.resize(4500)
    assert (resize.state, resize.limit, resize.desired) == (ResizeState.IN_PROGRESS, 1500, 4500)
    ((kind, patch),) = api.patches
    assert kind == "application/strategic-merge-patch+json"
    amounts = {"limits": {"cpu": "4500m"}, "requests": {"cpu": "4500m"}}
    assert patch == {"spec": {"containers": [{"name": "server", "resources": amounts}]}}
    pod = client.read()
    assert (pod.state, pod.limit) == (ResizeState.SETTLED, 4500)
    assert api.actual["limits"]["memory"] == "1Gi"


def test_another_writer_is_given_way_to_three_times(kubernetes):
    api = kubernetes()
    busy = {"code": 409, "message": "the object has been modified"}
    api.refusals.extend([busy] * 2)
    assert PodClient(OURS).resize(2000).desired == 2000
    api.refusals.extend([busy] * 3)
    with pytest.raises(PodError, match="conflict with another writer, 3 times"):
        PodClient(OURS).resize(3000)


def test_a_refusal_says_what_the_server_said_and_where_to_look(kubernetes):
    kubernetes().refusals.append({"code": 403, "message": "may not patch pods/resize"})
    with pytest.raises(PodError, match=r"may not patch pods/resize \(403; see deploy.*rbac"):
        PodClient(OURS).resize(2000)
    with pytest.raises(PodError, match="get pods: not found"):
        PodClient(PodName("gone", "vision", "server")).read()


def test_a_server_that_is_not_there_is_named_as_that(kubernetes):
    api = kubernetes()
    client = PodClient(OURS)
    api.close()
    with pytest.raises(PodError, match="cannot be reached"):
        client.read()


def test_without_a_cluster_it_is_said(monkeypatch):
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(PodError, match="no access to a Kubernetes API server"):
        PodClient(OURS)


def test_the_environment_names_the_pod():
    environment = {"POD_NAME": "slacktide-0", "POD_NAMESPACE": "vision", "CONTAINER_NAME": "server"}
    assert PodName.from_environment(environment) == OURS
    with pytest.raises(PodError, match="POD_NAME, CONTAINER_NAME;"):
        PodName.from_environment({"POD_NAMESPACE": "vision"})
