"""How do Chakra execution traces become workloads, and workloads execution traces?"""
