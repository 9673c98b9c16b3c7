"""Imports point downward, runtimes are imported in their own files only, and importing quantkit is light."""

import ast
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# From the bottom to the top; see quantkit/README.md. Packages of one line do not import each other.
LAYERS = [
    {"quantkit.errors", "quantkit.progress", "quantkit.memory", "quantkit.facts"},
    {"quantkit.distribution", "quantkit.registry", "quantkit.arguments", "quantkit.cores"},
    {"quantkit.limits", "quantkit.options"},
    {"quantkit.ir"},
    {"quantkit.ops"},
    {"quantkit.formats", "quantkit.runtimes.session", "quantkit.runtimes.availability"},
    {"quantkit.zoo"},
    {"quantkit.runtimes.tensorflow_library"},
    {"quantkit.convert"},
    {"quantkit.transforms", "quantkit.runtimes"},
    {"quantkit.workers"},
    {"quantkit.pipelines", "quantkit.rewriting"},
    {"quantkit.data"},
    {"quantkit.drawing"},
    {
        *("quantkit.recipes.grammar", "quantkit.recipes.recipe", "quantkit.recipes.trace"),
        *("quantkit.recipes.graph_documents", "quantkit.recipes.page"),
    },
    {"quantkit.model"},
    {"quantkit.recipes"},
    {"quantkit.benchmark", "quantkit.evaluation"},
    {"quantkit.monitor"},
    {"quantkit.quantization"},
    {"quantkit.batch_inference", "quantkit.optimize", "quantkit.training"},
    {"quantkit.summary"},
    {"quantkit.compat"},
    {"quantkit.cli"},
]
# Parts of `quantkit.benchmark`, from the bottom to the top; see its README.
BENCHMARK_PARTS = (
    *("host", "statistics", "results", "sampling", "profiling", "regression", "verdict", "report_page"),
    *("workflow", "sweep", "diagnosis"),
)
# Packages that only some files may import.
HARD_BORDERS = {
    "google": ("quantkit/formats/",),
    "onnx": ("quantkit/formats/", "quantkit/convert/"),
    "tf2onnx": ("quantkit/convert/",),
    "tensorflow": (
        "quantkit/pipelines/bridge.py",
        "quantkit/pipelines/vectorization.py",
        "quantkit/runtimes/",
        "quantkit/model/importers/",
        "quantkit/compat/freeze_graph.py",
    ),
    "onnxruntime": ("quantkit/runtimes/onnxruntime.py",),
    "openvino": ("quantkit/runtimes/openvino.py",),
    "ai_edge_litert": ("quantkit/runtimes/litert.py",),
    "rich": ("cli/",),
    "quantkit.cli": ("cli/",),
    "quantkit.models": (),
}
RUNTIME_PACKAGES = {"ai_edge_litert", "tensorflow", "onnxruntime", "openvino", "tf2onnx", "onnx"}


@cache
def sources() -> dict[Path, ast.Module]:
    """Return the syntax tree of each file of the package."""
    paths = sorted([*ROOT.glob("quantkit/**/*.py"), *ROOT.glob("cli/*.py")])
    assert len(paths) > 600
    return {path: ast.parse(path.read_text()) for path in paths}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = ("quantkit", *parts) if parts[0] == "cli" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports_of(path: Path, *, top_level_only: bool = False, counts_types: bool = False) -> tuple[str, ...]:
    """Return the modules that a file imports.

    Args:
        path: file.
        top_level_only: without the imports in functions.
        counts_types: with the imports for type checkers; packages import them on first use, they count anyway.
    """
    return tuple(find_imports(path, sources()[path], top_level_only, counts_types))


def find_imports(path: Path, tree: ast.Module, top_level_only: bool, counts_types: bool) -> Iterator[str]:
    skipped = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
        and path.name != "__init__.py"
        and not counts_types
        for child in ast.walk(node)
    }
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    for node in nodes:
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module_name(path).split(".")
                package = package if path.name == "__init__.py" else package[:-1]
                base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def imported_modules(path: Path, modules: Collection[str]) -> Iterator[str]:
    """Yield the modules that a module imports; a package counts only if a name of its own is imported."""
    names = list(imports_of(path, counts_types=True))
    parents = {name: name.rpartition(".")[0] for name in names}
    packages = {parent for name, parent in parents.items() if name in modules}
    own = {parent for name, parent in parents.items() if name not in modules}
    yield from (name for name in names if name in modules and (name not in packages or name in own))


def layer(module: str) -> int | None:
    """The number of a module's layer: that of its longest listed prefix."""
    best: tuple[int, int] | None = None
    for number, names in enumerate(LAYERS):
        for name in names:
            if (module == name or module.startswith(f"{name}.")) and (best is None or len(name) > best[0]):
                best = (len(name), number)
    return best[1] if best else None


def package(module: str) -> str:
    return ".".join(module.split(".")[:2])


