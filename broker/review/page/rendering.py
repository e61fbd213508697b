"""Turns values into HTML. Nothing that a template is given reaches the page but as escaped, visible text.

The templates are files of this package, read once, so that the page still works where its user could not read them.
"""

from contextvars import ContextVar
from functools import cache
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup, escape

from broker.review.page import wording

_HERE: Final = "broker.review.page"
_FILTERS: Final = (
    wording.outcome,
    wording.meaning,
    wording.target,
    wording.happening,
    wording.host_of,
    wording.instant,
    wording.readable,
    wording.clock,
    wording.size,
    wording.lasted,
)
# What a reader should know about the answer that is being made, in the thread that makes it.
NOTICE: Final = ContextVar("NOTICE", default="")
STATIC: Final = {"style.css": "text/css; charset=utf-8", "live.js": "text/javascript; charset=utf-8"}


def render(template: str, **values: Any) -> str:
    """Return a page as text."""
    return environment().get_template(template).render(values, notice=NOTICE.get())


@cache
def environment() -> Environment:
    """The templates, all of them compiled: a mistake in one shows at the start."""
    folder = files(_HERE) / "templates"
    sources = {file.name: file.read_text("utf-8") for file in folder.iterdir() if file.name.endswith(".html")}
    made = Environment(
        loader=DictLoader(sources),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {function.__name__: function for function in _FILTERS}
    made.filters |= {
        "segment": lambda text: quote(text, safe=""),
        "as_written": as_written,
        "exactly": exactly,
        "query": query,
    }
    made.globals["between"] = wording.between
    for name in sources:
        made.get_template(name)
    return made


@cache
def static(name: str) -> bytes:
    """A file that browsers fetch."""
    return (files(_HERE) / "static" / name).read_bytes()


def as_written(text: str) -> Markup:
    """Text of several lines, for a place that keeps them; each line as visible as everything else."""
    return Markup("\n").join(escape(wording.visible(line.replace("\t", "    "))) for line in text.split("\n"))


def exactly(text: str) -> Markup:
    """Text that goes back into a field as it came out of one."""
    return escape(text)


def query(values: dict[str, str], **more: str) -> str:
    """A query of the given values that are not empty."""
    return urlencode({name: value for name, value in {**values, **more}.items() if value})


def _finalize(value: Any) -> Any:
    return wording.visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
