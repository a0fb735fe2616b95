"""Knowledge that is there before any host is looked at: tables with their source, and pure rules over facts that checks share.

In come facts; out go names, classes and sentences about them. What one subject alone uses lives with it.
"""

__all__ = [
    "accelerate",
    "building",
    "cuda_stack",
    "evidence",
    "firewall_fixes",
    "frameworks",
    "gpu_assignment",
    "hang_causes",
    "hostlist",
    "installing",
    "interface_choice",
    "job_intent",
    "known_settings",
    "launchers",
    "log_topics",
    "netcheck_command",
    "network_fixes",
    "node_words",
    "nvidia",
    "privileges",
    "python_commands",
    "segment_names",
    "settings_agreement",
    "shadowed_modules",
    "stuck_driver",
    "torch_frames",
    "version_agreement",
    "wheels",
    "xids",
]
