'''
The faults, one file each: the module's name is the fault's name in YAML and on the command line. Nothing is listed.

Write a fault in ten minutes
============================

1. Copy the example in CONTRIBUTING.md to `chaoskit/faults/<name>.py`. The file that you read is the file that runs on
   the node: standard library only, Python 3.8, absolute imports of `chaoskit.agent` and `chaoskit.errors` alone.
2. Write one frozen dataclass that derives from `Fault`. Its fields are the parameters; the docstring under each field is
   its documentation; `seconds(10.0)` and `share(0.5)` declare fields that the experiment file writes as `10s` and `50%`.
   Refuse parameters that make no sense together by a ValueError in `__post_init__`.
3. State its `lifetime`, what it `needs`, and its spans in `holds()` (none for a harm that happens once and is over).
4. Write the verbs:

        @dataclass(frozen=True)
        class StopService(Fault):
            """Stop a service for a while."""

            service: str = "nvidia-dcgm"
            """Name of the unit."""
            down: float = seconds(30.0)
            """How long it stays stopped."""

            def holds(self):                   return ((0.0, self.down),)
            def resource(self, undo):          return ("service:" + self.service,)
            def prepare(self, host):           read what is there, refuse what could not be reverted or proven; change nothing
            def inject(self, host, undo):      do the harm, quickly: it is stamped before and after
            def witness(self, host, undo):     prove that it happened, by a reading that stays true after the revert
            def gone(self, host, undo):        prove by a fresh read that what was captured is back
            def revert(self, host, undo):      put back what was captured: after a crash, twice, or with inject never run
            def exposed(self, host, undo):     say whether the training used this just before

   A held fault also says how its traces are known where the ledger is lost: `strays(cls, host)` lists them, by a name,
   handle or mark (`chaoskit.agent.marks`) of our own, and `sweep(cls, host, stray)` takes one of ours away.
   `prepare` returns the *undo*: JSON that holds all that the other verbs need, for they may run in another process.
   Programs run by `host.run([...])`, an argument list with a deadline; there is no shell.
5. Write `tests/faults/test_<name>.py` around `chaoskit.testing.check_fault`, which tries every duty above on the real
   thing, and a table of refusals: this situation, that sentence.
6. `chaoskit faults <name>` shows it. A fault of your own package needs the same file and an entry point in the group
   `chaoskit.faults`, such as `stop_service = "acme_chaos.stop_service"`: its name, and the module.
'''

import ast
import dataclasses
import difflib
import importlib
import inspect
import pkgutil
import sys
import typing
import zipimport
from types import ModuleType
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Optional, Tuple, Type

from chaoskit.agent.contract import Fault, Json
from chaoskit.errors import InputError

GROUP = "chaoskit.faults"
"""The entry-point group by which installed packages offer their fault modules."""


class Parameter(NamedTuple):
    """A parameter as a person reads it. `unit` is `duration`, `share`, `size` or empty; `default` is None when `required`."""

    name: str
    doc: str
    type: str
    unit: str
    default: Json
    required: bool


class Description(NamedTuple):
    """A fault as a person reads it. `doc` is its class's docstring, `story` its module's."""

    name: str
    doc: str
    story: str
    lifetime: str
    held: bool
    parameters: Tuple[Parameter, ...]


def discover(installed: bool = True) -> Dict[str, Type[Fault]]:
    """
    Return the fault classes by name: those of this package and, on the controller, those of installed packages.

    Args:
        installed: Whether to look for those of installed packages, which costs 20 ms.

    Raises:
        InputError: A module does not hold exactly one fault, or an installed one takes a name that is taken.
    """
    found = {
        module.name: _fault_in(importlib.import_module("{}.{}".format(__name__, module.name))) for module in pkgutil.iter_modules(__path__)
    }
    for name, module in _installed() if installed else ():
        if name in found:
            raise InputError("the entry point {} = {} takes the name of another fault".format(name, module), hint="rename it")
        found[name] = _fault_in(importlib.import_module(module))
    return found


def installed_files() -> Dict[str, str]:
    """Return the module file of each fault that an installed package offers, by the fault's name: what the agent must carry too."""
    files = {}
    for name, module in _installed():
        found = sys.modules.get(module) or importlib.import_module(module)
        files[name] = str(found.__file__)
    return files


