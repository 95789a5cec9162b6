"""The files by which others reach a lab: its inventory, ssh_config and known_hosts."""

from collections.abc import Mapping
from pathlib import Path

from chaoskit.lab.plan import PLANES, LabPlan, NodePlan
from chaoskit.lab.rootfs import ACCOUNT, MOUNT, TOOLS, TRAINING_LOGS

CHECKPOINT_EVERY = 25
"""Steps from one checkpoint to the next."""

COMPUTE_EVERY = 20
COMPUTE = ', --compute, "360", --gpu-share, "0.75", --hidden, "32", --layers, "1"'
"""
Steps of a fixed amount of work, some 60 ms of processor time, and of hardly any communication. Less work would let what is
not computation weigh; more would make every window, which has 20 steps at least, longer. It takes three quarters of what the
GPU might have of the machine: with all of it a look at the GPU already costs the training its pace, with half of it and some
load beside it a clock of 2/3 was felt as 1.35.
"""

HEADER = """\
# yaml-language-server: $schema={schema}
# The embedded lab {name!r} with {workers} training nodes: `chaoskit lab up` makes it. Addresses come from its ssh_config.
"""

SITE = """\
name: {name}
allow: lab # the nodes are ours: they need no /etc/chaoskit/allow
ssh:
  user: {account}
  config: {state}/ssh_config
  key: {state}/id_ed25519
  known_hosts: [{state}/known_hosts]
nodes:
"""

WORKER = """\
  {node}:
    group: workers
    gpus: 1
    gpu_clocks: default
    rails: [{rails}]
    mounts: [{mount}]
    machine_id: {machine_id}
    python: {tools}/bin/python
"""

STORE = """\
  {node}:
    group: storage
    machine_id: {machine_id}
    python: {tools}/bin/python
protected: [{node}]
price_per_gpu_hour: 2.40
trainings:
"""

# The rendezvous notices a dead node by its keep-alives: 3 missed ones of 2 s each.
TRAINING = """\
  {training}: # {about}
    launcher: torchrun
    interface: {interface}
    python: {tools}/bin/python
    argv: [{tools}/trainer.py, --checkpoints, "{mount}/{{run}}", --every, "{every}", --truth, "{logs}/truth/{{run}}"{options}]
    log: "{logs}/{{run}}.log"
    format: chaoskit
    checkpoints: {{dir: "{mount}/{{run}}", every: {every}}}
    env: {{TORCH_DISABLE_SHARE_RDZV_TCP_STORE: "1", OMP_NUM_THREADS: "1"}}
    rdzv_conf: {{keep_alive_interval: "2", keep_alive_max_attempt: "3"}}
"""

TRAININGS = {
    "default": ("fab0", CHECKPOINT_EVERY, "", "sprayed over both planes; communication is most of a step"),
    "rail_a": ("rail0", CHECKPOINT_EVERY, "", "bound to the rail of plane A, so that losing plane B proves nothing"),
    "compute": ("fab0", COMPUTE_EVERY, COMPUTE, "computation is nearly all of a step, as slow as the slowest GPU"),
}
"""Training -> its network device, steps from one checkpoint to the next, further options, and what it is for."""

SSH_CONFIG = """\
Host {node}
  HostName {address}
"""

SSH_COMMON = """\
Host *
  User {account}
  Port 22
  IdentityFile {state}/id_ed25519
  IdentitiesOnly yes
  UserKnownHostsFile {state}/known_hosts
  GlobalKnownHostsFile none
  StrictHostKeyChecking yes
  UpdateHostKeys no
  ConnectTimeout 5
  LogLevel ERROR
"""


def inventory_text(plan: LabPlan, schema: str) -> str:
    """Return the lab's inventory file; `schema` is where its JSON schema lies."""
    facts = {"account": ACCOUNT, "mount": MOUNT, "tools": TOOLS, "logs": TRAINING_LOGS, "state": plan.state_dir}
    parts = [HEADER.format(schema=schema, name=plan.name, workers=plan.workers), SITE.format(name=plan.name, **facts)]
    parts += [_node_text(node, facts) for node in plan.nodes]
    parts += [
        TRAINING.format(training=training, interface=interface, every=every, options=options, about=about, **facts)
        for training, (interface, every, options, about) in TRAININGS.items()
    ]
    return "".join(parts)


def _node_text(node: NodePlan, facts: Mapping[str, object]) -> str:
    rails = ", ".join(f"{{netdev: {rail}, plane: {plane}}}" for rail, plane in PLANES.items())
    form = WORKER if node.group == "workers" else STORE
    return form.format(node=node.name, machine_id=node.machine_id, rails=rails, **facts)


def ssh_config_text(plan: LabPlan) -> str:
    """Return an ssh_config that reaches every node by its name."""
    hosts = [SSH_CONFIG.format(node=node.name, address=plan.address(node, "mgmt0")) for node in plan.nodes]
    return "".join([*hosts, SSH_COMMON.format(account=ACCOUNT, state=plan.state_dir)])


def known_hosts_text(plan: LabPlan, host_keys: Mapping[str, str]) -> str:
    """Return the known_hosts lines: each node by its name and by its address."""
    return "".join(f"{node.name},{plan.address(node, 'mgmt0')} {host_keys[node.name].strip()}\n" for node in plan.nodes)


def write_files(plan: LabPlan, host_keys: Mapping[str, str]) -> None:
    """Write the three files into the lab's state folder."""
    schema = Path(__file__).resolve().parent.parent / "model" / "inventory.schema.json"
    texts = {
        "inventory.yaml": inventory_text(plan, str(schema)),
        "ssh_config": ssh_config_text(plan),
        "known_hosts": known_hosts_text(plan, host_keys),
    }
    for name, text in texts.items():
        (plan.state_dir / name).write_text(text, encoding="utf-8")
