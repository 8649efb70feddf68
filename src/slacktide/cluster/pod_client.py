"""`PodClient`: reads and resizes a pod through the official Kubernetes client (extra `kubernetes`).
Its calls block for up to several seconds.

Reading a container's CPU from the pod's status, and making the patch that changes it, are pure
functions. A resize is a request: the API server stores it in the specification, the node's kubelet
carries it out or reports why not, and the status has the actual CPU (Kubernetes 1.33 and later, "In
place pod resize"). CPU is in millicores.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar


class PodError(Exception):
    """A pod cannot be read or resized; the message gives the reason."""


class ResizeState(Enum):
    """Progress of the last resize."""

    SETTLED = "settled"
    """The container has the CPU of its specification."""
    IN_PROGRESS = "in_progress"
    """Accepted by the node, but not yet in force."""
    DEFERRED = "deferred"
    """The node has no room now; Kubernetes keeps trying."""
    INFEASIBLE = "infeasible"
    """The node can never provide it."""


@dataclass(frozen=True, slots=True)
class PodCpu:
    """CPU of a container."""

    limit: int | None
    """Millicores it may use, as set by the kubelet; None: no limit."""
    desired: int | None
    """Millicores in its specification."""
    state: ResizeState
    message: str = ""
    """Kubernetes' message about a resize that is not settled."""


_STATES = {"Deferred": ResizeState.DEFERRED, "Infeasible": ResizeState.INFEASIBLE}


def read_pod(pod: Mapping[str, Any], container: str) -> PodCpu:
    """Read the CPU of `container` from a pod's JSON. Raises PodError."""
    desired = _limit(_container(pod, container).get("resources"))
    status = _mapping(pod, "status")
    for container_status in status.get("containerStatuses") or ():
        if container_status.get("name") == container:
            # A kubelet that cannot resize reports no resources: the specification's stay in force.
            resources = container_status.get("resources")
            limit = desired if resources is None else _limit(resources)
            break
    else:
        raise PodError(f"pod has no running container {container!r}")
    state, message = _resize_state(pod, status)
    if state is ResizeState.SETTLED and limit != desired:
        state = ResizeState.IN_PROGRESS
    return PodCpu(limit, desired, state, message)


def resize_patch(pod: Mapping[str, Any], container: str, millicores: int) -> dict[str, Any]:
    """The strategic merge patch for the `resize` subresource that sets the CPU of `container`.

    The pod must keep its QoS class: a request equal to its limit stays equal, a lower one changes
    only if it exceeds the new limit, and no limit is added. Raises PodError if both are missing.
    """
    resources = _container(pod, container).get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    amount = quantity(millicores)
    changed: dict[str, dict[str, str]] = {}
    if "cpu" in limits:
        changed["limits"] = {"cpu": amount}
        # A limit without a request implies a request of the same size.
        request = _millicores(requests.get("cpu", limits["cpu"]))
        if request == _millicores(limits["cpu"]) or request > millicores:
            changed["requests"] = {"cpu": amount}
    elif "cpu" in requests:
        changed["requests"] = {"cpu": amount}
    else:
        raise PodError(
            f"container {container!r} has no CPU request or limit: adding one would change the "
            "pod's QoS class, which Kubernetes does not allow"
        )
    return {"spec": {"containers": [{"name": container, "resources": changed}]}}


