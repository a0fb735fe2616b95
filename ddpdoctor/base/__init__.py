"""Tools for every room: findings, others' text, time limits, signals, files of others. It knows no subject.

Nothing of ddpdoctor is imported here but this room.
"""