def load(name: str, params: Mapping[str, Json]) -> Fault:
    """
    Make a fault from its name and its parameters as JSON.

    Raises:
        InputError: No fault has this name, or it does not take these parameters; says which would be right.
    """
    kind = find(name)
    hints = typing.get_type_hints(kind)
    known = {field.name for field in dataclasses.fields(kind)}
    for key, value in params.items():
        if key not in known:
            raise InputError("fault {} has no parameter {!r}".format(name, key), hint=_did_you_mean(key, known))
        if not _fits(value, hints[key]):
            raise InputError("parameter {} of fault {} must be {}, not {!r}".format(key, name, _type_name(hints[key]), value))
    try:
        return kind(**params)
    except (TypeError, ValueError) as error:
        raise InputError("fault {}: {}".format(name, error)) from error


def find(name: str) -> Type[Fault]:
    """Return a fault's class. Raises InputError: no fault has this name; says which were near."""
    found = discover()
    if name not in found:
        raise InputError("there is no fault {!r}".format(name), hint=_did_you_mean(name, found))
    return found[name]


def describe(name: str) -> Description:
    """Return a fault's documentation, read from its source. Raises InputError: no fault has this name."""
    kind = find(name)
    module = importlib.import_module(kind.__module__)
    docs = field_docs(kind)
    hints = typing.get_type_hints(kind)
    parameters = tuple(_parameter(field, hints[field.name], docs.get(field.name, "")) for field in dataclasses.fields(kind))
    held = kind.holds is not Fault.holds
    return Description(
        name, inspect.cleandoc(kind.__doc__ or ""), inspect.cleandoc(module.__doc__ or ""), kind.lifetime.name, held, parameters
    )


def field_docs(kind: Type[Fault]) -> Dict[str, str]:
    """Return the docstring under each field, inherited ones too, also from inside a zipapp; Python does not keep them."""
    docs: Dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, Fault) and base is not Fault:
            docs.update(_own_field_docs(base))
    return docs


def _own_field_docs(kind: type) -> Dict[str, str]:
    tree = ast.parse(_source(kind))
    body = next(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == kind.__name__)
    docs = {}
    for field, below in zip(body, body[1:]):
        text = _string(below)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and text is not None:
            docs[field.target.id] = inspect.cleandoc(text)
    return docs


def _string(node: ast.stmt) -> Optional[str]:
    value = node.value if isinstance(node, ast.Expr) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def _source(kind: type) -> str:
    spec = importlib.import_module(kind.__module__).__spec__
    loader: Any = spec.loader if spec else None
    source: Optional[str] = loader.get_source(kind.__module__) if hasattr(loader, "get_source") else None
    # A script run as __main__ has no spec; its file is still there.
    return source if source is not None else inspect.getsource(importlib.import_module(kind.__module__))


def _fault_in(module: ModuleType) -> Type[Fault]:
    own = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Fault) and value.__module__ == module.__name__
    ]
    if len(own) != 1:
        names = ", ".join(kind.__name__ for kind in own) or "none"
        raise InputError("{} must hold exactly one fault, and holds {}".format(module.__name__, names), hint="one file a fault")
    return own[0]


def _installed() -> Iterator[Tuple[str, str]]:
    """Yield name and module of each installed fault; the zipapp on a node carries all that it needs, and looks no further."""
    if isinstance(globals().get("__loader__"), zipimport.zipimporter):
        return
    from importlib import metadata  # noqa: PLC0415 - costs 20 ms, and nodes never need it

    points: Any = metadata.entry_points()
    for point in points.select(group=GROUP) if hasattr(points, "select") else points.get(GROUP, ()):
        yield point.name, point.value


def _did_you_mean(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return "did you mean {}?".format(near[0]) if near else "there are: {}".format(", ".join(sorted(known)))


def _fits(value: Json, hint: Any) -> bool:
    """Whether a JSON value is of a field's type; types that this does not know are left to the fault."""
    if typing.get_origin(hint) is typing.Union:
        return any(_fits(value, option) for option in typing.get_args(hint))
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint) if isinstance(hint, type) else True


def _type_name(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Union:
        return " or ".join(_type_name(option) for option in typing.get_args(hint) if option is not type(None))
    return str(getattr(hint, "__name__", hint))


def _parameter(field: "dataclasses.Field[Any]", hint: Any, doc: str) -> Parameter:
    required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    made = field.default_factory() if field.default_factory is not dataclasses.MISSING else None
    default = made if field.default is dataclasses.MISSING else field.default
    return Parameter(field.name, doc, _type_name(hint), str(field.metadata.get("unit", "")), default, required)
