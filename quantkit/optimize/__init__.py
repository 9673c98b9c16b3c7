"""Search for the fastest file, runtime and settings inside an accuracy bound, and folders of servers."""
