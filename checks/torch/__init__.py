"""torch: installed, loadable, and built for this host."""
