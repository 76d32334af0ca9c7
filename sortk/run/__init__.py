"""Everything about running stages: nothing in here knows about speech."""
