"""Which prompt stands before a request's texts: that of its name, of its role, or the default."""

from collections.abc import Mapping

from s2sent.model.artifact.manifest import Manifest, Role
from s2sent.service.api.schemas.options import EmbedOptions, InputType
from s2sent.service.errors import InvalidInput

ROLES: Mapping[InputType, Role] = {
    "query": "query",
    "search_query": "query",
    "document": "document",
    "passage": "document",
    "search_document": "document",
}


def prompt_of(manifest: Manifest, options: EmbedOptions, *, role: Role | None = None) -> str:
    """The text put before the texts of a request; ``role`` is theirs where it says nothing.

    A role for which the model has no prompt takes the default prompt, as ``encode_query`` and
    ``encode_document`` of sentence-transformers do. Raises InvalidInput for a name that the model
    lacks, and for a name beside an input type.
    """
    if options.input_type is not None:
        if options.prompt_name is not None:
            raise InvalidInput(
                f"prompt_name is {options.prompt_name[:60]!r} and input_type"
                f" {options.input_type!r}, and both choose the prompt. Send one of them.",
                param="input_type",
            )
        role = ROLES[options.input_type]
    name = options.prompt_name
    if name is None and role is not None:
        name = manifest.role_prompt_name(role)
    return named_prompt(manifest, name)


def named_prompt(manifest: Manifest, name: str | None, *, param: str = "prompt_name") -> str:
    """The text of a prompt, by default of the model's default prompt; none for "".

    Raises InvalidInput for a name that the model lacks.
    """
    if name and name not in manifest.prompts:
        known = ", ".join(sorted(manifest.prompts)) or "none"
        left_out = "that of prompt_name"
        if param == "prompt_name":
            left_out = manifest.default_prompt_name or "none"
        raise InvalidInput(
            f"{param} is {name[:60]!r}; this model has {known}."
            f' Send "" for no prompt, or leave it out for {left_out}.',
            param=param,
        )
    return manifest.prompt(name)
