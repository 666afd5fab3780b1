"""The tools that work on recordings: replay, audit, explain, diff, export, what-if. See `docs/recordings.md`."""
