"""What runs on nodes listens on no port, by its own text: the one socket that it listens on is a file that only root can open."""

import ast
from pathlib import Path

import pytest

import chaoskit

pytestmark = pytest.mark.row("S7", "S10")

PACKAGE = Path(chaoskit.__file__).parent
ON_NODES = sorted([*(PACKAGE / "agent").glob("*.py"), *(PACKAGE / "faults").glob("*.py")])
SERVERS = {"socketserver", "http.server", "xmlrpc", "asyncio", "multiprocessing.connection"}
NEVER = {"pickle", "marshal", "shelve", "ctypes.wintypes"}


def calls(tree):
    """Yield each call with its dotted name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def faults_of(text):
    """Return what a module's text has that would listen, run a shell, or make code of data."""
    tree = ast.parse(text)
    listens = ("listen", "create_server", "start_server")
    found = [name for name, _ in calls(tree) if name in ("os.system", "os.popen", "eval") or ("." in name and name.endswith(listens))]
    found += [name for name in imports(tree) if name in SERVERS | NEVER or name.partition(".")[0] in SERVERS | NEVER]
    found += ["shell" for _, node in calls(tree) for word in node.keywords if word.arg == "shell"]
    return found


@pytest.mark.parametrize("path", ON_NODES, ids=lambda path: path.name)
def test_no_module_of_the_agent_listens_runs_a_shell_or_makes_code_of_data(path):
    """Only `connections.listen` does, and what it listens on is a unix socket."""
    found = faults_of(path.read_text())
    if path.name == "connections.py":
        assert found == ["listener.listen"]
        assert "AF_INET" not in path.read_text()
    elif path.name == "nvml.py":
        assert found == ["marshal"]  # root's own compiled module, handed to its own child: never what came from outside
    else:
        assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "s.listen(1)",
        "socket.create_server(('', 1))",
        "import socketserver",
        "os.system(x)",
        "run(x, shell=True)",
        "import pickle",
        "eval(x)",
    ],
)
def test_the_search_finds_what_it_looks_for(text):
    """Or it would say nothing."""
    assert faults_of(text)
