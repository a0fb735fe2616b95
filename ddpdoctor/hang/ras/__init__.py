"""NCCL's RAS, a thread of each rank: whether it may be asked, the conversation with it, and its answer as JSON or text."""
