"""What people and machines read of a run: the terminal, JUnit, a JSON summary. Written from a verdict; never judges."""
