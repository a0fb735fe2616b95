"""From bytes to lines, labels, times, tracebacks and exits. Judges nothing."""
