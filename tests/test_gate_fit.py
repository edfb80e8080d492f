"""Fitting a gate on a frozen backbone: right summaries, one seed one checkpoint, the best kept."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model.encoder import build_encoder, get_selector, load_encoder
from model.selector import S2SentSelector, SelectorConfig
from tests.tiny import tiny_backbone
from tests.tiny_data import SENTENCES, tiny_data
from training.__main__ import main
from training.config import BackboneConfig, CorpusConfig, GateConfig, Recipe
from training.encoders import torch_encode
from training.errors import ConfigError
from training.evaluation import TASKS, read_sentence_pairs, spearman
from training.gate import fit_gate, info_nce, shuffled, train
from training.summaries import cached_summaries, embed, summarise

ROOT = Path(__file__).parents[1]
GATE = GateConfig(steps=20, batch_size=8, learning_rate=0.05, eval_every=5)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_backbone(tmp_path_factory.mktemp("backbone") / "tiny")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def recipe(backbone: Path) -> Recipe:
    return Recipe(
        seed=3,
        backbone=BackboneConfig(name=str(backbone), max_seq_length=32),
        corpus=CorpusConfig(wikisplit=20, captions=20),
        gate=GATE,
        selector={"reduction": 4},
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"spatial_selection": "1d", "weight_norm": "none"},
        {"dct_norm": "sum", "frequency_policy": "raw", "bias": False},
        {"pooling": "cls", "num_blocks": 2},
    ],
)
def test_a_summary_is_all_the_gate_needs(backbone: Path, options: dict[str, Any]) -> None:
    """From summaries come the embeddings that the whole encoder gives."""
    config = SelectorConfig(width=32, reduction=4, **options)
    encoder = build_encoder(backbone, config, normalize=False)
    texts = [*SENTENCES[:9], "no"]
    with torch.no_grad():
        embeddings = embed(get_selector(encoder), summarise(encoder, texts))
    np.testing.assert_allclose(embeddings.numpy(), encoder.encode(texts), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "says"),
    [({"spatial_selection": "avg"}, "no gate"), ({"num_frequencies": 0}, "tokens one by one")],
)
def test_a_gate_without_summaries_is_refused(
    backbone: Path, options: dict[str, Any], says: str
) -> None:
    encoder = build_encoder(backbone, SelectorConfig(width=32, **options))
    with pytest.raises(ConfigError, match=says):
        summarise(encoder, SENTENCES[:2])


def test_cached_summaries_are_the_computed_ones(backbone: Path, tmp_path: Path) -> None:
    """A second call reads the file; another text or selector makes another file."""
    encoder = build_encoder(backbone, SelectorConfig(width=32))
    first = cached_summaries(encoder, SENTENCES[:5], tmp_path)
    again = cached_summaries(encoder, SENTENCES[:5], tmp_path)
    assert torch.equal(first.squeezed, again.squeezed)
    assert torch.equal(summarise(encoder, SENTENCES[:5]).pooled, again.pooled)
    assert len(list(tmp_path.iterdir())) == 1
    cached_summaries(encoder, SENTENCES[:6], tmp_path)
    cached_summaries(
        build_encoder(backbone, SelectorConfig(width=32, num_blocks=2)), ["a"], tmp_path
    )
    assert len(list(tmp_path.iterdir())) == 3


def test_info_nce_is_the_mean_of_both_directions_by_hand() -> None:
    first = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    second = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    half = 0.5**0.5
    logits = np.array([[1, half], [0, half]]) / 0.5
    forth = np.log(np.exp(logits).sum(1)) - logits.diagonal()
    back = np.log(np.exp(logits).sum(0)) - logits.diagonal()
    expected = (forth.mean() + back.mean()) / 2
    assert info_nce(first, second, 0.5).item() == pytest.approx(expected, rel=1e-5)


def test_batches_use_every_pair_once_a_pass_in_an_order_the_seed_decides() -> None:
    pairs = torch.arange(12).view(6, 2)

    def one_pass(seed: int) -> torch.Tensor:
        batches = shuffled(pairs, 2, seed=seed)
        return torch.cat([next(batches) for _ in range(3)])

    assert sorted(one_pass(1).tolist()) == pairs.tolist()
    assert torch.equal(one_pass(1), one_pass(1))
    assert not torch.equal(one_pass(1), one_pass(2))
    assert next(shuffled(pairs, 99, seed=0)).shape == (6, 2)


def test_of_all_gates_looked_at_the_best_is_returned(backbone: Path) -> None:
    """The best, not the last: its step, its score and its very weights."""
    encoder = build_encoder(backbone, SelectorConfig(width=32))
    summaries, pairs = summarise(encoder, SENTENCES[:16]), torch.arange(16).view(8, 2)
    scores, seen = iter([1.0, 2.0, 5.0, 3.0, 4.0]), []

    def score_gate(selector: S2SentSelector) -> float:
        seen.append({name: value.clone() for name, value in selector.state_dict().items()})
        return next(scores)

    fit = train(get_selector(encoder), summaries, pairs, GATE, score_gate, seed=0)
    assert (fit.step, fit.dev) == (10, 5.0)
    assert fit.curve == [(0, 1.0), (5, 2.0), (10, 5.0), (15, 3.0), (20, 4.0)]
    assert all(torch.equal(value, seen[2][name]) for name, value in fit.weights.items())


def test_one_seed_gives_one_checkpoint_byte_for_byte(
    recipe: Recipe, data: Path, tmp_path: Path
) -> None:
    """With the cache or without; another seed gives another gate."""
    for name, cache in (("one", None), ("two", tmp_path / "cache"), ("three", tmp_path / "cache")):
        fit_gate(recipe, data, tmp_path / name, cache=cache)
    assert contents(tmp_path / "one") == contents(tmp_path / "two") == contents(tmp_path / "three")
    other = fit_gate(replace(recipe, seed=4), data, tmp_path / "four")
    weights = get_selector(load_encoder(tmp_path / "one")).state_dict()
    assert any(not torch.equal(weights[name], value) for name, value in other.weights.items())


def test_the_saved_checkpoint_is_the_best_on_dev(
    recipe: Recipe, data: Path, tmp_path: Path
) -> None:
    """What is saved scores what the best step scored, and its record says so."""
    fit = fit_gate(recipe, data, tmp_path / "out")
    assert fit.dev == max(score for _, score in fit.curve)
    assert [step for step, _ in fit.curve] == [0, 5, 10, 15, 20]
    dev = read_sentence_pairs(data / "sts" / "stsb-dev.tsv")
    encode = torch_encode(load_encoder(tmp_path / "out"))
    score = spearman(encode(dev.first), encode(dev.second), dev.gold)
    assert score == pytest.approx(fit.dev, abs=0.01)
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert record["dev"]["score"] == pytest.approx(fit.dev, abs=1e-4)
    assert record["recipe"]["gate"]["steps"] == 20
    assert record["corpus"]["pairs"] == {"wikisplit": 20, "captions": 20}
    assert sum(record["mean_block_weights"]) == pytest.approx(1, abs=1e-3)


def test_fitting_moves_the_gate_and_not_the_backbone(
    recipe: Recipe, backbone: Path, data: Path, tmp_path: Path
) -> None:
    torch.manual_seed(recipe.seed)
    untrained = build_encoder(backbone, recipe.selector_config(32))
    fit_gate(recipe, data, tmp_path / "out")
    trained = load_encoder(tmp_path / "out")
    for name, value in untrained[0].state_dict().items():
        assert torch.equal(trained[0].state_dict()[name], value), name
    expand = "spatial_selection.expand.weight"
    assert not torch.equal(trained[1].state_dict()[expand], untrained[1].state_dict()[expand])
    assert trained.max_seq_length == 32


def test_an_output_that_exists_and_a_selector_too_deep_are_refused(
    recipe: Recipe, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="exists already"):
        fit_gate(recipe, data, tmp_path)
    deep = replace(recipe, selector={"num_blocks": 9})
    with pytest.raises(ConfigError, match="num_blocks is 9"):
        fit_gate(deep, data, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_help_imports_no_training_library() -> None:
    """So that help is instant."""
    code = (
        "import sys; sys.argv = ['s2sent-train', 'fit', '--help']\n"
        "from training.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--data" in done.stdout


def test_the_commands_fit_and_score(
    recipe: Recipe, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fit from the command line leaves a checkpoint that evaluate puts into its table."""
    path = tmp_path / "recipe.toml"
    path.write_text(
        f"""seed = 3\nselector = {{ reduction = 4 }}
        backbone = {{ name = "{recipe.backbone.name}", max_seq_length = 32 }}
        corpus = {{ wikisplit = 20, captions = 20 }}
        gate = {{ steps = 4, batch_size = 8, eval_every = 2 }}"""
    )
    arguments = [str(path), "--data", str(data), "--output", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match="0"):
        main(["fit", *arguments])
    for file in TASKS.values():
        shutil.copy(data / "sts" / "stsb-dev.tsv", data / "sts" / file)
    with pytest.raises(SystemExit, match="0"):
        main(["evaluate", str(tmp_path / "out"), "--data", str(data)])
    table = capsys.readouterr().out.splitlines()
    assert table[0].startswith("|  | STS12 |")
    assert table[2].startswith(f"| {tmp_path / 'out'} |")
    assert len(set(table[2].split("|")[2:-1])) == 1  # seven copies of one task, and their mean


def test_a_mistake_on_the_command_line_is_one_sentence_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["none.toml", "--data", str(tmp_path), "--output", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match="2"):
        main(["fit", *arguments])
    assert capsys.readouterr().err.startswith("s2sent-train: none.toml cannot be read")
    with pytest.raises(SystemExit, match="2"):
        main(["evaluate", str(tmp_path), "--data", str(tmp_path), "--record"])
    assert capsys.readouterr().err.startswith(f"s2sent-train: {tmp_path / 'manifest.json'}")
    with pytest.raises(SystemExit, match="2"):
        main(["export", "pypi:unheard-of", str(tmp_path / "out")])
    assert "No package is known for the backbone" in capsys.readouterr().err
