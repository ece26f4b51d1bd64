"""Where the code environments of a test run their agents' code."""

from __future__ import annotations

import pytest

from agentgym.sandbox.shared_pools import close_portal

KINDS = [pytest.param("bubblewrap", marks=pytest.mark.service), "subprocess"]


@pytest.fixture(params=KINDS)
def sandbox(request: pytest.FixtureRequest) -> str:
    """Name of a kind of sandbox."""
    return request.param


@pytest.fixture(autouse=True, scope="module")
def no_box_is_left():
    """Close the boxes of a module's tests at its end."""
    yield
    close_portal()
