"""Request bodies: what is accepted, how it is parsed, and the error for what is refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from s2sent.service.api.schemas.bodies import EmbedBody, OpenAIEmbeddingsBody
from s2sent.service.api.schemas.similarity import PairsForm, RankingForm, SimilarityBody, SourceForm
from s2sent.service.errors import EmptyInput, InvalidInput, ServiceError
from s2sent.service.http.validation_errors import invalid_input
from tests.support.fake_engine import FakeEngine, client_of

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)  # as JSON has them
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        *("inputs", "input", "truncate", "truncation_direction", "prompt_name", "normalize"),
        *("dimensions", "parameters", "encoding_format", "model"),
    ]
)
FORM_FIELDS = st.sampled_from(
    ["source_sentence", "sentences", "pairs", "queries", "documents", "top_k"]
)
BODIES = st.dictionaries(
    FIELDS, JSON_VALUES | st.dictionaries(FORM_FIELDS, JSON_VALUES, max_size=3), max_size=4
)


def problem_with(schema: type[BaseModel], body: Any) -> str:
    try:
        schema.model_validate(body)
    except ServiceError as error:
        return error.message
    except ValidationError as error:
        return invalid_input(error).message
    raise AssertionError("accepted")


@pytest.mark.parametrize("schema", [EmbedBody, SimilarityBody, OpenAIEmbeddingsBody])
@given(body=BODIES | JSON_VALUES)
def test_any_json_is_understood_or_refused_in_one_sentence(
    schema: type[BaseModel], body: Any
) -> None:
    try:
        schema.model_validate(body)
    except (EmptyInput, InvalidInput) as error:
        message = error.message
    except ValidationError as error:
        message = invalid_input(error).message
    else:
        return
    assert "\n" not in message
    assert "<" not in message  # no tag of a union
    assert message.endswith((".", ")"))


@given(
    fields=st.sets(
        st.sampled_from(
            ["truncate", "truncation_direction", "prompt_name", "normalize", "dimensions", "depth"]
        )
    )
)
def test_null_is_the_default_of_every_optional_field(fields: set[str]) -> None:
    nulls = dict.fromkeys(fields)
    assert EmbedBody.model_validate({"inputs": "a", **nulls}) == EmbedBody.model_validate(
        {"inputs": "a"}
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"inputs": ["a", 3]}, "inputs[1] must be a string or a list of token ids, got 3."),
        ({"inputs": 3}, "inputs must be a string or a list, got 3."),
        (
            {"inputs": [2023, 1.5]},
            "inputs[1] must be a token id, an integer of at least 0, got 1.5",
        ),
        ({"inputs": [1, "a"]}, "inputs[1] must be a token id, an integer of at least 0, got a str"),
        ({"inputs": [[1, None]]}, "inputs[0][1] must be a token id, an integer of at least 0"),
        ({"inputs": ["a", ""]}, "inputs[1] is an empty string. Leave it out."),
        ({"inputs": ""}, "inputs is an empty string. Send a text."),
        ({"inputs": [[1], []]}, "inputs[1] is an empty list."),
        ({"inputs": "a", "normalize": "true"}, "normalize must be true or false, got 'true'."),
        (
            {"inputs": "a", "dimensions": "6" * 50},
            f"dimensions must be an integer, got '{'6' * 40}...'.",
        ),
        (
            {"inputs": "a", "depth": 0, "dimensions": True},
            "dimensions must be an integer, got true. Wrong as well: depth.",
        ),
        (
            {"inputs": "a"} | dict.fromkeys(["details", "truncate", "prompt_name", "depth"], 1.5),
            "details must be true or false, got 1.5. Wrong as well: truncate, prompt_name, depth.",
        ),
        (
            dict.fromkeys(["normalize", "details", "truncate", "prompt_name", "depth"], 1.5),
            "details must be true or false, got 1.5."
            " Wrong as well: truncate, prompt_name, depth and 2 more.",
        ),
        ({"inputs": "a", "dimensions": 0}, "dimensions must be at least 1, got 0."),
        ({"inputs": "a", "dimensions": 1.5}, "dimensions must be an integer, got 1.5."),
        ({"inputs": "a", "prompt_name": 1}, "prompt_name must be a string, got 1."),
        ({}, "inputs is required."),
        ([], "The body must be an object, got a list."),
    ],
)
def test_embed_says_what_is_wrong(body: Any, message: str) -> None:
    assert problem_with(EmbedBody, body).startswith(message)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"source_sentence": "a"}, "inputs.sentences is required."),
        ({"queries": ["a"]}, "inputs.documents is required."),
        ({"pairs": [["a", "b"], ["c"]]}, "inputs.pairs[1] must have 2 items, got 1."),
        ({"pairs": [["a", "b", "c"]]}, "inputs.pairs[0] must have 2 items, got 3."),
        ({"pairs": [["a", ""]]}, "inputs.pairs[0][1] is an empty string. Leave the pair out."),
        ({"pairs": []}, "inputs.pairs is empty. Send at least one pair."),
        (
            {"source_sentence": "", "sentences": ["a"]},
            "inputs.source_sentence is an empty string. Send a text.",
        ),
        (
            {"source_sentence": "a", "sentences": []},
            "inputs.sentences is empty. Send at least one text.",
        ),
        (
            {"queries": ["a"], "documents": ["b"], "top_k": 2**63},
            f"inputs.top_k must be at most {2**63 - 1}, got {2**63}.",
        ),
        ("a", "inputs must have source_sentence and sentences, or pairs, or queries"),
    ],
)
def test_similarity_says_what_is_wrong(inputs: Any, message: str) -> None:
    assert problem_with(SimilarityBody, {"inputs": inputs}).startswith(message)


@pytest.mark.parametrize(
    ("inputs", "form"),
    [
        ({"source_sentence": "a", "sentences": ["b"]}, SourceForm),
        ({"pairs": [["a", "b"]]}, PairsForm),
        ({"queries": ["a"], "documents": ["b"]}, RankingForm),
        ({"pairs": None, "queries": ["a"], "documents": ["b"], "top_k": None}, RankingForm),
    ],
)
def test_similarity_form_is_told_by_its_keys(inputs: Any, form: type) -> None:
    request = SimilarityBody.model_validate({"inputs": inputs})
    assert isinstance(request.inputs, form)
    assert set(request.inputs.texts()) == {"a", "b"}


def test_error_names_the_field_for_openais_param() -> None:
    with pytest.raises(ValidationError) as caught:
        OpenAIEmbeddingsBody.model_validate({"input": "a", "encoding_format": "int4"})
    error = invalid_input(caught.value)
    assert error.param == "encoding_format"
    known = "'float', 'base64', 'float16', 'int8', 'binary' or 'ubinary'"
    assert error.message == f"encoding_format must be {known}, got 'int4'."


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (
            "/embed",
            {"inputs": "a", "dimensions": 2**64},
            "dimensions is 18446744073709551616; this model has 8. Ask for at most 8.",
        ),
        (
            "/embed",
            {"inputs": "a", "dimensions": -(2**64)},
            "dimensions must be at least 1, got -18446744073709551616.",
        ),
        (
            "/similarity",
            {"inputs": {"queries": ["a"], "documents": ["b"], "top_k": 2**64}},
            "inputs.top_k must be at most 9223372036854775807, got 18446744073709551616.",
        ),
    ],
)
async def test_an_integer_beyond_64_bits_is_refused_by_its_limit(
    path: str, body: dict[str, Any], message: str
) -> None:
    """orjson reads it as a float, which is not what the client sent."""
    response = await client_of(FakeEngine()).post(path, json=body)
    assert (response.status_code, response.json()["error"]) == (422, message)


def test_the_bounds_of_a_whole_number_are_in_its_schema() -> None:
    """Those of an integer that is first made whole too."""
    bounds = RankingForm.model_json_schema()["properties"]["top_k"]["anyOf"][0]
    assert (bounds["minimum"], bounds["maximum"]) == (1, 2**63 - 1)
    fields = EmbedBody.model_json_schema()["properties"]
    for name, least in (("dimensions", 1), ("depth", 1), ("window_overlap", 0)):
        assert fields[name]["anyOf"][0]["minimum"] == least


@pytest.mark.parametrize(
    "inputs",
    [
        {"pairs": [["a", "b"]], "queries": ["a"], "documents": ["b"]},
        {"source_sentence": "a", "sentences": ["b"], "pairs": [["a", "b"]]},
        {"source_sentence": "a", "documents": ["b"]},
    ],
)
async def test_an_object_with_keys_of_two_forms_is_refused(inputs: dict[str, Any]) -> None:
    """One of the forms would be ignored, and the OpenAPI document says oneOf."""
    response = await client_of(FakeEngine()).post("/similarity", json={"inputs": inputs})
    assert response.status_code == 422
    assert response.json()["error"] == (
        "inputs must have source_sentence and sentences, or pairs, or queries and documents,"
        " and only one of these."
    )
