import pytest

from broker.audit.keys import host_key, microseconds, split_authority


@pytest.mark.parametrize(
    ("authority", "host", "port"),
    [
        ("api.example.com:443", "api.example.com", 443),
        ("API.example.com", "api.example.com", 0),
        ("[2001:db8::1]:443", "[2001:db8::1]", 443),
        ("[2001:db8::1]", "[2001:db8::1]", 0),
        ("2001:db8::1", "2001:db8::1", 0),
        ("host:port", "host:port", 0),
        ("", "", 0),
    ],
)
def test_split_authority(authority: str, host: str, port: int) -> None:
    assert split_authority(authority) == (host, port)


@pytest.mark.parametrize(
    "host", ["example.com", "a.b.c", "localhost", "192.0.2.1", "[::1]", "", "0.pool.example", "a.0", "1.2", "a.", ".a"]
)
def test_host_key_turns_back(host: str) -> None:
    assert host_key(host_key(host)) == host


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.000001Z", 1),
        ("1969-12-31T23:59:59.5Z", -500_000),
        ("2023-11-14T22:13:20.123456Z", 1_700_000_000_123_456),
        ("2023-11-15T00:13:20.123456+02:00", 1_700_000_000_123_456),
        ("9999-12-31T23:59:59.999999Z", 253_402_300_799_999_999),
    ],
)
def test_microseconds(time: str, expected: int) -> None:
    assert microseconds(time) == expected


OUT_OF_THE_CALENDAR = ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.999999-00:01"]


@pytest.mark.parametrize("time", ["", "x", "2023-11-14T22:13:20", "2023-02-30T00:00:00Z", *OUT_OF_THE_CALENDAR])
def test_what_is_no_moment(time: str) -> None:
    with pytest.raises(ValueError, match=r"time zone|isoformat|day is out|range|years 1 to 9999"):
        microseconds(time)
