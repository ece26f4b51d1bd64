"""The command `agentgym`: its sub-commands, and what becomes of an error.

Exit codes: 0 done, 1 the work failed, 2 the user's input is wrong, 130 interrupted. Wrong input is
one line for each problem on standard error, never a traceback. Commands import what they need when
they run, so that `agentgym --help` is quick.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import agentgym
from agentgym.cli import (
    doctor,
    environments,
    evaluate,
    inspect,
    presets,
    scaffolding,
    serve,
    tasks,
    train,
)
from agentgym.cli.output import INTERRUPTED, complain
from agentgym.env.author_code import described
from agentgym.errors import (
    AgentGymError,
    ConfigError,
    MissingExtraError,
    RegistryError,
    TaskError,
)

DONE, FAILED, WRONG_INPUT = 0, 1, 2
_TRACEBACK = "AGENTGYM_TRACEBACK"
_WRONG_PATH = frozenset(
    {
        *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS),
        *(errno.ENAMETOOLONG, errno.ELOOP),
    }
)
"""What the system says of a path that somebody gave and that is none to read or to write."""
# Wrong use of the command line. Typer has exported this class under several names over time.
_USAGE_ERROR: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)


class Commands(TyperGroup):
    """All commands; an interruption is said before Typer ends without a word."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command.

        Raises:
            typer.Exit: With `INTERRUPTED`, if Ctrl-C ended it.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            complain("interrupted")
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    name="agentgym",
    cls=Commands,
    help="A multi-turn RL gym and trainer for language-model agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(environments.app, name="envs")
app.add_typer(tasks.app, name="tasks")
app.add_typer(presets.app, name="presets")
app.command("init")(scaffolding.init)
app.command("train")(train.train)
app.command("eval")(evaluate.evaluate)
app.command("runs")(inspect.runs)
app.command("compare")(inspect.compare)
app.command("view")(inspect.view)
app.command("plot")(inspect.plot)
app.command("serve")(serve.serve)
app.command("doctor")(doctor.doctor)


def _version(value: bool) -> None:
    if value:
        typer.echo(agentgym.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A multi-turn RL gym and trainer for language-model agents."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: What follows the command's name; by default this process's own.
    """
    try:
        result = app(
            args=list(sys.argv[1:] if arguments is None else arguments), standalone_mode=False
        )
    except typer.Abort:
        complain("interrupted")
        return INTERRUPTED
    except typer.Exit as end:
        return end.exit_code
    except _USAGE_ERROR as error:
        complain(_misused(error))
        return WRONG_INPUT
    except (ConfigError, TaskError, RegistryError, MissingExtraError) as error:
        complain(str(error))
        return WRONG_INPUT
    except AgentGymError as error:
        complain(_failed(error))
        return FAILED
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe has seen enough
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end
        return DONE
    except OSError as error:
        complain(_failed(error) if error.filename is None else _unusable(error))
        return WRONG_INPUT if error.errno in _WRONG_PATH else FAILED
    except Exception as error:  # noqa: BLE001 - the boundary of the command line
        complain(_failed(error))
        return FAILED
    return result if isinstance(result, int) else DONE


def _misused(error: Any) -> str:
    """Return one line for a wrong use of the command line: which option, what was got.

    A command that needs another word and has none gets its help, as it stands.
    """
    text: str = error.format_message()
    if type(error).__name__ == "NoArgsIsHelpError":
        return text
    # Who converts the values keeps what it was given in its own error.
    details = getattr(error.__cause__ or error.__context__, "errors", None)
    got = f" (got {details()[0]['input']!r})" if details is not None else ""
    return f"{' '.join(text.split())}{got} (--help shows what there is)"


def _failed(error: Exception) -> str:
    """Return one line for a failure, or the whole traceback where that is asked for."""
    if os.environ.get(_TRACEBACK):
        return "".join(traceback.format_exception(error)).rstrip()
    return f"{described(error)} ({_TRACEBACK}=1 shows all of it)"


def _unusable(error: OSError) -> str:
    """Return one line for a file or a folder that the system does not give."""
    if os.environ.get(_TRACEBACK):
        return _failed(error)
    return f"{os.fsdecode(error.filename)} cannot be used: {error.strerror}"


def run() -> None:
    """Run the command line and end the process."""
    sys.exit(main())


if __name__ == "__main__":
    run()
