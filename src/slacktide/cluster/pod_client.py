"""`PodClient`: reads and resizes one pod, through the official Kubernetes client (extra
`kubernetes`). Its calls block for up to seconds."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from slacktide.cluster.pod_cpu import PodCpu, PodError, read_pod, resize_patch

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
        """As the manifests in deploy/kubernetes tell it (downward API): POD_NAME, POD_NAMESPACE,
        CONTAINER_NAME. Raises PodError, naming what is missing."""
        namespace = environment.get("POD_NAMESPACE", "")
        if not namespace and _NAMESPACE_FILE.exists():
            namespace = _NAMESPACE_FILE.read_text().strip()
        known = {
            "POD_NAME": environment.get("POD_NAME", ""),
            "POD_NAMESPACE": namespace,
            "CONTAINER_NAME": environment.get("CONTAINER_NAME", ""),
        }
        missing = [name for name, value in known.items() if not value]
        if missing:
            raise PodError(
                f"the environment has no {' and no '.join(missing)}: "
                "see deploy/kubernetes/slacktide.yaml"
            )
        return cls(known["POD_NAME"], known["POD_NAMESPACE"], known["CONTAINER_NAME"])


class PodClient:
    """One pod. Thread-safe as far as one call at a time is."""

    def __init__(self, name: PodName) -> None:
        """Uses the pod's service account, or, outside a cluster, the file that KUBECONFIG names.

        Raises PodError if the extra is missing or there is neither.
        """
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
        """Ask for so many millicores; what the pod then says. Raises PodError.

        An answer only means that the wish is stored: read until it is settled.
        """
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
        raise PodError(f"patch pods/resize: another writer was quicker {ATTEMPTS} times (409)")

    def _pod(self) -> Mapping[str, Any]:
        found = self._call(
            lambda **options: self._api.read_namespaced_pod(
                self._name.pod, self._name.namespace, **options
            ),
            "get pods",
        )
        assert found is not None
        return found

    def _call(
        self, call: Callable[..., Any], what: str, *, conflict: bool = False
    ) -> Mapping[str, Any] | None:
        """The answer's JSON; None for 409 if `conflict`. Raises PodError."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            # The JSON as it came: fields that this version of the client does not know count too.
            answer = call(_request_timeout=(CONNECT_S, ANSWER_S), _preload_content=False)
            found: Mapping[str, Any] = json.loads(answer.data)
        except ApiException as error:
            if error.status == 409 and conflict:
                return None
            raise PodError(f"{what}: {_reason(error)}") from None
        except (HTTPError, OSError) as error:
            raise PodError(f"{what}: the API server cannot be reached ({error})") from None
        except ValueError:
            raise PodError(f"{what}: the API server sent no JSON") from None
        return found


def _reason(error: Any) -> str:
    """What the API server says of a refusal."""
    try:
        message = json.loads(error.body)["message"]
    except (TypeError, ValueError, KeyError):
        message = error.reason
    hint = "; see deploy/kubernetes/rbac.yaml" if error.status == 403 else ""
    return f"{message} ({error.status}{hint})"
