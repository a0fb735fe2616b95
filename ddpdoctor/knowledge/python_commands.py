"""Command lines that run in the target Python, and nowhere else. Pure."""

from __future__ import annotations

import shlex

from ddpdoctor.facts.patient import Patient


def in_patient(patient: Patient, *arguments: str) -> str:
    """A command line that runs in the patient: `in_patient(p, "-c", "import torch")`, quoted for a shell."""
    return shlex.join([patient.python, *arguments])


def pip_install(patient: Patient, *arguments: str) -> str:
    """The command that installs into the patient, and nowhere else."""
    return in_patient(patient, "-m", "pip", "install", *arguments)
