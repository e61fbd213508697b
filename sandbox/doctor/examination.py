"""Can this user build sandboxes here, and do they hold? Really tried, mode by mode, with the cause of each refusal.

The same findings, in the same words, on a host and in a container. It builds nothing weaker where something is refused,
and leaves nothing behind. Call it as the serving user, in a process with one thread.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sandbox.cgroups import Support
from sandbox.doctor.causes import Cause, Facts, Layer, Step, explain
from sandbox.doctor.facts import look
from sandbox.doctor.findings import BRIDGE_ONLY, EVERY_MODE, Finding, Mode, failed, fine
from sandbox.doctor.probes import try_bridge, try_namespaces
from sandbox.doctor.surroundings import check_broker, check_clock, check_disk, check_groups, check_programs
from sandbox.doctor.wholes import try_full_access, try_whole
from sandbox.errors import LaunchError
from sandbox.host import Host
from sandbox.spec import Network

STAY_OFF: Final = 78  # EX_CONFIG (sysexits.h): the process tools must not be used


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All findings, in the order in which they were made."""

    findings: tuple[Finding, ...]
    facts: Facts

    def works(self, mode: Mode) -> bool:
        """Whether sandboxes of this mode can be built and hold."""
        return not any(mode in finding.off for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """0, or 78 where the process tools must stay off."""
        return 0 if all(self.works(mode) for mode in Mode) else STAY_OFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is to be examined. `host` is None where bubblewrap cannot be used, and `refused` says why.

    `attach`: the socket of the broker that is to serve sandboxes, None where each run brings its own. `state`: where
    audit log and held names go. `groups`: what a runner that is started like this can claim.
    """

    host: Host | None
    groups: Support
    refused: LaunchError | None = None
    state: Path | None = None
    attach: Path | None = None
    programs: tuple[str, ...] = ("tmux",)
    now: Callable[[], float] = field(default=time.time)


def examine(setting: Setting) -> Report:
    """Run every check. Never raises for what is wrong with the host."""
    facts = look()
    findings = [_bubblewrap(setting), *_namespaces(facts), *_bridge(facts)]
    usable = not any(Mode.SANDBOX in one.off for one in findings)
    if usable and setting.host is not None:
        findings += [try_whole(setting.host, Network.NONE), try_full_access(setting.host)]
        if not any(Mode.BRIDGE in one.off for one in findings):
            findings.append(try_whole(setting.host, Network.BROKERED))
    findings += [check_broker(setting.attach), check_clock(setting.now()), check_disk(setting.state)]
    findings += [check_groups(setting.groups), *check_programs(setting.programs)]
    return Report(findings=tuple(findings), facts=facts)


def refuse(error: LaunchError) -> Report:
    """The report of a start that was refused before anything could be tried."""
    cause = Cause(layer=Layer.PROGRAM, sentence=error.cause, cure=error.cure)
    return Report(findings=(failed(str(error.code), cause, EVERY_MODE),), facts=look())


def _bubblewrap(setting: Setting) -> Finding:
    error = setting.refused
    if error is None:
        return fine("bubblewrap", "bubblewrap is there and can be trusted.")
    return failed("bubblewrap", Cause(layer=Layer.PROGRAM, sentence=error.cause, cure=error.cure), EVERY_MODE)


def _namespaces(facts: Facts) -> list[Finding]:
    refused = try_namespaces()
    if refused is not None:
        return [failed(str(refused.step), explain(refused, facts), EVERY_MODE)]
    return [fine("namespaces", "User, pid and mount namespaces, a fresh /proc and a root of one's own can be made.")]


def _bridge(facts: Facts) -> list[Finding]:
    refused = try_bridge()
    if refused is None:
        return [fine("cable", "A bridge with cable, capture rules and listeners can be made.")]
    if refused.step in {Step.USER_NAMESPACE, Step.MAP_IDS}:
        return []  # said already
    return [failed(str(refused.step), explain(refused, facts), BRIDGE_ONLY)]


def document(report: Report) -> dict[str, object]:
    """The report for machines."""
    return {
        "exit_code": report.exit_code,
        "modes": {str(mode): report.works(mode) for mode in Mode},
        "findings": [
            {
                "check": str(one.check),
                "state": str(one.state),
                "layer": str(one.layer) if one.layer is not None else None,
                "sentence": one.sentence,
                "cure": one.cure or None,
                "off": sorted(map(str, one.off)),
            }
            for one in report.findings
        ],
        "facts": {
            "uid": report.facts.uid,
            "seccomp_filter": report.facts.filtered,
            "apparmor": report.facts.apparmor or None,
            "selinux": report.facts.selinux or None,
            "sysctls": dict(report.facts.sysctls),
            "masked": list(report.facts.masked),
        },
    }
