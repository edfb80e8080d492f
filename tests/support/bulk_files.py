"""Inputs and outputs of `s2sent embed` for its tests, and the command as a process."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

from tests.support import folder_contents

WORDS = """
the a man woman child dog cat bird plays runs eats reads writes sings house street city river music
guitar water food book train car ball game day night red green old young happy
"""
ROOT = Path(__file__).parents[2]


def make_texts(count: int, random: Random) -> list[str]:
    """Sentences of 1 to 30 words, each with its number, so that all differ."""
    return [
        " ".join([*random.choices(WORDS.split(), k=random.randint(0, 29)), str(number)])
        for number in range(count)
    ]


def write_texts(path: Path, count: int, random: Random) -> Path:
    """A file with a text a line."""
    path.write_text("\n".join(make_texts(count, random)) + "\n", encoding="utf-8")
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of an output by its name, but locks."""
    files = folder_contents.contents(folder)
    return {name: files[name] for name in files if not Path(name).name.startswith(".lock")}


def start_embed(*arguments: object, **options: Any) -> "subprocess.Popen[str]":
    """`s2sent embed` as a process of its own, with pipes for what it writes."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("S2SENT_")}
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "s2sent.service",
            "embed",
            *map(str, arguments),
            "--progress",
            "none",
        ],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
