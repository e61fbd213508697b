"""Checks a value against a JSON Schema (2020-12) of the kind that the control API's document holds.

It knows the words that stand there and refuses any other, so that nothing passes because it was not understood.
"""

# ruff: noqa: SIM905  (a table of words reads better than a column of strings)

import re
from datetime import datetime
from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
KNOWN = frozenset(
    "$ref additionalProperties anyOf const default description enum exclusiveMinimum format items maxItems maxLength"
    " maximum minItems minLength minimum pattern properties required title type".split()
)


def faults(  # noqa: C901  (one branch a word)
    value: Any, schema: dict[str, Any], document: dict[str, Any], at: str = "$"
) -> list[str]:
    """What is wrong with `value`; `document` is where references lead."""
    unknown = schema.keys() - KNOWN
    assert not unknown, f"words of JSON Schema that this checker does not know: {unknown}"
    found: list[str] = []
    if "$ref" in schema:
        target: Any = document
        for step in schema["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        found += faults(value, target, document, at)
    if "anyOf" in schema and not any(not faults(value, one, document, at) for one in schema["anyOf"]):
        found.append(f"{at}: {value!r} is none of the kinds")
    if "type" in schema:
        kinds = TYPES[schema["type"]]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            return [*found, f"{at}: {value!r} is no {schema['type']}"]
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{at}: {value!r} is not of {schema['enum']}")
    if "const" in schema and value != schema["const"]:
        found.append(f"{at}: {value!r} is not {schema['const']!r}")
    if isinstance(value, dict):
        found += _object(value, schema, document, at)
    if isinstance(value, list):
        found += [
            fault
            for n, one in enumerate(value)
            for fault in faults(one, schema.get("items", {}), document, f"{at}[{n}]")
        ]
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            found.append(f"{at}: {len(value)} items")
    if isinstance(value, str):
        found += _text(value, schema, at)
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        if not low <= value <= high or value <= schema.get("exclusiveMinimum", value - 1):
            found.append(f"{at}: {value!r} is out of range")
    return found


def _object(value: dict[str, Any], schema: dict[str, Any], document: dict[str, Any], at: str) -> list[str]:
    properties = schema.get("properties", {})
    found = [f"{at}: {name} is missing" for name in schema.get("required", ()) if name not in value]
    for name, one in value.items():
        if name in properties:
            found += faults(one, properties[name], document, f"{at}.{name}")
        elif schema.get("additionalProperties") is False:
            found.append(f"{at}: {name} is unknown")
    return found


def _text(value: str, schema: dict[str, Any], at: str) -> list[str]:
    found = []
    if "pattern" in schema and not re.search(schema["pattern"], value):
        found.append(f"{at}: {value!r} does not match {schema['pattern']}")
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        found.append(f"{at}: {len(value)} characters")
    if schema.get("format") == "date-time" and datetime.fromisoformat(value).tzinfo is None:
        found.append(f"{at}: {value!r} has no zone")
    return found
