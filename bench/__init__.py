"""The bench: the product against what people would pick instead, in one run, by one command (scripts/bench).

    origins    nginx, greetings, raw streams      load      the client, also as a sandbox's payload
    subjects   what is measured, and how          peers     Squid, tinyproxy, HAProxy      ours    wicketgate run
    inspecting the peers that look into TLS       sandbox_runtime    an optional peer, by npm
    measures   what is asked of each              accounting, processes    /proc, cores, start and end
    results    medians, ratios, goals             report    tables and JSON      interpreter    which Python it was
    curves     cost against sandboxes, tunnels, rules, records    sessions, policy, audit    what they measure
    soak       churn and what of it grows         churn     its acts      watch     a look at the daemons
    fits       exponents and slopes               page, plots    the page of the documentation

Only ratios within one run mean something, and only on a machine that does nothing else meanwhile.
"""
