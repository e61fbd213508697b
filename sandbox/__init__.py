"""The process core: one construction path, `SandboxSpec → plan → arguments → launch`.

spec.py      what is asked (call) and what is allowed (authority): two types that never mix
plan.py      the ordered list of mounts, files and variables a sandbox consists of (pure)
argv.py      the plan as bubblewrap arguments (pure)
environ.py   the closed list of environment variables (pure)
host.py      what this host has: bubblewrap, its trust, the directories that a plan may show
launch.py    the only module that starts a sandboxed process
supervise.py waiting for it: signals, timeouts, exit codes
"""
