"""What a run with a broker of its own may reach, from the words that were typed. The broker reads them: it is the one
that has to hold them.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:  # loaded by the broker only
    from broker.policy.addresses import Address
    from broker.policy.authority import Authority
    from broker.policy.rules import Policy


class RulesError(Exception):
    """What was typed has no meaning. The text is for whoever typed it."""


class Words(msgspec.Struct, frozen=True, kw_only=True):
    """The words of `--allow`, `--policy`, `--private` and `--resolve`."""

    allow: tuple[str, ...] = ()
    policy: Path | None = None
    private: tuple[str, ...] = ()
    resolve: tuple[str, ...] = ()


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What they mean. `fixed` replaces name look-ups for some authorities."""

    policy: "Policy"
    fixed: "Mapping[Authority, tuple[Address, ...]]"


def words_of(options: Mapping[str, Any]) -> Words:
    """Those among the options of `run`."""
    policy = options.get("policy")
    return Words(
        allow=options.get("allow", ()),
        policy=None if policy is None else Path(policy),
        private=options.get("private", ()),
        resolve=options.get("resolve", ()),
    )


def understand(words: Words) -> Rules:
    """Read them, and the policy file. Raises RulesError."""
    return Rules(policy=_policy(words), fixed=_fixed(words.resolve))


def _policy(words: Words) -> "Policy":
    from broker.policy.problems import PolicyError  # noqa: PLC0415

    try:
        if words.policy is not None:
            from broker.policy.load import load_policy  # noqa: PLC0415  presets and TOML: 8 ms

            return load_policy(words.policy)
        from broker.policy.allows import policy_from_allows  # noqa: PLC0415

        return policy_from_allows(words.allow, words.private)
    except PolicyError as error:
        raise RulesError(str(error)) from error


def _fixed(resolve: tuple[str, ...]) -> "dict[Authority, tuple[Address, ...]]":
    if not resolve:
        return {}
    from broker.policy.addresses import parse_address  # noqa: PLC0415
    from broker.policy.authority import parse_authority  # noqa: PLC0415
    from broker.policy.reasons import Refusal  # noqa: PLC0415

    fixed: dict[Authority, tuple[Address, ...]] = {}
    for text in resolve:
        found = re.fullmatch(r"([^:]+:[0-9]+):(?:\[([0-9A-Fa-f:.]+)\]|([0-9A-Fa-f:.]+))", text, re.ASCII)
        address = parse_address(found[2] or found[3]) if found else None
        if found is None or address is None:
            raise RulesError(f"--resolve {text!r} is not HOST:PORT:ADDR, for example api.example.com:443:192.0.2.7.")
        try:
            authority = parse_authority(os.fsencode(found[1]), default_port=None)
        except Refusal as refusal:
            raise RulesError(f"--resolve {text!r}: {refusal.detail}.") from refusal
        fixed[authority] = (*fixed.get(authority, ()), address)
    return fixed
