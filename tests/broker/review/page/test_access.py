"""Who gets a page: sentences of a request, and what comes of it."""

import pytest

from broker.review.page.access import Access, Asked, Barred, Keys, Let, cookie_name, judge, names_of

KEYS = Keys.derive("a" * 43)
ACCESS = Access(keys=KEYS, names=names_of("127.0.0.1", 8321, ("review.example.com",)), cookie=cookie_name(8321))
HOST = "127.0.0.1:8321"


def ask(**given: object) -> Let | Barred:
    values: dict[str, object] = {"method": "GET", "path": "/", "hosts": (HOST,), "cookies": (KEYS.cookie,), **given}
    return judge(Asked(**values), ACCESS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"method": "HEAD"},
        {"hosts": ("localhost:8321",)},
        {"hosts": ("LOCALHOST:8321",)},
        {"hosts": ("review.example.com",)},
        {"fetch_site": "same-origin"},
        {"fetch_site": "none"},
        {"origins": (f"http://{HOST}",)},
        {"hosts": ("review.example.com",), "origins": ("https://review.example.com",)},
        {"cookies": ("planted", KEYS.cookie)},  # by another port of the same host: it must not lock anybody out
        {"method": "POST", "origins": ("null",), "fetch_site": "same-origin"},  # our own form, under no-referrer
    ],
)
def test_who_is_let_in(given: dict[str, object]) -> None:
    assert ask(**given) is Let.READ


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"cookies": ()}, Barred.NO_TOKEN),
        ({"cookies": ("",)}, Barred.BAD_TOKEN),
        ({"cookies": (KEYS.cookie[:-1],)}, Barred.BAD_TOKEN),
        ({"cookies": (KEYS.cookie.upper(),)}, Barred.BAD_TOKEN),
        ({"cookies": (KEYS.form,)}, Barred.BAD_TOKEN),
        ({"cookies": (KEYS.token,)}, Barred.BAD_TOKEN),
        ({"cookies": ("\udce9\u20ac",)}, Barred.BAD_TOKEN),
        ({"cookies": (Keys.derive("b" * 43).cookie,)}, Barred.BAD_TOKEN),
        ({"hosts": ()}, Barred.HOST),
        ({"hosts": (HOST, HOST)}, Barred.HOST),
        ({"hosts": ("",)}, Barred.HOST),
        ({"hosts": ("127.0.0.1",)}, Barred.HOST),
        ({"hosts": ("127.0.0.1:80",)}, Barred.HOST),
        ({"hosts": ("rebound.example:8321",)}, Barred.HOST),
        ({"hosts": ("localhost.evil.example:8321",)}, Barred.HOST),
        ({"hosts": ("127.0.0.1:8321.evil.example",)}, Barred.HOST),
        ({"hosts": ("[::1]:8321",)}, Barred.HOST),
        ({"hosts": ("0.0.0.0:8321",)}, Barred.HOST),
        ({"hosts": ("review.example.com:8321",)}, Barred.HOST),
        ({"fetch_site": "cross-site"}, Barred.ORIGIN),
        ({"fetch_site": "same-site"}, Barred.ORIGIN),  # another port of the same host
        ({"fetch_site": "cross-site", "fetch_mode": "navigate"}, Barred.ORIGIN),
        ({"fetch_site": "anything"}, Barred.ORIGIN),
        ({"origins": ("http://evil.example",)}, Barred.ORIGIN),
        ({"origins": ("http://127.0.0.1:8322",)}, Barred.ORIGIN),
        ({"origins": ("http://localhost:8321",)}, Barred.ORIGIN),  # a name of ours, and yet not the one asked
        ({"origins": ("null",)}, Barred.ORIGIN),
        ({"origins": ("null",), "fetch_site": "none"}, Barred.ORIGIN),
        ({"origins": ("",)}, Barred.ORIGIN),
        ({"origins": (f"http://{HOST}", "http://evil.example")}, Barred.ORIGIN),
        ({"method": "PUT"}, Barred.METHOD),
        ({"method": "OPTIONS"}, Barred.METHOD),
        ({"method": "TRACE"}, Barred.METHOD),
        ({"method": "get"}, Barred.METHOD),
    ],
)
def test_who_is_not(given: dict[str, object], why: Barred) -> None:
    assert ask(**given) is why


@pytest.mark.parametrize(
    ("given", "result"),
    [
        ({}, Let.SIGN_IN),
        ({"fetch_site": "none", "fetch_mode": "navigate"}, Let.SIGN_IN),
        ({"fetch_site": "cross-site", "fetch_mode": "navigate"}, Let.SIGN_IN_BY_LINK),
        ({"fetch_site": "cross-site", "fetch_mode": "no-cors"}, Barred.ORIGIN),  # an image, a script
        ({"fetch_site": "cross-site", "fetch_mode": "cors", "origins": ("http://evil.example",)}, Barred.ORIGIN),
        ({"token": "a" * 42}, Barred.BAD_TOKEN),
        ({"token": ""}, Barred.BAD_TOKEN),
        ({"token": KEYS.cookie}, Barred.BAD_TOKEN),
        ({"token": "b" * 43, "cookies": (KEYS.cookie,)}, Barred.BAD_TOKEN),
        ({"path": "/records"}, Barred.METHOD),
        ({"method": "POST"}, Barred.METHOD),
        ({"hosts": ("rebound.example:8321",)}, Barred.HOST),
    ],
)
def test_the_token_is_taken_once_and_in_one_place(given: dict[str, object], result: Let | Barred) -> None:
    assert ask(**{"cookies": (), "token": KEYS.token, **given}) is result


@pytest.mark.parametrize(
    ("address", "port", "names"),
    [
        ("127.0.0.1", 8321, {"127.0.0.1:8321", "localhost:8321"}),
        ("127.0.0.1", 80, {"127.0.0.1:80", "localhost:80", "127.0.0.1", "localhost"}),
        ("::1", 8321, {"[::1]:8321", "localhost:8321"}),
        ("0.0.0.0", 8321, {"127.0.0.1:8321", "[::1]:8321", "localhost:8321"}),
        ("192.0.2.7", 8321, {"192.0.2.7:8321", "localhost:8321"}),
    ],
)
def test_the_names_of_a_listener(address: str, port: int, names: set[str]) -> None:
    assert names_of(address, port) == names


def test_what_is_derived_does_not_give_the_token_away() -> None:
    assert len({KEYS.token, KEYS.cookie, KEYS.form}) == 3
    assert all(len(derived) == 64 for derived in (KEYS.cookie, KEYS.form))


def test_every_reason_has_a_sentence() -> None:
    assert all(why.sentence.endswith(".") and 400 <= why.status < 500 for why in Barred)
