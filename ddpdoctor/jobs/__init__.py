"""Looking into running training jobs: where their ranks stand, and what they have recorded."""
