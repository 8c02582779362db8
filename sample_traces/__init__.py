"""Small recorded traces and the script that regenerates them."""
