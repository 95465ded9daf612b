"""Read what objects hold without running any code that their classes define."""

from __future__ import annotations

import types
from typing import Any


def attributes(value: Any) -> dict[str, Any] | None:
    """Return an object's ``__dict__`` itself, not a copy; None if it has none.

    A property that a class defines under this name is not called.
    """
    for owner in type(value).__mro__:
        place = vars(owner).get("__dict__")
        if type(place) is types.GetSetDescriptorType:
            found = place.__get__(value)
            return found if type(found) is dict else None
    return None
