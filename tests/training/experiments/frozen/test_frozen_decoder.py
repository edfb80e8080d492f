"""Frozen experiments on causal backbones: states of one token, and the tests at the end."""

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from s2sent.model.network.encoder import build_prompt_encoder, find_template, get_selector
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.network.template import TEMPLATES
from s2sent.training.__main__ import main
from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.sts import TASKS
from s2sent.training.experiments.engine import TESTS
from s2sent.training.experiments.frozen import run
from s2sent.training.experiments.frozen.heads import ARMS, DECODER_ARMS, SelectorHead
from s2sent.training.experiments.frozen.run import Plan, require_possible, run_plan, score_tests
from s2sent.training.experiments.frozen.setting import (
    DecoderInput,
    Setting,
    frozen_encoder,
    read_setting,
    states_of,
)
from s2sent.training.experiments.frozen.tables import frozen_tables
from s2sent.training.experiments.frozen.train import Schedule, batch_loss
from s2sent.training.files.jsonl import read_lines
from s2sent.training.objectives.sfp import TwoStageLoss
from s2sent.training.recipe.recipe import CorpusPart
from tests.support.tiny import tiny_decoder
from tests.support.tiny_data import SENTENCES, write_table

WIDTH = 32
TEXTS = [*SENTENCES[:6], "a dog", SENTENCES[7] + " and " + SENTENCES[8]]
INPUT = DecoderInput(TEMPLATES["sfp"], num_blocks=4, bf16=False)
QUICK = Schedule(steps=4, learning_rate=0.0, eval_every=2, batch_size=4)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_decoder(tmp_path_factory.mktemp("frozen-decoder") / "tiny")