def quantity(millicores: int) -> str:
    """Format millicores as Kubernetes does: whole cores without a unit."""
    return str(millicores // 1000) if millicores % 1000 == 0 else f"{millicores}m"


def _resize_state(pod: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[ResizeState, str]:
    generation = _mapping(pod, "metadata").get("generation")
    for condition in status.get("conditions") or ():
        if condition.get("status") != "True":
            continue
        observed = condition.get("observedGeneration")
        stale = observed is not None and generation is not None and observed < generation
        reason, message = condition.get("reason") or "", condition.get("message") or ""
        if condition.get("type") == "PodResizePending":
            if stale:  # about an earlier resize
                return ResizeState.IN_PROGRESS, ""
            return _STATES.get(reason, ResizeState.DEFERRED), message or reason
        if condition.get("type") == "PodResizeInProgress":
            return ResizeState.IN_PROGRESS, message
    return ResizeState.SETTLED, ""


def _container(pod: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    containers = _mapping(pod, "spec").get("containers") or ()
    container: Mapping[str, Any]
    for container in containers:
        if container.get("name") == name:
            return container
    names = ", ".join(str(container.get("name")) for container in containers) or "none"
    raise PodError(f"pod has no container {name!r}; it has {names}")


def _mapping(pod: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    section = pod.get(key)
    if not isinstance(section, Mapping):
        raise PodError(f"the API server's answer is not a pod: it has no {key}")
    return section


def _limit(resources: Mapping[str, Any] | None) -> int | None:
    limits = (resources or {}).get("limits") or {}
    return _millicores(limits["cpu"]) if "cpu" in limits else None


_SUFFIXES = {"n": Decimal("1e-6"), "u": Decimal("1e-3"), "m": Decimal(1), "k": Decimal("1e6")}


def _millicores(text: object) -> int:
    """Parse a CPU quantity such as `2`, `1500m` or `0.5`, rounded up as Kubernetes does."""
    number = str(text)
    scale = _SUFFIXES.get(number[-1:], Decimal(1000))
    try:
        value = Decimal(number[:-1] if number[-1:] in _SUFFIXES else number) * scale
    except InvalidOperation:
        raise PodError(f"not a CPU quantity: {number!r}") from None
    return math.ceil(value)


log = logging.getLogger("slacktide.cores")

T = TypeVar("T")

CONNECT_S, ANSWER_S = 3.0, 5.0
"""Timeouts in seconds to connect and to get an answer."""
ATTEMPTS = 3
"""Maximum attempts of a resize that conflicts with another writer (409)."""
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class PodName:
    """The server's own pod and container."""

    pod: str
    namespace: str
    container: str

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> PodName:
        """Read POD_NAME, POD_NAMESPACE and CONTAINER_NAME, which the manifests in deploy/kubernetes
        set (downward API). Raises PodError naming the missing ones."""
        namespace = environment.get("POD_NAMESPACE", "")
        if not namespace and _NAMESPACE_FILE.exists():
            namespace = _NAMESPACE_FILE.read_text().strip()
        variables = {
            "POD_NAME": environment.get("POD_NAME", ""),
            "POD_NAMESPACE": namespace,
            "CONTAINER_NAME": environment.get("CONTAINER_NAME", ""),
        }
        missing = [name for name, value in variables.items() if not value]
        if missing:
            raise PodError(
                f"missing environment variables: {', '.join(missing)}; "
                "see deploy/kubernetes/slacktide.yaml"
            )
        return cls(variables["POD_NAME"], variables["POD_NAMESPACE"], variables["CONTAINER_NAME"])


class PodClient:
    """Calls the Kubernetes API for one pod. Any thread may call it, but only one at a time."""

    def __init__(self, name: PodName) -> None:
        """Use the pod's service account, or the file in KUBECONFIG. Raises PodError if there is
        neither or the extra is missing."""
        try:
            from kubernetes import client, config
        except ImportError:
            raise PodError(
                "resizing pods needs the Kubernetes client: pip install 'slacktide[kubernetes]'"
            ) from None
        access = client.Configuration()
        access.retries = False
        try:
            file = os.environ.get("KUBECONFIG")
            if file:
                config.load_kube_config(  # type: ignore[no-untyped-call]
                    file, client_configuration=access
                )
            else:
                config.load_incluster_config(  # type: ignore[no-untyped-call]
                    client_configuration=access
                )
        except config.ConfigException as error:
            raise PodError(f"no access to a Kubernetes API server: {error}") from None
        self._api = client.CoreV1Api(client.ApiClient(access))
        self._name = name

    def read(self) -> PodCpu:
        """Read the container's CPU. Raises PodError."""
        return read_pod(self._pod(), self._name.container)

    def resize(self, millicores: int) -> PodCpu:
        """Request `millicores` and return the CPU in the answer. The answer only confirms that the
        request is stored: call `read` until the state is settled. Raises PodError."""
        for _ in range(ATTEMPTS):
            patch = resize_patch(self._pod(), self._name.container, millicores)
            answer = self._call(
                lambda patch=patch, **options: self._api.patch_namespaced_pod_resize(
                    self._name.pod, self._name.namespace, patch, **options
                ),
                "patch pods/resize",
                conflict=True,
            )
            if answer is not None:
                return read_pod(answer, self._name.container)
        raise PodError(f"patch pods/resize: conflict with another writer, {ATTEMPTS} times (409)")

    def _pod(self) -> Mapping[str, Any]:
        pod = self._call(
            lambda **options: self._api.read_namespaced_pod(
                self._name.pod, self._name.namespace, **options
            ),
            "get pods",
        )
        assert pod is not None
        return pod

    def _call(
        self, call: Callable[..., Any], operation: str, *, conflict: bool = False
    ) -> Mapping[str, Any] | None:
        """Make a call and return the JSON of its answer; None for 409 if `conflict`. Raises
        PodError."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            # Raw JSON, because this version of the client may not know all fields.
            answer = call(_request_timeout=(CONNECT_S, ANSWER_S), _preload_content=False)
            body: Mapping[str, Any] = json.loads(answer.data)
        except ApiException as error:
            if error.status == 409 and conflict:
                return None
            raise PodError(f"{operation}: {_reason(error)}") from None
        except (HTTPError, OSError) as error:
            raise PodError(f"{operation}: the API server cannot be reached ({error})") from None
        except ValueError:
            raise PodError(f"{operation}: expected JSON from the API server") from None
        return body


def _reason(error: Any) -> str:
    """The API server's reason for a refusal."""
    try:
        message = json.loads(error.body)["message"]
    except (TypeError, ValueError, KeyError):
        message = error.reason
    hint = "; see deploy/kubernetes/rbac.yaml" if error.status == 403 else ""
    return f"{message} ({error.status}{hint})"
