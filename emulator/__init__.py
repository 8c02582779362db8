"""How long a workload takes on a described machine, and why."""
