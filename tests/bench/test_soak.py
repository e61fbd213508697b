"""What a soak calls a leak; and a process that really leaks is seen by the watch."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from bench.page import write_page
from bench.soak import Soak, as_document, pictures
from bench.watch import DaemonEndedError, Figures, Watch
from tests.live.runs import until

LEAKS = textwrap.dedent(
    """
    import os, sys, threading
    kept = []
    for line in sys.stdin:
        kept.append(os.open("/dev/null", os.O_RDONLY))
        kept.append(os.pipe())
        if line == "thread\\n":
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        if line == "child\\n":
            os.fork() or (os.read(0, 1), os._exit(0))
        print("done", flush=True)
    """
)


def soaked(figures: dict[str, list[float]], *, warm: int = 5) -> Soak:
    seen = Soak(warm=warm)
    for at, values in enumerate(zip(*figures.values(), strict=True)):
        seen.add(float(at), dict(zip(figures, values, strict=True)))
    return seen


def test_only_what_grows_beyond_its_allowance_after_the_warm_part_leaks() -> None:
    count = 40
    seen = soaked(
        {
            "runner: descriptors": [20 + at / 2 for at in range(count)],
            "broker: descriptors": [20.0 + 30 * (at > 4) for at in range(count)],
            "broker: threads": [4.0 + at % 2 for at in range(count)],
            "namespaces: net": [3.0 + at // 4 for at in range(count)],
            "bytes in the log": [1e6 * at for at in range(count)],
        }
    )
    assert {one.name for one in seen.verdicts() if one.leaks} == {"runner: descriptors", "namespaces: net"}
    assert len(seen.troubles) == 2
    document = as_document(seen)
    assert {one["name"] for one in document["verdicts"] if one["leaks"]} == {"runner: descriptors", "namespaces: net"}
    assert set(pictures(document)) == {"soak-descriptors", "soak-threads", "soak-namespaces"}


def test_the_page_tells_what_leaks(tmp_path: Path) -> None:
    count = 40
    seen = soaked(
        {
            "runner: descriptors": [20 + at / 2 for at in range(count)],
            "broker: descriptors": [20.0] * count,
            "bytes in the log": [1e6 * at for at in range(count)],
        }
    )
    about = {"machine": {"cpu": "p", "cores": 2, "kernel": "6"}, "python": "3", "rounds": 1, "seconds": 1.0}
    document = {"about": {**about, "load_after": (0, 0, 0), "versions": {}}, "measures": {}, "soak": as_document(seen)}
    page, *plots = write_page(document, tmp_path / "performance.md")
    text = page.read_text()
    assert "| runner: descriptors | 31.0 | 17.0 | 17.0 … 17.0 | 3 | **leaks** |" in text
    assert "| broker: descriptors | 20.0 | 0 | 0 … 0 | 3 | flat |" in text
    assert "bytes in the log" not in text
    assert {plot.name for plot in plots} == {"soak-descriptors.svg"}


def test_too_few_samples_are_no_verdict_and_no_success() -> None:
    assert "too few" in soaked({"broker: descriptors": [1.0] * 6}).troubles[0]


def test_a_failed_act_and_a_process_that_stays_are_troubles() -> None:
    seen = soaked({"broker: descriptors": [1.0] * 20})
    assert seen.troubles == []
    seen.failures.append("act: it broke")
    seen.unquiet = 1
    assert len(seen.troubles) == 2


def test_the_watch_sees_descriptors_threads_children_and_files(tmp_path: Path) -> None:
    def tell(word: str) -> Figures:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{word}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        return watch.sample()

    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-I", "-c", LEAKS], **pipes) as process:  # type: ignore[call-overload]
        until(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes().count(b"import os") or None)
        watch = Watch({"daemon": process.pid}, {"here": tmp_path})
        assert watch.is_quiet()
        first = tell("once")
        second = tell("twice")
        assert second["daemon: descriptors"] == first["daemon: descriptors"] + 3
        assert tell("thread")["daemon: threads"] == second["daemon: threads"] + 1
        (tmp_path / "left").write_bytes(b"x" * 100)
        last = tell("child")
        assert last["daemon: children"] == second["daemon: children"] + 1
        assert last["processes"] == second["processes"] + 1
        assert not watch.is_quiet()
        assert (last["files in here"], last["bytes in here"]) == (1, 100)
        process.kill()
        process.wait()
        with pytest.raises(DaemonEndedError, match="daemon"):
            watch.sample()
