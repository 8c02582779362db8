"""What a trace means: one question a module, polars in, frames out."""
