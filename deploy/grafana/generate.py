"""Write the dashboards as JSON: ``python deploy/grafana/generate.py [FOLDER]``."""

import json
import sys
from pathlib import Path

from engine import engine
from overview import overview


def main(folder: Path) -> None:
    """Write one JSON file for each dashboard."""
    for name, dashboard in {"overview": overview(), "engine": engine()}.items():
        text = json.dumps(dashboard, indent=2)
        (folder / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "dashboards")
