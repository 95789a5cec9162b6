"""Which inventory is meant: a path, a name in `inventories/`, or that of the lab that is up."""

from pathlib import Path

from chaoskit.errors import InputError

FOLDER = Path("inventories")
VARIABLE = "CHAOSKIT_INVENTORY"
OPTION = "--inventory"


def path_of(given: str, option: str = OPTION) -> Path:
    """Return the path of a file, or of a name in the inventories' folder; `option` is where it was given. Raises InputError."""
    named = FOLDER / f"{given}.yaml"
    bare = Path(given).name == given and not given.endswith((".yaml", ".yml"))
    if bare and named.is_file():
        return named
    if Path(given).is_file():
        return Path(given)
    if Path(given).is_dir():
        raise InputError(f"{given!r} is a directory", where=option, hint="name one YAML file in it")
    _check_lab(Path(given), option)
    names = sorted(path.stem for path in FOLDER.glob("*.yaml"))
    hint = f"{FOLDER}/ has: {', '.join(names)}" if names else f"there is no {FOLDER}/ here"
    raise InputError(f"no inventory file {given!r}{f' and no {named}' if bare else ''}", where=option, hint=hint)


def _check_lab(path: Path, option: str) -> None:
    """Raise InputError when this would be the inventory of a lab that is not up."""
    from chaoskit.lab.plan import STATE_ROOT

    if path.parent.parent == STATE_ROOT:
        name = path.parent.name
        raise InputError(f"the lab {name!r} is not up", where=option, hint=f"`chaoskit lab up --name {name}` starts it")


def lab_path() -> Path:
    """Return the inventory of the one lab that is up. Raises InputError."""
    from chaoskit.lab.plan import STATE_ROOT

    found = sorted(STATE_ROOT.glob("*/inventory.yaml"))
    if len(found) == 1:
        return found[0]
    if not found:
        raise InputError("no inventory given, and no lab is up", hint="give -i FILE, or start a lab with `chaoskit lab up`")
    raise InputError(f"no inventory given, and {len(found)} labs are up", hint=f"give -i with one of: {', '.join(map(str, found))}")
