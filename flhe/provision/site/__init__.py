"""A site's part: its identity and directories, its card out, the federation's file in."""
