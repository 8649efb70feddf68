"""`PodClient`: reads and resizes one pod, through the official Kubernetes client (extra
`kubernetes`). Its calls block for up to seconds.

What a pod's status says of one container's CPU, and the patch that changes it, are pure functions.
A resize is a request: the API server stores it in the specification, the node's kubelet carries it
out or says why not, and the status says what the container really has (Kubernetes 1.33 and later,
"In place pod resize"). CPU is counted in millicores here.
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
    """A pod cannot be read or resized; the text says why."""


class ResizeState(Enum):
    """How far the last resize has come."""

    SETTLED = "settled"
    """The container has what its specification says."""
    IN_PROGRESS = "in_progress"
    """Accepted by the node, not yet in force."""
    DEFERRED = "deferred"
    """The node has no room now; Kubernetes tries again by itself."""
    INFEASIBLE = "infeasible"
    """The node can never have room."""


@dataclass(frozen=True, slots=True)
class PodCpu:
    """One container's CPU."""

    limit: int | None
    """Millicores that it may use, as the kubelet has set them; None: as many as the node has."""
    wanted: int | None
    """Millicores that its specification asks for."""
    state: ResizeState
    message: str = ""
    """What Kubernetes says of a resize that is not settled."""


_STATES = {"Deferred": ResizeState.DEFERRED, "Infeasible": ResizeState.INFEASIBLE}


def read_pod(pod: Mapping[str, Any], container: str) -> PodCpu:
    """What a pod, as the API's JSON has it, says of `container`. Raises PodError."""
    desired = _limit(_container(pod, container).get("resources"))
    status = _mapping(pod, "status")
    for container_status in status.get("containerStatuses") or ():
        if container_status.get("name") == container:
            # A kubelet that cannot resize does not report resources: then nothing ever changes.
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
    """The strategic merge patch of the pod's `resize` subresource that gives it so many millicores.

    The pod keeps its QoS class, as it must: requests that equal limits stay equal, lower ones stay
    lower, and what is not stated is not added. Raises PodError where that leaves nothing to resize.
    """
    resources = _container(pod, container).get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    amount = quantity(millicores)
    changed: dict[str, dict[str, str]] = {}
    if "cpu" in limits:
        changed["limits"] = {"cpu": amount}
        # A limit without a request is a request of the same size.
        request = _millicores(requests.get("cpu", limits["cpu"]))
        if request == _millicores(limits["cpu"]) or request > millicores:
            changed["requests"] = {"cpu": amount}
    elif "cpu" in requests:
        changed["requests"] = {"cpu": amount}
    else:
        raise PodError(
            f"container {container!r} states no CPU request or limit: to add one would change the "
            "pod's QoS class, which Kubernetes does not allow"
        )
    return {"spec": {"containers": [{"name": container, "resources": changed}]}}


def quantity(millicores: int) -> str:
    """As Kubernetes writes it: whole cores without a unit."""
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
            if stale:  # it speaks of an earlier resize
                return ResizeState.IN_PROGRESS, ""
            return _STATES.get(reason, ResizeState.DEFERRED), message or reason
        if condition.get("type") == "PodResizeInProgress":
            return ResizeState.IN_PROGRESS, message
    return ResizeState.SETTLED, ""


def _container(pod: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    containers = _mapping(pod, "spec").get("containers") or ()
    for entry_of_container in containers:
        if entry_of_container.get("name") == name:
            match: Mapping[str, Any] = entry_of_container
            return match
    names = ", ".join(str(candidate.get("name")) for candidate in containers) or "none"
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
    """A CPU quantity such as `2`, `1500m` or `0.5`, rounded up as Kubernetes does."""
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
"""Longest that a call may take to connect, and to be answered."""
ATTEMPTS = 3
"""Of a resize that meets another writer (409)."""
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class PodName:
    """Which container of which pod is ours."""

    pod: str
    namespace: str
    container: str

    @classmethod
    def ours(cls, environment: Mapping[str, str] = os.environ) -> PodName:
        """As the manifests in deploy/kubernetes state it (downward API): POD_NAME, POD_NAMESPACE,
        CONTAINER_NAME. Raises PodError, naming what is missing."""
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
                f"the environment has no {' and no '.join(missing)}: "
                "see deploy/kubernetes/slacktide.yaml"
            )
        return cls(variables["POD_NAME"], variables["POD_NAMESPACE"], variables["CONTAINER_NAME"])


class PodClient:
    """One pod. Thread-safe as far as one call at a time is."""

    def __init__(self, name: PodName) -> None:
        """Uses the pod's service account, or, outside a cluster, the file that KUBECONFIG names.
        Raises PodError if the extra is missing or there is neither."""
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
        """What the container has now. Raises PodError."""
        return read_pod(self._pod(), self._name.container)

    def resize(self, millicores: int) -> PodCpu:
        """Ask for so many millicores; what the pod then says. Raises PodError. An answer only means
        that the request is stored: read until it is settled."""
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
        raise PodError(f"patch pods/resize: in conflict with another writer {ATTEMPTS} times (409)")

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
        """The answer's JSON; None for 409 if `conflict`. Raises PodError."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            # The JSON as it came: fields that this version of the client does not know count too.
            answer = call(_request_timeout=(CONNECT_S, ANSWER_S), _preload_content=False)
            body: Mapping[str, Any] = json.loads(answer.data)
        except ApiException as error:
            if error.status == 409 and conflict:
                return None
            raise PodError(f"{operation}: {_reason(error)}") from None
        except (HTTPError, OSError) as error:
            raise PodError(f"{operation}: the API server cannot be reached ({error})") from None
        except ValueError:
            raise PodError(f"{operation}: the API server sent no JSON") from None
        return body


def _reason(error: Any) -> str:
    """What the API server says of a refusal."""
    try:
        message = json.loads(error.body)["message"]
    except (TypeError, ValueError, KeyError):
        message = error.reason
    hint = "; see deploy/kubernetes/rbac.yaml" if error.status == 403 else ""
    return f"{message} ({error.status}{hint})"
