"""The phases of the test, one module a step: meeting the hub, dialling the peers, measuring links, torch's store and collectives."""
