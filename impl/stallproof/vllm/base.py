"""What the parts of the guard stand on: for the type checker any engine, at run time nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Engine: Any = object
else:
    Engine = object
