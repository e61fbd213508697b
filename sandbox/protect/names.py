"""Which names are protected, and how strictly. Tables only.

Names are compared without case: a case-folding file system would take `.GIT` for `.git`.
"""

# Tools act on these as soon as a directory is entered or opened, without a question worth the name. At the top of the
# workspace they are held from the start of a session, so that there is no moment at which they can be made.
HELD = (".git", ".vscode", ".idea", ".envrc", ".husky", ".devcontainer", ".zed", ".claude", ".cursor", ".mcp.json")

# Made by a payload they are set aside when the session ends; existing ones are read-only during it. HELD names below
# the top of the workspace are treated so, too.
SET_ASIDE = frozenset(
    {
        *HELD,
        *(".env", ".netrc", ".npmrc", ".pypirc", ".git-credentials", ".gitconfig", ".docker", ".aws", ".ssh", ".kube"),
        *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".zshrc", ".zshenv", ".zprofile"),
        *(".zlogin", ".zlogout", ".kshrc", ".inputrc", ".exrc", ".vimrc", ".nvimrc", ".nvim.lua", ".lvimrc", ".gvimrc"),
        *(".dir-locals.el", ".dir-locals-2.el", ".gdbinit", ".lldbinit", ".vs", ".fleet", ".run", ".direnv"),
        *(".mise.toml", "mise.toml", ".rtx.toml", ".autoenv", ".autoenv.zsh", ".tmux.conf", ".pdbrc", ".irbrc"),
    }
) - {".git"}

# Inside a git directory: read-only when they exist. The rest (objects, refs, logs, index, HEAD …) is what a commit
# writes and nothing that git executes.
GIT_FROZEN = ("config", "config.worktree", "hooks", "info", "commondir", "gitdir")
# Held in an existing git directory when absent: git makes both itself, and ignores them when empty.
GIT_HELD = ("hooks", "info")
# Trees that package tools fill and empty: names in them are other people's leftovers, nobody opens them as a project,
# and a frozen one would keep a tool from removing the tree. Repositories in them are looked at all the same.
DEPENDENCY_TREES = frozenset(
    {
        *("node_modules", "bower_components", ".pnpm-store", ".yarn", ".venv", "venv", "site-packages", ".tox", ".nox"),
        *("target", "dist", "build", "__pycache__", ".cache", ".gradle", ".m2", ".cargo", "vendor"),
    }
)


def is_git(name: str) -> bool:
    """Whether a directory entry is what git looks for in a working tree."""
    return name.casefold() == ".git"


def is_set_aside(name: str) -> bool:
    """Whether a new entry of this name is set aside at the end of a session."""
    return name.casefold() in SET_ASIDE


def in_dependency_tree(path: str) -> bool:
    """Whether a path lies in a tree of installed or built files."""
    return not DEPENDENCY_TREES.isdisjoint(path.split("/"))


def looks_like_git_directory(names: frozenset[str]) -> bool:
    """Whether git would take a directory with these entries for a repository (`is_git_directory` in its setup.c).

    A bare repository needs no particular name: entering the directory is enough.
    """
    return "HEAD" in names and ("commondir" in names or {"objects", "refs"} <= names)
