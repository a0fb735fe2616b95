"""What was known before any host was looked at: tables with their source, and pure rules over facts that checks share."""
