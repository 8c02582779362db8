"""One module a foreign format: importers read it, exporters write it."""
