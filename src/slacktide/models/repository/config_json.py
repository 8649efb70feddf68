"""What the metadata and config endpoints say of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slacktide.domain.tensors import ModelInterface, TensorSpec
from slacktide.models.repository.interface import row_shape, triton_type
from slacktide.models.repository.repository import ModelDefinition
from slacktide.models.repository.settings import ModelSettings, Versions
from slacktide.models.repository.triton.translate import BACKEND, MAX_PRIORITY, PLATFORM
from slacktide.scheduling import FifoOptions


def config_json(definition: ModelDefinition, interface: ModelInterface) -> dict[str, Any]:
    """Triton's ModelConfig as JSON, with proto field names and numbers as numbers.

    What config.pbtxt states is kept; everything that Slacktide decides is what is in effect. `dims`
    leave the batch axis out.
    """
    settings = definition.settings
    config: dict[str, Any] = {
        **definition.config,
        "name": definition.name,
        "platform": PLATFORM,
        "backend": BACKEND,
        "version_policy": _version_policy(settings.versions),
        "max_batch_size": interface.max_batch,
        "input": _tensors(interface.inputs, interface),
        "output": _tensors(interface.outputs, interface),
        "instance_group": [_instance_group(settings)],
        "default_model_filename": settings.file,
    }
    for tensor in config["input"]:
        if tensor["name"] in settings.masks:
            tensor["optional"] = True  # Triton's word for an input that may be left out
    # Clients read the presence of the key: it stands for batching by the server.
    config.pop("dynamic_batching", None)
    if interface.batches:
        config["dynamic_batching"] = _dynamic_batching(settings)
    return config


def metadata_shape(spec: TensorSpec, interface: ModelInterface) -> tuple[int, ...]:
    """The shape that the metadata endpoint shows: with a leading −1 where the model batches."""
    return (-1, *row_shape(spec, interface)) if interface.batches else spec.shape


def _tensors(specs: Sequence[TensorSpec], interface: ModelInterface) -> list[dict[str, Any]]:
    return [
        {
            "name": spec.name,
            "data_type": triton_type(spec.datatype),
            "dims": list(row_shape(spec, interface)),
        }
        for spec in specs
    ]


def _version_policy(versions: Versions) -> dict[str, Any]:
    if versions.only is not None:
        return {"specific": {"versions": [int(version) for version in versions.only]}}
    return {"all": {}} if versions.all else {"latest": {"num_versions": versions.latest}}


def _instance_group(settings: ModelSettings) -> dict[str, Any]:
    if settings.on_cpu:
        return {"count": settings.replicas.min, "kind": "KIND_CPU"}
    return {"count": 1, "kind": "KIND_GPU", "gpus": [int(settings.device.partition(":")[2])]}


def _dynamic_batching(settings: ModelSettings) -> dict[str, Any]:
    batching: dict[str, Any] = {
        "priority_levels": MAX_PRIORITY,
        "default_priority_level": settings.priority,
    }
    policy: dict[str, Any] = {"allow_timeout_override": True}
    if settings.queue_limit is not None:
        policy["max_queue_size"] = settings.queue_limit
    if isinstance(fifo := settings.scheduler.options, FifoOptions):
        batching["max_queue_delay_microseconds"] = round(fifo.max_delay * 1e6)
        if fifo.preferred:
            batching["preferred_batch_size"] = list(fifo.preferred)
        if fifo.timeout is not None:
            policy["timeout_action"] = fifo.timeout_action.upper()
            policy["default_timeout_microseconds"] = round(fifo.timeout * 1e6)
    batching["default_queue_policy"] = policy
    return batching
