"""A recipe of phases: what each trains, where it begins, and how an interrupted run goes on."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from s2sent.training.__main__ import main
from s2sent.training.errors import ConfigError, Interrupted
from s2sent.training.fit.phases import train_phases
from s2sent.training.fit.train import Outcome, train
from s2sent.training.recipe.phases import Phase, read_phases, with_seed
from s2sent.training.recipe.recipe import Recipe
from tests.support.folder_contents import contents
from tests.support.interruption import interrupted_at

RECIPE = """
seed = 3
[backbone]
name = "BACKBONE"
max_seq_length = 32
[[corpus]]
source = "captions"
[objective]
name = "simcse"
temperature = 0.1
[training]
steps = 3
batch_size = 8
eval_every = 2

[[phase]]
name = "contrast"

[[phase]]
name = "graded"
corpus = [{ source = "wikisplit" }]
objective = { name = "pair_distillation", teachers = ["phase:contrast", "BACKBONE"] }

[[phase]]
name = "depths"
selector.reduction = 4
elastic = { depths = [2], dimensions = [16] }
objective.teachers = ["phase:graded"]
objective.direction_weight = 2.0
training.steps = 2
"""


def write(folder: Path, text: str) -> Path:
    (folder / "recipe.toml").write_text(text)
    return folder / "recipe.toml"


@pytest.fixture
def phases(backbone: Path, tmp_path: Path) -> list[Phase]:
    return read_phases(write(tmp_path, RECIPE.replace("BACKBONE", str(backbone))))


def test_a_phase_changes_what_it_names_of_the_one_before(phases: list[Phase]) -> None:
    """Tables key by key; lists and objectives of another name as a whole."""
    contrast, graded, depths = (phase.recipe.as_table() for phase in phases)
    assert contrast["objective"] == {"name": "simcse", "temperature": 0.1, "projection": False}
    assert graded["objective"]["temperature"] == 0.05  # the default of another objective
    assert [graded["corpus"], depths["corpus"]] == [graded["corpus"]] * 2
    assert [part["source"] for part in graded["corpus"]] == ["wikisplit"]
    assert graded["training"] == contrast["training"]
    assert depths["training"] == contrast["training"] | {"steps": 2}
    assert depths["objective"] == graded["objective"] | {
        "teachers": ["phase:graded"],
        "direction_weight": 2.0,
    }
    names = [table["backbone"]["name"] for table in (graded, depths)]
    assert names == ["phase:contrast", "phase:graded"]
    assert {phase.recipe.seed for phase in phases} == {3}


def test_the_seed_that_is_asked_for_is_that_of_every_phase(phases: list[Phase]) -> None:
    assert {phase.recipe.seed for phase in with_seed(phases, 8)} == {8}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("steps = 2\n", "step = 2\n", "phase depths [training] has the unknown key step: use "),
        ('name = "graded"\n', "", "has a phase with name = None: name it in small letters"),
        ('name = "graded"', 'name = "a/b"', "has a phase with name = 'a/b': name it in small"),
        ('name = "graded"', 'name = "contrast"', "has two phases named contrast: name each once."),
        ("[[phase]]\n", "[phase]\n", "is not TOML"),
        ("phase:graded", "phase:later", "names phase:later, which is no earlier phase: use phase:"),
        ("training.steps = 2", "seed = 2", "phase depths has seed, which all phases share"),
        ("training.steps = 2", 'backbone.name = "phase:x"', "names phase:x, which is no earlier"),
        ("training.steps = 2", 'backbone = "x"', "phase depths has backbone = 'x'"),
    ],
)
def test_phases_that_cannot_be_meant_are_refused(
    tmp_path: Path, old: str, new: str, reason: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read_phases(write(tmp_path, RECIPE.replace(old, new)))
    assert reason in str(refused.value)
    assert str(refused.value).startswith(str(tmp_path / "recipe.toml"))


def test_phases_must_be_tables(tmp_path: Path) -> None:
    before, *_ = RECIPE.partition("[[phase]]")
    with pytest.raises(ConfigError, match=r"phase that is no list of tables: write \[\[phase\]\]"):
        read_phases(write(tmp_path, 'phase = "contrast"\n' + before))


def test_a_phase_may_have_a_backbone_of_its_own(backbone: Path, data: Path, tmp_path: Path) -> None:
    """The one after it names that of an earlier phase, or begins with what it left."""
    own = "backbone = {{ name = '{}', max_seq_length = 32 }}\n"
    teacher = '[[phase]]\nname = "teacher"\n' + own.format(backbone)
    begins = 'name = "graded"\n' + own.format("phase:contrast")
    text = RECIPE.replace('[[phase]]\nname = "graded"\n', teacher + "[[phase]]\n" + begins)
    text = text.replace("BACKBONE", str(backbone)).replace(f'"{backbone}"]', '"phase:teacher"]')
    phases = read_phases(write(tmp_path, text))
    names = [phase.recipe.backbone.name for phase in phases]
    assert names == [str(backbone), str(backbone), "phase:contrast", "phase:graded"]
    assert {phase.recipe.backbone.max_seq_length for phase in phases} == {32}
    train_phases(phases, data, tmp_path / "out")
    graded = json.loads((tmp_path / "out" / "training.json").read_text())["began_from"]
    assert graded["began_from"]["phase"] == "contrast"
    teachers = graded["teachers"]
    assert [each["phase"] for each in teachers] == ["contrast", "teacher"]
    assert teachers[1]["backbone"] == {"name": str(backbone)}


def test_each_phase_begins_where_the_one_before_ended(
    phases: list[Phase], data: Path, tmp_path: Path
) -> None:
    """The last one's checkpoint tells of all of them: recipe, corpus, seed and source."""
    train_phases(phases, data, tmp_path / "out")
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    chain = [record, record["began_from"], record["began_from"]["began_from"]]
    assert [each["phase"] for each in chain] == ["depths", "graded", "contrast"]
    assert [each["recipe"] for each in chain] == [p.recipe.as_table() for p in reversed(phases)]
    assert all(each["corpus"]["sha256"] and each["source_sha256"] for each in chain)
    assert record["teachers"][0]["phase"] == "graded"
    assert sorted(path.name for path in (tmp_path / "out" / "phases").iterdir()) == [
        "contrast",
        "graded",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "recipe.toml"]


