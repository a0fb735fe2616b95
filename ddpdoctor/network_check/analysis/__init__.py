"""From what the nodes found out to verdicts and advice. Pure: nothing here looks at the world."""
