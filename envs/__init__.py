"""Environments, one folder a family: id -> `module:Class [extra]`, imported by `make` only."""

if __name__ != "agentgym.envs":
    raise ImportError("import agentgym.envs, not envs: else each class exists twice")

ENVS: dict[str, str] = {
    "math/arithmetic-v0": "agentgym.envs.math.arithmetic:ArithmeticEnv",
    "math/file-v0": "agentgym.envs.math.file:FileEnv [math]",
    "math/reasoning-v0": "agentgym.envs.math.reasoning.env:ReasoningEnv [math]",
    "games/gridworld-v0": "agentgym.envs.games.gridworld:GridworldEnv",
    "games/guess-number-v0": "agentgym.envs.games.guess_number:GuessNumberEnv",
    "games/textarena-v0": "agentgym.envs.adapters.textarena_env:TextArenaEnv [games]",
    "games/wordle-v0": "agentgym.envs.games.wordle:WordleEnv",
    "search/corpus-v0": "agentgym.envs.search.corpus.env:CorpusEnv",
    "search/graph-v0": "agentgym.envs.search.graph.env:GraphEnv",
    "code/repair-v0": "agentgym.envs.code.repair:RepairEnv",
    "code/shell-v0": "agentgym.envs.code.shell:ShellEnv",
    "code/unit-tests-v0": "agentgym.envs.code.unit_tests:UnitTestsEnv",
    "web/miniwob-v0": "agentgym.envs.web.miniwob.env:MiniWobEnv [web]",
    "web/shop-v0": "agentgym.envs.web.shop.env:ShopEnv [web]",
}
