"""Field types for the texts of a request: a string, a list of strings, or token ids.

These are plain validators and not pydantic unions: a union of four shapes reports one error per
branch, while these name the one item at fault, and check the number of texts before any of them.
"""

from typing import Annotated, Any

from pydantic import PlainValidator, ValidationInfo, WithJsonSchema

from s2sent.service.errors import EmptyInput, InvalidInput, PayloadTooLarge
from s2sent.service.http.validation_errors import exact_integer, in_json_terms

Text = str | list[int]  # a text, or the token ids of one

EMPTY: tuple[Text, ...] = ("", [])

TEXT_SCHEMA = {"type": "string", "minLength": 1}
_IDS_SCHEMA = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_INPUTS_SCHEMA = {
    "description": "A text, a list of texts, the token ids of one text, or a list of both.",
    "oneOf": [
        TEXT_SCHEMA,
        {**_IDS_SCHEMA, "title": "Token ids of one text"},
        {"type": "array", "items": {"oneOf": [TEXT_SCHEMA, _IDS_SCHEMA]}, "minItems": 1},
    ],
}
_STRINGS_SCHEMA = {
    "description": "A text or a list of texts. Token ids are refused.",
    "oneOf": [TEXT_SCHEMA, {"type": "array", "items": TEXT_SCHEMA, "minItems": 1}],
}
_TOKEN_IDS_SCHEMA = {
    "description": "The token ids of one text, or a list of such lists.",
    "oneOf": [_IDS_SCHEMA, {"type": "array", "items": _IDS_SCHEMA, "minItems": 1}],
}


def _parse_inputs(value: object, info: ValidationInfo) -> list[Text]:
    """The texts of an ``inputs`` field; a single text becomes a list of one."""
    null_allowed = null_on_error(info)
    if isinstance(value, str):
        return [value if null_allowed else checked_text(value, "inputs", cure="Send a text")]
    if not isinstance(value, list):
        raise InvalidInput(
            f"inputs must be a string or a list, got {in_json_terms(value)}.", param="inputs"
        )
    if not value:
        raise EmptyInput("inputs is empty. Send at least one text.", param="inputs")
    if type(exact_integer(value[0])) is int:
        return [_checked_ids(value, "inputs", allow_any=null_allowed)]
    check_count(len(value), info)
    return [
        item
        if null_allowed and item in EMPTY
        else _parse_text(item, f"inputs[{index}]", allow_any=null_allowed)
        for index, item in enumerate(value)
    ]


def null_on_error(info: ValidationInfo) -> bool:
    """Whether a text that cannot be embedded becomes null, as an empty one; read from on_error."""
    return bool(info.data.get("on_error") == "null")


def _parse_text(value: object, path: str, *, allow_any: bool) -> Text:
    if isinstance(value, str):
        return checked_text(value, path)
    if isinstance(value, list):
        return _checked_ids(value, path, allow_any=allow_any)
    raise InvalidInput(
        f"{path} must be a string or a list of token ids, got {in_json_terms(value)}.", param=path
    )


def check_count(count: int, info: ValidationInfo) -> None:
    """Raise PayloadTooLarge for more texts than the validation context's ``max_texts``.

    Called before the texts are validated: a body within its size limit may hold a million of them.
    """
    limit = (info.context or {}).get("max_texts", count)
    if count > limit:
        raise PayloadTooLarge(
            f"The request has {count} texts; the limit is {limit}. Send them in several requests."
        )


def checked_text(text: str, path: str, *, cure: str = "Leave it out") -> str:
    """The text itself; raises EmptyInput, naming ``path`` and the ``cure``, if it is empty."""
    if not text:
        raise EmptyInput(f"{path} is an empty string. {cure}.", param=path)
    return text


def _checked_ids(ids: list[Any], path: str, *, allow_any: bool = False) -> list[int]:
    """The ids, which the tokenizer compares with its vocabulary.

    ``allow_any`` leaves negative ones to it too: they become null as others it does not know.
    """
    if not ids:
        raise EmptyInput(f"{path} is an empty list. Leave it out.", param=path)
    if set(map(type, ids)) != {int}:
        ids = [exact_integer(token_id) for token_id in ids]  # most often one of them is no integer
        if set(map(type, ids)) != {int}:
            raise _bad_id(ids, path)
    if not allow_any and min(ids) < 0:
        raise _bad_id(ids, path)
    return ids


def _bad_id(ids: list[Any], path: str) -> InvalidInput:
    """The error that names the first item that cannot be a token id."""
    index, token_id = next((i, id_) for i, id_ in enumerate(ids) if type(id_) is not int or id_ < 0)
    return InvalidInput(
        f"{path}[{index}] must be a token id, an integer of at least 0,"
        f" got {in_json_terms(token_id)}.",
        param=f"{path}[{index}]",
    )


def _parse_strings(value: object, info: ValidationInfo) -> list[str]:
    """The texts of a field that does not accept token ids; a single text becomes a list of one."""
    name = info.field_name or "inputs"
    items = [value] if isinstance(value, str) else value
    allow_empty = null_on_error(info)
    if not isinstance(items, list):
        raise InvalidInput(
            f"{name} must be a string or a list of strings, got {in_json_terms(value)}.", param=name
        )
    if not items:
        raise EmptyInput(f"{name} is empty. Send at least one text.", param=name)
    check_count(len(items), info)
    for index, item in enumerate(items):
        if not isinstance(item, str):
            path = f"{name}[{index}]"
            raise InvalidInput(f"{path} must be a string, got {in_json_terms(item)}.", param=path)
        if not allow_empty and isinstance(value, str):
            checked_text(item, name, cure="Send a text")
        elif not allow_empty:
            checked_text(item, f"{name}[{index}]")
    return items


def _parse_openai_input(value: object, info: ValidationInfo) -> list[str]:
    """The texts of OpenAI's ``input`` field, which must not be token ids.

    OpenAI's clients make ids with OpenAI's own tokenizer, which this model does not share.
    """
    if isinstance(value, list) and (_are_ids(value) or any(map(_are_ids, value))):
        raise InvalidInput(
            "input holds token ids, which are another tokenizer's. Send strings "
            "(in langchain-openai set check_embedding_ctx_length=False).",
            param="input",
        )
    return _parse_strings(value, info)


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and set(map(type, value)) == {int}


def _parse_ids(value: object, info: ValidationInfo) -> list[list[int]]:
    """The token ids of texts; the ids of a single text become a list of one."""
    if not isinstance(value, list):
        raise InvalidInput(f"ids must be a list, got {in_json_terms(value)}.", param="ids")
    if not value:
        raise EmptyInput("ids is empty. Send at least one id.", param="ids")
    if not isinstance(value[0], list):
        return [_checked_ids(value, "ids")]
    check_count(len(value), info)
    for index, item in enumerate(value):
        if not isinstance(item, list):
            raise InvalidInput(
                f"ids[{index}] must be a list of ids as the first is, got {in_json_terms(item)}.",
                param=f"ids[{index}]",
            )
        _checked_ids(item, f"ids[{index}]")
    return value


Inputs = Annotated[list[Text], PlainValidator(_parse_inputs), WithJsonSchema(_INPUTS_SCHEMA)]
Strings = Annotated[list[str], PlainValidator(_parse_strings), WithJsonSchema(_STRINGS_SCHEMA)]
OpenAIInput = Annotated[
    list[str], PlainValidator(_parse_openai_input), WithJsonSchema(_STRINGS_SCHEMA)
]
TokenIds = Annotated[list[list[int]], PlainValidator(_parse_ids), WithJsonSchema(_TOKEN_IDS_SCHEMA)]
