"""How `wicketgate audit` shows things to people. Text only: no colour, no control characters, one record a line."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from broker.audit.chain import Checkpoint
from broker.audit.checking import Report
from broker.audit.escaping import escape
from broker.audit.neighbours import Neighbourhood
from broker.audit.questions import SummaryRow
from broker.audit.records import Entry

_WIDE = 4096


def entry_line(entry: Entry) -> str:
    """One record on one line: time, verdict, reason, what was asked, rule, where, who."""
    parts = [
        entry.time,
        f"{entry.verdict or entry.kind:8}",
        entry.reason or entry.event,
        _asked(entry),
        f"rule={entry.rule}" if entry.rule else "",
        f"to={entry.dialled}" if entry.dialled else "",
        f"up={entry.bytes_up} down={entry.bytes_down}" if entry.bytes_up or entry.bytes_down else "",
        f"{entry.duration_ms:.0f}ms" if entry.duration_ms else "",
        f"session={entry.session}" if entry.session else "",
        f"call={entry.call}" if entry.call else "",
        f"({entry.detail})" if entry.detail else "",
        f"[{entry.id}]",
    ]
    # A log that somebody tampered with may hold anything: it is shown, never obeyed.
    return _visible(" ".join(part for part in parts if part))


def entry_lines(entry: Entry | Checkpoint) -> Iterator[str]:
    """One record, a field a line."""
    for name in entry.__struct_fields__:
        value = getattr(entry, name)
        if value not in ("", 0, None):
            yield _visible(f"  {name:12} {value}")


def neighbourhood_lines(found: Neighbourhood) -> Iterator[str]:
    """One record with the lines around it and what their hashes prove."""
    yield f"record {_visible(found.entry.id)} in {found.file} at byte {found.line_offset}"
    yield from entry_lines(found.entry)
    before = _visible(found.previous.id) if found.previous else "the start of the log"
    yield f"after {before}: {_holds(found.linked)}"
    if found.next is None:
        yield "before: nothing yet"
        return
    yield f"before {_visible(found.next.id)}: {_holds(found.next_linked is not False)}"


def summary_lines(rows: list[SummaryRow]) -> Iterator[str]:
    """A table per session."""
    if not rows:
        yield "no records"
        return
    width = min(60, max(len(row.host) for row in rows))
    session: str | None = None
    for row in rows:
        if row.session != session:
            session = row.session
            yield f"session {_visible(session) or '(none)'}"
            yield f"  {'host':{width}} {'allowed':>8} {'denied':>8} {'failed':>8} {'up':>10} {'down':>10}  first … last"
        counts = (
            f"{row.allowed:8} {row.denied:8} {row.failures:8} {_size(row.bytes_up):>10} {_size(row.bytes_down):>10}"
        )
        yield f"  {_visible(row.host):{width}} {counts}  {_moment(row.first)} … {_moment(row.last)}"


def report_lines(report: Report, unsigned: list[str], *, absent: Sequence[str] = ()) -> Iterator[str]:
    """What the verifier found, one fault a line, then the sum."""
    for finding in report.findings:
        place = f"{finding.file}:{finding.line}: " if finding.file else ""
        yield _visible(f"{place}{finding.fault}: {finding.detail}")
    for log in unsigned:
        yield f"log {log}: unsigned: no signed checkpoint covers its end"
    for log in absent:
        yield f"log {log}: gone: a log that began after it names it"
    for note in report.notes:
        yield f"note: {note}"
    files = sum(log.files for log in report.logs)
    faults = len(report.findings) + len(unsigned) + len(absent)
    outcome = "nothing is wrong" if not faults else f"{faults} fault{'s' if faults > 1 else ''}"
    yield f"{report.records} lines in {files} files of {len(report.logs)} logs: {outcome}"


def _holds(linked: bool) -> str:
    return "the hash follows" if linked else "THE HASH DOES NOT FOLLOW: one of the two was changed"


def _asked(entry: Entry) -> str:
    target = f"{entry.scheme}://{entry.authority}{entry.path}" if entry.scheme else entry.authority + entry.path
    asked = f"{entry.method} {target}".strip() or entry.wanted
    return f"{entry.plane} {asked}".strip()


def _visible(text: str) -> str:
    """Make the rest of what a terminal would obey visible; what was escaped once stays as it is."""
    return text if text.isprintable() else escape(text.replace("\\", "\0"), _WIDE).replace("\\x00", "\\")


def _moment(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _size(count: int) -> str:
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"
