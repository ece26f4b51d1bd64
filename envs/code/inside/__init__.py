"""Programs that run inside a box. They use the standard library only and import nothing of ours."""