@pytest.fixture(scope="module")
def folder(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data with seven tests of a few pairs."""
    folder = tmp_path_factory.mktemp("frozen-data")
    (folder / "sts").mkdir()
    (folder / "corpus").symlink_to(data / "corpus")
    (folder / "sts" / "stsb-dev.tsv").symlink_to(data / "sts" / "stsb-dev.tsv")
    header = ("subset", "score", "sentence1", "sentence2")
    for number, task in enumerate(TASKS.values()):
        rows = [
            ("x", str(place % 6), *pair)
            for place, pair in enumerate(itertools.pairwise(SENTENCES[number : number + 24]))
        ]
        write_table(folder / "sts" / task, [header, *rows])
    return folder


@pytest.fixture(scope="module")
def setting(decoder: Path, folder: Path) -> Setting:
    parts = [CorpusPart(source="captions"), CorpusPart(source="wikisplit")]
    return read_setting(
        str(decoder),
        folder,
        None,
        folder / "cache",
        corpus=parts,
        decoder=INPUT,
    )


def lively(selector: nn.Module) -> None:
    """Weights large enough that the gate depends on its input."""
    torch.manual_seed(5)
    for parameter in selector.parameters():
        nn.init.normal_(parameter, std=0.5)


@pytest.mark.parametrize("norm", ["none", "rms", "length"])
def test_a_selector_gives_the_same_from_the_states_of_one_token(
    decoder: Path, tmp_path: Path, norm: Any
) -> None:
    """Whatever scales the states: the cache holds them as they are."""
    config = SelectorConfig.preset("decoder", width=WIDTH, input_norm=norm)
    encoder = build_prompt_encoder(
        decoder, config, [INPUT.template], pooling="rep1", clean_up=INPUT.clean_up
    )
    lively(get_selector(encoder))
    head = SelectorHead(config)
    head.selector.load_state_dict(get_selector(encoder).state_dict())
    plain = frozen_encoder(str(decoder), INPUT)
    assert find_template(plain) == find_template(encoder)
    states = states_of(plain, TEXTS, tmp_path, INPUT)
    assert states.coefficients is states.pooled
    found = head(*states.batch(slice(None), range(2, 5))).detach().numpy()
    np.testing.assert_allclose(found, encoder.encode(TEXTS), atol=1e-5)


def test_the_loss_of_sfp_is_that_of_the_full_path(setting: Setting, decoder: Path) -> None:
    config = SelectorConfig.preset("decoder", width=WIDTH)
    encoder = build_prompt_encoder(
        decoder, config, [INPUT.template], pooling="rep1", max_seq_length=64
    )
    lively(get_selector(encoder))
    head = SelectorHead(config)
    head.selector.load_state_dict(get_selector(encoder).state_dict())
    texts = [SENTENCES[start] for start in (0, 5, 10, 15)]  # the first of each row of captions
    transformer: Any = encoder[0]
    columns = [transformer.preprocess(texts, task="view_1")]
    expected = TwoStageLoss(encoder)(columns, torch.empty(0))
    rows = np.flatnonzero(np.isin(setting.pairs[:, 0], first_rows(setting, texts)))[:4]
    found = batch_loss(head, setting, rows, range(2, 5), "sfp")
    assert found.item() == pytest.approx(expected.item(), abs=1e-4)


def first_rows(setting: Setting, texts: list[str]) -> list[int]:
    """The captions come first in the corpus, as the pairs (1, 2) and (3, 4) of each five."""
    known = [SENTENCES[start + place] for start in range(0, 60, 5) for place in range(4)]
    return [known.index(text) for text in texts]


def test_the_tests_are_scored_once_at_the_end(
    setting: Setting, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of every objective; the kept heads give the embeddings that were scored in the run."""
    file, cache = tmp_path / "frozen.jsonl", folder / "cache"
    arms = ("last", "mean-3-rms", "static-blocks-3-rms", "s2sent-3-rms")
    plan = Plan((4,), (1, 2), QUICK, (1e-2,), arms, ("contrastive", "sfp"))
    run_plan(setting, plan, file, cache)
    lines = read_lines(file)
    assert len(lines) == 2 * (2 + 2 * 2)
    assert not any(TESTS in line for line in lines)
    assert "STS-7" not in frozen_tables(file)
    score_tests(setting, folder, cache, file, pairs_per_task=20)
    opened = read_lines(file)
    assert [{**line, TESTS: None} for line in opened] == [{**line, TESTS: None} for line in lines]
    assert {*TASKS, "average", "alignment", "uniformity"} < set(opened[0][TESTS])
    assert opened[0][TESTS]["pairs_per_task"] == 20
    tables = frozen_tables(file)
    assert "S2Sent, 3 blocks, each of size 1, minus last block" in tables
    assert "weights of the blocks" in tables
    monkeypatch.setattr(run, "scores_on", lambda *_: pytest.fail("again"))
    score_tests(setting, folder, cache, file)


def test_runs_that_read_otherwise_are_not_scored(
    setting: Setting, folder: Path, tmp_path: Path
) -> None:
    """One file may hold several backbones; their tests have other states than these."""
    file = tmp_path / "frozen.jsonl"
    plan = Plan((4,), (1,), QUICK, (1e-2,), ("last", "static-blocks-3-rms"), ("contrastive",))
    others = (
        replace(setting, backbone="another"),
        replace(setting, decoder=replace(INPUT, clean_up="none")),
        replace(setting, corpus_sha256="1"),
    )
    for each in (setting, *others):
        run_plan(each, plan, file, folder / "cache")
    score_tests(setting, folder, folder / "cache", file)
    lines = read_lines(file)
    assert [TESTS in line for line in lines] == [True] * 2 + [False] * 4 + [True] * 2


def test_a_run_whose_head_is_gone_is_not_scored(
    setting: Setting, folder: Path, tmp_path: Path
) -> None:
    plan = Plan((4,), (3,), QUICK, (1e-2,), ("static-blocks-3-rms",), ("contrastive",))
    run_plan(setting, plan, tmp_path / "runs.jsonl", tmp_path)
    with pytest.raises(ConfigError, match="is missing: delete its line and run"):
        score_tests(setting, folder, folder / "cache", tmp_path / "runs.jsonl")


@pytest.mark.parametrize(
    ("arm", "objective", "message"),
    [
        ("mean-6-rms", "sfp", "Depth 4 is outside 6 to 4: name another, or only arms of"),
        ("last", "sfp", r"give a template with \[REP1\] in it"),
    ],
)
def test_a_plan_without_what_it_needs_is_refused(arm: str, objective: Any, message: str) -> None:
    one_stage = replace(INPUT, template=TEMPLATES["prompteol"])
    plan = Plan((4,), (1,), QUICK, arms=(arm,), objectives=(objective,))
    with pytest.raises(ConfigError, match=message):
        require_possible(plan, 4, one_stage)


def test_every_decoder_arm_is_compared_with_simpler_ones_of_its_size() -> None:
    for name, arm in DECODER_ARMS.items():
        assert len(arm.blocks(30)) == arm.num_blocks
        assert all(control in ARMS for control in arm.controls), name
    features = ARMS["s2sent-6-rms"].controls
    static = ("static-blocks-6-rms", "static-features-6-rms")
    assert features == ("last", "mean-6-rms", "low-rank-rms", *static)


def frozen(folder: Path, decoder: Path, *options: str) -> None:
    where = ["--data", str(folder), "--cache", str(folder / "cache"), "--backbone", str(decoder)]
    main(["frozen", *where, "--depths", "4", "--seeds", "1,2", *options])


def test_the_command_reads_a_decoder_of_few_blocks(
    decoder: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of four: arms that fuse six or twelve are left out."""
    header = ("label", "sentence1", "sentence2")
    rows = [("1", a, b) for a, b in zip(SENTENCES[:20], SENTENCES[20:40], strict=True)]
    data = tmp_path / "data"
    (data / "corpus").mkdir(parents=True)
    (data / "sts").symlink_to(folder / "sts")
    for file in (folder / "corpus").iterdir():
        (data / "corpus" / file.name).symlink_to(file)
    paraphrases = data / "corpus" / "pan-paraphrase.tsv.gz"
    paraphrases.unlink(missing_ok=True)
    write_table(paraphrases, [header, *rows])
    options = ["--template", "sfp", "--steps", "2", "--batch-size", "4"]
    output = tmp_path / "runs.jsonl"
    with pytest.raises(SystemExit, match="0"):
        frozen(data, decoder, *options, "--objective", "contrastive", "--output", str(output))
    page = Path(capsys.readouterr().out.strip())
    assert page == output.with_suffix(".md")
    text = page.read_text(encoding="utf-8")
    assert "S2Sent, 3 blocks, each of size 1" in text
    (command,) = re.findall(r"^Made by `s2sent-train (.*)`\.$", text, re.MULTILINE)
    page.unlink()
    with pytest.raises(SystemExit, match="0"):
        main(command.split())
    assert page.read_text(encoding="utf-8") == text
    lines = read_lines(output)
    assert {line["reading"]["num_blocks"] for line in lines} == {4}
    assert {line["arm"] for line in lines} >= {"last", "mean-4-rms", "s2sent-3-rms"}
    assert max(ARMS[line["arm"]].num_blocks for line in lines) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tests", "--test-pairs", "1"], "--test-pairs 1 STS12 has the one gold score 0, with"),
        (["--tests", "--test-pairs", "3"], "--test-pairs 3 STS-B has no gold score above 4, which"),
        (["--template", "unheard-of"], "The template 'unheard-of' has no {} for the sentence"),
        (["--depths", ""], "The list of depths is empty: give one at least"),
        (["--seeds", ","], "The list of seeds is empty: give one at least"),
        (["--seeds", "1,1"], "'1,1' names 1 twice: give each of the seeds once"),
        (["--output", "{folder}"], "cannot be written (Is a directory): name a file in"),
    ],
)
def test_what_the_command_cannot_run_is_one_sentence(
    decoder: Path, folder: Path, options: list[str], message: str, refusal: Callable[..., str]
) -> None:
    given = [option.format(folder=folder) if "folder" in option else option for option in options]
    where = ["--data", folder, "--backbone", decoder, "--cache", folder / "cache"]
    where += ["--output", folder / "none.jsonl", "--depths", 4, "--seeds", "1,2"]
    assert message in refusal("frozen", *where, *given)
