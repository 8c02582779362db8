"""From operations of a Workload to tasks on engines and DMA queues."""
