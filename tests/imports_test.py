"""Holds the rules of the import graph: what imports what, and what never loads TensorFlow."""

import ast
import pathlib
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).parent.parent / "tracker"
WITHOUT_TENSORFLOW = (
    *("tags", "rundir", "record", "source", "events", "captures", "config", "schedule"),
    *("xplane", "xprof_pages", "scopes", "app_flags", "main", "console", "cluster"),
    *("runs", "profiles", "plugin", "plugin.loader", "plugin.tab"),
)
ENTRY_POINTS = {"app_flags", "main", "quiet", "compare_strategies"}
SHARED = {
    *("tags", "rundir", "record", "source", "events"),
    *("captures", "xplane", "xprof_pages", "scopes"),
}
READING = ("runs", "profiles", "plugin")
LENT = {"profiles": {"runs"}}  # what commands share: their parsing, their tables, their files


def modules():
    return {
        ".".join(p.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): p
        for p in PACKAGE.rglob("*.py")
    }


def imported(path):
    """Modules of the package that a file imports, at its top or anywhere in it.

    What only a type checker reads is not imported.
    """
    found = set()
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if not _for_types(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "tracker":
                found |= {a.name for a in node.names}
            elif node.module.startswith("tracker."):
                found.add(node.module.removeprefix("tracker."))
                found |= {f"{node.module.removeprefix('tracker.')}.{a.name}" for a in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.removeprefix("tracker.") for a in node.names if "tracker." in a.name}
    return found & set(modules())


def _for_types(node):
    return isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"


def test_there_are_no_cycles():
    graph = {name: imported(path) - {name} for name, path in modules().items()}
    while graph:
        leaves = {n for n, targets in graph.items() if not targets & graph.keys()}
        assert leaves, f"a cycle among {sorted(graph)}"
        graph = {n: t for n, t in graph.items() if n not in leaves}


def test_the_reading_side_and_the_writing_side_share_only_names_paths_and_files():
    for name, path in modules().items():
        side = name.split(".")[0]
        for target in imported(path):
            if side in READING:
                top = target.split(".")[0]
                assert top in SHARED | LENT.get(side, set()) | {side, "__version__"}, (
                    f"{name} imports {target}"
                )
            else:
                assert target.split(".")[0] not in READING, f"{name} imports {target}"


def test_only_entry_points_touch_flags():
    for name, path in modules().items():
        text = path.read_text()
        if "absl import" in text and "flags" in text.split("absl import")[1].splitlines()[0]:
            assert name.split(".")[0] in ENTRY_POINTS | set(READING), name


@pytest.mark.parametrize("name", [n for n in WITHOUT_TENSORFLOW if n in modules()])
def test_what_never_loads_tensorflow(name):
    code = f"import sys, tracker.{name}; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_importing_the_package_loads_nothing_and_defines_no_flags():
    code = (
        "import sys; before = set(sys.modules); import tracker; "
        "sys.exit(len({m.split('.')[0] for m in set(sys.modules) - before} - {'tracker'}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_the_library_can_be_imported_twice_and_reloaded():
    code = """if True:
        import importlib, sys
        sys.argv = ['kernel', '-f', 'connection.json']
        import tracker.experiment, tracker.config, tracker.tags
        for name in ('tracker.config', 'tracker.tags', 'tracker.wur', 'tracker.experiment'):
            importlib.reload(sys.modules[name])
        from absl import flags
        assert 'stddevs' not in flags.FLAGS
        tracker.experiment.assemble(tracker.config.Config(steps=3, profile_steps=''))
    """
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