def test_an_interrupted_run_goes_on_with_its_phase(
    phases: list[Phase], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The phase before is not trained again; every byte is the uninterrupted run's."""
    train_phases(phases, data, tmp_path / "whole")
    trained: list[str] = []

    def noted(recipe: Recipe, *, output: Path, **options: Any) -> Outcome:
        trained.append(output.name)
        with interrupted_at(2) if trained == ["contrast", "graded"] else nullcontext():
            return train(recipe, output=output, **options)

    monkeypatch.setattr("s2sent.training.fit.phases.train", noted)
    with pytest.raises(Interrupted, match=r"step 2 of 3"):
        train_phases(phases, data, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"out\.partial holds an interrupted run"):
        train_phases(phases, data, tmp_path / "out")
    contrast, graded, depths = phases
    other = [Phase("contrast", replace(contrast.recipe, seed=9)), graded, depths]
    with pytest.raises(ConfigError, match="trained by another recipe than that of phase contrast"):
        train_phases(other, data, tmp_path / "out", resume=True)
    train_phases(phases, data, tmp_path / "out", resume=True)
    assert trained == ["contrast", "graded", "graded", "last"]
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_run_that_ended_between_its_last_phase_and_its_end_trains_nothing_again(
    phases: list[Phase], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its phases were put into the last one's checkpoint already."""
    train_phases(phases, data, tmp_path / "out")
    whole = contents(tmp_path / "out")
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out").rename(tmp_path / "out.partial" / "last")
    monkeypatch.setattr("s2sent.training.fit.phases.train", lambda *_, **__: pytest.fail("trained"))
    train_phases(phases, data, tmp_path / "out", resume=True)
    assert contents(tmp_path / "out") == whole


def test_the_command_says_what_each_phase_would_take(
    backbone: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, RECIPE.replace("BACKBONE", str(backbone)))
    output = tmp_path / "out"
    with pytest.raises(SystemExit, match="^0$"):
        main(["fit", str(file), "--data", str(data), "--output", str(output), "--dry-run"])
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("phase")]
    assert [line.split()[1] for line in said] == ["contrast", "graded", "depths"]
    assert not output.exists()
