"""Answers: every one has the same header fields, whatever went wrong before it.

Nothing is loaded from elsewhere, no script or style stands in a page, no other page may frame, embed or read it, and
nothing is kept (CSP Level 3, Fetch: Cross-Origin-Resource-Policy, HTML: Cross-Origin-Opener-Policy).
"""

from typing import Final

from aiohttp import web

from broker.review.page.access import Access, Barred
from broker.review.page.rendering import render

HEADERS: Final = {
    "Server": "wicketgate",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


def page(text: str, status: int = 200) -> web.Response:
    """A page."""
    return web.Response(text=text, status=status, content_type="text/html", charset="utf-8", headers=HEADERS)


def file(content: bytes, content_type: str) -> web.Response:
    """The script or the stylesheet."""
    return web.Response(body=content, headers={**HEADERS, "Content-Type": content_type})


def problem(status: int, title: str, sentence: str) -> web.Response:
    """What went wrong, for somebody who was let in."""
    return page(render("problem.html", title=title, sentence=sentence), status)


def barred(why: Barred) -> web.Response:
    """Why there is no page; names nothing of the log, and loads nothing."""
    answer = page(render("barred.html", sentence=why.sentence), why.status)
    answer.force_close()
    if why is Barred.METHOD:
        answer.headers["Allow"] = "GET, HEAD, POST"
    return answer


def signed_in(access: Access, *, by_link: bool) -> web.Response:
    """Set the cookie, and lead on to an address without the token."""
    answer = page(render("signed_in.html"), 200 if by_link else 303)
    if not by_link:
        answer.headers["Location"] = "/"
    answer.set_cookie(access.cookie, access.keys.cookie, path="/", httponly=True, samesite="Strict")
    return answer
