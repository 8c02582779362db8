"""One TOML file a system; see emulator/system_files.py."""
