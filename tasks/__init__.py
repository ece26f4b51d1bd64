"""Task suites: name -> `module:function` that returns a `Suite`, or a file of rows in here."""

if __name__ != "agentgym.tasks":
    raise ImportError("import agentgym.tasks, not tasks: else each class exists twice")

SUITES: dict[str, str] = {
    "math/arithmetic": "agentgym.tasks.math:arithmetic",
    "math/gsm-symbolic": "agentgym.tasks.math:gsm_symbolic",
    "math/reasoning-mix": "agentgym.tasks.math:reasoning_mix",
    "games/gridworld": "agentgym.tasks.games:gridworld",
    "games/guess-number": "agentgym.tasks.games:guess_number",
    "games/wordle": "agentgym.tasks.games:wordle",
    "search/corpus": "agentgym.tasks.search:corpus",
    "search/graph": "agentgym.tasks.search:graph",
    "search/graph-easy": "agentgym.tasks.search:graph_easy",
    "code/functions": "agentgym.tasks.code:functions",
    "code/humaneval": "agentgym.tasks.code:human_eval",
    "code/repair": "agentgym.tasks.code:repair",
    "code/shell": "agentgym.tasks.code:shell",
    "web/miniwob": "agentgym.tasks.web:miniwob",
    "web/shop": "agentgym.tasks.web:shop",
}
