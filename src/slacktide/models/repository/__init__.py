"""Model folders: models, versions and their settings.

Reads `slacktide.yaml` and Triton's `config.pbtxt`, finds files, keeps profiles and stages uploads.
It does not use event loops, sockets or workers, and opens ONNX files only to check them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slacktide._faces import lazy_names

if TYPE_CHECKING:
    from slacktide.models.repository.errors import RepositoryError as RepositoryError
    from slacktide.models.repository.fields import Section as Section
    from slacktide.models.repository.paths import read_bounded as read_bounded
    from slacktide.models.repository.profile_store import ProfileStore as ProfileStore
    from slacktide.models.repository.profile_store import model_hash as model_hash
    from slacktide.models.repository.repository import ModelDefinition as ModelDefinition
    from slacktide.models.repository.repository import Repository as Repository
    from slacktide.models.repository.settings import ModelSettings as ModelSettings
    from slacktide.models.repository.settings_file import dotted as dotted
    from slacktide.models.repository.settings_file import validation_problems as validation_problems
    from slacktide.models.repository.single_model import open_repository as open_repository
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "settings": "ModelSettings",
            "repository": "ModelDefinition Repository",
            "errors": "RepositoryError",
            "fields": "Section",
            "paths": "read_bounded",
            "profile_store": "ProfileStore model_hash",
            "settings_file": "dotted validation_problems",
            "single_model": "open_repository",
        },
    )
