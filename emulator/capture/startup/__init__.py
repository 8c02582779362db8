"""The folder that the launcher puts first on the path of the program; nothing imports it as a package."""
