"""A judged log told: for people (document), for programs (json_report)."""

__all__ = ["comparison", "document", "json_report"]
