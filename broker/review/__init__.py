"""What a reviewer does with the log: suggest rules, replay a changed policy. Pure, by the policy's own code.

suggestion.py   the values of a suggestion
suggest.py      records → the smallest rules that would have allowed what was refused
replay.py       records and a policy → what it would have changed
"""
