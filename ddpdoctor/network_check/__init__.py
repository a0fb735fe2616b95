"""Why the ranks don't meet: a small hub on the job's real port, agents on every node, and the phases they go through."""
