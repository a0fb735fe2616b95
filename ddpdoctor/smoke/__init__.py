"""A reference DDP job in the patient's Python: started, watched, ended, and judged by the checks of the family smoke."""
