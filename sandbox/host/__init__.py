"""Host facilities: cgroups, seccomp filters, user ids, process tags."""
