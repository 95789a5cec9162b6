"""
The command line. One module a command or two; each imports what it needs only when it runs.

`--help`, `faults` and `plan` load neither SSH nor torch nor rich: a test reads `sys.modules`, a benchmark the clock.
"""
