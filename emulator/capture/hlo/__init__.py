"""HLO modules of XLA as captured operations."""
