"""What a reviewer does with the log: suggest rules, replay a changed policy; pure, by the policy's own code. Pages too.

suggest.py      records → the smallest rules that would have allowed what was refused
  refusals.py   which records show a refusal, and whether a rule could open it
  gather.py     what was asked of which host, in bounded memory (targets.py: paths and queries as patterns)
  draft.py      rules in the making, joined where nothing is added by it
  fit.py        does a draft load, stand beside the policy, and allow?
  rule_text.py  rules and comments as TOML
replay.py       records and a policy → what it would have changed
  fate.py       what one record comes to
  hidden.py     verdicts on what the log hides a part of
asked.py        a record back to the question that `decide` takes; judging.py asks it as the broker does
page/           the log as pages for people
"""
