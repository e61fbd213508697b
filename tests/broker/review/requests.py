"""Random requests and policies for the properties of suggestions and replays."""

from hypothesis import strategies as st

from broker.policy.authority import Authority, parse_host
from broker.policy.facts import Facts, Scheme, Stage
from broker.policy.rules import Mode, Policy, Rule
from broker.review.rule_text import quoted
from tests.broker.policy.asking import policy_of

HOSTS = (
    "a.example.com",
    "b.example.com",
    "example.net",
    "xn--bcher-kva.example",
    "192.0.43.8",
    "[2606:4700::7]",
    "db.internal",
)
PORTS = (443, 80, 8443)
METHODS = ("GET", "HEAD", "POST", "DELETE", "REPORT")
TOKEN = "ghp_0123456789abcdefghijABCDEFGHIJ"
SEGMENTS = (
    "a",
    "b",
    "v1",
    "admin",
    "Admin.",
    "x.whl",
    "%C3%A9",
    "a*b",
    "*",
    "**",
    "token",
    TOKEN,
    f"x{TOKEN}",
    "$",
    "a$",
)
QUERIES = (None, "", "q=1", "q=", "q=1&page=2", "flag", f"{TOKEN}=1", "a=1;b=2", "?=1", "page=2")
PATTERNS = (
    "/**",
    "/a",
    "/a/**",
    "/*/b",
    "/v1/*",
    "/**/x.whl",
    "/a*b",
    "/token/*",
    "/admin",
    "/admin/**",
    "/",
    f"/{TOKEN}",
)
ENTRIES = ("q=*", "q=1", "page=*", "flag", f"{TOKEN}=*", "q=")

PATHS = st.lists(st.sampled_from(SEGMENTS), max_size=4).map(lambda parts: "/" + "/".join(parts))


@st.composite
def requests(draw: st.DrawFn) -> Facts:
    host = parse_host(draw(st.sampled_from(HOSTS)))
    port = draw(st.sampled_from(PORTS))
    scheme: Scheme = "http" if port == 80 or draw(st.integers(0, 9)) == 0 else "https"
    return Facts(
        stage=Stage.REQUEST,
        scheme=scheme,
        authority=Authority(host, port),
        method=draw(st.sampled_from(METHODS)),
        path=draw(PATHS),
        query=draw(st.sampled_from(QUERIES)),
        websocket=draw(st.integers(0, 9)) == 0,
    )


def _texts(key: str, values: list[str]) -> str:
    return f"{key} = [{', '.join(map(quoted, values))}]\n" if values else ""


def _some(values: tuple[str, ...], most: int = 2) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(values), max_size=most, unique=True)


@st.composite
def rule_texts(draw: st.DrawFn, number: int) -> str:
    deny = draw(st.integers(0, 3)) == 0
    splice = not deny and draw(st.integers(0, 5)) == 0
    hosts = draw(_some((*HOSTS[:4], "*.example.com", "?.example.com"), 3)) or ["a.example.com"]
    text = f'[[rule]]\nname = "r{number}"\naction = "{"deny" if deny else "allow"}"\n{_texts("hosts", hosts)}'
    ports = draw(st.lists(st.sampled_from(PORTS), max_size=2, unique=True))
    text += f"ports = {ports}\n" if ports else ""
    text += 'tls = "splice"\n' if splice else ""
    if not splice:
        text += _texts("methods", draw(_some(METHODS)))
        text += _texts("paths", draw(_some(PATTERNS)))
        text += _texts("query", draw(_some(ENTRIES)))
        text += "websocket = true\n" if not deny and draw(st.booleans()) else ""
    return text + ("enforce = false\n" if draw(st.integers(0, 5)) == 0 else "")


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    count = draw(st.integers(0, 4))
    mode = draw(st.sampled_from([Mode.ENFORCE, Mode.ENFORCE, Mode.OBSERVE]))
    rules = "".join(draw(rule_texts(number)) for number in range(count))
    return policy_of(rules, f'enabled = true\nmode = "{mode.value}"')


def names_of(rules: tuple[Rule, ...]) -> set[str]:
    return {rule.name for rule in rules}
