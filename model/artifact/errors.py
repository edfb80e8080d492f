"""The errors of an artifact, and the cures that several of them name.

ArtifactError
├── MissingFile          the folder, the manifest or a listed file is not there
├── MalformedManifest    the manifest is not what this version of the format says
├── UnsupportedSchema    the manifest has a schema_version this program does not know
├── ChecksumMismatch     a file differs from what was exported
└── UnsafeFile           a file is outside the folder, or the graph may do more than compute
"""

REEXPORT = "Export the checkpoint again with s2sent-train export."
RESTORE = "Restore its checkpoint with s2sent-train restore, and name that."


class UserError(Exception):
    """An error that the user can correct; the message is one sentence with the cure."""


class ArtifactError(UserError):
    """A folder that cannot be used as an artifact; the message names the file and the cure."""


class MissingFile(ArtifactError):
    """The folder, its manifest or a file the manifest lists is not there."""


class MalformedManifest(ArtifactError):
    """The manifest cannot be read as this version of the format."""


class UnsupportedSchema(ArtifactError):
    """The manifest was written for another version of the format."""


class ChecksumMismatch(ArtifactError):
    """A file is not the one that was exported."""


class UnsafeFile(ArtifactError):
    """A file is outside the folder, or is a graph that may not be served."""
