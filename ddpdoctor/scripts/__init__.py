"""Training scripts: read, and followed through the files of their own project, without running anything: `ddpdoctor lint`.

In come paths; out go the facts of each script (`ddpdoctor/facts/script.py`), by which the checks of checks/script/ judge, and the report.
"""

__all__ = [
    "collecting",
    "edits",
    "explaining",
    "judging",
    "named_paths",
    "places",
    "project",
    "project_settings",
    "reading",
    "render",
    "render_json",
    "render_lines",
    "render_sarif",
    "rewriting",
    "run_script",
    "source_text",
]
