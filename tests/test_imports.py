"""Who may import whom: the serving half never needs torch, and the two programs never meet."""

import ast
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from s2sent.model.network.selector import IMPORTED_FILES

ROOT = Path(__file__).parent.parent
OURS = {"model", "service", "training"}
SERVING_HALF = ("artifact", "runtime")
HEAVY = ("torch", "transformers", "sentence_transformers", "optimum", "onnx", "scipy", "sklearn")


def modules_in(folder: str) -> list[str]:
    """Every module below a folder, by its dotted name."""
    files = sorted((ROOT / folder).rglob("*.py"))
    return [".".join(("s2sent", *path.relative_to(ROOT).with_suffix("").parts)) for path in files]


SERVING_MODULES = [
    *modules_in("service"),
    *(name for half in SERVING_HALF for name in modules_in(f"model/{half}")),
]

BLOCK = """
import importlib, sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.removeprefix("s2sent.").partition(".")[0] in {blocked!r}:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Block())
for name in {modules!r}:
    importlib.import_module(name)
"""


@cache
def imports_in(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """The import statements of a file, wherever in it they stand."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


@cache
def imported_packages(path: Path) -> set[str]:
    """The dotted names a file imports; ours without ``s2sent.``."""
    names: set[str] = set()
    for node in imports_in(path):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name.removeprefix("s2sent.") for name in names}


def test_our_packages_are_imported_as_parts_of_s2sent() -> None:
    """From the top of a clone ``import model`` works too, and makes a second copy of a module."""
    tops = [ROOT / name for name in (*OURS, "tests", "benchmarks")]
    for path in (path for top in tops for path in top.rglob("*.py")):
        for node in imports_in(path):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            assert not {name.partition(".")[0] for name in names} & OURS, f"{path}:{node}"


def test_serving_works_where_nothing_of_training_is_installed() -> None:
    """A fresh interpreter imports every module of the serving half with torch made unimportable."""
    code = BLOCK.format(blocked=(*HEAVY, "training"), modules=SERVING_MODULES)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_help_of_training_does_not_load_torch() -> None:
    """Heavy imports happen inside the commands, so asking for help is instant."""
    code = BLOCK.format(blocked=HEAVY, modules=["s2sent.training.__main__"])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("service", ("training", "tests", "benchmarks", *HEAVY)),
        ("training", ("service", "tests", "benchmarks")),
        ("model", ("service", "training", "tests", "benchmarks")),
    ],
)
def test_folders_import_only_what_they_may(folder: str, forbidden: tuple[str, ...]) -> None:
    """Also inside functions, where a fresh interpreter would not notice."""
    for path in (ROOT / folder).rglob("*.py"):
        found = {name for name in imported_packages(path) if name.partition(".")[0] in forbidden}
        assert not found, f"{path.name} imports {found}"


def test_service_uses_the_serving_half_of_model_only() -> None:
    """Those that open and run an artifact; nothing that would need torch."""
    for path in (ROOT / "service").rglob("*.py"):
        for name in imported_packages(path):
            parts = name.split(".")
            if parts[0] == "model" and len(parts) > 1:
                assert parts[1] in SERVING_HALF, f"{path.name} imports {name}"


# From the top: a part imports parts that stand further down, never one beside it or above it.
LAYERS = {
    "service": [
        *(
            {"__main__"},
            {"http_process", "supervisor"},
            {"server"},
            {"app"},
            {"pages"},
            {"api", "access"},
            {"bulk", "http"},
        ),
        *(
            {"engine"},
            {"telemetry"},
            {"lanes", "settings_loading", "settings_reference"},
            {"encodings", "errors", "lock_files", "process", "settings", "threads"},
        ),
    ],
    "model": [{"export"}, {"network", "runtime"}, {"artifact"}],
    "training": [
        *(
            {"__main__"},
            {"commands"},
            {"experiments"},
            {"fit"},
            {"loop", "sources"},
            {"join", "objectives", "report"},
        ),
        *({"evaluation"},),
        *(
            {"backbones", "corpus"},
            {"bfloat16", "gguf", "recipe"},
            {"files"},
            {"errors"},
        ),
    ],
}


@pytest.mark.parametrize("folder", LAYERS)
def test_imports_lead_downwards_only(folder: str) -> None:
    """The layers above, of which CONTRIBUTING.md tells."""
    level = {part: depth for depth, layer in enumerate(LAYERS[folder]) for part in layer}
    for path in (ROOT / folder).rglob("*.py"):
        part = path.relative_to(ROOT / folder).parts[0].removesuffix(".py")
        assert part in level or part == "__init__", f"{part} has no place in LAYERS: give it one"
        for name in imported_packages(path):
            package, _, rest = name.partition(".")
            other = rest.partition(".")[0]
            if part != "__init__" and package == folder and other in level and other != part:
                assert level[part] < level[other], f"{path.name} imports {name}"


PACKAGES = sorted(path.parent for folder in OURS for path in (ROOT / folder).rglob("__init__.py"))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_parts_of_a_package_do_not_import_each_other_in_a_circle(package: Path) -> None:
    """Its modules and the packages in it, at every level of the tree."""
    prefix = ".".join(package.relative_to(ROOT).parts) + "."
    parts = {path.stem for path in package.iterdir() if path.stem != "__init__"}
    imported: dict[str, set[str]] = {part: set() for part in parts}
    for path in package.rglob("*.py"):
        part = path.relative_to(package).parts[0].removesuffix(".py")
        names = {name for name in imported_packages(path) if name.startswith(prefix)}
        others = {name.removeprefix(prefix).partition(".")[0] for name in names}
        imported.setdefault(part, set()).update((others & parts) - {part})
    TopologicalSorter(imported).prepare()  # raises CycleError, which names the circle


def test_the_selector_needs_only_the_files_that_a_checkpoint_carries() -> None:
    """They import each other as files of one folder, and nothing else of ours."""
    folder = ROOT / "model/network"
    carried = {*IMPORTED_FILES, "selector.py"}
    assert carried == {path.name for path in folder.glob("selector*.py")}
    for path in (folder / name for name in carried):
        assert not {n for n in imported_packages(path) if n.split(".")[0] in OURS}
        assert {f"{name}.py" for name in siblings_of(path)} <= carried
    assert {f"{name}.py" for name in siblings_of(folder / "selector.py")} == {*IMPORTED_FILES}


def siblings_of(path: Path) -> set[str]:
    """The modules of its own folder that a file imports by ``from .name import``."""
    froms = (node for node in imports_in(path) if isinstance(node, ast.ImportFrom))
    return {node.module for node in froms if node.level and node.module}
