#!/bin/sh
# Slurm's Epilog: ends what the job has left behind, and drains this node if it fails.
# Slurm gives it neither PATH nor HOME. Where ddpdoctor is missing, that is no reason to take the node out.
doctor=/opt/ddpdoctor/bin/ddpdoctor
if [ ! -x "$doctor" ]; then
    echo "$doctor is not there; nothing was checked" >&2
    exit 0
fi
"$doctor" gate --for slurm-epilog --quick --kill --drain
# 1 is its verdict. All else says that ddpdoctor itself is broken, and not the node.
[ $? -ne 1 ] || exit 1
exit 0
