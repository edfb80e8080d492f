"""Settings come from flags, then the environment, then defaults, and say what is wrong."""

import os
import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from s2sent.service.engine.inference.parallelism import Parallelism
from s2sent.service.http_process import share_of
from s2sent.service.settings import Settings, SettingsError, environment_name
from s2sent.service.settings_loading import load_settings
from s2sent.service.settings_reference import describe_fields, settings_table

SETTINGS_PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in Settings.model_fields:
        monkeypatch.delenv(environment_name(field), raising=False)


def problems_of(**given: object) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_settings(**given)
    return caught.value.problems


def test_defaults_are_safe() -> None:
    settings = load_settings()
    assert settings.host == "127.0.0.1"
    assert settings.api_keys == ()
    assert settings.cors_allow_origins == ()


def test_given_values_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S2SENT_PORT", "9000")
    monkeypatch.setenv("S2SENT_HOST", "::1")
    settings = load_settings(port="9001")
    assert (settings.host, settings.port) == ("::1", 9001)


def test_an_empty_variable_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S2SENT_PORT", "")
    assert load_settings().port == 8080


@pytest.mark.parametrize("name", ["served_name", "host"])
def test_what_is_not_utf_8_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Answers could not be written with such a name; Python reads the bytes as surrogates."""
    monkeypatch.setenv(f"S2SENT_{name.upper()}", os.fsdecode(b"x\xff"))
    assert "it is not UTF-8. Write it in UTF-8" in problems_of()[0]
    monkeypatch.setenv(f"S2SENT_{name.upper()}", "café")
    assert getattr(load_settings(), name) == "café"


def test_lists_are_split_at_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S2SENT_API_KEYS", "first, second,")
    monkeypatch.setenv("S2SENT_CORS_ALLOW_ORIGINS", "https://a.example")
    settings = load_settings()
    assert [key.get_secret_value() for key in settings.api_keys] == ["first", "second"]
    assert settings.cors_allow_origins == ("https://a.example",)


@pytest.mark.parametrize("keys", [" ", ",", " , ", ",second", "first,,second"])
def test_an_empty_key_is_refused(monkeypatch: pytest.MonkeyPatch, keys: str) -> None:
    """``$KEY1,$KEY2`` with variables that are not set must not open the service to everybody."""
    monkeypatch.setenv("S2SENT_API_KEYS", keys)
    assert re.search(r"api_keys .*: key \d of \d is empty.*no keys\.$", problems_of()[0])


@pytest.mark.parametrize("name", ["S2SENT_API_KEYS", "S2SENT_API_KEYS_FILE", "s2sent_api_keys"])
def test_a_variable_of_keys_that_is_empty_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As a secret that was not set: the service would be open without a word."""
    monkeypatch.setenv(name, "")
    (warning,) = load_settings().warnings
    assert warning.startswith(f"{name.upper()} is empty, so the service asks for no key. Set it")
    assert load_settings(api_keys="first").warnings == ()


def test_nothing_is_warned_of_without_such_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().warnings == ()
    monkeypatch.setenv("S2SENT_PORT", "")
    assert load_settings().warnings == ()


