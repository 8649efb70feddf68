import pytest

from slacktide.cluster import PodError
from slacktide.cluster.pod_client import ResizeState, quantity, read_pod, resize_patch


def pod(spec=None, actual=None, conditions=(), generation=2):
    return {
        "metadata": {"generation": generation},
        "spec": {"containers": [{"name": "log"}, {"name": "server", "resources": spec or {}}]},
        "status": {
            "conditions": list(conditions),
            "containerStatuses": [{"name": "server", "resources": actual}],
        },
    }


def cpu(amount):
    return {"limits": {"cpu": amount}}


def pending(reason, **fields):
    return {
        "type": "PodResizePending", "status": "True", "reason": reason, "message": "m", **fields,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("written", "millicores"),
    [("2", 2000), ("1500m", 1500), ("0.5", 500), ("100000000n", 100), ("1u", 1), ("1k", 1_000_000)],
)
def test_quantities_are_read_as_kubernetes_writes_them(written, millicores):
    assert read_pod(pod(cpu(written), cpu(written)), "server").limit == millicores


@pytest.mark.parametrize(
    ("actual", "conditions", "state"),
    [
        ("4", (), ResizeState.SETTLED),
        ("2", (), ResizeState.IN_PROGRESS),
        ("4", ({"type": "PodResizeInProgress", "status": "True"},), ResizeState.IN_PROGRESS),
        ("4", ({"type": "PodResizeInProgress", "status": "False"},), ResizeState.SETTLED),
        ("2", (pending("Deferred"),), ResizeState.DEFERRED),
        ("2", (pending("Infeasible"),), ResizeState.INFEASIBLE),
        ("2", (pending("Infeasible", observedGeneration=2),), ResizeState.INFEASIBLE),
        ("2", (pending("Infeasible", observedGeneration=1),), ResizeState.IN_PROGRESS),
        ("2", (pending("SomethingNew"),), ResizeState.DEFERRED),
    ],
)
def test_the_state_of_a_resize_is_what_conditions_and_status_say_together(
    actual, conditions, state
):
    container = read_pod(pod(cpu("4000m"), cpu(actual), conditions), "server")
    assert container.state is state
    assert (container.limit, container.desired) == (int(actual) * 1000, 4000)


def test_a_container_without_a_limit_may_use_what_the_node_has():
    assert read_pod(pod({"requests": {"cpu": "1"}}, {"requests": {"cpu": "1"}}), "server") == (
        read_pod(pod({}, None), "server")
    )
    assert read_pod(pod({}, None), "server").limit is None


def resources_of(patch):
    (container,) = patch["spec"]["containers"]
    assert container["name"] == "server"
    return container["resources"]


@pytest.mark.parametrize(
    ("stated", "patched"),
    [
        ({"limits": {"cpu": "1"}}, {"limits": {"cpu": "3500m"}, "requests": {"cpu": "3500m"}}),
        (
            {"limits": {"cpu": "1"}, "requests": {"cpu": "1000m"}},
            {"limits": {"cpu": "3500m"}, "requests": {"cpu": "3500m"}},
        ),
        ({"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}, {"limits": {"cpu": "3500m"}}),
        (
            {"limits": {"cpu": "9"}, "requests": {"cpu": "4"}},
            {"limits": {"cpu": "3500m"}, "requests": {"cpu": "3500m"}},
        ),
        ({"requests": {"cpu": "1"}}, {"requests": {"cpu": "3500m"}}),
    ],
)
def test_the_patch_keeps_the_class_of_service(stated, patched):
    assert resources_of(resize_patch(pod(stated), "server", 3500)) == patched


def test_whole_cores_are_written_without_a_unit():
    assert (quantity(2000), quantity(2500)) == ("2", "2500m")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: resize_patch(pod({}), "server", 1000), "QoS class"),
        (lambda: resize_patch(pod({}), "serve", 1000), "no container 'serve'; it has log, server"),
        (lambda: read_pod(pod({}), "log"), "no running container 'log'"),
        (lambda: read_pod({"kind": "Status"}, "server"), "no spec"),
        (lambda: read_pod(pod(cpu("two"), cpu("2")), "server"), "not a CPU quantity: 'two'"),
    ],
)
def test_invalid_cpu_is_named(call, message):
    with pytest.raises(PodError, match=message):
        call()
