"""One TOML file a system; see emulator/system.py."""
