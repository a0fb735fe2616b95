"""This host's names, addresses, ports and interfaces."""
