"""Whether a checkpoint's signature fits, by the public keys kept beside the log."""

from enum import Enum

from broker.audit.chain import Checkpoint, signed_message
from broker.audit.signing import check_signature, load_public_keys


class Standing(Enum):
    """What a signature is worth. The value is a phrase for people."""

    FITS = "the signature fits"
    UNKNOWN_KEY = "the key that signed it is not beside the log"
    WRONG = "THE SIGNATURE DOES NOT FIT"


def standing(directory: int, checkpoint: Checkpoint) -> Standing:
    """Compare one checkpoint with the keys of the log's directory (a descriptor)."""
    keys = load_public_keys(directory)
    if checkpoint.key not in keys:
        return Standing.UNKNOWN_KEY
    message = signed_message(checkpoint.id, checkpoint.head)
    fits = check_signature(keys, checkpoint.key, message, checkpoint.signature.encode())
    return Standing.FITS if fits else Standing.WRONG
