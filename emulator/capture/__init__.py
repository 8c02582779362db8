"""Front ends: one module a framework, each makes a Workload."""
