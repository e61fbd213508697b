"""What can go wrong with certificates, each with the cause and the cure.

Three families that never mix: our own files and set-up (`AuthorityError`, `TrustBundleError`), and a name that cannot
be certified (`UnusableNameError`).
"""


class CertsError(Exception):
    """Base of this package. `cause` is one clause, `cure` one sentence for the operator; neither holds key material."""

    def __init__(self, cause: str, cure: str = "") -> None:
        super().__init__(f"{cause}: {cure}" if cure else cause)
        self.cause = cause
        self.cure = cure


class AuthorityError(CertsError):
    """The certificate authority's directory or state cannot be trusted or used."""


class TrustBundleError(CertsError):
    """Roots that are missing or cannot be read: `missing trust bundle`, a broken PEM file."""


class UnusableNameError(CertsError):
    """A name that no certificate of ours may carry."""
