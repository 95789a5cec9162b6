"""
chaoskit: break a live training run over SSH, and judge how it recovers. This is its design page.

**What it does.** An *experiment* (a YAML file) says: given a live training run in steady state, inject these *faults* on
these nodes, at these moments; then judge the run against *budgets*: how long until training moved again, how many steps
were lost, what it cost. The result is a verdict that a person can read and that CI can act on.

**Layers.** Imports point downward only; `lint-imports` keeps it so.

    cli  pytest_plugin      read input, show the result
    scripting               experiments in Python: what the pytest fixtures give
    wiring                  one experiment file to one run with its artefacts
    lab                     the embedded cluster: real SSH hosts on one machine
    report                  a verdict for the terminal, JUnit, JSON
    engine                  plan, run, guard, journal: the one loop that injects and always reverts
    fleet  training         reaching nodes over SSH  |  launching and watching the run under test
    judge                   pure: what was observed to a verdict; its docstring defines every number
    model                   pure: what users write, as frozen types, and YAML to types with line numbers
    testing                 the conformance check that any fault must pass
    faults                  one file a fault          } standard library only, Python 3.8:
    agent                   what runs on the nodes    } shipped to them as one zipapp
    errors                  the exception tree, drawn in its docstring

**The path of one experiment**, left to right, nothing runs back:
`YAML -> model -> plan -> engine -> fleet -> agent and faults on the node`, and
`training's log -> samples -> timeline -> judge -> verdict -> report`.

**What holds everywhere, and why.**

* The undo is durable before the harm: in the node's ledger and in the controller's journal, both fsynced. A crash at any
  point leaves something that `chaoskit heal` can pay.
* A lease is armed before a fault begins. Without word from the controller the node heals itself; a fuse process does it
  when the agent itself is dead. No clean-up depends on the process that did the harm.
* Nothing passes for want of data. A fault that was not proven present, not exposed to the training, or not proven gone
  cannot give a green verdict, and neither can an observer who was blind.
* The journal is written first; every report is derived from it. `chaoskit report` works on a crashed run.
* Text from a node is data: never a path, an argument, a template, markup or a CI command.
* The judge is pure, the engine sees nodes and training through Protocols, faults are plain dataclasses whose file is what
  runs on the node. So each is tested without the others, and the lab tests them together on real links and real kills.

**Out of scope**, with the reason:

* A daemon on the nodes, a listening port, a server with an API: clean-up code that anybody can call is attack surface.
* Random chaos in production without a plan: every run has a seed, a blast radius and a plan that can be read first.
* Scores: an outcome is one of five words, and a missing figure is said to be missing.
* Replacing monitoring: chaoskit measures one run around its faults, and nothing before or after.
"""

__version__ = "0.1.0"
