"""`wicketgate certs show` and `wicketgate certs rotate`: the inspection authority, for its operator.

Prints certificates and never a key. `show` makes nothing. What a rotation means for running sessions is in its help.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from broker.audit.location import NoStateDirectory, default_state_dir
from certs.authority import OVERLAP, CertificateAuthority
from certs.errors import CertsError
from certs.store import State, authority_directory, read_directory
from wicketgate.identity import prepare_state, serving_identity

type _Command = Callable[..., Any]


@click.group()
def certs() -> None:
    """Show or rotate the certificate authority that inspection signs with."""


def _shared_options(command: _Command) -> _Command:
    command = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)
    where = "State directory (default: /var/lib/wicketgate for root, else the user's)."
    return click.option("--state-dir", type=click.Path(path_type=Path), help=where)(command)


@certs.command()
@_shared_options
@click.option("--pem", "as_pem", is_flag=True, help="Print the trusted certificates as PEM.")
def show(state_dir: Path | None, as_json: bool, as_pem: bool) -> None:
    """Show the authorities that sandboxes trust, the one that signs first."""
    now = datetime.now(UTC)
    with _serving(state_dir) as directory:
        state = read_directory(directory)
    if as_pem:
        click.echo(state.trusted(now) if state else "", nl=False)
        return
    _print(directory, state, now, as_json)


@certs.command()
@_shared_options
@click.option(
    "--overlap",
    type=click.IntRange(0, 365),
    default=OVERLAP.days,
    show_default=True,
    metavar="DAYS",
    help="How long the old authority stays trusted. 0 drops it and all older ones at once: for a key that leaked.",
)
def rotate(state_dir: Path | None, as_json: bool, overlap: int) -> None:
    """Make a new authority that signs from now on.

    Running sandboxes accept its certificates through the old authority until the overlap ends; without an overlap they
    have to be started again. A running broker takes the new authority over by itself.
    """
    now = datetime.now(UTC)
    with _serving(state_dir, make=True) as directory:
        CertificateAuthority.replace(directory, now, overlap=timedelta(days=overlap))
        state = read_directory(directory)
    _print(directory, state, now, as_json)


@contextmanager
def _serving(state_dir: Path | None, *, make: bool = False) -> Iterator[Path]:
    """Give the authority's directory as the user who serves: the key must stay that user's, also when root rotates."""
    try:
        state = state_dir or default_state_dir(os.environ, os.geteuid())
        identity = serving_identity()
        if make:
            prepare_state(state, identity)
        if not identity.is_current:
            _rehearse()
        identity.become()
        yield authority_directory(state)
    except OSError as error:
        raise click.ClickException(f"cannot use the state directory: {error.strerror}: {error.filename}") from error
    except (CertsError, NoStateDirectory) as error:
        raise click.ClickException(str(error)) from error


def _rehearse() -> None:
    """Load what `cryptography` loads on first use: as another user this interpreter may be unreadable."""
    with tempfile.TemporaryDirectory() as place:
        CertificateAuthority.load_or_create(Path(place) / "authority", datetime.now(UTC))


def _print(directory: Path, state: State | None, now: datetime, as_json: bool) -> None:
    authorities = _describe(state, now) if state else []
    if as_json:
        click.echo(json.dumps({"directory": str(directory), "authorities": authorities}, indent=2))
        return
    if not authorities:
        click.echo(f"No certificate authority in {directory} yet: it is made when inspection first needs one.")
    for each in authorities:
        role = "signs new certificates" if each["signs"] else f"trusted until {each['trusted_until']}"
        click.echo(f"{each['subject']}\n  {role}\n  valid {each['not_before']} to {each['not_after']}")
        click.echo(f"  SHA-256 {each['sha256']}")


def _describe(state: State, now: datetime) -> list[dict[str, Any]]:
    retired = [old for old in state.retired if old.until > now]
    ends = [None, *(old.until for old in retired)]
    loaded = [x509.load_pem_x509_certificate(text.encode()) for text in _texts(state, now)]
    return [_one(certificate, until) for certificate, until in zip(loaded, ends, strict=True)]


def _texts(state: State, now: datetime) -> list[str]:
    return [state.certificate, *(old.certificate for old in state.retired if old.until > now)]


def _one(certificate: x509.Certificate, until: datetime | None) -> dict[str, Any]:
    return {
        "subject": certificate.subject.rfc4514_string(),
        "signs": until is None,
        "trusted_until": _time(until or certificate.not_valid_after_utc),
        "not_before": _time(certificate.not_valid_before_utc),
        "not_after": _time(certificate.not_valid_after_utc),
        "sha256": certificate.fingerprint(hashes.SHA256()).hex(":").upper(),
    }


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