def test_imports_point_downward() -> None:
    wrong = []
    for path in sources():
        module = module_name(path)
        here = layer(module)
        if here is None:
            wrong += [f"{module} belongs to no layer"] if module not in ("quantkit", "quantkit.__main__") else []
            continue
        for imported in imports_of(path):
            there = layer(imported)
            if there is not None and package(imported) != package(module) and there >= here:
                wrong.append(f"{module} imports {imported}, which is not below it")
    assert not wrong, "\n".join(wrong)


def test_table_of_the_readme_has_every_package_in_the_order_of_the_layers() -> None:
    folder = ROOT / "quantkit"
    cells = re.findall(r"^\| \d+ \| (.*?) \|", (folder / "README.md").read_text(), re.MULTILINE)
    rows = [[name.removesuffix(".py") for name in re.findall(r"`([\w.]+)/?`", cell)] for cell in cells]
    names = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert sorted(name for row in rows for name in row) == sorted(names - {"__init__", "__main__"} | {"cli"})
    layers = [[layer(f"quantkit.{name}") or 0 for name in row] for row in rows]
    assert all(max(row) <= min(above) for row, above in pairwise(layers)), layers


def test_imports_within_benchmark_point_downward() -> None:
    for path in (ROOT / "quantkit" / "benchmark").rglob("*.py"):
        part = module_name(path).split(".")[2:3]
        for imported in imports_of(path):
            other = imported.removeprefix("quantkit.benchmark.").split(".")[0]
            if part and other in BENCHMARK_PARTS and imported.startswith("quantkit.benchmark."):
                positions = [BENCHMARK_PARTS.index(name) for name in (other, *part)]
                assert positions == sorted(positions), f"{module_name(path)} imports {imported}"


def test_modules_have_no_import_circles() -> None:
    """Imports in functions and for type checkers count."""
    modules = {module_name(path): path for path in sources()}
    below = {name: set(imported_modules(path, modules)) - {name} for name, path in modules.items()}
    while leaves := {name for name, others in below.items() if others.isdisjoint(below)}:
        below = {name: others for name, others in below.items() if name not in leaves}
    assert not below, f"import circles: {sorted(below)}"


def test_transform_registry_does_not_import_transforms_or_plugins() -> None:
    imported = set(imports_of(ROOT / "quantkit" / "transforms" / "registry.py"))
    members = {name for name in imported if name.startswith("quantkit.transforms.")}
    assert members <= {"quantkit.transforms._placement", "quantkit.transforms._placement.restore_placement"}


def test_hard_borders_hold() -> None:
    wrong = []
    for path in sources():
        file = path.relative_to(ROOT).as_posix()
        for imported in imports_of(path):
            for name, homes in HARD_BORDERS.items():
                if (imported == name or imported.startswith(f"{name}.")) and not file.startswith(homes):
                    wrong.append(f"{file} imports {imported}")
        imports = {imported.split(".")[0] for imported in imports_of(path, top_level_only=True)}
        wrong += [f"{file} imports {name} at the top level" for name in imports & RUNTIME_PACKAGES]
    assert not wrong, "\n".join(wrong)


def test_only_the_command_line_prints() -> None:
    wrong = []
    for path, tree in sources().items():
        # The standard output of a worker is the channel to the process that started it.
        for node in () if path.parent.name == "cli" or path.name == "worker.py" else ast.walk(tree):
            match node:
                case ast.Name(id="print"):
                    wrong.append(f"{path}:{node.lineno} prints")
                case ast.Attribute(value=ast.Name(id="sys"), attr="argv"):
                    wrong.append(f"{path}:{node.lineno} reads sys.argv")
    assert not wrong, "\n".join(wrong)


def test_no_runtime_or_target_is_compared_by_name() -> None:
    """Properties of the registered objects decide (decision 3). Names of dialects are not checked."""
    names = {"eightbit", "litert", "onnxruntime", "openvino", "reference", "tensorrt"}
    comparisons = [
        (path, node) for path, tree in sources().items() for node in ast.walk(tree) if isinstance(node, ast.Compare)
    ]
    assert len(comparisons) > 1000
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, node in comparisons
        if any(
            isinstance(side, ast.Constant) and side.value in names - {path.stem}
            for side in (node.left, *node.comparators)
        )
    ]
    assert wrong == []


def test_class_names_have_one_definition() -> None:
    definitions: dict[str, list[str]] = {}
    for path, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                position = f"{path.relative_to(ROOT)}:{node.lineno}"
                definitions.setdefault(node.name, []).append(position)
    assert len(definitions) > 200
    assert not {name: positions for name, positions in definitions.items() if len(positions) > 1}


@pytest.mark.parametrize(
    "statement",
    [
        "import quantkit.training",
        "import quantkit as qk; qk.load; qk.transform; qk.save; qk.summarize",
        "from importlib import import_module; import_module('quantkit.cli').main(['--help'])",
        "from importlib import import_module; import_module('quantkit.cli').main(['transform', '--help'])",
        "from importlib import import_module; import_module('quantkit.cli').main(['summarize', 'digits'])",
    ],
)
def test_starting_is_light(statement: str) -> None:
    script = f"{statement}\nimport sys; print('LOADED', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.rpartition("LOADED")[2].split())
    assert not loaded & {*RUNTIME_PACKAGES, "torch", "keras", "sklearn"}
