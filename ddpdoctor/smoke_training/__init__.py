"""A reference DDP job in the target Python: started, watched, ended, and judged by the checks of the family smoke."""
