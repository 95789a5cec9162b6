"""
The engine: plan, run, guard, journal. One loop that injects and always reverts.

`plan` is pure; `run` drives nodes and training through the Protocols of `ports`; `journal` is written first and
everything that a report shows is derived from it.
"""
