"""From what a log says to a cause: failures, their order, ranks and verdict. Pure."""
