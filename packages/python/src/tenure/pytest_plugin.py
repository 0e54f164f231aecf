"""The pytest plugin: the fixture `tenure_server`."""

from __future__ import annotations

from typing import Iterator

import pytest

from . import Server

SCOPES = ("function", "class", "module", "package", "session")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("tenure_server_scope", f"scope of tenure_server: {', '.join(SCOPES)}", default="function")
    parser.addini("tenure_server_args", "additional flags of tenure server", type="args", default=[])


def _scope(fixture_name: str, config: pytest.Config) -> str:
    scope = config.getini("tenure_server_scope")
    if scope not in SCOPES:
        raise pytest.UsageError(f"tenure_server_scope is {scope!r}, expected one of: {', '.join(SCOPES)}")
    return scope


@pytest.fixture(scope=_scope)
def tenure_server(pytestconfig: pytest.Config) -> Iterator[Server]:
    """An empty Kubernetes API server. `tenure_server.kubeconfig` is the file of its administrator."""
    with Server(pytestconfig.getini("tenure_server_args")) as server:
        yield server
