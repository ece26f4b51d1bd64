"""Web: tasks on pages in a real headless Chromium, seen as an accessibility tree."""
