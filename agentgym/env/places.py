"""Where an environment or a suite is found that no installed package offers: a module or a file.

`capitals:demo/capitals-v0` is the id `demo/capitals-v0` after `import capitals`, from the path or
from the current folder; `capitals.py:demo/capitals-v0` after the file is imported. `capitals.py`
alone is the one environment or suite that it registers.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from agentgym.env.author_code import described
from agentgym.errors import RegistryError

_FILE = ".py"


def place_of(name: str) -> tuple[str, str]:
    """Return the module or file of a name, empty if there is none, and the bare name behind it."""
    if name.endswith(_FILE):
        return name, ""
    place, _, bare = name.rpartition(":")
    return place, bare


def open_place(place: str) -> str:
    """Import a module or file once and return the module's name.

    Raises:
        RegistryError: If it is not there, or importing it fails.
    """
    try:
        return _file(place) if place.endswith(_FILE) else _module(place)
    except RegistryError:
        raise
    except Exception as error:
        raise RegistryError(f"cannot import {place!r} ({described(error)})") from error


def only_one(place: str, found: Mapping[str, object]) -> str:
    """Return the one name that a place registers.

    Raises:
        RegistryError: If there is none, or several to choose from.
    """
    names = sorted(found)
    if not names:
        raise RegistryError(
            f"{place} registers no environment: decorate a class with "
            "@register_env('family/name-v0')"
        )
    if len(names) > 1:
        choices = ", ".join(f"{place}:{name}" for name in names)
        raise RegistryError(f"{place} registers several: name one of {choices}")
    return names[0]


def _module(name: str) -> str:
    _make_importable(Path.cwd())
    top = name.split(".", 1)[0]
    # What is loaded may have no spec to be found, such as `__main__`.
    if top not in sys.modules and importlib.util.find_spec(top) is None:
        raise RegistryError(
            f"no module {top!r} on the path or in {Path.cwd()}: run the command in its folder, set "
            "PYTHONPATH to that, or name the file, such as capitals.py:demo/capitals-v0"
        )
    importlib.import_module(name)
    return name


def _file(path: str) -> str:
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise RegistryError(f"there is no file {path!r}")
    known = next((m for m in sys.modules.values() if _is_from(m, file)), None)
    if known is not None:
        return known.__name__
    _make_importable(file.parent)
    name = file.stem if file.stem not in sys.modules else f"{file.parent.name}_{file.stem}_file"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None  # its name ends with .py
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return name


def _is_from(module: ModuleType, file: Path) -> bool:
    origin = getattr(module, "__file__", None)
    return origin is not None and Path(origin) == file


def _make_importable(folder: Path) -> None:
    # At the end: a file here must not take the place of an installed package.
    if str(folder) not in sys.path and "" not in sys.path:
        sys.path.append(str(folder))
