"""What a trace is; how it is written, read, merged, imported and exported."""
