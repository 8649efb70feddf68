"""Model folders: which models there are, which versions, and what their owners want of them.

Reads `slacktide.yaml` and Triton's `config.pbtxt`, finds files, keeps profiles, stages uploads. It
knows nothing of event loops, sockets or workers, and opens ONNX files only to check them.
"""

from slacktide.models.repository.config_json import config_json as config_json
from slacktide.models.repository.config_json import metadata_shape as metadata_shape
from slacktide.models.repository.errors import RepositoryError as RepositoryError
from slacktide.models.repository.interface import check_interface as check_interface
from slacktide.models.repository.profile_store import NoProfile as NoProfile
from slacktide.models.repository.profile_store import ProfileKey as ProfileKey
from slacktide.models.repository.profile_store import ProfileStore as ProfileStore
from slacktide.models.repository.profile_store import StoredProfile as StoredProfile
from slacktide.models.repository.profile_store import model_hash as model_hash
from slacktide.models.repository.repository import ModelDefinition as ModelDefinition
from slacktide.models.repository.repository import Repository as Repository
from slacktide.models.repository.settings import ModelSettings as ModelSettings
from slacktide.models.repository.staging import Staging as Staging
from slacktide.models.repository.staging import UploadLimits as UploadLimits
from slacktide.models.repository.staging import split_parameters as split_parameters
