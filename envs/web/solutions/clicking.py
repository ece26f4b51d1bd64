"""Solutions that click what the task names."""

from __future__ import annotations

import re

from agentgym.envs.web.solutions.base import Call, click, solves
from agentgym.envs.web.view import View


@solves("click-button")
def click_button(goal: str, view: View) -> Call:
    """Click the button that is named."""
    name = re.findall(r'"([^"]*)"', goal)[0]
    return click(view.first("button", name=name))
