"""Part: what the models of printed data have in common, and the JSON Schema of such a model.

A model is a format: all its keys are always there, null is what is not known, and its ``schema`` is
a number that rises when a key is added, goes, or means something else.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import GenerateJsonSchema


class Part(BaseModel):
    """A part of data that is printed: all its keys are there, and no others."""

    model_config = ConfigDict(extra="forbid", frozen=True, from_attributes=True)

    def as_json(self) -> dict[str, Any]:
        """Return the part as data that JSON can hold."""
        return self.model_dump(mode="json", by_alias=True)


class _Untitled(GenerateJsonSchema):
    """A schema without titles, which would repeat the keys."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False


def schema_of(model: type[Part]) -> dict[str, Any]:
    """Return the JSON Schema of what ``as_json()`` makes of a model."""
    found = model.model_json_schema(mode="serialization", schema_generator=_Untitled)
    for one in (found, *found["$defs"].values()):
        if "properties" in one:  # pydantic thinks that those with a default may be missing
            one["required"] = [*one["properties"]]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_with_short_types(found)}


def _with_short_types(node: Any) -> Any:
    """Return a schema in which alternatives that are mere types are one list of these."""
    match node:
        case {"anyOf": [*options], **rest} if all(one.keys() == {"type"} for one in options):
            return {"type": [one["type"] for one in options], **rest}
        case dict():
            return {key: _with_short_types(part) for key, part in node.items()}
        case list():
            return [*map(_with_short_types, node)]
    return node
