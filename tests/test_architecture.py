"""The rules about who may import what, which keep every part testable alone and the command's help instant."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "distbench"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# What the pure floor may use beside the standard library and the package itself: arrays, and JSON to and from bytes. And
# what of the standard library it may not, since it reads a clock, waits, or talks to something outside.
PURE_THIRD_PARTY = {"numpy", "orjson", "msgspec"}
IMPURE_STANDARD = {
    "asyncio",
    "multiprocessing",
    "select",
    "selectors",
    "socket",
    "ssl",
    "subprocess",
    "threading",
    "time",
}


def imports_of(path: Path) -> Iterator[str]:
    """Yield the full name of every module that a file imports, inside functions and type-checking blocks too."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            yield ".".join([*base, *filter(None, [node.module])])


def users_of(library: str) -> set[str]:
    """Return the files that import a library, relative to the package."""
    return {
        str(path.relative_to(PACKAGE))
        for path in SOURCES
        if any(name.split(".")[0] == library for name in imports_of(path))
    }


def test_imports_go_down_the_floors() -> None:
    """The contracts of pyproject.toml hold: no module imports one of a floor above its own, and none is without a floor."""
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), cache_dir=None, no_cache=True) == 0


def test_only_the_fleet_imports_ray() -> None:
    """Ray is known to fleet/ray_*.py alone: everything else runs, and is tested, without a cluster."""
    strangers = {name for name in users_of("ray") if not name.startswith("fleet/ray_")}

    assert strangers == set()


def test_only_the_command_line_imports_click() -> None:
    """Click is known to cli/ alone: every job can be called from Python as well."""
    strangers = {name for name in users_of("click") if not name.startswith("cli/")}

    assert strangers == set()


@pytest.mark.parametrize("path", sorted((PACKAGE / "core").glob("*.py")), ids=lambda path: str(path.name))
def test_core_is_pure(path: Path) -> None:
    """The modules of core/ use the standard library and numpy, and no clock, thread, socket or process."""
    roots = {name.split(".")[0] for name in imports_of(path)}
    foreign = roots - sys.stdlib_module_names - PURE_THIRD_PARTY - {"distbench"}

    assert foreign == set()
    assert roots & IMPURE_STANDARD == set()


def test_help_loads_nothing_heavy() -> None:
    """`distbench --help` answers before Ray, Arrow, pandas or numpy could be loaded."""
    script = (
        "import sys\n"
        "from distbench.cli.main import main\n"
        "sys.argv = ['distbench', '--help']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    print('exit', end.code)\n"
        "print('loaded', *sorted({'ray', 'pyarrow', 'pandas', 'numpy', 'scipy', 'plotly'} & sys.modules.keys()))\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)

    assert "Usage:" in ran.stdout
    assert ran.stdout.splitlines()[-2:] == ["exit 0", "loaded"]


def test_no_file_names_a_registry() -> None:
    """No tracked file names a package registry: where packages come from is each machine's own setting."""
    # In pieces, so that this file does not name them either.
    addresses = [
        "py" + "pi.org",
        "python" + "hosted.org",
        "npm" + "js.org",
        "deb.deb" + "ian.org",
        "download.py" + "torch.org",
    ]
    patterns = [argument for address in addresses for argument in ("-e", address)]
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: there is no list of the project's files")

    # Read without the user's git settings; exit 1 is git's word for "found nothing".
    found = subprocess.run(
        ["git", "grep", "-lIF", *patterns],
        cwd=ROOT,
        env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (found.returncode, found.stdout) == (1, "")
