"""What every room may use: findings, others' text, deadlines, signals, files of others. It knows no subject.

Nothing of ddpdoctor is imported here but this room.
"""
