"""Knowledge from before any host is looked at: tables with their source, and pure rules over facts that checks share."""
