"""Seeds mistakes into public training scripts, one at a time, and asks whether `lint` sees them.

The mutators read the scripts by themselves, by names and words alone, and know nothing of what lint follows: what lint can't follow counts as
missed. Each seeds its mistake only where it is one; where something in the script may excuse it, none is made.

python -m tests.script_mutations FOLDER                 the open scripts: each miss with its cause, then a table by rule
python -m tests.script_mutations FOLDER --index NAME    those of another index; of what may not be looked at only the table
"""
