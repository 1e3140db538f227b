"""Runs every snippet of the README, and checks that what it names is real."""

import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from tracker import compare_strategies  # noqa: F401 - defines its flags and the app's

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"(<!-- [\w-]+ -->\n)?```(bash|python)\n(.*?)```", README, re.DOTALL)


# Of absl, of TensorBoard, and of other commands.
OTHERS = {"help", "helpfull", "flagfile", "check", "logdir", "samples_per_plugin", "dist"}
COMMANDS = "".join(  # have flags of their own
    (ROOT / "tracker" / path).read_text()
    for path in ("runs/commands.py", "runs/main.py", "profiles/main.py")
)


def snippets():
    """The how-to's snippets in order: what sets up and what serves a page is tried elsewhere."""
    for mark, kind, text in BLOCKS:
        if not mark and not text.startswith("tensorboard "):
            yield kind, text


def test_every_snippet_runs_in_order(tmp_path):
    count = 0
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    (tmp_path / "flags").symlink_to(ROOT / "flags")
    for kind, text in snippets():
        if kind == "python":
            commands = [[sys.executable, "-c", text]]
        else:
            lines = text.strip().splitlines()
            assert all(line.startswith("python -m tracker") for line in lines), text
            commands = [[sys.executable, *shlex.split(line)[1:]] for line in lines]
        for command in commands:
            done = subprocess.run(
                command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
            )
            assert done.returncode == 0, (command, done.stderr)
            count += 1
    assert count >= 7


def test_the_two_commands_are_one_line_each():
    marked = {mark.strip(): text for mark, _, text in BLOCKS if mark}
    assert marked.keys() >= {"<!-- train-command -->", "<!-- test-command -->"}
    for name in ("train", "test"):
        assert len(marked[f"<!-- {name}-command -->"].strip().splitlines()) == 1


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_flags_and_files_that_are_named_exist(document):
    from absl import flags

    text = (ROOT / document).read_text()
    for name in set(re.findall(r"--([a-z_]+)", text)) - OTHERS:
        assert name in flags.FLAGS or f'"--{name}"' in COMMANDS, name
    for path in set(re.findall(r"(?:docs|flags|tracker)/[\w./-]+\.(?:png|flags|txt|py)", text)):
        assert (ROOT / path).exists(), path


def test_contributing_lists_every_module():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for path in (ROOT / "tracker").glob("*.py"):
        assert path.name == "__init__.py" or f"`{path.name}`" in text, path.name
