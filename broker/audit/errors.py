"""The errors of the audit log. Each message names the cause and, where there is one, the cure."""


class AuditError(Exception):
    """Base of all errors of the audit log."""


class AuditDirectoryError(AuditError):
    """The directory cannot be trusted or used."""


class AuditUnavailable(AuditError):  # noqa: N818 - a state, and the word callers use
    """A record could not be made durable: nothing that depends on it may happen.

    The log keeps what it holds in order and writes it once it can again.
    """


class AuditKeyError(AuditError):
    """The key that signs checkpoints cannot be read, made or trusted."""


class UnknownRecord(AuditError):  # noqa: N818
    """No record has this id."""
