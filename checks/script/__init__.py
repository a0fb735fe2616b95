"""Mistakes of training scripts, seen in their source before anything runs: `ddpdoctor lint`.

How a rule is added: docs/contributing/adding-a-script-rule.md.
"""
