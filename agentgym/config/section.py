"""`Section`: what a group of settings is, and how it says that a value is wrong."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from agentgym.config.error_messages import sentence
from agentgym.config.validation import InvalidInputError


class Section(BaseModel):
    """A frozen group of settings; an unknown name is an error."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True
    )

    entry_keys: ClassVar[tuple[str, ...]] = ()
    """Settings of an entry of `envs`, where the section has entries."""

    def __init__(self, /, **values: Any) -> None:
        """Make the section of plain values.

        Raises:
            InvalidInputError: With one line for each value that is wrong.
        """
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InvalidInputError(
                [sentence(item, entry_keys=self.entry_keys) for item in error.errors()]
            ) from None

    # Pydantic's own mark: sections inside a section are validated with it, not made one by one.
    __init__.__dict__["__pydantic_base_init__"] = True
