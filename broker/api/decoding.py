"""Reads what a request sent: strictly, each thing once, and nothing from a browser's page.

Raises ApiError with the field that is wrong.
"""

import json
import re
from typing import Any, Final, get_type_hints

import msgspec
from aiohttp import HttpVersion11, web

from broker.api.faults import AnyFault, ApiError
from broker.policy.problems import quote

HOSTS: Final = frozenset({"localhost", "wicketgate"})
_PLAIN: Final = frozenset({"", "identity"})
_PLACE: Final = re.compile(r" - at `\$?\.?([^`]*)`$")
_NAMED: Final = re.compile(r"(?:unknown|required) field `([^`]*)`")


def refuse_browsers(request: web.BaseRequest) -> None:
    """No page reaches a socket through a forwarded port: `Host` must be ours, and no browser's own fields."""
    host = request.headers.get("Host", "")
    if len(request.headers.getall("Host", ())) != 1 or host.lower() not in HOSTS:
        raise ApiError(AnyFault.CROSS_ORIGIN, "Send Host: localhost.")
    if "Origin" in request.headers or any(name.lower().startswith("sec-fetch-") for name in request.headers):
        raise ApiError(AnyFault.CROSS_ORIGIN, "A request from a page is refused.")


async def read_body(request: web.BaseRequest, most: int) -> bytes:
    """The whole body, of at most `most` bytes, as it is: one that says that it is coded is not read in another way.

    A client that asks whether to send it is told to (RFC 9110 §10.1.1).
    """
    if (request.charset or "utf-8").lower() != "utf-8" or request.headers.get("Content-Encoding", "") not in _PLAIN:
        raise ApiError(AnyFault.MEDIA_TYPE, "Send JSON as UTF-8, without Content-Encoding.")
    if request.version >= HttpVersion11 and request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # aiohttp: the answer's head is still to come
    parts: list[bytes] = []
    size = 0
    async for part in request.content.iter_any():
        size += len(part)
        if size > most:
            raise ApiError(AnyFault.TOO_LARGE, f"A body may have {most} bytes.")
        parts.append(part)
    return b"".join(parts)


def decode_body(decoder: msgspec.json.Decoder[Any], content_type: str, body: bytes) -> Any:
    """A JSON document of the decoder's type."""
    if content_type != "application/json":
        raise ApiError(AnyFault.MEDIA_TYPE, "Send Content-Type: application/json.")
    try:
        decoded = decoder.decode(body)
        # Numbers were judged above; as text they cost nothing, however long they are.
        json.loads(body, object_pairs_hook=_refuse_twice, parse_int=str, parse_float=str)
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(AnyFault.BAD_REQUEST, f"The body is not JSON: {error}.") from None
    return decoded


def decode_query(kind: Any, request: web.BaseRequest) -> Any:
    """The query as a document of the type `kind`."""
    values: dict[str, str] = {}
    for name, value in request.rel_url.query.items():
        if name in values:
            raise ApiError(AnyFault.INVALID_FIELD, f"{quote(name)} is given twice.", field=name)
        values[name] = value
    try:
        found = msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    # A number is written as text here, but nothing is not: without this `call=null` would ask for every call.
    for name in (name for name, value in values.items() if value.lower() == "null"):
        try:
            meant = msgspec.convert(values[name], get_type_hints(kind, include_extras=True)[name])
        except msgspec.ValidationError as error:
            raise ApiError(AnyFault.INVALID_FIELD, f"{error}.", field=name) from None
        found = msgspec.structs.replace(found, **{name: meant})
    return found


def invalid(error: msgspec.ValidationError) -> ApiError:
    """Name the field: msgspec says where it was, and for an unknown or missing one which."""
    text = str(error)
    place, named = _PLACE.search(text), _NAMED.search(text)
    parts = [place[1] if place else "", named[1] if named else ""]
    field = ".".join(part for part in parts if part) or None
    fault = AnyFault.UNKNOWN_FIELD if "unknown field" in text else AnyFault.INVALID_FIELD
    return ApiError(fault, f"{_PLACE.sub('', text)}.", field=field)


def _refuse_twice(pairs: list[tuple[str, Any]]) -> None:
    """RFC 8259 §4 leaves open which of two members counts: whoever checked the request may have read the other."""
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise ApiError(AnyFault.INVALID_FIELD, f"The member {quote(name)} is given twice.")
        seen.add(name)
