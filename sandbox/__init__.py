"""The process core: one construction path, `SandboxSpec → plan → arguments → launch`.

What a sandbox is (pure): spec.py, what is asked (call) and what is allowed (authority), two types that never mix ·
plan.py, the ordered list of mounts, files and variables · environ.py, the closed list of variables · argv.py, the plan
as bubblewrap's arguments · limits.py, what a session may use

Building one: construct.py, the order of the steps · ground.py, what all are built on · host.py, what this host has ·
guarding.py, the workspace's protection · launch.py and supplies.py, the child and the files that it is given ·
held.py, what bubblewrap is about · bounds.py, groups and limits · supervise.py, waiting for its end · errors.py

The child: births.py, what it is told · forking.py, who forks it · execution.py, what it does until it executes a
program, the only module that does · entering.py, a further command · starter/, the process that forks for a runner

Around it: workspace/, which directory it may have · protect/, what in it is protected · seccomp/ · cgroups/ ·
bridge.py, cable.py and attachment.py, the network · inherited.py, terminal.py and ownership.py, what a caller lends ·
last_words.py, what bubblewrap said · doctor/, whether all of that works here

For the daemon: live.py, a live one · runs.py, sessions.py, jobs.py and terminals.py, what is done with it ·
streams.py, output.py, joblog.py, terminal_session.py, terminal_runs.py and tmux.py, what goes in and out · census.py
and children.py, its processes · rights.py and room.py, what it may and how many · lot.py, parked.py, release.py,
show.py and next_bridge.py, what is made ahead
"""
