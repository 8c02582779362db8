"""What does a report say beyond its first screen? One module a section: frames of the analyzers as tables with units."""
