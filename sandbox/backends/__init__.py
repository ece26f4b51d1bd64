"""The sandboxes by name: bubblewrap, Docker, a plain subprocess, none."""
