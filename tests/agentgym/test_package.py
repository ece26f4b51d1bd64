"""The Python door: every promised name is there, and is the same object as in its module."""

import importlib

import pytest

import agentgym


@pytest.mark.parametrize("name", [name for name in agentgym.__all__ if name != "__version__"])
def test_promised_name_is_its_modules(name: str) -> None:
    module = importlib.import_module(agentgym._EXPORTS[name])
    assert getattr(agentgym, name) is getattr(module, name)


def test_names_and_modules_agree() -> None:
    assert set(agentgym.__all__) == {*agentgym._EXPORTS, "__version__"}
    assert dir(agentgym) == sorted(agentgym.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        agentgym.nothing  # noqa: B018 - the access is the test
