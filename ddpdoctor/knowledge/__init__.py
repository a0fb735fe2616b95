"""Knowledge that is there before any host is looked at: tables with their source, and pure rules over facts that checks share.

In come facts; out go names, classes and sentences about them. What one subject alone uses lives with it.
"""