def test_without_keys_the_service_does_not_start_where_they_are_required(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("S2SENT_REQUIRE_KEYS", "true")
    for empty in ("S2SENT_API_KEYS", "S2SENT_API_KEYS_FILE", "S2SENT_PORT"):
        monkeypatch.setenv(empty, "")
        assert problems_of() == [
            "require_keys is set without API keys. Set api_keys or api_keys_file."
        ]
    assert load_settings(api_keys="first").require_keys
    assert load_settings(api_keys_file=tmp_path / "keys").require_keys


def test_several_http_processes_share_the_memory() -> None:
    settings = load_settings(max_held_body_bytes=8_000_000, max_unsent_bytes=4_000_000)
    shared = share_of(settings, 4)
    assert (shared.max_held_body_bytes, shared.max_unsent_bytes) == (2_000_000, 1_000_000)


def test_keys_are_not_shown() -> None:
    assert "hunter2" not in repr(load_settings(api_keys="hunter2"))
    assert "hunter2" not in " ".join(problems_of(api_keys=["hunter2", 3]))


def test_an_unknown_variable_is_refused_with_the_closest_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("S2SENT_MAX_BATCH_TOKEN", "3")
    monkeypatch.setenv("s2sent_xyzzy", "3")
    assert problems_of(port="99999")[:2] == [
        "S2SENT_MAX_BATCH_TOKEN is not a setting. Did you mean S2SENT_MAX_BATCH_TOKENS?",
        "s2sent_xyzzy is not a setting. Unset it.",
    ]
    assert len(problems_of(port="99999")) == 3


@pytest.mark.parametrize(
    "origin",
    ["https://a.example/", "https://*.b.example", "a.example", "HTTPS://a.example", "null"],
)
def test_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    (sentence,) = problems_of(cors_allow_origins=f"https://b.example:8443,{origin}")
    assert f"{origin!r} is no origin. Write it as https://host" in sentence


def test_each_problem_is_a_sentence_with_the_value() -> None:
    port, device = problems_of(port="99999", device="tpu")
    assert port.startswith("port (S2SENT_PORT): ")
    assert "65535" in port
    assert "'99999'" in port
    assert "'tpu'" in device


@pytest.mark.parametrize("field", describe_fields(), ids=lambda field: field.name)
def test_every_setting_is_described_and_every_number_bounded(field: object) -> None:
    (description,) = [known for known in describe_fields() if known == field]
    assert description.description.endswith(".")
    assert "\n" not in description.description
    assert description.group
    assert description.bounds or description.kind not in ("integer", "number")


PRECISION = "precision: int8 on a CPU only, fp16 and fp32 on a GPU"


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        (
            {"max_batch_texts": 128, "max_batch_tokens": 64},
            "max_batch_tokens: at least max_batch_texts",
        ),
        (
            {"max_batch_texts": 1025, "max_batch_tokens": 1024},
            "max_batch_texts: at most max_batch_tokens",
        ),
        (
            {"max_batch_tokens": 4096, "max_queue_tokens": 100},
            "max_queue_tokens: at least max_batch_tokens",
        ),
        ({"metrics_require_key": True}, "metrics_require_key: true only with API keys"),
        ({"device": "cuda", "precision": "int8"}, PRECISION),
        ({"precision": "fp16"}, PRECISION),
        ({"precision": "fp32"}, PRECISION),
        ({"device": "cuda", "concurrent_runs": 2}, "concurrent_runs: on a GPU at most 1"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_and_the_table_says_so(
    given: dict[str, object], bound: str
) -> None:
    (sentence,) = problems_of(**given)
    assert re.search(r"(Raise|Set) ", sentence)  # the cure
    name, _, condition = bound.partition(": ")
    (bounds,) = (field.bounds for field in describe_fields() if field.name == name)
    assert bounds.split("; ")[-1] == condition


def test_a_gpu_is_fed_larger_batches_unless_told_otherwise() -> None:
    on_cpu, on_gpu = load_settings(), load_settings(device="cuda")
    for name in ("max_batch_tokens", "max_batch_texts", "max_queue_tokens"):
        assert getattr(on_gpu, name) > getattr(on_cpu, name)
    assert load_settings(device="cuda", max_batch_tokens=2048).max_batch_tokens == 2048


@pytest.mark.parametrize("given", [0, 1])
def test_on_a_gpu_one_batch_runs_at_a_time(given: int) -> None:
    """Two at once gave wrong embeddings there."""
    settings = load_settings(device="cuda", threads=8, concurrent_runs=given)
    assert Parallelism.of(settings).concurrent_runs == 1
    assert Parallelism.of(load_settings(threads=8)).concurrent_runs == 8


def test_settings_do_not_change() -> None:
    settings = load_settings()
    with pytest.raises(ValidationError):
        settings.port = 1


def test_the_table_in_the_documentation_is_this_one() -> None:
    text = SETTINGS_PAGE.read_text(encoding="utf-8")
    between = text.split("<!-- settings: begin -->")[1].split("<!-- settings: end -->")[0]
    assert between.strip() == settings_table(), "run `s2sent settings` and paste its output"
