"""The process that forks for a runner: small, so that a start need not copy the tables of the runner's memory.

It is started before the runner serves (`start`), does what it is told over a channel (`messages`), one thing after the
other, and knows nothing of what it starts (`process`). What it forks are children of the runner, its own parent
(CLONE_PARENT), and of the runner's thread that started it: that one waits for them, and they end with it. It is in the
runner's pid namespace, so it ends with the runner; and a runner without it starts nothing more, so it ends, too.

Processes that it forked wait for what comes next (`waiting`): one for the next sandbox, the first one of a pid
namespace, with mounts of its own, known to the keeper; and some for a further command of an open session. Each knows
nothing before it is told, serves that one thing, and ends with the runner.

`orders` is the runner's side. The process is an interpreter of its own, with little loaded: `process`, `waiting` and
`messages` load no library. Where the serving user may not read the interpreter's files, it is a copy of the runner: the
same, but slower.
"""
