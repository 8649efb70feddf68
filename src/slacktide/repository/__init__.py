"""Model folders: which models there are, which versions, and what their owners want of them.

Reads `slacktide.yaml` and Triton's `config.pbtxt`, finds files, keeps profiles, stages uploads. It
knows nothing of event loops, sockets or workers, and opens ONNX files only to check them.
"""

from slacktide.repository.check import Finding, Severity, check_repository
from slacktide.repository.config_json import config_json, metadata_shape
from slacktide.repository.definition import ModelDefinition
from slacktide.repository.errors import RepositoryError
from slacktide.repository.interface import check_interface
from slacktide.repository.lanes import lane_disagreements
from slacktide.repository.model_hash import model_hash
from slacktide.repository.profile_store import NoProfile, ProfileKey, ProfileStore, StoredProfile
from slacktide.repository.repository import ListedModel, Repository
from slacktide.repository.settings import ModelSettings
from slacktide.repository.staging import StagedModel, Staging, UploadLimits, split_parameters
from slacktide.repository.units import format_bytes, format_seconds, parse_bytes, parse_seconds

__all__ = [
    "Finding",
    "ListedModel",
    "ModelDefinition",
    "ModelSettings",
    "NoProfile",
    "ProfileKey",
    "ProfileStore",
    "Repository",
    "RepositoryError",
    "Severity",
    "StagedModel",
    "Staging",
    "StoredProfile",
    "UploadLimits",
    "check_interface",
    "check_repository",
    "config_json",
    "format_bytes",
    "format_seconds",
    "lane_disagreements",
    "metadata_shape",
    "model_hash",
    "parse_bytes",
    "parse_seconds",
    "split_parameters",
]
