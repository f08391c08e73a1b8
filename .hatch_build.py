"""A build hook: a checkout that lost the link cogworkerd/supervisor must not give a package without the supervisor."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class LinkHook(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not (Path(self.root) / "cogworkerd" / "supervisor" / "supervisor.py").is_file():
            raise RuntimeError(
                "cogworkerd/supervisor is not the folder of the supervisor: this copy of the sources lost a symbolic "
                "link (cogworkerd/supervisor -> ../supervisor). Build from a git checkout or from the sdist."
            )
