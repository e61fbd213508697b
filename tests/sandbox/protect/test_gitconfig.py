"""What of a git configuration is kept: never anything that names a program, whatever its shape."""

import pytest

from sandbox.protect.gitconfig import harmless, is_harmless

ORDINARY = (
    "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n"
    '[remote "origin"]\n\turl = https://example.com/a/b.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n'
    '[branch "main"]\n\tremote = origin\n\tmerge = refs/heads/main\n'
    "[user]\n\tname = A. Person\n\temail = a@example.com\n"
)


def test_an_ordinary_configuration_is_kept_as_it_is() -> None:
    assert harmless(ORDINARY) == ORDINARY
    assert is_harmless(ORDINARY)
    assert is_harmless("# a comment\n\n" + ORDINARY)


DANGEROUS = [
    "[core]\n\tfsmonitor = ./x",
    "[core]\n\tFsMonitor=./x",
    "[CORE]\n\thooksPath = .",
    "[core] fsmonitor = ./x",
    "[core]\n\tworktree = /home/a",
    "[core]\n\tsshCommand = x",
    "[core]\n\tpager = x",
    "[core]\n\teditor = x",
    "[core]\n\tattributesFile = x",
    "[alias]\n\tst = !x",
    '[filter "x"]\n\tclean = x',
    '[diff "x"]\n\ttextconv = x',
    '[merge "x"]\n\tdriver = x %A',
    "[credential]\n\thelper = !x",
    "[include]\n\tpath = x",
    '[includeIf "gitdir:/"]\n\tpath = x',
    '[url "ext::x"]\n\tinsteadOf = https://',
    '[remote "origin"]\n\turl = ext::sh -c x',
    '[remote "origin"]\n\turl = file:///x',
    '[remote "origin"]\n\turl = ../x',
    '[remote "origin"]\n\turl = ssh://-oProxyCommand=x/y',
    '[remote "origin"]\n\turl = -oProxyCommand=x:y',
    '[remote "origin"]\n\turl = ssh://a@-oProxyCommand=x/y',
    '[remote "origin"]\n\turl = a@-oProxyCommand=x:y',
    '[branch "main"]\n\tremote = ../x',
    '[branch "main"]\n\tremote = -x',
    '[remote "origin"]\n\tuploadpack = x',
    '[remote "origin"]\n\tvcs = x',
    '[gpg "ssh"]\n\tprogram = x',
    "[gpg]\n\tprogram = x",
    '[submodule "x"]\n\tupdate = !x',
    "[extensions]\n\tworktreeConfig = true",
    "[extensions]\n\tpartialClone = x",
    "[sequence]\n\teditor = x",
    "[interactive]\n\tdiffFilter = x",
    "[user]\n\tname = a\\\n[core]\n\tfsmonitor=x",
    "[user]\n\tname = a\\\n b",
    '[user]\n\tname = "a" ; x',
    "[user]\r[core]\n\tfsmonitor = x",
    '[user "\\\n"]\n\tname = x',
    "name = x",
    "[core]\n\tfilemode",
    "[core]\n\tfilemode = maybe",
    "[user]\n\tname = a\x0b[core]",
    "\ufeff[core]\n\tfsmonitor = x",
]


@pytest.mark.parametrize("text", DANGEROUS)
def test_what_could_run_something_is_dropped(text: str) -> None:
    assert not is_harmless(text)
    kept = harmless(ORDINARY + text)
    assert is_harmless(kept)
    assert "x" not in kept.replace("example", "").replace("refs", "") or "fsmonitor" not in kept


@pytest.mark.parametrize("text", DANGEROUS)
def test_the_owners_own_lines_stay_and_others_do_not_join_them(text: str) -> None:
    known = '[alias]\n\tmine = !true \\\n&& x\n[filter "lfs"]\n\tclean = git-lfs clean\n'
    assert is_harmless(known + ORDINARY, known)
    assert not is_harmless(known + text, known)
    assert not is_harmless('[filter "other"]\n\tclean = git-lfs clean\n', known)


def test_a_continued_line_of_the_owner_cannot_be_extended() -> None:
    known = "[user]\n\tname = a\n[alias]\n\tmine = !true\n"
    assert not is_harmless("[user]\n\tname = a\n[alias]\n\tmine = !true \\\n\tname = b\n", known)
