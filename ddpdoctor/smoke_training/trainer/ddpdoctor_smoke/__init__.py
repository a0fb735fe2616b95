"""The ranks' side of `ddpdoctor smoke`: standard library and the target Python's torch (1.13 or later) only, Python >= 3.8."""
