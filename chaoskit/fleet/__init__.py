"""
Reaching nodes over SSH: resolve, check the host key, log in, push the agent, hold its channel, map its clock.

`fleet.SshFleet` is the door; the other modules each hold one step of the way, in this order: `ssh_options`, `offers`,
`proxy`, `known_hosts`, `host_keys`, `keys`, `link`, `connection`, `push`, `channel`, `clocks`, `agent_client`. `trust` looks at
host keys that are not known yet, and `known_hosts_file` writes them down.
"""
