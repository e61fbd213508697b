"""Reads a form that a browser posted: bounded in bytes, fields and time."""

import asyncio
from typing import Final
from urllib.parse import parse_qsl

from aiohttp import web

from broker.audit.questions import BadQuestion
from broker.review.page.connections import PATIENCE
from broker.review.page.weighing import MOST_POLICY

_MOST: Final = 3 * MOST_POLICY + 64 * 1024  # each byte may come as three (%41)
_FIELDS: Final = 32


async def read_form(request: web.BaseRequest) -> dict[str, str]:
    """The fields of a posted form. Raises `BadQuestion`."""
    if request.content_type != "application/x-www-form-urlencoded" or "Content-Encoding" in request.headers:
        raise BadQuestion("send the form of the page")
    try:
        async with asyncio.timeout(PATIENCE):
            body = await _body(request)
    except TimeoutError:
        raise BadQuestion(f"the form did not come within {PATIENCE:g} seconds") from None
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_FIELDS)
    except ValueError as error:
        raise BadQuestion("the form cannot be read") from error
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise BadQuestion("a field of the form is given twice")
    if len(fields.get("policy", "").encode()) > MOST_POLICY:
        raise BadQuestion(f"a policy may have {MOST_POLICY} bytes here")
    return fields


async def _body(request: web.BaseRequest) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.content.iter_any():
        size += len(part)
        if size > _MOST:
            raise BadQuestion(f"a form may have {_MOST} bytes")
        parts.append(part)
    return b"".join(parts)
