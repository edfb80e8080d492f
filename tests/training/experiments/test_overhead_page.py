"""What a selector adds: the command writes its table, and makes it again from the JSON file."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from s2sent.training.__main__ import main


def test_what_was_measured_stands_in_the_table_beside_it(
    backbone: Path, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    file = tmp_path / "tiny" / "overhead.json"
    sizes = ["--batch-sizes", "1", "--lengths", "8", "--warm-ups", "1", "--repeats", "4"]
    assert "overhead.json is missing: measure first" in refusal(
        "overhead", "--output", file, "--only-table"
    )
    with pytest.raises(SystemExit, match="^0$"):
        main(["overhead", "--backbone", str(backbone), "--output", str(file), *sizes])
    content, page = json.loads(file.read_text()), file.with_suffix(".md").read_text()
    counts = content["parameters"]
    assert "A selector over 3 blocks on " in page
    assert f"{counts['selector']:,} parameters beside {counts['backbone']:,}" in page
    for cell in content["cells"]:
        assert f"| {cell['precision']}, 1 x 8 | 4 | " in page
        assert f" | {cell['selector']['median_percent']:+.2f} | " in page
    file.with_suffix(".md").unlink()
    with pytest.raises(SystemExit, match="^0$"):
        main(["overhead", "--output", str(file), "--only-table"])
    assert file.with_suffix(".md").read_text() == page
